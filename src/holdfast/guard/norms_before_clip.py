"""Norms of gradients from before a script clips them."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor

from ..probes.gradients import DeviceReading, NormMeters
from ..probes.host_norms import GradientReading, plain
from ..shards import local

Measured = tuple[Sequence[Tensor], Sequence[Tensor]]
"""Gradients, and the L2 norm of each as torch would compute it for clipping."""


class NormsBeforeClip:
    """Norms taken before the user's clipping, valid while nobody touches the gradients after it.

    Clipping by a norm that is not finite turns every gradient into NaN, and with it the
    evidence which layer went first.
    """

    decided: bool = False
    """Whether ``on_device`` has been judged too, as part of one optimizer's step."""
    used: bool = False
    """Whether a step has taken it."""
    loss_decides: bool = False
    buffers: Sequence[int] = ()
    """Those that were measured along."""
    state_of_buffers: Sequence[object] = ()

    def __init__(self, grads: list[Tensor]) -> None:
        self._grads = grads
        self._seal: tuple[list[int], list[int]] = [], []
        self.on_host: GradientReading | None = None
        self.norms: Sequence[Tensor] = ()
        """Those on the host, as tensors."""
        self.on_device: DeviceReading | None = None

    @classmethod
    def taken(
        cls,
        parameters: Iterable[Tensor],
        on_host: Callable[[list[Tensor]], GradientReading] | None,
        norm_meters: NormMeters,
        loss_on: Callable[[torch.device], Tensor | None],
        loss_decides: Callable[[], bool],
    ) -> NormsBeforeClip:
        """Measure now: on the host where that is allowed and free, else where they live."""
        grads = [p.grad for p in parameters if p.grad is not None]
        kinds = {g.device.type for g in grads}
        early = cls(grads)
        if kinds == {"cpu"} and on_host is not None:
            early.on_host = on_host(plain(grads))
        elif kinds in ({"cuda"}, {"cpu"}):
            home = grads[0].device
            early.on_device = norm_meters.of(home).measure(
                plain(grads), loss_on(home), loss_decides=loss_decides(), extras=None
            )
        return early

    @property
    def measured(self) -> Measured:
        """Gradients and their norms, until clipping is over."""
        return self._grads, self.norms

    def seal(self) -> None:
        """Clipping is over."""
        self._seal = state_of(self._grads)
        self._grads, self.norms = [], ()

    def fits(self, grads: Sequence[Tensor]) -> bool:
        """Whether these are the gradients that were measured, untouched since."""
        return bool(self._seal[0]) and self._seal == state_of(grads)


def state_of(grads: Sequence[Tensor]) -> tuple[list[int], list[int]]:
    """Which gradients these are, and how often each was written."""
    if {*map(type, grads)} != {Tensor}:
        grads = list(map(local, filter(_is_there, grads)))
    return list(map(id, grads)), list(map(_version_of, grads))


_is_there = functools.partial(operator.is_not, None)
_version_of: Callable[[Tensor], int] = operator.attrgetter("_version")
