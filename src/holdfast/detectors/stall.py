"""TPT005: checkpoints, logs, plots or validation stop the loop again and again."""

from __future__ import annotations

from dataclasses import dataclass

from ..types import Event, Severity
from ._timed import TimedDetector, code_of, word
from ._told import number
from .base import Detector

_WHAT = {
    "checkpoint": ("saves state", "save once per epoch or every few minutes"),
    "log": ("writes logs", "write less often, append instead of rewriting, do not flush each time"),
    "plot": ("draws", "draw once per epoch, from values that were collected"),
    "gc": ("collects garbage", "leave it to Python, or do it once per epoch"),
    "statistics": ("computes statistics", "do it every few hundred steps, on a sample"),
    "evaluation": ("evaluates", "evaluate once per epoch or on fewer batches"),
    "wait": ("waits for something else", "do not wait for it in the loop"),
    "work": ("does other work", "do it less often if it may be"),
}


class Stall(TimedDetector):
    """The loop stops again and again for something that is not training.

    What it detects:
        Steps that take more than twice the usual one, come back several times in a hundred
        steps and make a good part of the loop's time; or a line that writes or computes
        statistics on every step and takes a large share of it. The lines of such steps are
        timed to say what was done: checkpoint, log, plot, validation, garbage collection.

    Why it matters:
        Training that saves its state every five steps may spend more time saving than
        training. Nothing fails, so nobody notices.

    Evidence:
        ``what`` was done, ``stall_ms`` it takes each time, ``every`` how many steps, ``share``
        of the loop's time, ``step_ms`` of a usual step, ``stalls`` seen; ``lost`` seconds so
        far; ``function``, ``statement`` and ``key``; ``consequence`` when the line has become
        slow.

    Usual causes:
        - ``torch.save`` or a JSON dump every few steps, with ``fsync`` or to far storage.
        - A log file that is opened, written and closed on each step; histograms of all weights.
        - Validation over the whole set every few steps.
        - ``gc.collect()`` or ``empty_cache()`` in the loop.

    What to do:
        1. Do it less often; the interval stands in the ``if`` above the line.
        2. Hand it to a thread, as ``holdfast`` does with its own checkpoints.

    False alarms:
        What stands outside of the innermost training loop, once per epoch, is never reported.
        Work of no known kind is a warning from ``unknown`` of the time on.

    Cost:
        A microsecond per step; lines are timed on the steps at which the next stall is due.

    Reproduce:
        ``holdfast run -m holdfast.faults.stall`` names the line that stops
        ``python -m holdfast.faults.stall`` every few steps.
    """

    code = "TPT005"
    name = "stall"
    kind = "stall"

    @dataclass(frozen=True, kw_only=True)
    class Options(Detector.Options):
        """From when on it is a warning; as the design says."""

        share: float = 0.2
        every: float = 34.0
        unknown: float = 0.35
        """The share from which on work of no known kind is one too."""

    def judge(self, event: Event) -> tuple[str, str, Severity, float] | None:
        """Name the line and what it does."""
        what = word(event, "what")
        does, cure = _WHAT.get(what, _WHAT["work"])
        share, every = number(event, "share"), number(event, "every")
        often = "on every step" if every <= 1 else f"about every {every:.0f} steps"
        said = (
            f"{does} {often}: {number(event, 'stall_ms'):.3g} ms each, a step takes "
            f"{number(event, 'step_ms'):.3g} ms, {share:.0%} of the time"
        )
        least = self.options.unknown if what == "work" else self.options.share
        bad = share >= least and every <= self.options.every
        severity = Severity.WARNING if bad else Severity.INFO
        return said, f"{cure}: {code_of(event)}", severity, 0.9 if bad else 0.5
