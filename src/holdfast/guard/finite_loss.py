"""Let a non-finite loss read as the last finite one, once backward has used it.

The step is skipped, but the script goes on to read its loss: one NaN makes its average of the epoch
NaN, and early stopping, ``ReduceLROnPlateau`` and "best so far" decide by it. The record keeps what
the loss was. It is changed after a backward that freed its graph and without touching its version:
nothing will be computed from the old value any more.

On the host the memory of the loss is written, on bad steps only. On a device nobody knows in time
which steps are bad: one launch copies every loss for the record and writes those that are bad
(``actions/loss_kernel``), with the variable of the script that it was made of by a number. Without
that kernel, or where the script holds more variables of one loss, every loss gets new memory with
what it is to read, mostly its own value, and the record has the old one. That takes three launches;
to write and to keep a copy would be five.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from types import FrameType
from typing import Any

import torch
from torch import Tensor

from ..actions.loss_kernel import LossWriter, Part, writer_for
from ..config import GuardSettings
from ..probes.loss import Losses
from ..source.frames import forget_locals, variable_of
from ..source.ownership import kind_of
from .fail_open import capturing, current_device

# How a root is made of the script's loss: by a number, for accumulation or by a scaler.
_DIVIDED, _MULTIPLIED = "DivBackward0", "MulBackward0"
BY_A_NUMBER = (_DIVIDED, _MULTIPLIED)
# Numbers in a row that are followed, and callers whose variables are looked through.
_HOPS = 3
_CALLERS = 8
_STRIDED = torch.strided

Spot = tuple[str, int, int]
Ready = tuple[torch.dtype, int, LossWriter, Tensor]
"""What a launch like the last one needs: dtype and device of the loss, last finite one."""
Hop = tuple[Any, Tensor, bool]
"""A node of the graph, the number that made the next tensor of its own, and whether it divided."""
MadeOf = list[tuple[Tensor | None, Tensor, bool]]
"""The script's variable of each node, if it has one, with number and whether it divided."""


class _Pending:
    """A loss that waits for its backward to return, and the variables that it was made of."""

    __slots__ = ("key", "loss", "made_of", "on_host", "variable")

    def __init__(
        self, loss: Tensor, variable: Tensor | None, key: Hashable, *, on_host: bool
    ) -> None:
        self.loss, self.variable, self.key, self.on_host = loss, variable, key, on_host
        self.made_of: MadeOf = []


class _Last:
    """The last finite loss on a device; the script's variable shares its memory.

    A script that changes its loss in place (``loss *= 4``) changes this too. From then on it gets
    a copy.
    """

    __slots__ = ("_shared", "_version", "copies", "own", "value")

    def __init__(self, value: Tensor, variable: Tensor | None, before: _Last | None) -> None:
        self.own = False
        """Whether nobody else has this memory: then a kernel may write it."""
        self.copies = before is not None and (before.copies or before.changed)
        self.value = value.clone() if self.copies else value
        self._shared = None if variable is None or self.copies else variable.detach()
        self._version = 0 if self._shared is None else self._shared._version

    @property
    def changed(self) -> bool:
        """Whether the script has written into it."""
        return self._shared is not None and self._shared._version != self._version


