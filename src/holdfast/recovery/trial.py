"""The trial of a rollback: old weights for one batch, before it is known whether to keep them."""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass

import torch

from ..detectors.suspicion import Suspicion
from ..probes.loss import Losses
from ..probes.readback import read_with_event, wait_for
from ..probes.step_record import StepRecord
from .snapshots import Snapshot
from .training import Guarded

# Old weights are the better ones when no more than this share of the rise is left with them.
_SHARE = 0.3


@dataclass(slots=True)
class Trial:
    """A trial: old weights are in place for one batch; ``kept`` is the state they replaced."""

    guard: Guarded
    suspicion: Suspicion
    target: Snapshot
    kept: Snapshot
    undone: int
    ms: float
    tried: float | None = None
    """The loss of the batch it is tried on, once that is known."""
    failed: bool = False


def acceptable_loss(found: Suspicion) -> float:
    """The highest loss that old weights may have on new data; they may be many steps old."""
    if not math.isfinite(found.usual):
        return sys.float_info.max  # nothing was known yet: any finite loss is better than none
    if not math.isfinite(found.loss):
        return max(found.limit, found.usual + abs(found.usual))
    return max(found.limit, found.usual + _SHARE * (found.loss - found.usual))


def was_skipped(record: StepRecord) -> bool:
    """Whether the device has skipped a step; waits for it, once per rollback."""
    return record.measured is not None and wait_for(record.measured.flag)


def all_finite(snapshot: Snapshot) -> bool:
    """Whether a snapshot holds no NaN and no infinity; waits for its copy."""
    snapshot.wait()
    return all(bool(torch.isfinite(v).all()) for v in snapshot.views if v.is_floating_point())


def read_loss(losses: Losses) -> float:
    """The loss of a step, waited for if need be: this happens once in a rollback."""
    known = losses.on_host()
    if known is not None:
        return known[0]
    loss = losses.on_device(losses.values[0].device)
    assert loss is not None
    return read_with_event(loss)
