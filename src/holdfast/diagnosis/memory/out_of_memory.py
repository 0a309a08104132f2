"""Facts about a run that ended out of memory or on the graph of an earlier step."""

from __future__ import annotations

import re
import sys
from types import FrameType, TracebackType
from typing import Any

import torch
from torch import Tensor

from ..source.place import kind_of, place_told
from . import footprint, growth_facts
from .census import (
    Chain,
    Held,
    Timeline,
    named_graphs,
)
from .graphs import reach

_MEMORY = re.compile(r"out of memory|can't allocate memory|not enough memory", re.I)
# What oneDNN says when it gets no memory, and otherwise too; bytes that are next to none.
_NO_REASON = re.compile(r"could not (create|execute) a (primitive|memory)")
_FULL = 256 << 20
_SECOND_TIME = ("through the graph a second time", "modified by an inplace operation")
# Steps whose losses are asked whether they lead into the step before: an error may end them soon.
_EARLY = 3


def error() -> BaseException | None:
    """The error that ends the script, if one does."""
    found = getattr(sys, "last_value", None)
    return found if isinstance(found, BaseException) else None


def ran_out(found: BaseException | None) -> bool:
    """Whether it is an out-of-memory error."""
    if isinstance(found, torch.OutOfMemoryError | MemoryError):
        return True
    if not isinstance(found, RuntimeError):
        return False
    said = str(found)
    return bool(_MEMORY.search(said) or (_NO_REASON.search(said) and footprint.room() < _FULL))


class EarlyStates:
    """Which variable the losses of the first steps lead through into the step before."""

    def __init__(self) -> None:
        self.names: dict[int, Held] = {}
        """The named tensors of the last step that hang on a graph, while the next loss is due."""
        self._carrier: Held | None = None

    def step_ended(self, step: int, frame: FrameType) -> None:
        """A step is over: note the names that the next loss may lead to."""
        if step < _EARLY:
            self.names = named_graphs(frame)

    def backward(self, loss: Tensor, timeline: Timeline) -> None:
        """One of the first losses: does it lead into the step before?"""
        for entry in reach(loss.grad_fn, timeline.before(1)).entries:
            self._carrier = self.names.get(entry, self._carrier)
        self.names = {}

    def facts(self, died: BaseException | None) -> dict[str, Any] | None:
        """The state that was on the graph of an earlier step when backward met that graph."""
        met = isinstance(died, RuntimeError) and any(w in str(died) for w in _SECOND_TIME)
        if not met or self._carrier is None:
            return None
        held = self._carrier
        facts = growth_facts.of_chain(Chain(held, 0, 1, 0), fed=True)
        return {**facts, "killed": True, **growth_facts.of_line(held, [])}


def place(traceback: TracebackType | None) -> dict[str, Any]:
    """The innermost line of the user's own code."""
    file, line = "", 0
    while traceback is not None:
        if kind_of(traceback.tb_frame.f_code.co_filename) == "user":
            file, line = traceback.tb_frame.f_code.co_filename, traceback.tb_lineno
        traceback = traceback.tb_next
    return place_told(file, line)