class FiniteLoss:
    """What the script reads after a step whose loss was not finite.

    Args:
        settings: whether steps are skipped at all, and whether the script wants to see the NaN.
    """

    def __init__(self, settings: GuardSettings) -> None:
        self.on = settings.skip and not settings.keep_nan
        self.pending: _Pending | None = None
        """Something to write when backward has returned."""
        self.depth = 0
        """How many backward passes are under way, one inside the other."""
        self.inside = False
        """An optimizer evaluates a closure and reads the losses itself."""
        self._written = self._reported = False
        # By place of the backward pass: the last finite loss, as a number or on its device.
        self.numbers: dict[Hashable, float] = {}
        self._tensors: dict[tuple[Hashable, torch.device], _Last] = {}
        self._writers: dict[tuple[torch.dtype, torch.device], LossWriter | None] = {}
        self.ready: dict[Hashable, Ready] = {}
        """By place."""
        # By line: in which caller, counted from there, and under which names losses are found.
        self._names: dict[Spot, list[tuple[int, str]]] = {}

    def seen(
        self,
        root: object,
        loss: object,
        variable: object,
        number: float | None,
        key: Hashable,
        frame: FrameType,
    ) -> None:
        """Backward is about to be called.

        Args:
            root: on what.
            loss: the loss itself; another tensor where a scaler made the root of it.
            variable: the script's own tensor with that loss, while it has one.
            number: its value where the host knows it.
            key: what tells it from other losses of the same step.
            frame: where we are.
        """
        self.pending = None
        if number is not None and math.isfinite(number):
            self.numbers[key] = number
            return
        if self.inside or type(root) is not Tensor or type(loss) is not Tensor:
            return
        node = root.grad_fn
        # ``own``, written out: on a device this is asked in every step.
        if node is None or root.numel() != 1 or root.layout is not _STRIDED or root._is_view():
            return
        if not loss.is_floating_point():
            return
        if loss is not root:
            node = node.next_functions[0][0]
        own_part = variable if isinstance(variable, Tensor) else None
        pending = self.pending = _Pending(loss, own_part, key, on_host=number is not None)
        if node is not None and node.name() in BY_A_NUMBER:
            pending.made_of = self.parts(node, frame)

    def parts(self, node: Any, frame: FrameType) -> MadeOf:
        """The variables of the script that a root was made of by numbers."""
        # Mostly it is known of this line that it has none. Without calls: asked in every pass.
        first: FrameType | None = frame
        while first is not None and kind_of(first.f_code.co_filename) == "torch":
            first = first.f_back
        if first is None:
            return []
        code = first.f_code
        spot = code.co_filename, code.co_firstlineno, first.f_lasti
        if self._names.get(spot) == [] or not (hops := hops_of(node)):
            return []
        return self._variables(hops, first, spot)

    def returned(self, losses: Losses) -> None:
        """Backward has returned and freed its graph: write the loss.

        ``losses`` has the one that is written, and keeps what it was.
        """
        pending, self.pending = self.pending, None
        if pending is None:
            return
        if pending.on_host:
            self._write(pending)
        elif not (pending.loss.is_cuda and capturing(current_device())):
            loss, known = pending.loss, self.ready.get(pending.key)
            part = only_part(loss, pending.made_of) if known and pending.made_of else None
            if (
                known is not None
                and pending.variable is not None
                and (part is not None or not pending.made_of)
                and loss.dtype is known[0]
                and loss.get_device() == known[1] == current_device()
            ):
                written = known[2].write(loss, known[3], part)
            else:
                written = self._write_at_once(pending)
            if written is None:
                losses.settle()  # the record keeps the memory that it has now
                self._write_on_device(pending)
            else:
                losses.was(loss, written)

    def tell(self) -> bool:
        """A loss was not finite: whether the run has to be told, once, what its script reads."""
        first, self._reported = (
            self._written and not self._reported,
            self._reported or self._written,
        )
        return first

    def state(self) -> dict[str, Any]:
        """The last finite losses, as plain data and tensors."""
        tensors = [(key, f"{device}", one.value.clone(), one.copies)
                   for (key, device), one in self._tensors.items()]  # fmt: skip
        numbers = list(self.numbers.items())
        return {"numbers": numbers, "tensors": tensors, "told": self._reported}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from what ``state`` gave."""
        self.numbers = dict(state["numbers"])
        self.ready.clear()
        self._reported = self._written = state["told"]
        for key, name, value, copies in state["tensors"]:
            device = torch.device(name)
            last = self._tensors[key, device] = _Last(value.to(device), None, None)
            last.copies = copies

    def _write(self, pending: _Pending) -> None:
        last = self.numbers.get(pending.key)
        if last is None:
            return
        self._written = True
        if pending.variable is not None:
            pending.variable.data.fill_(last)
        for inner, number, divided in pending.made_of:
            last = last * number.item() if divided else last / number.item()
            if inner is not None and not math.isfinite(inner.item()):
                inner.data.fill_(last)

    def _write_at_once(self, pending: _Pending) -> Tensor | None:
        """By one launch; what the loss was, or None where that cannot be had."""
        loss = pending.loss
        if pending.variable is None:
            return None
        kind = loss.dtype, loss.device
        if kind not in self._writers:
            self._writers[kind] = writer_for(loss)
        writer = self._writers[kind]
        # A launch goes to the current device.
        if writer is None or torch.cuda.current_device() != loss.device.index:
            return None
        part = only_part(loss, pending.made_of)
        if pending.made_of and part is None:
            return None
        key = pending.key, loss.device
        last = self._tensors.get(key)
        if last is None or not last.own or last.value.dtype != loss.dtype:
            known = torch.full_like(loss, math.nan) if last is None else last.value.to(loss.dtype)
            last = self._tensors[key] = _Last(known.detach().reshape(()).clone(), None, None)
            last.own = True
        self._written = True
        try:
            written = writer.write(loss, last.value, part)
        except Exception:
            # No compiler, no place for its cache: the plain way gives the same answer.
            self._writers[kind] = None
            return None
        self.ready[pending.key] = loss.dtype, loss.get_device(), writer, last.value
        return written

    def _write_on_device(self, pending: _Pending) -> None:
        raw, variable = pending.loss.data, pending.variable
        key = pending.key, raw.device
        self.ready.pop(pending.key, None)
        known = self._tensors.get(key)
        finite = raw.abs() < math.inf
        # Before the first finite one there is nothing better than what it is.
        last = torch.where(finite, raw, raw if known is None else known.value)
        self._written = True
        if variable is not None:
            variable.data = last
        self._tensors[key] = _Last(last, variable, known)
        for inner, number, divided in pending.made_of:
            last = last * number if divided else last / number
            if inner is not None:
                inner.data = torch.where(finite, inner.data, last)

    def _variables(self, hops: Sequence[Hop], frame: FrameType, spot: Spot) -> MadeOf:
        """The script's variables from which the loss was made by numbers.

        The graph knows how a tensor was made, not who holds it. On a device this is asked in every
        step, so that the names are kept by line.
        """
        names = self._names.get(spot)
        # Only where they are looked at: to ask for the variables of a function copies them all.
        callers = _outside(frame, 1 + names[-1][0] if names else _CALLERS)
        if names is None:
            nodes = [node for node, *_ in hops]
            names = self._names[spot] = [
                (depth, name)
                for depth, at in enumerate(callers)
                for name, value in list(at.f_locals.items())
                if type(value) is Tensor and any(value.grad_fn is node for node in nodes)
            ]
            for at in callers:
                forget_locals(at)
        held: dict[int, Tensor] = {}
        for depth, name in names:
            if depth < len(callers):
                value = variable_of(callers[depth], name)
                if type(value) is Tensor and own(value):
                    held[id(value.grad_fn)] = value
        if not held:
            return []
        return [(held.get(id(node)), number, divided) for node, number, divided in hops]


def only_part(loss: Tensor, made_of: MadeOf) -> Part | None:
    """The one variable that a loss was made of; None without, or where a launch cannot write it."""
    times, found = 1.0, None
    for inner, number, divided in made_of:
        if found is not None and inner is None:
            continue
        # A number on a device would have to be waited for.
        if found is not None or not number.is_cpu or not (value := number.item()):
            return None
        times = times * value if divided else times / value
        if inner is not None:
            if inner.dtype is not loss.dtype or inner.device != loss.device:
                return None
            found = inner, times
    return found


def frees_graph(
    retain_graph: object = None,
    create_graph: object = False,
    grad_variables: object = None,
    inputs: object = None,
    **others: object,
) -> bool:
    """Whether a backward pass with these arguments leaves nothing to be computed once more."""
    return not retain_graph and not create_graph and inputs is None


def place_of_call(frame: FrameType) -> Spot | None:
    """The line outside of torch and holdfast that calls backward."""
    # Without calls: asked in every pass where there are several optimizers.
    at: FrameType | None = frame
    while at is not None and kind_of(at.f_code.co_filename) == "torch":
        at = at.f_back
    if at is None:
        return None
    code = at.f_code
    return code.co_filename, code.co_firstlineno, at.f_lasti


def own(loss: Tensor) -> bool:
    """Whether a tensor was computed and has memory of its own: one number, no leaf, no view."""
    return (
        loss.grad_fn is not None
        and loss.numel() == 1
        and loss.layout is torch.strided
        and not loss._is_view()
    )


def _outside(frame: FrameType | None, most: int) -> list[FrameType]:
    """Callers outside of torch and holdfast, innermost first."""
    found: list[FrameType] = []
    while frame is not None and len(found) < most:
        if kind_of(frame.f_code.co_filename) != "torch":
            found.append(frame)
        frame = frame.f_back
    return found


def hops_of(node: Any) -> list[Hop]:
    """The nodes from which a loss was made by a number, one after the other."""
    found: list[Hop] = []
    while len(found) < _HOPS and node is not None and (name := node.name()) in BY_A_NUMBER:
        made_of = node.next_functions
        if len(made_of) != 2 or made_of[0][0] is None or made_of[1][0] is not None:
            break
        number = node._saved_other
        if not isinstance(number, Tensor) or number.numel() != 1:
            break
        node = made_of[0][0]
        found.append((node, number, name == _DIVIDED))
    return found
