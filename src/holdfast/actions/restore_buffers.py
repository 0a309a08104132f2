"""Restore module buffers that a bad forward pass has changed.

BatchNorm folds every batch into its running statistics during forward, before the step is known
to be bad. Buffers that change are copied at the end of each good step and restored when a step is
skipped. Buffers that never change (masks, tables) are watched by their
version counter and cost nothing.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from ..probes.model_state import Buffer, largest_on_device, nonfinite_on_host
from ._restore_kernel import Restorer, Settler, Settling

# Copies of buffers not yet known to move are kept this long, and never beyond this size.
_TRIAL_STEPS = 8
_TRIAL_BYTES = 64 << 20
_HOST = torch.device("cpu")


class BufferKeeper:
    """The buffers of every guarded model, with copies of those that move."""

    def __init__(self) -> None:
        self.buffers: list[Buffer] = []
        self._copies: dict[int, Tensor] = {}
        self._versions: dict[int, tuple[int, int]] = {}
        self._moving: set[int] = set()
        self._trials: dict[int, int] = {}
        self._bytes = 0
        self._addresses: list[int] = []
        self._still: list[int] = []
        self._cached: dict[str, Any] = {}
        self._restore = Restorer()
        self._refresh = Restorer()
        self._heal = Restorer()
        self._settler = Settler()

    def add(self, buffers: Iterable[Buffer]) -> None:
        """Watch more buffers; what they hold now counts as good."""
        self._addresses = []
        known = {b.place for b in self.buffers}
        for buffer in buffers:
            tensor = buffer.tensor
            if tensor is None or buffer.place in known:
                continue
            i = len(self.buffers)
            self.buffers.append(buffer)
            self._versions[i] = _version(tensor)
            self._bytes += tensor.numel() * tensor.element_size()
            if buffer.running:
                self._moving.add(i)
            elif self._bytes <= _TRIAL_BYTES:
                self._trials[i] = _TRIAL_STEPS
            else:
                continue
            self._copies[i] = tensor.detach().clone()

    def look(self) -> None:
        """Notice which buffers the forward passes of this step have changed."""
        tensors = [buffer.tensor for buffer in self.buffers]
        addresses = [0 if t is None else t.data_ptr() for t in tensors]
        if addresses != self._addresses:
            self._addresses = addresses
            self._cached.clear()
            self._follow(tensors)
        self._notice(tensors)
        if self._trials or self._moving.intersection(self._still):
            self._end_trials()

    def steady(self, device: torch.device, *, settles: bool) -> SteadyBuffers | None:
        """All of them, after a step with gradients on ``device``, for steps like it.

        None while it is not known which of them move, or where those were not settled by one
        launch, if ``settles``.
        """
        if self._trials or len(self._addresses) != len(self.buffers):
            return None
        pairs = self._cached.get("pairs")
        settling = None if pairs is None else self._settler.again(pairs)
        if settles and settling is None and self._live():
            return None
        found = self._once(f"steady on {device}", lambda: self._found_steady(device, settling))
        return found if found is not None and found.same() else None

    def _found_steady(
        self, device: torch.device, settling: Settling | None
    ) -> SteadyBuffers | None:
        still = [(i, t) for i in self._still if (t := self.buffers[i].tensor) is not None]
        if any(_version(tensor) != self._versions[i] for i, tensor in still):
            return None
        alive = [buffer for buffer in self.buffers if buffer.holder is not None]
        return SteadyBuffers(alive, [t for _, t in still], *self.to_measure(device), settling)

    def moves_only_on(self, device: torch.device) -> bool:
        """Whether some of them move, and all of those are there."""
        return self._once(
            f"moves on {device}",
            lambda: bool(self._live()) and all(t.device == device for _, t in self._live()),
        )

    def state(self) -> list[tuple[int, int] | None]:
        """Changes when one is written or replaced; not by the statistics of norm layers alone."""
        tensors = [buffer.tensor for buffer in self.buffers]
        return [None if tensor is None else _version(tensor) for tensor in tensors]

    def accept(self) -> None:
        """What was changed since the step was meant: it is what a skipped step goes back to."""
        tensors = [buffer.tensor for buffer in self.buffers]
        self._notice(tensors)
        self.keep()

    def _notice(self, tensors: list[Tensor | None]) -> None:
        for i in self._still:
            tensor = tensors[i]
            if tensor is not None and _version(tensor) != self._versions[i]:
                self._moving.add(i)
                self._cached.clear()

    def _follow(self, tensors: list[Tensor | None]) -> None:
        """Some were replaced. Where the model was moved the copies follow: nothing has changed."""
        for i, tensor in enumerate(tensors):
            copy = self._copies.get(i)
            if tensor is not None and copy is not None and copy.device != tensor.device:
                self._copies[i] = copy.to(tensor.device)
                self._versions[i] = _version(tensor)
        self._still = [i for i in range(len(tensors)) if i not in self._moving]

    def _end_trials(self) -> None:
        self._still = [i for i in self._still if i not in self._moving]
        for i in [i for i, left in self._trials.items() if left <= 1 or i in self._moving]:
            del self._trials[i]
            if i not in self._moving:
                self._copies.pop(i, None)
        for i in self._trials:
            self._trials[i] -= 1

    def let_go(self) -> None:
        """Hold none of those that do not move: a model may be about to be freed."""
        kept = self._cached.items()
        self._cached = {k: found for k, found in kept if not isinstance(found, SteadyBuffers)}

    def nonfinite_on_host(self) -> list[int]:
        """Changing buffers on the CPU with non-finite values."""
        live = [(i, t) for i, t in self._live() if t.device.type == "cpu"]
        return [live[bad][0] for bad in nonfinite_on_host([t for _, t in live])]

    def finite_on_host(self) -> bool:
        """Whether none of those is there; without a line of Python for each buffer."""
        _, tensors = self.to_measure(_HOST)
        return not tensors or math.isfinite(sum(map(Tensor.item, torch._foreach_norm(tensors))))

    def to_measure(self, device: torch.device) -> tuple[list[int], list[Tensor]]:
        """The moving floating buffers on ``device``, and which they are."""
        return self._once(f"floating on {device}", lambda: self._floating_on(device))

    def largest(self, device: torch.device) -> tuple[list[int], Tensor | None]:
        """Maximum norm of every moving floating buffer on ``device``, and which they are."""
        which, tensors = self.to_measure(device)
        return which, largest_on_device(tensors) if tensors else None

    def _floating_on(self, device: torch.device) -> tuple[list[int], list[Tensor]]:
        live = [(i, t) for i, t in self._live() if t.is_floating_point() and t.device == device]
        return [i for i, _ in live], [t.detach() for _, t in live]

    def restore(self, *, running_only: bool = False) -> None:
        """Put every moving buffer back, now.

        ``running_only`` means the statistics of norm layers: those are never meant to be
        infinite, while an observer's minimum may well start there.
        """
        for live, copy in self._pairs(running_only):
            live.copy_(copy)

    def restore_where(self, flag: Tensor, *, running_only: bool = False) -> None:
        """Put every moving buffer back where the device flag is 1."""
        restorer = self._heal if running_only else self._restore
        restorer.restore(self._pairs(running_only), flag)

    def statistics(self) -> list[tuple[Tensor, Tensor]]:
        """Running statistics of norm layers, with copies from the end of the last good step."""
        return self._pairs(running_only=True)

    def keep(self, but: Iterable[int] = ()) -> None:
        """What the moving buffers hold now is good, ``but`` these: copy it."""
        self._renew()
        skipped = set(but)
        if skipped:
            matched = [(live, copy) for i, live, copy in self._matched() if i not in skipped]
        else:
            matched = self._pairs()
        if matched:
            torch._foreach_copy_([copy for _, copy in matched], [live for live, _ in matched])

    def keep_unless(self, flag: Tensor) -> None:
        """Copy the moving buffers where the device flag is 0."""
        self._renew()
        kept = self._once("kept", lambda: [(copy, live) for live, copy in self._pairs()])
        self._refresh.restore(kept, flag, when=0.0)

    def settle(self, flags: tuple[Tensor, Tensor], *, act: bool) -> None:
        """Restore or keep, as the device decides.

        Args:
            flags: the step is bad; a buffer holds non-finite values.
            act: whether anything may be put back.
        """
        pairs = self._pairs()
        running = self._once(
            "is running", lambda: [self.buffers[i].running for i, *_ in self._matched()]
        )
        if not self._settler.settle(pairs, running, flags, act):
            if act:
                self.restore_where(flags[0])
            torch.maximum(*flags, out=flags[0])
            if act:
                self.restore_where(flags[0], running_only=True)
            self.keep_unless(flags[0])
        elif "kept" not in self._cached:
            self._renew()
            self._cached.setdefault("kept", None)

    def _once(self, what: str, make: Callable[[], Any]) -> Any:
        """Lists are made again only when a buffer was replaced or began to move."""
        found = self._cached.get(what)
        if found is None:
            found = self._cached[what] = make()
        return found

    def _renew(self) -> None:
        """Buffers that began to move, or changed shape, get a fresh copy."""
        if "kept" in self._cached or "renewed" in self._cached:
            return
        for i, tensor in self._live():
            copy = self._copies.get(i)
            if copy is None or copy.shape != tensor.shape or copy.dtype != tensor.dtype:
                self._copies[i] = tensor.detach().clone()
                self._cached.clear()
        self._cached["renewed"] = True

    def _live(self) -> list[tuple[int, Tensor]]:
        return self._once(
            "live",
            lambda: [
                (i, t) for i in sorted(self._moving) if (t := self.buffers[i].tensor) is not None
            ],
        )

    def _matched(self) -> list[tuple[int, Tensor, Tensor]]:
        return [
            (i, tensor.detach(), copy)
            for i, tensor in self._live()
            if (copy := self._copies.get(i)) is not None
            and copy.shape == tensor.shape
            and copy.dtype == tensor.dtype
            and copy.device == tensor.device
        ]

    def _pairs(self, running_only: bool = False) -> list[tuple[Tensor, Tensor]]:
        return self._once(
            "running" if running_only else "pairs",
            lambda: [
                (live, copy)
                for i, live, copy in self._matched()
                if not running_only or self.buffers[i].running
            ],
        )


class SteadyBuffers:
    """Buffers of steps in a row in which none is replaced and no other one begins to move.

    Whether that holds is asked in every step, of hundreds of them: without a line of Python each.

    Args:
        buffers: all of them, where their modules live.
        still: which of them do not move.
        which: move and are measured.
        measured: their tensors.
        settling: restores or keeps what moves; None where nothing does.
    """

    def __init__(
        self,
        buffers: Sequence[Buffer],
        still: Sequence[Tensor],
        which: Sequence[int],
        measured: Sequence[Tensor],
        settling: Settling | None,
    ) -> None:
        self.which, self.measured, self.settling = which, measured, settling
        self.any = bool(buffers)
        self.moving = bool(measured) or settling is not None
        """Whether a step of theirs has a second flag."""
        alive = [(b.holder, b.key) for b in buffers if b.holder is not None]
        self._holders, self._keys = [holder for holder, _ in alive], [key for _, key in alive]
        self._tensors = [holder.get(key) for holder, key in alive]
        present = [t for t in self._tensors if t is not None]
        self._present, self._addresses = present, list(map(Tensor.data_ptr, present))
        self._counted = [t for t in present if not t.is_inference()]
        self._still = [t for t in still if not t.is_inference()]
        self._versions = list(map(_count_of, self._still))

    def seal(self) -> list[int]:
        """How often each was written, for who measures them before the step begins."""
        return list(map(_count_of, self._counted))

    def same(self, sealed: list[int] | None = None) -> bool:
        """Whether they are the same tensors, where they were; those that do not move unwritten.

        With what ``seal`` has said: whether all of them are unwritten since then.
        """
        now = map(_in_holder, self._holders, self._keys)
        asked, counts = self._still, self._versions
        if sealed is not None:
            asked, counts = self._counted, sealed
        return (
            all(map(operator.is_, now, self._tensors))
            and list(map(Tensor.data_ptr, self._present)) == self._addresses
            and list(map(_count_of, asked)) == counts
        )


_in_holder: Callable[[dict[str, Tensor | None], str], Tensor | None] = dict.get
_count_of: Callable[[Tensor], int] = operator.attrgetter("_version")


def _version(tensor: Tensor) -> tuple[int, int]:
    """Changes when the tensor is written in place or replaced by another."""
    return id(tensor), 0 if tensor.is_inference() else tensor._version
