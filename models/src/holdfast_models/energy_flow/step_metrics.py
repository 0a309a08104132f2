"""The numbers of a training step, under the names that readers of a run rely on.

What the flows did comes from the device with the loss. How long the parts of a step take is
measured on the first batch of one step in a few: on a GPU by events that are asked, never waited
for, and told with a later batch; elsewhere by the host's clock.
"""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from .model.ending import Stats

__all__ = ["Laps", "Stopwatch", "flow_numbers", "lap"]

_FLOWS: Mapping[str, str] = {
    "active_flows": "made",
    "spawned_flows": "spawned",
    "flows_reached_output": "done",
    "completion_rate": "completion",
    "flow_convergence_steps": "steps",
    "gru_input_absmax": "input_most",
    "gru_hidden_absmax": "state_most",
    "mean_steps": "mean_steps",
    "filled": "filled",
    "guarded": "guarded",
    "energy_std": "energy_std",
}

_PARTS: Mapping[str, tuple[str, float]] = {  # name in the record, units in a second
    "flow": ("flow_time", 1.0),
    "energy": ("energy_computation_time_ms", 1e3),
    "text": ("text_bridge_time_ms", 1e3),
}

_EVERY = 10  # steps between two that are timed; the first are slower and not among them
_ON_WAY = 4  # timed steps whose events may be unread; beyond that the oldest is forgotten

Moment = float | torch.cuda.Event


def flow_numbers(stats: Stats) -> dict[str, Tensor]:
    """What the flows of a batch did; scalars on the device."""
    return {name: getattr(stats, key).float() for name, key in _FLOWS.items()}


class Laps:
    """The parts of one batch, each from its begin to its end."""

    def __init__(self, watch: Stopwatch) -> None:
        self._watch = watch
        self.parts: list[tuple[str, Moment, Moment]] = []

    @contextlib.contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Time what happens in here; parts may lie within others."""
        begin = self._watch.moment()
        yield
        self.parts.append((name, begin, self._watch.moment()))


def lap(laps: Laps | None, name: str) -> contextlib.AbstractContextManager[None]:
    """A part of the batch, where it is one that is timed."""
    return contextlib.nullcontext() if laps is None else laps.part(name)


class Stopwatch:
    """Says which batches are timed, and how long their parts took once that is known.

    Args:
        device: where the work is done.
        every: optimizer steps between two that are timed.
    """

    def __init__(self, device: torch.device, every: int = _EVERY) -> None:
        self._on_gpu = device.type == "cuda"
        self._every = every
        self._timed = -1
        self._on_way: deque[Laps] = deque()
        self._free: list[torch.cuda.Event] = []

    def begin(self, step: int) -> Laps | None:
        """The laps of the batch that begins; None where it is not to be timed.

        Args:
            step: of the optimizer, from 0; of several batches of a step the first is timed.
        """
        if (step + 1) % self._every or step == self._timed:
            return None
        # In a graph that is being captured an event would become part of the graph.
        if self._on_gpu and torch.cuda.is_current_stream_capturing():
            return None
        self._timed = step
        laps = Laps(self)
        self._on_way.append(laps)
        if len(self._on_way) > _ON_WAY:
            self._on_way.popleft()
        return laps

    def moment(self) -> Moment:
        """Now, on the clock of whoever does the work."""
        if not self._on_gpu:
            return time.perf_counter()
        event = self._free.pop() if self._free else torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def take(self) -> dict[str, float]:
        """The times of a batch, by the names of the record; nothing while none are known."""
        if not self._on_way or not _is_over(self._on_way[0]):
            return {}
        found: dict[str, float] = {}
        for part, begin, end in self._on_way.popleft().parts:
            name, units = _PARTS[part]
            found[name] = found.get(name, 0.0) + units * self._seconds(begin, end)
        return found

    def _seconds(self, begin: Moment, end: Moment) -> float:
        if isinstance(begin, torch.cuda.Event) and isinstance(end, torch.cuda.Event):
            self._free += [begin, end]
            return begin.elapsed_time(end) / 1e3
        assert not isinstance(begin, torch.cuda.Event) and not isinstance(end, torch.cuda.Event)
        return end - begin


def _is_over(laps: Laps) -> bool:
    """Whether the last moment of a batch has come; asked only after it was recorded."""
    last = laps.parts[-1][2] if laps.parts else 0.0
    return last.query() if isinstance(last, torch.cuda.Event) else True
