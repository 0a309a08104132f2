"""TPT003: torch.compile keeps recompiling the same function."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from ..records.times import Recompiled
from ..types import Event, Severity
from ._examples import rows
from ._lines import SourceLine
from ._timed import TimeClaim, TimedDetector, quoted

_UNKNOWN = "keep what this guard asks for the same from call to call"
# What to do, by what a guard asks for; the first that fits.
_CURES = tuple(
    (re.compile(asks), reported)
    for asks, reported in (
        (r"\blen\(", "give it the same number of items, or one tensor of them"),
        (
            r"(requires_grad|dtype|device|dispatch key set|rank) mismatch",
            "give it tensors that are alike in dtype, device, dimensions and requires_grad",
        ),
        (
            r"(size|stride) mismatch|\.(size|stride)\(\)|\.shape\b",
            "use few sizes (pad, drop_last=True) or compile with dynamic=True",
        ),
        (r"^KeyError|\.keys\(\)|\bin [\w.\[\]']+$", "give it the same keys each time"),
        (r"== ['\"]", "a text is compiled in: give it few different ones"),
        (r"== (True|False|None)$", "keep this switch the same, or compile for each of its values"),
        (
            r"== -?[\d.]+(e-?\d+)?$",
            "pass the value that changes as a tensor, torch.tensor(value), or keep it fixed",
        ),
        (r"check_(obj|type)_id|\bid\(", "give it the same object each time: make it once"),
    )
)

_COMPILED = Recompiled(
    file="src/train.py", line=57, code="x = slow(y)", name="forward", defined="a.py:3", times=3,
    same=3, seconds=2.0, guard="k == 3", trained=4.0,
)  # fmt: skip


class Recompile(TimedDetector):
    """Recompilation: torch.compile keeps recompiling a function, mostly for the same reason.

    What it detects:
        ``torch.compile`` specialises on sizes, Python numbers and flags. When one of them changes,
        it compiles the function again. ``same`` recompilations for the same guard, or twice as
        many for different ones, are reported with the guard and the calling line.

    Why it matters:
        A compilation takes seconds to minutes, the step waits for it, and after eight of them
        (``torch._dynamo.config.recompile_limit``) the function runs uncompiled for good.

    Evidence:
        ``times`` it was recompiled, ``same``: for the same guard, ``seconds`` spent, ``guard``: the
        one that failed last, ``name`` of the function and ``defined``: where; ``lost``: the same
        seconds, ``share``: theirs of the run, ``function``, ``statement`` and ``key``; ``headline``
        and ``source``, the statement and the lines around it.

    Usual causes:
        - A Python number that changes on each step is an argument or an attribute: a step
          counter, a temperature, a learning rate.
        - Batches of different sizes with ``dynamic=False``, or many different lengths.
        - A flag that switches back and forth, as ``model.training`` or ``requires_grad``.

    What to do:
        1. Make the number a tensor: ``torch.tensor(k)`` is no guard.
        2. Pad to a few sizes, ``drop_last=True``, or ``torch.compile(..., dynamic=True)``;
           ``torch._dynamo.mark_dynamic(x, 0)`` for one dimension.

    False alarms:
        Two or three compilations (training, evaluation, a last batch that is smaller, dynamic
        shapes) are normal and not reported.

    Cost:
        Nothing on a step without a compilation: dynamo itself reports when it compiles.

    Reproduce:
        ``holdfast run -m holdfast.faults.recompile`` names the guard that fails in
        ``python -m holdfast.faults.recompile``.
    """

    code = "TPT003"
    name = "recompile"
    kinds = ("recompile",)
    fires = rows(8, _COMPILED)
    silent = rows(8, _COMPILED.replace(same=2))

    @dataclass(frozen=True, kw_only=True)
    class Options(TimedDetector.Options):
        """Measured with benchmarks/results/detection_cpu_arm_2026-11-16.md unless it says guess."""

        same: float = 3.0
        """Compilations for the same guard; half of those for any."""

    def claims(self, event: Event) -> Iterator[TimeClaim]:
        """Name the guard and the line that calls."""
        reported = Recompiled.of(event)
        if reported is None or max(reported.same, reported.times // 2) < self.options.same:
            return
        times, seconds, guard = reported.times, reported.seconds, reported.guard
        place = None
        if reported.file and reported.line > 0:
            place = SourceLine(
                reported.file, reported.line, reported.line, reported.code, excerpt=reported.excerpt
            )
        cure = next((cure for asks, cure in _CURES if asks.search(guard)), _UNKNOWN)
        run = seconds + reported.trained
        yield TimeClaim(
            what=f"makes torch.compile recompile {reported.name or 'a function'}: {times} "
            f"times, {seconds:.3g} s; failing guard: {guard[:60]}",
            advice=f"{cure}: {quoted(place)}",
            severity=Severity.WARNING,
            confidence=0.9,
            share=seconds / run if run > 0 else 0.0,
            seconds=run,
            place=place,
            headline=f"torch.compile recompiles {times} times",
            evidence={
                "name": reported.name,
                "defined": reported.defined,
                "times": float(times),
                "same": float(reported.same),
                "seconds": seconds,
                "guard": guard,
            },
        )
