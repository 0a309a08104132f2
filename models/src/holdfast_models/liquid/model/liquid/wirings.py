"""Sparse wirings of neural circuit policies: sensory -> inter -> command -> motor neurons."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from holdfast import HoldfastError


class Wiring(NamedTuple):
    """Polarities, 1 or -1 where there is a synapse and 0 elsewhere, (from, to)."""

    sensory: Tensor  # inputs to inter neurons
    inter: Tensor  # inter to command neurons
    recurrent: Tensor  # command to command neurons
    motor: Tensor  # command to motor neurons

    @property
    def sizes(self) -> tuple[int, int, int]:
        """Inter, command and motor neurons."""
        return self.sensory.shape[1], self.inter.shape[1], self.motor.shape[1]

    @property
    def units(self) -> int:
        """All neurons; their number is the width of a state."""
        return sum(self.sizes)

    def adjacency(self) -> tuple[Tensor, Tensor]:
        """Sensory (inputs, units) and recurrent (units, units) polarities; motor neurons first."""
        _, command, motor = self.sizes
        sensory = torch.zeros(self.sensory.shape[0], self.units)
        inter, command = slice(motor + command, None), slice(motor, motor + command)
        sensory[:, inter] = self.sensory
        between = torch.zeros(self.units, self.units)
        between[inter, command] = self.inter
        between[command, command] = self.recurrent
        between[command, :motor] = self.motor
        return sensory, between


def ncp_units(outputs: int) -> int:
    """Neurons for so many outputs: enough that the command layer is no bottleneck."""
    return max(outputs + 3, math.ceil(1.75 * outputs))


def ncp_wiring(
    inputs: int, outputs: int, units: int | None = None, density: float = 0.5, seed: int = 0
) -> Wiring:
    """Random wiring in which every neuron has a synapse in; the same for the same ``seed``."""
    units = ncp_units(outputs) if units is None else units
    if units < outputs + 3:
        raise HoldfastError(
            f"A wiring of {units} neurons has too few for {outputs} outputs; take at least "
            f"{outputs + 3}, or {ncp_units(outputs)} to have no bottleneck."
        )
    command = max(1, int(0.4 * (units - outputs)))
    inter = units - outputs - command
    generator = torch.Generator().manual_seed(seed)
    fan = max(1, int(density * command))
    recurrent = torch.zeros(command, command)
    for _ in range(max(1, int(2 * density * command))):
        source, target = torch.randint(command, (2,), generator=generator).tolist()
        recurrent[source, target] = _polarity((), generator)
    return Wiring(
        sensory=_reaching_all(inputs, inter, max(1, int(density * inter)), generator),
        inter=_reaching_all(inter, command, fan, generator),
        recurrent=recurrent,
        # Counted from the motor neurons: so many synapses come in to each of them.
        motor=_reaching_all(outputs, command, fan, generator).T.contiguous(),
    )


def _polarity(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    return torch.randint(2, shape, generator=generator) * 2.0 - 1


def _reaching_all(sources: int, targets: int, fan_out: int, generator: torch.Generator) -> Tensor:
    """``fan_out`` targets for every source, then the mean number of sources for targets without."""
    polarity = _polarity((sources, targets), generator)
    order = torch.rand(sources, targets, generator=generator).argsort(1)
    linked = torch.zeros(sources, targets, dtype=torch.bool)
    linked.scatter_(1, order[:, :fan_out], True)
    mean = min(sources, max(1, sources * fan_out // targets))
    for target in (~linked.any(0)).nonzero().flatten().tolist():
        linked[torch.randperm(sources, generator=generator)[:mean], target] = True
    return polarity * linked
