"""What a run will take, said before anything of it is built; refused where it cannot fit."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ..errors import HoldfastError
from .batch_size.memory import free_memory
from .device import Place
from .loop.step_numbers import size, span

_LONG = 15 * 60  # seconds from which a run is worth a second thought


@dataclass(frozen=True, kw_only=True)
class Forecast:
    """What a run takes by its settings alone; estimates.

    Args:
        memory: the least it can do with, in bytes of the device, by what they are for.
        fits: what to set where that is too much.
        step_seconds: of an optimizer step; None: not known.
        steps: of the optimizer, in the whole run; None: not known before the data is read.
        quicker: what to choose where it takes long.
    """

    memory: Mapping[str, float] = field(default_factory=dict[str, float])
    fits: str = ""
    step_seconds: float | None = None
    steps: int | None = None
    quicker: str = ""

    @property
    def bytes(self) -> float:
        """All of the memory."""
        return sum(self.memory.values())

    @property
    def seconds(self) -> float | None:
        """Of the whole run."""
        if self.step_seconds is None or self.steps is None:
            return None
        return self.step_seconds * self.steps

    def lines(self, place: Place) -> list[str]:
        """What it takes, for people: one line, and advice where it takes long."""
        parts = ", ".join(f"{name} {size(count)}" for name, count in self.memory.items() if count)
        said = [f"about {size(self.bytes)} of memory ({parts})"] if self.bytes else []
        if self.step_seconds is not None:
            each = f"{_short(self.step_seconds)} a step"
            if self.seconds is not None:
                each = f"{span(self.seconds)} for {self.steps} steps, {each}"
            said.insert(0, f"about {each}")
        lines = [f"forecast on {place.device}: " + "; ".join(said)] if said else []
        long = self.seconds if self.seconds is not None else 100 * (self.step_seconds or 0.0)
        if long > _LONG and self.quicker:
            lines.append(f"that is long: {self.quicker}")
        return lines


def announce(name: str, found: Forecast, place: Place, say: Callable[[str], None]) -> None:
    """Say what a run will take.

    Raises:
        HoldfastError: it needs more memory than there is.
    """
    free = free_memory(place.device)
    if found.bytes > free:
        parts = ", ".join(f"{one} {size(count)}" for one, count in found.memory.items() if count)
        raise HoldfastError(
            f"{name} needs about {size(found.bytes)} of memory ({parts}) and {place.device} has "
            f"{size(free)} free; {found.fits or 'take a smaller model or batch'}"
        )
    for line in found.lines(place):
        say(line)


def kept_bytes(forward: Callable[[], object], parameters: Iterable[Tensor]) -> int:
    """What autograd keeps of a forward pass beside the parameters; on meta tensors, too."""
    weights = {one.untyped_storage()._cdata for one in parameters}
    kept: dict[int, Tensor] = {}

    def count(tensor: Tensor) -> Tensor:
        # What several operations keep is there once; held here, so that no name comes again.
        kept[tensor.untyped_storage()._cdata] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(count, lambda tensor: tensor):
        forward()
    return sum(one.untyped_storage().nbytes() for name, one in kept.items() if name not in weights)


def step_seconds(forward: Callable[[], Iterable[Tensor]], parameters: Iterable[Tensor]) -> float:
    """Seconds of a forward and a backward pass on this CPU; no gradient is left behind."""
    wanted = [one for one in parameters if one.requires_grad]
    began = time.perf_counter()
    torch.autograd.grad([one.sum() for one in forward()], wanted, allow_unused=True)
    return time.perf_counter() - began


def _short(seconds: float) -> str:
    return span(seconds) if seconds >= 10 else f"{seconds:.2g} s"
