"""Where the time of a step goes, in one sentence, from the first twenty steps on."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ..run import Rows
from . import words

STEPS = 20
"""Steps needed for a verdict, and steps compared at both ends."""

# The first steps: compilation, first allocations, caches.
_FIRST = 3
_SLOWER = 1.3
# Share above which a phase is the bottleneck, in the order of checking.
_BOUND = {
    "data_wait": (0.3, "waits for data"),
    "h2d": (0.2, "copies to the device"),
    "other": (0.4, "is spent in the loop outside training"),
    "optimizer": (0.4, "is spent in the optimizer"),
}


def verdict(rows: Rows, phases: Mapping[str, float]) -> str:
    """What bounds a step and whether it stays so; "" while there are too few.

    Args:
        rows: of the steps of one optimizer.
        phases: mean seconds of each phase.
    """
    total = sum(phases.values())
    if len(rows) < STEPS or total <= 0:
        return ""
    verb, share = "is spent in the model: forward and backward", 0.0
    for name, (least, says) in _BOUND.items():
        share = phases.get(name, 0.0) / total
        if share >= least:
            verb = says
            break
    else:
        share = (phases.get("forward", 0.0) + phases.get("backward", 0.0)) / total
    return f"{words.percent(share)} of a step {verb}; {_trend(rows)}"


def _trend(rows: Rows) -> str:
    # A long run does not keep every row.
    each = (np.diff(rows["time"]) / np.maximum(1, np.diff(rows["step"])))[_FIRST:]
    if len(each) < 2 * STEPS:
        return f"{words.duration(float(np.median(each)))} each so far, the guard included"
    first, last = float(np.median(each[:STEPS])), float(np.median(each[-STEPS:]))
    if last > _SLOWER * first > 0:
        return f"the last {STEPS} took {last / first:.1f} times as long as the first"
    return f"the last {STEPS} took as long as the first" + (" or less" if last < first else "")
