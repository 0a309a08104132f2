"""Flows of some samples through the lattice, step by step, on the host: what pictures show.

B samples, E teacher width, S cells, W and H the sides of the surface, N flows of the first sample,
M flows of all samples, T lattice steps that were taken.
"""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..model import loop
from ..model.carrier import scale_at
from ..model.coordinates import cells_N, denormalise
from ..model.ending import Finished
from ..model.energy_flow import EnergyFlow
from ..model.flows import NO_FLOW, Flows
from ..model.noise import Key
from ..model.settings import LatticeSettings, ModelSettings
from ..model.stepping import LatticePass

__all__ = ["Floats", "Living", "Trajectories", "record"]

Floats = NDArray[np.floating[Any]]
"""Numbers of any precision, for drawing."""

_SAMPLES = 4
# Flows that are followed at once: their states are kept for all of them.
_MOST_FLOWS = 40_000


class Living(NamedTuple):
    """Flows per sample before the first step and after each, T + 1 numbers each."""

    under_way: Floats
    low: Floats  # have reached the face z = 0
    high: Floats  # have reached the face z = depth
    died: Floats


class Trajectories(NamedTuple):
    """Where the flows went.

    Args:
        lattice: the box.
        samples: how many samples were sent.
        in_HW: energy at the start, first sample.
        out_HW: energy collected, first sample.
        in_BS: energy at the start, of all samples.
        out_BS: energy collected, of all samples.
        place_TN3: cells of the flows of the first sample, T + 1 moments; NaN before their birth.
        energy_N: their energy at the end.
        exit_N: the face they reached: 0 none, 1 z = 0, 2 z = depth.
        exits_3HW: flows per sample that ended in each cell: at z = 0, at z = depth, at neither.
        living: how many were under way at each moment.
    """

    lattice: LatticeSettings
    samples: int
    in_HW: Floats
    out_HW: Floats
    in_BS: Floats
    out_BS: Floats
    place_TN3: Floats
    energy_N: Floats
    exit_N: NDArray[np.int64]
    exits_3HW: Floats
    living: Living


def record(model: EnergyFlow, x_BE: Tensor, *, step: int = 0) -> Trajectories | None:
    """Send the first few of these embeddings through the lattice and look; None without a core.

    Without noise and dropout; the model is left as it was.

    Args:
        model: looked at where it is.
        x_BE: embeddings of the teacher, at least one.
        step: of the optimizer, which sets how far flows move.
    """
    if model.core is None:
        return None
    lattice = model.settings.lattice
    samples = min(len(x_BE), _SAMPLES, max(1, _MOST_FLOWS // lattice.cells))
    moments: list[Flows] = []
    training = model.training
    model.eval()
    try:
        with torch.no_grad():
            device = next(model.parameters()).device
            surface_BHW = model.input(x_BE[:samples].to(device)).float()
            settings = _bounded(model.settings, samples)
            lattice_pass = LatticePass(
                batch=samples,
                steps=settings.steps,
                key=Key(0, step),
                training=False,
                scale=scale_at(step, settings.carrier),
            )
            parts = model.core.parts._replace(settings=settings)
            watched = partial(loop.run_steps, visit=lambda _, flows: moments.append(_seen(flows)))
            end = loop.run(parts, lattice_pass, surface_BHW, loop=watched)
    finally:
        model.train(training)
    return _reported(moments, end, surface_BHW, lattice)


def _bounded(settings: ModelSettings, samples: int) -> ModelSettings:
    """With no more room for children than a picture needs."""
    flows = settings.flows
    room = max(_MOST_FLOWS, samples * settings.lattice.cells)
    flows = dataclasses.replace(flows, capacity=min(flows.capacity, room))
    return dataclasses.replace(settings, flows=flows)


def _seen(flows: Flows) -> Flows:
    """On the host, without the states, which are most of it."""
    bare = flows._replace(h_LNC=flows.h_LNC[:0, :0])
    return Flows(*(column.cpu() for column in bare))


def _reported(
    moments: list[Flows], end: Finished, surface_BHW: Tensor, lattice: LatticeSettings
) -> Trajectories:
    samples = surface_BHW.shape[0]
    last, first = moments[-1], int(moments[0].alive_N.sum())
    taken_TM = torch.stack([_taken(flows, first) for flows in moments])
    living = [_count(flows, taken_M) for flows, taken_M in zip(moments, taken_TM, strict=True)]
    # Rows that nobody has taken yet say sample 0 too.
    own_M = taken_TM[-1] & (last.sample_N == 0)
    place_TN3 = torch.stack([denormalise(flows.p_N3[own_M], lattice) for flows in moments])
    place_TN3 = place_TN3.where(taken_TM[:, own_M, None], torch.nan)
    sides = (lattice.height, lattice.width)
    out_BS = _array(end.surface_BS)
    return Trajectories(
        lattice=lattice,
        samples=samples,
        in_HW=_array(surface_BHW[0]),
        out_HW=out_BS[0].reshape(sides),
        in_BS=_array(surface_BHW.flatten(1)),
        out_BS=out_BS,
        place_TN3=_array(place_TN3),
        energy_N=_array(last.e_N1[own_M, 0]),
        exit_N=last.exit_N[own_M].numpy(),
        exits_3HW=_exits(last, taken_TM[-1], lattice).reshape(3, *sides) / samples,
        living=Living(*(np.stack(counts) / samples for counts in zip(*living, strict=True))),
    )


def _taken(flows: Flows, first: int) -> Tensor:
    """The rows that have a flow: the first ones, and those of children that are born."""
    return (torch.arange(len(flows.index_N)) < first) | (flows.born_N != NO_FLOW)


def _count(flows: Flows, taken_M: Tensor) -> tuple[Floats, ...]:
    low_M, high_M = flows.exit_N == 1, flows.exit_N == 2
    died_M = taken_M & ~flows.alive_N & ~low_M & ~high_M
    return tuple(_array(which_M.sum()) for which_M in (flows.alive_N, low_M, high_M, died_M))


def _exits(last: Flows, taken_M: Tensor, lattice: LatticeSettings) -> Floats:
    """Flows by the face they reached and the cell they were in, summed over samples."""
    order_M = torch.tensor((2, 0, 1))[last.exit_N]  # at neither face comes last
    known_M = taken_M & last.p_N3.isfinite().all(-1)  # what is nowhere is in no cell
    spot_M = order_M[known_M] * lattice.cells + cells_N(last.p_N3[known_M], lattice)
    return _array(torch.bincount(spot_M, minlength=3 * lattice.cells))


def _array(tensor: Tensor) -> Floats:
    return tensor.detach().float().cpu().numpy()
