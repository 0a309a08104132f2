"""TPT002: host synchronisation; the loop reads tensor values one by one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ..records.lines import CodePlace, ReadingLine, StepPace, TensorReads
from ..types import Event, Severity
from ._examples import rows
from ._line_examples import FILE, PACE
from ._lines import SourceLine, places_of
from ._timed import (
    TimeClaim,
    TimedDetector,
    ms,
    quoted,
)

_HOW = {"__bool__": "if tensor", "__float__": "float(tensor)", "__int__": "int(tensor)"}

_READ = ReadingLine(
    path=(0,), function="f", read="item", direct=True, count=64, seconds=0.0001,
    loop_seconds=0.0009,
)  # fmt: skip
_READS = TensorReads(
    reads=(_READ,), models=1.0, step_seconds=0.003, times=PACE, files=(FILE,),
    places=(CodePlace(at=(0, 57), first=57, code="x = slow(y)", calls=("slow",)),),
)  # fmt: skip


class HostSync(TimedDetector):
    """A line reads tensor values on the host many times per step, and the step waits for it.

    What it detects:
        ``.item()``, ``float(x)``, ``int(x)``, ``if x``, ``.tolist()``, ``.cpu()`` and
        ``.numpy()`` are counted per line on a few steps of a run. A line with at least ``reads``
        per step is named if the reads, with a loop of its own around them that does little else,
        take at least ``share`` of the step.

    Why it matters:
        On a GPU every read waits until the device has finished all queued work, and then the
        device waits for the loop. On a CPU, iterating over a tensor element by element is about
        a hundred times slower than one operation on all of it.

    Evidence:
        ``read``: which way, ``reads`` per step, ``read_ms`` in the reads alone, ``line_ms`` with
        a loop around them that does little else, ``share`` of the step, ``step_ms``; ``lost``
        seconds so far; ``function``, ``statement`` and ``key``; ``headline`` and ``source``, the
        statement and the lines around it.

    Usual causes:
        - A metric that iterates over predictions and labels in Python.
        - A check of each parameter or gradient for NaN, on every step.
        - One-hot targets, masks or losses built element by element.

    What to do:
        1. One operation instead of the loop: ``(out.argmax(1) == y).sum()``.
        2. Read once, at the end: collect on the device, ``.item()`` every N steps.
        3. Checks of all gradients: ``torch.nn.utils.get_total_norm`` once instead of each.

    False alarms:
        One ``loss.item()`` per step is never reported; a line that trains and in which a library
        reads some values counts with the time of the reads alone;
        reads that go with one call of the model each, as the actions of an agent, are not.

    Cost:
        The reading methods are replaced on single steps: three of the first hundred, fewer
        later; about a microsecond per read on those.

    Reproduce:
        ``holdfast run -m holdfast.faults.host_sync`` names the line that
        ``python -m holdfast.faults.host_sync`` reads its tensors in.
    """

    code = "TPT002"
    name = "host_sync"
    kinds = ("tensor_reads",)
    fires = rows(8, _READS, _READS)
    silent = rows(8, _READS.replace(models=16.0), _READS.replace(models=16.0))

    @dataclass(frozen=True, kw_only=True)
    class Options(TimedDetector.Options):
        """Measured with benchmarks/results/detection_cpu_arm_2026-11-16.md unless it says guess."""

        worth: float = 0.03
        """Seconds that must be lost; a guess."""
        reads: float = 20.0
        """Per step."""
        per_model: float = 8.0
        """Reads per call of a model: an agent reads its actions too."""
        share: float = 0.12
        """Of the step."""
        turn: float = 0.0004
        """Seconds for each read above which the loop around it does other work; a guess: a value
        is taken, compared and counted in some microseconds."""

    def claims(self, event: Event) -> Iterator[TimeClaim]:
        """The line that reads most."""
        reported = TensorReads.of(event)
        if reported is None:
            return
        times, least = (
            reported.times,
            max(self.options.reads, self.options.per_model * reported.models),
        )
        for read in sorted(reported.reads, key=lambda read: -read.count):
            seconds = self._spent(read)
            # The loop around it as traced, in the step that was; reads alone in the last ones.
            of = reported.step_seconds if seconds > read.seconds else times.last_block
            share = seconds / of if of else 0.0
            if read.count >= least and share >= self.options.share:
                place = places_of(reported)[read.path[-1]]
                yield self._reads(place, read, times, seconds, share)
                return

    def _spent(self, read: ReadingLine) -> float:
        """Seconds of a step that go into reading: the reads, with a loop that does little else."""
        alone, around = read.seconds, read.loop_seconds
        only = read.direct and around <= alone + self.options.turn * read.count
        return max(alone, around) if only else alone

    def _reads(
        self, place: SourceLine, read: ReadingLine, times: StepPace, seconds: float, share: float
    ) -> TimeClaim:
        return TimeClaim(
            what=f"reads tensors {read.count} times per step ({_HOW.get(read.read, read.read)}): "
            f"{ms(seconds):.3g} ms, {share:.0%} of the step",
            advice=f"make one tensor of what {quoted(place)} reads (an operation on the whole, "
            "torch.stack) and read that once per step or every N steps; of data that stays the "
            "same, make a list before the loop (.tolist())",
            severity=Severity.WARNING,
            confidence=0.9,
            share=share,
            seconds=times.seconds,
            place=place,
            function=read.function,
            headline=f"{read.count} tensor reads per step",
            evidence=_evidence(read, seconds, times),
        )


def _evidence(read: ReadingLine, seconds: float, times: StepPace) -> dict[str, Any]:
    return {
        "read": read.read,
        "reads": read.count,
        "read_ms": ms(read.seconds),
        "line_ms": ms(seconds),
        "step_ms": ms(times.last_block),
    }
