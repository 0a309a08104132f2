"""Which losses a step is about: the lines that call backward, and what the script calls them there.

The two losses of a GAN, a policy's and a critic's, a penalty in every 16th step: their numbers are
no one curve. The first steps are looked at, then one in some sixty; where the steps of an optimizer
turn out to be about several losses, each of them is.

A row has one number for its losses. Where backward was called on a part of each (``loss / 4``, four
times) it is the mean of what the script has divided. Readers add up losses of several lines, of
whose sum the gradients are (``report/losses.py``).
"""

from __future__ import annotations

import ast
import math
import os
import zlib
from collections import Counter
from collections.abc import Mapping, Sequence
from types import FrameType
from typing import NamedTuple

from torch import Tensor

from ..probes.loss import KEPT, Losses
from ..probes.step_record import StepRecord
from ..records.steps import LossPart, NamedLosses
from ..source.excerpts import excerpt_at
from ..source.files import parsed
from ..source.frames import user_line
from ..source.paths import from_here
from .finite_loss import hops_of

# Steps that are looked at from the first one on, and from then on every how many; guesses. An odd
# number, so that losses which take turns are not always met at the same one.
_FIRST, _EVERY = 32, 61
# Kinds of losses of one optimizer; a loop that picks its tasks at random has any number of them.
_KINDS = 8
_NUMBERS = 2**24
"""A column of floats holds every whole number below it."""
_PART = 1e-3

Line = tuple[str, int]


class _Pass(NamedTuple):
    """One backward pass."""

    line: Line
    number: Tensor | None
    """By what the script has divided its loss for it, or multiplied."""
    divided: bool
    kind: str
    """The operation that made the loss, as autograd calls it."""


class FollowedLosses:
    """Tells the losses of steps apart."""

    def __init__(self) -> None:
        self.looking = True
        """Whether the passes of the step at work are noted."""
        self.due = 0
        """The step from which on they are again."""
        self.scaled = False
        """Whether some losses have a factor."""
        self.several = False
        """Whether the steps of one optimizer are about several losses: then each is looked at."""
        self._left = _FIRST
        self._passes: list[_Pass] = []
        self._last: tuple[Losses | None, float] = None, math.nan
        self._factors: dict[float, float] = {}
        # By optimizer: the losses that its steps are about and their passes, the last at the end.
        self._of: dict[int, dict[float, int]] = {}

    def saw(self, root: object, loss: object, frame: FrameType) -> None:
        """Backward is about to be called on ``root``, which a scaler may have made of ``loss``."""
        line = user_line(frame)
        if line is None or not isinstance(root, Tensor):
            return
        node = root.grad_fn
        if node is not None and loss is not root:
            node = node.next_functions[0][0]
        hops = hops_of(node)
        _, number, divided = hops[0] if hops else (None, None, False)
        made = hops[-1][0] if hops else node
        kind = "" if made is None else made.name().rstrip("0123456789").removesuffix("Backward")
        self._passes.append(_Pass(line, number, divided, kind))
        if len(self._passes) > KEPT:
            del self._passes[0]

    def step_ends(self, opt: int, record: StepRecord, losses: Losses) -> NamedLosses | None:
        """A step that was looked at is over: what is to be recorded of its losses, if they are new.

        Optimizers that share a loss step with the same ``losses``.
        """
        last, number = self._last
        reported = None
        if losses is not last:
            passes, self._passes = self._passes[-max(1, losses.passes) :], []
            number = math.nan
            if passes and len(passes) == min(losses.passes, KEPT):
                number, reported = self._number(opt, passes)
            self._last = losses, number
        known = self._of.setdefault(opt, {})
        if number == number:
            known[number] = known.pop(number, losses.passes)
            record.row["losses"] = number
        self._left -= 1
        self.several = self.several or len(known) > 1
        if self._left < 0 and not self.several:
            self.looking, self.due = False, record.step + _EVERY
            self._passes, self._last = [], (None, math.nan)
        return reported

    def look(self) -> None:
        """The next step is one that is looked at, with those of all optimizers."""
        self.looking, self._left = True, max(self._left, len(self._of) + 1)

    def scale(self, record: StepRecord) -> None:
        """Have a row that is complete hold its loss as the script sees it."""
        factor = self._factor_of(record.row, self._of.get(record.opt) or {})
        if factor != 1.0:
            for name in ("loss", "loss_baseline", "loss_limit"):
                record.row[name] *= factor

    def _factor_of(self, row: Mapping[str, float], known: Mapping[float, int]) -> float:
        number = row["losses"]
        if number != number and len(known) > 1:
            # Nobody has looked at this step: it is about losses with as many passes.
            alike = (n for n in reversed(known) if known[n] == row["backwards"])
            number = next(alike, number)
        elif number != number and known:
            (number,) = known
        return self._factors.get(number, 1.0)

    def _number(self, opt: int, passes: Sequence[_Pass]) -> tuple[float, NamedLosses | None]:
        """What losses are numbered, the same in every process; what to record if they are new."""
        parts = {one.line: one for one in reversed(passes)}
        lines = sorted(parts)
        spots = repr([(os.path.basename(file), line) for file, line in lines])
        number = float(zlib.crc32(spots.encode()) % _NUMBERS)
        known = self._of.get(opt, {})
        if number in known:
            return number, None
        if len(known) >= _KINDS:
            return math.nan, None
        factor = self._factors[number] = _factor(passes)
        self.scaled = self.scaled or factor != 1.0
        found = tuple(
            LossPart(name=_name(*line), file=from_here(line[0]), line=line[1], kind=one.kind)
            for line, one in sorted(parts.items())
        )
        return number, NamedLosses(
            number=int(number), opt=opt, parts=found, factor=factor, summed=_summed(passes)
        )


def _summed(passes: Sequence[_Pass]) -> int:
    """How many losses are added up: one of each line, where all lines have as many passes."""
    counts = Counter(one.line for one in passes)
    return len(counts) if len(set(counts.values())) == 1 else 1


def _factor(passes: Sequence[_Pass]) -> float:
    """What the mean of some losses is multiplied by, where the script has divided each."""
    count, *others = set(Counter(one.line for one in passes).values())
    # Nothing is read where there is one loss, and of others but once.
    if others or count == 1 or any(abs(_part(one) - count) > _PART * count for one in passes):
        return 1.0
    return float(count)


def _part(one: _Pass) -> float:
    """By what a loss was divided."""
    number = one.number
    if number is None or not number.is_cpu or not (value := abs(number.item())):
        return 1.0
    return value if one.divided else 1 / value


def _name(file: str, line: int) -> str:
    """What the loss is called in the line that calls backward; empty where it has no name."""
    for call in ast.walk(parsed(excerpt_at(file, line).code) or ast.Pass()):
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute):
            continue
        if not call.func.attr.endswith("backward"):
            continue
        found = _named(call.func.value)
        # ``accelerator.backward(loss)`` is called on what is handed over.
        return _named(call.args[0]) if call.args else found
    return ""


def _named(node: ast.expr) -> str:
    """A variable, without the numbers and the scaler that make of it what backward is called on."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div | ast.Mult):
        return _named(node.left) or _named(node.right)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        return _named(node.args[0]) if node.func.attr == "scale" and node.args else ""
    return ast.unparse(node) if isinstance(node, ast.Name | ast.Attribute | ast.Subscript) else ""
