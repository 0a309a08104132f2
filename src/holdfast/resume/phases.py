"""Training loops that follow one another in a script: pre-training, then fine-tuning.

A loop that cannot be gone through from pass to pass is come to from its own first round or batch,
and only the script itself can lead there. So a resumed script trains each loop before the one of
its checkpoint from the last checkpoint of that loop to its end, once more and unrecorded, and then
finds what follows as it was.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from torch import Tensor, nn

from .. import source
from ..checkpoint import rng
from ..checkpoint.training_state import TrainingState
from ..source.syntax import LOOPS
from .frames import chain, position, scope_line
from .refusal import RefusedError
from .values.digests import tensor_digest


@dataclass(frozen=True, slots=True)
class Region:
    """The outermost loop around a step."""

    callers: list[list[Any]]
    """Where the functions around stand: one that is called again may get the same frame."""
    code: CodeType
    first: int
    last: int

    @classmethod
    def around(cls, frame: FrameType) -> Region | None:
        """That of a step which is made in this frame; None where no loop is around."""
        frames = chain(frame)
        for number, one in enumerate(frames):
            file, code = one.f_code.co_filename, one.f_code
            blocks = source.blocks_around(file, scope_line(one), one.f_lineno, 0)
            for loop in blocks:
                if isinstance(loop, LOOPS):
                    last = loop.end_lineno or loop.lineno
                    return cls(position(frames[:number]), code, loop.lineno, last)
        return None

    def left(self, frame: FrameType) -> bool:
        """Whether the script is beyond it."""
        frames, number = chain(frame), len(self.callers)
        if len(frames) <= number or frames[number].f_code is not self.code:
            return True
        inside = self.first <= frames[number].f_lineno <= self.last
        return not inside or position(frames[:number]) != self.callers


class TrainingLoops:
    """The training loops of a script so far."""

    def __init__(self) -> None:
        self.over: list[dict[str, Any]] = []
        """Of each that is over: where it is, its last checkpoint, what it has left."""
        self.base = 0
        """Steps of the run when the one at work began."""
        self.trains = False
        """Whether the script has made a step."""
        self.newest = ""
        """The last checkpoint of the one at work that can be resumed from."""
        self._region: Region | None = None
        self._before: int | None = None

    def locate(self, frame: FrameType) -> None:
        """A step is made here."""
        self.trains = True
        if self._region is None:
            self._region = Region.around(frame)

    def left(self, frame: FrameType) -> bool:
        """Whether the loop that has trained so far is over."""
        return self._region is not None and self._region.left(frame)

    def goes_on_without(self, passes: int) -> None:
        """It is over, but what follows can be gone through as it was: so many passes are done."""
        self._before = passes if self._before is None else self._before

    def next(self, steps: int, passes: int, left: Mapping[str, Any]) -> int:
        """Another one begins after so many steps; how many passes there were since the last.

        Args:
            steps: of the run.
            passes: that were over or begun in the one before.
            left: what this has left, as ``outcome`` gives it.
        """
        assert self._region is not None
        at = [self._region.code.co_filename, self._region.first]
        self.over.append({"at": at, "checkpoint": self.newest, **left})
        since = 0 if self._before is None else passes - self._before
        self._region, self._before, self.newest, self.base = None, None, "", steps
        return since

    def trains_again(self) -> None:
        """The loop at work has trained in another place meanwhile: that is a part of it."""
        self._region, self._before = None, None

    def needed(self, *, newest: bool) -> list[str]:
        """Names of files that must not be removed while this run can be gone on with."""
        paths = [str(one["checkpoint"]) for one in self.over] + [self.newest] * newest
        return [Path(path).name for path in paths if path]


def outcome(state: TrainingState) -> dict[str, Any]:
    """What the training so far has left: random state and weights, to be compared."""
    weights = [tensor for model in state.models.values() for tensor in _tensors(model)]
    known = all(one.device.type == "cpu" for one in weights)
    return {"rng": rng.state(), "weights": [tensor_digest(one) for one in weights] if known else []}


def check_outcome(then: Mapping[str, Any], state: TrainingState) -> None:
    """Refuse to go on where a training loop that was done again has not led to the same."""
    if "rng" not in then:
        return
    now = outcome(state)
    weights = list(then["weights"]), now["weights"]
    # A model that nobody holds any more may be there or not.
    others = len(weights[0]) == len(weights[1]) and weights[0] != weights[1]
    if rng.same(then["rng"], now["rng"]) and not others:
        return
    text = "this training loop was done again up to its end, and has led to something else"
    raise RefusedError(text, str(then["at"][0]), int(then["at"][1]))


def _tensors(model: nn.Module) -> list[Tensor]:
    return [*model.parameters(), *model.buffers()]
