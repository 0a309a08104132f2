"""RUN003: samples cannot be read and were replaced by others."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from ..records.steps import Unreadable
from ..types import Finding, Severity
from ._crashes import clip
from ._examples import rows
from ._window import Window
from .base import Detector

_MESSAGE = 90
# In the names of exceptions about a way to a file, not about the file.
_AWAY = ("Connection", "Timeout", "TimedOut", "BrokenPipe", "URLError", "HTTP", "SSL")

_REPLACED = Unreadable(
    replaced=True, type="KeyError", message="'cat'", file="data.py", line=31, sample=481
)
_LEFT = _REPLACED.replace(replaced=False)


class UnreadableSample(Detector):
    """A sample of the training data cannot be read; another one was taken in its place.

    What it detects:
        Reading a sample has raised an exception about its file (missing, cut off, not decodable)
        or about reaching it, three times in a row with the random state put back.

    Why it matters:
        One broken file among a million ends a run in the middle of the night. The run goes on
        without the sample; what it would have taught is lost, so the file wants repair.

    Evidence:
        ``sample``: its index in the dataset that holds it; ``path``: its file where that dataset
        keeps a list; ``error``: class and message; ``replaced``: samples so far; ``most``: how
        many may be replaced before the exception goes through; ``cause``: the statement.

    Usual causes:
        - A download or a copy that was cut short.
        - A path in a list whose file has been moved.
        - Storage or a network that is gone for longer than a second.

    What to do:
        1. Repair or remove the files in ``quarantine.rN.jsonl``.
        2. Where the run shall end at the first one: ``--no-replace-samples``.

    False alarms:
        A dataset that raises ``OSError`` on purpose. Only a shuffled loader over a map-style
        dataset is helped, or one that ``holdfast.watch`` or the trainer loops over, and never on
        errors of programming (KeyError, TypeError, ...).

    Cost:
        The state of torch's generator is copied for each batch, 2 µs; in workers those of Python
        and numpy too, 0.17 ms of the worker (x86, ``random_state`` timed by ``timeit``).

    Reproduce:
        ``holdfast run -m holdfast.faults.unreadable_sample`` goes on where
        ``python -m holdfast.faults.unreadable_sample`` ends.
    """

    code = "RUN003"
    name = "unreadable_sample"
    severity = Severity.WARNING
    needs = ("loss",)
    since = "0.1"
    within = 20
    judges_events = True
    fires = rows(8, _REPLACED)
    silent = rows(8, _LEFT)

    def scan(self, window: Window) -> Iterator[Finding]:
        """Each event, with the first row that is not older than it."""
        first, count = len(window) - window.fresh, 0
        for event in window.events:
            sample = Unreadable.of(event)
            if sample is None or not sample.replaced:
                continue
            count += 1
            rows = np.flatnonzero(window.rows["step"] >= event.step)
            if rows.size and rows[0] >= first:
                yield self._finding(window.ending(int(rows[0])), sample, count)

    def check(self, window: Window) -> Finding | None:
        """The same for one row."""
        return next(self.scan(replace(window, fresh=1)), None)

    def _finding(self, window: Window, lost: Unreadable, count: int) -> Finding:
        path = lost.path
        said = (lost.message.splitlines() or [""])[0]
        error = f"{lost.type}: {said}".rstrip(": ")
        finding = self.finding(
            window,
            f"sample {lost.sample}{f' ({path})' if path else ''} cannot be read "
            f"({error[:_MESSAGE]}); another one was taken in its place",
            f"{_repair(lost.type)}; all such samples are in "
            "quarantine.rN.jsonl, and --no-replace-samples (quarantine.replace=false) ends the run "
            "at the first one",
            severity=self.severity,
            evidence={
                "sample": lost.sample,
                "path": path,
                "error": clip(error, 400),
                "replaced": count,
                "most": lost.most,
                "cause": {} if lost.code is None else {"code": lost.code},
            },
        )
        return replace(
            finding,
            file=lost.file,
            line=lost.line,
            action=finding.action or "replace_sample",
        )


def _repair(error: str) -> str:
    """What to do about a class of exceptions."""
    if any(word in error for word in _AWAY):
        return "the file could not be reached: look at the connection or the storage, then read it"
    return "repair or remove the file"
