"""RUN001: an exception ended the script."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from ..records.crash import RaisedException, SwallowedException
from ..types import Finding, Severity
from ._crashes import Crash as Facts
from ._crashes import clip, explain, line_fix, root
from ._examples import rows
from ._window import Window
from .base import Detector

_MESSAGE = 120
_KEPT = ("function", "library", "phase", "code", "start", "excerpt")

_RAISED = RaisedException(type="KeyError", message="'cat'", file="data.py", line=31, sample=481)


class Crash(Detector):
    """An uncaught exception ended the script: its line, its cause, its sample.

    What it detects:
        Any exception that python prints a traceback for and exits, before the first step too: at
        import of the script's own modules, in the first batch, in a loader worker, in backward.
        Also one that the script caught and gave up on: ``sys.exit(1)``, ``exit(1)`` inside of
        ``except`` (with ``holdfast.watch`` where that is inside of its ``with``). Not any other
        ``sys.exit`` and not Ctrl-C; out of memory has a code of its own (MEM008).

    Why it matters:
        The last line of a traceback is mostly in torch. What helps is the line of the script, the
        shapes that met there, and the line that made the wrong one.

    Evidence:
        ``error``: class and message; ``headline``: the cause in a few words; ``cause``: function,
        statement and lines around it; ``operands``, ``variables``: values of the line and of its
        function (small ones, secrets hidden); ``inner``, ``layer_at_work``: what the call of torch
        was given, and its module; ``frames``: the script's calls; ``called_from`` and
        ``process``: the line of the main process, and which other process raised;
        ``samples``: dataset index of the sample that was loaded; ``sample_file``: its file;
        ``traceback``: the whole of it, without holdfast's own calls; ``diff``: the fix, where it is
        one call in the failing line.

    Usual causes:
        - Shapes: a layer made for another number of features, a batch that is smaller at the end
          of an epoch, channels last, a wrong ``view``.
        - Data: labels or tokens out of range, samples of unequal size, a dataset that returns
          None, a damaged file.
        - Autograd: a tensor overwritten in place, a graph used twice, a loss without a graph.
        - Devices and dtypes that are mixed; a checkpoint of another model.

    What to do:
        1. Read the cause: it says which of the two sides is wrong where that can be reported, and
           names the line that made it.
        2. Look at the values of the line in the report, and at the sample: ``dataset[index]``.
        3. With a GPU, errors may be reported late: run once with ``CUDA_LAUNCH_BLOCKING=1``.

    False alarms:
        None known: there is no finding without an exception that ends the script. The cause is
        read from message, values and source, and from what was measured around it (ranks, dead
        workers, kills, whether somebody reads the output); where these do not tell, it is said to
        be unknown.

    Cost:
        None until the exception; then some milliseconds while the process ends.

    Reproduce:
        ``holdfast run -m holdfast.faults.crash`` names the layer and the batch that
        ``python -m holdfast.faults.crash`` dies of.
    """

    code = "RUN001"
    name = "crash"
    severity = Severity.ERROR
    needs = ("loss",)
    since = "0.1"
    judges_events = True
    fires = rows(8, _RAISED)
    silent = rows(8, SwallowedException(type="KeyError", message="'cat'", batches=9))

    def scan(self, window: Window) -> Iterator[Finding]:
        """The exception, with the first row that is not older than it."""
        first = len(window) - window.fresh
        for event in window.events:
            raised = RaisedException.of(event)
            if raised is None or not _ours(raised):
                continue
            rows = np.flatnonzero(window.rows["step"] >= event.step)
            if rows.size and rows[0] >= first:
                yield self._finding(window.ending(int(rows[0])), raised)
                return

    def check(self, window: Window) -> Finding | None:
        """The same for one row."""
        return next(self.scan(replace(window, fresh=1)), None)

    def _finding(self, window: Window, raised: RaisedException) -> Finding:
        # What the script has raised for another error is explained by that one.
        blamed, reported = root(raised), Facts(data=raised)
        cause = explain(blamed)
        facts = Facts(data=blamed).blaming(cause.row)
        data, place, said = facts.data, facts.place, _said(reported)
        process = data.process or ""
        where = f" at {place.where}" if place.line else ""
        where += f" in {_process(process)}" if process else ""
        where += f" ({facts.sample})" if facts.sample else ""
        if blamed is not raised:
            where = f" at {reported.place.where}, raised for {clip(_said(facts), _MESSAGE)}{where}"
        if (left := raised.gave_up) is not None:
            where += f", caught by the script, which left with sys.exit({clip(left, 20)})"
        sample = {"sample": data.sample} if facts.sample else {}
        written = data.to_dict()
        evidence: dict[str, Any] = {
            "error": clip(said, 400),
            "headline": cause.headline,
            "cause": {name: written[name] for name in _KEPT if name in written} | sample,
            "samples": list(sample.values()),
            "layer_at_work": written.get("module", {}),
            "inner": written.get("inner", {}),
            **{name: written.get(name, []) for name in ("operands", "variables", "frames")},
            "sample_file": data.sample_file or "",
            "called_from": data.called_from or "",
            "traceback": raised.traceback or "",
            "process": process,
        }
        if fix := line_fix(data):
            evidence["diff"] = fix
        finding = self.finding(
            window,
            f"{clip(said, _MESSAGE)}{where}",
            cause.advice,
            evidence=evidence,
            severity=self.severity,
        )
        return replace(finding, file=data.file, line=data.line)


def _ours(raised: RaisedException) -> bool:
    """Whether this detector tells of it: not out of memory, not Ctrl-C."""
    return raised.explained != "memory" and raised.type != "KeyboardInterrupt"


def _said(facts: Facts) -> str:
    """Class and first line of the message, without a colon that announces the next one."""
    first = (facts.message.strip().splitlines() or [""])[0].rstrip(": ")
    return f"{facts.type}: {first}" if first else facts.type


def _process(reported: str) -> str:
    """``DataLoader worker process 0`` in our words."""
    return reported.replace("DataLoader worker process", "loader worker").replace("in ", "", 1)
