"""How a run is doing, for a person: a bar on a terminal, plain lines anywhere else.

    gru  ━━━───────────────────  step 120/1000  epoch 2/5  loss 2.310  1.2k/s  wait 12 %  3.1 GB

The bar is one line and is drawn from the training thread now and then: no second thread holds a
lock while data workers are forked. What others print goes above it, and a line that begins with
"erase line", as the guard's do under ``holdfast run``, takes its place.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping
from typing import TextIO

from ..device import Place
from .step_numbers import (
    Tick,
    fields,
    figure,
    fitted,
)
from .styled_text import Styled, columns, cut, painted
from .terminal import (
    CLEAR,
    Careful,
    Passing,
    is_terminal,
)

__all__ = ["Bar", "PlainLines", "Progress", "Tick", "make_progress"]

# Seconds between two drawings of the bar: fast enough for an eye.
_REDRAW = 0.2
_LONGEST_BAR, _SHORTEST_BAR, _LONGEST_TITLE = 30, 8, 24
# Below so many columns the numbers get all of them.
_NARROW = 60


class Progress:
    """Tells nobody anything: for ranks other than 0 and for quiet runs."""

    def begins(self, steps: int | None, title: str = "") -> None:
        """Training begins; ``steps`` is how many there will be, if that is known."""

    def due(self, step: int) -> bool:
        """Whether a tick at this step would be shown; else nobody need find out its numbers."""
        return False

    def tick(self, tick: Tick) -> None:
        """A step is done."""

    def validated(self, step: int, values: Mapping[str, float], best: bool) -> None:
        """A validation is done; ``best``: none before was better."""

    def epoch(self, summary: str) -> None:
        """An epoch is done."""

    def say(self, line: str) -> None:
        """Anything else worth a line."""

    def ends(self) -> None:
        """Training is over, however it came to that. Safe to call twice."""


class _Speaking(Progress):
    """What a bar and plain lines have in common."""

    def __init__(self, stream: TextIO, clock: Callable[[], float]) -> None:
        self._out = Careful(stream)
        self._clock = clock
        self._steps: int | None = None
        self._title = ""
        self._latest: Tick | None = None
        self._start: tuple[int, float] | None = None

    def begins(self, steps: int | None, title: str = "") -> None:
        self._steps, self._title = steps, " ".join(title.split())
        self._latest = self._start = None

    def validated(self, step: int, values: Mapping[str, float], best: bool) -> None:
        parts = [f"{name} {figure(value)}" for name, value in values.items()]
        self.say("  ".join([f"step {step}", "validation", *parts, *["best so far"] * best]))

    def epoch(self, summary: str) -> None:
        self.say(summary)

    def _saw(self, tick: Tick) -> None:
        if self._start is None or tick.step < self._start[0]:
            # From the first tick on: the first step is slower than all others.
            self._start = (tick.step, self._clock())
        self._latest = tick

    def _left(self, tick: Tick) -> float | None:
        """Seconds until the end at the speed so far."""
        if self._start is None or tick.steps is None or tick.step <= self._start[0]:
            return None
        first, began = self._start
        each = (self._clock() - began) / (tick.step - first)
        return max(0, tick.steps - tick.step) * each


class PlainLines(_Speaking):
    """Plain lines for logs and pipes.

    Args:
        stream: where they go.
        every: steps between two of them at least.
        seconds: time between two of them at least; the first and the last are always printed.
        clock: reads the time, for tests.
    """

    def __init__(
        self,
        stream: TextIO,
        every: int = 10,
        seconds: float = 5.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(stream, clock)
        self._every, self._seconds = every, seconds
        self._reported: tuple[int, float] | None = None

    def begins(self, steps: int | None, title: str = "") -> None:
        """Name what is trained and for how long."""
        super().begins(steps, title)
        self._reported = None
        if self._title:
            self.say(self._title if steps is None else f"{self._title}: {steps} steps")

    def due(self, step: int) -> bool:
        """Whether enough steps and enough time have passed since the last line."""
        if self._reported is None:
            return True
        last, when = self._reported
        if step == self._steps:
            return step != last
        # A step that was there before: the run was rolled back.
        far = step - last >= self._every or step < last
        return far and self._clock() - when >= self._seconds

    def tick(self, tick: Tick) -> None:
        """Tell of the step if that is due."""
        self._saw(tick)
        if self.due(tick.step):
            self._tell(tick)

    def _tell(self, tick: Tick) -> None:
        self._reported = (tick.step, self._clock())
        shown = fitted(fields(tick, self._left(tick)), self._out.width)
        self.say("  ".join(field.text for field in shown))

    def say(self, line: str) -> None:
        """Write one line, whole however long."""
        self._out.write(f"{line.removeprefix(CLEAR)}\n")

    def ends(self) -> None:
        """Tell of the last step if that was not due."""
        latest, self._latest = self._latest, None
        if latest is not None and (self._reported is None or self._reported[0] != latest.step):
            self._tell(latest)


class Bar(_Speaking):
    """One line at the bottom of a terminal, drawn over and over.

    Args:
        stream: the terminal.
        clock: reads the time, for tests.
    """

    def __init__(self, stream: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(stream, clock)
        self._signs = "━─…" if self._out.encodes("━─…") else "#-."
        self._process = os.getpid()
        self._live = self._drawn = False
        self._when = 0.0
        self._passing: dict[str, Passing] = {}

    def begins(self, steps: int | None, title: str = "") -> None:
        """Draw the bar and let what others print go above it."""
        self.ends()
        super().begins(steps, title)
        for name in ("stdout", "stderr"):
            # Not where it is sent to a file: that has no bar to be spoiled.
            if is_terminal(stream := getattr(sys, name)):
                self._passing[name] = Passing(stream, self._hide)
                setattr(sys, name, self._passing[name])
        self._live = True
        self._draw()

    def due(self, step: int) -> bool:
        """Whether the last drawing is old enough."""
        return step == self._steps or self._clock() - self._when >= _REDRAW

    def tick(self, tick: Tick) -> None:
        """Draw the bar again, unless somebody is in the middle of a line."""
        self._saw(tick)
        if self._live and self.due(tick.step) and not any(p.busy for p in self._passing.values()):
            self._draw()

    def say(self, line: str) -> None:
        """Write a line above the bar."""
        ending = "".join(passing.finish() for passing in self._passing.values())
        clear = CLEAR if (self._drawn or self._forked) and not ending else ""
        self._drawn = False
        self._out.write(f"{ending}{clear}{line.removeprefix(CLEAR)}\n")
        if self._live and not self._forked:
            self._draw()

    def ends(self) -> None:
        """Leave the last state of the bar standing and give the streams back."""
        if not self._live:
            return
        self._draw()
        self._live = self._drawn = False
        self._out.write("\n")
        for name, passing in self._passing.items():
            if getattr(sys, name) is passing:
                setattr(sys, name, passing.stream)
        self._passing.clear()

    def _draw(self) -> None:
        ending = "".join(passing.finish() for passing in self._passing.values())
        self._when = self._clock()
        self._out.write(f"{ending}{CLEAR}{self._rendered()}")
        self._drawn = True

    @property
    def _forked(self) -> bool:
        """Whether this is a data worker's copy: it may print, but the bar is its parent's."""
        return os.getpid() != self._process

    def _hide(self) -> None:
        if self._drawn or self._forked:
            self._drawn = False
            self._out.write(CLEAR)

    def _rendered(self) -> str:
        # The last column stays free: some terminals begin a new line when it is written to.
        width = max(1, self._out.width - 1)
        return painted(self._line(width), width)

    def _line(self, width: int) -> list[Styled]:
        title = Styled(cut(self._title, _LONGEST_TITLE).replace("…", self._signs[2]), "bold")
        named = [[title]] if title.text else []
        if self._latest is None:
            return _joined([*named, [Styled("starting")]])
        tick = self._latest
        reserve = _SHORTEST_BAR + 2 if tick.steps and width >= _NARROW else 0
        kept = fitted(fields(tick, self._left(tick), share=False), width - reserve)
        parts = [[Styled(field.text, field.style)] for field in kept]
        room = width - sum(columns(piece.text) for piece in _joined(parts))
        if room - reserve < columns(title.text) + 2:
            named = []
        room -= sum(columns(piece.text) + 2 for (piece,) in named)
        if tick.steps and room - 2 >= _SHORTEST_BAR:
            length = min(_LONGEST_BAR, room - 2)
            done = min(length, length * tick.step // tick.steps)
            full, empty = self._signs[0] * done, self._signs[1] * (length - done)
            parts.insert(0, [Styled(full, "green"), Styled(empty, "dim")])
        return _joined([*named, *parts])


def _joined(parts: list[list[Styled]]) -> list[Styled]:
    """All pieces in a row, two spaces between one part and the next."""
    gaps = [[Styled("  ")] if i else [] for i in range(len(parts))]
    return [piece for gap, part in zip(gaps, parts, strict=True) for piece in (*gap, *part)]


def make_progress(
    place: Place,
    stream: TextIO | None = None,
    quiet: bool = False,
    every: int = 10,
    seconds: float = 5.0,
) -> Progress:
    """What suits this process: a bar, lines, or silence.

    Args:
        place: only rank 0 prints.
        stream: where to; standard error by default.
        quiet: say nothing.
        every: of plain lines, steps between two at least.
        seconds: of plain lines, time between two at least.
    """
    stream = sys.stderr if stream is None else stream
    if quiet or not place.main or stream is None:
        return Progress()
    return Bar(stream) if is_terminal(stream) else PlainLines(stream, every, seconds)
