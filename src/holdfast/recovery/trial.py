"""The trial of a rollback: old weights for one batch, before it is known whether to keep them."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from ..probes.batches import Batch
from ..probes.loss import Losses
from ..probes.readback import read_with_event, wait_for
from ..probes.step_record import StepRecord
from ..suspicion import Suspicion
from .snapshots import Snapshot
from .training import Guarded

# Old weights are the better ones when no more than this share of the rise is left with them.
_SHARE = 0.3
# On the same data at least this share of the rise must be gone; a guess.
_GONE = 0.5


@dataclass(slots=True)
class Trial:
    """A trial: old weights are in place for one batch; ``kept`` is the state they replaced."""

    guard: Guarded
    suspicion: Suspicion
    target: Snapshot
    kept: Snapshot
    undone: int
    ms: float
    asked_by: int | None = None
    """The rank that asked for it, where several try it together."""
    tried: float | None = None
    """The loss of the batch it is tried on, once that is known."""
    failed: bool = False
    before: float = math.nan
    """The loss of the same data with the weights that were replaced; NaN for other data."""
    replayed: int | None = None
    """The step that its batch was handed out for a second time."""

    @property
    def verdict(self) -> Literal["data", "nonfinite", "no better"]:
        """What a trial that failed says: that the data has changed, or only that it did not help.

        Of NaN, and of a loss that is where it was, no other level can be told.
        """
        found, tried = self.suspicion, math.nan if self.tried is None else self.tried
        if found.why == "nonfinite":
            # Of a finite loss that was good enough, the step itself was not finite.
            return "no better" if self.failed and math.isfinite(tried) else "nonfinite"
        risen = found.limit < tried < math.inf and found.usual < found.loss < math.inf
        return "data" if risen else "no better"


class RepeatedBatches:
    """Hands the batches of the last step to the loop again, for a trial on the same data."""

    def __init__(self) -> None:
        self.running = False
        """The loop has batches for the second time; its scheduler is held back."""
        self.loss = math.nan
        """The loss of the newest step that is known."""
        self.again: list[tuple[Batch, Any]] = []
        """Batches that the loop will be handed once more."""

    def begin(self, batches: Sequence[Batch]) -> float:
        """Hand these out next; their loss with the present weights, NaN where there are none."""
        self.again = [(batch, batch.content) for batch in batches]
        return self.loss if batches else math.nan

    def next_batch(self) -> tuple[Batch, Any] | None:
        """What the loop gets instead of its next batch; mostly None."""
        self.running = bool(self.again)
        return self.again.pop(0) if self.again else None

    @property
    def more(self) -> bool:
        """Whether another batch will be handed out for the second time."""
        return bool(self.again)


def clearly_better(found: Suspicion, tried: float, before: float) -> bool:
    """Whether old weights with the loss ``tried`` are the better ones.

    ``before`` is the loss of the same data with the present weights; NaN where the trial had other
    data.
    """
    if math.isnan(before):
        return tried <= acceptable_loss(found)
    if not math.isfinite(found.usual):
        return before - tried >= _GONE * abs(before)  # after a rollback nothing is known yet
    if not before > found.limit:
        return False  # the trouble is over
    on_it = replace(found, loss=before)
    rise = before - found.usual
    return tried <= acceptable_loss(on_it) and before - tried >= _GONE * rise


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


def read_loss(losses: Losses) -> float:
    """The loss of a step, waited for if need be: this happens once in a rollback."""
    known = losses.on_host()
    if known is not None:
        return known[0]
    loss = losses.on_device(losses.values[0].device)
    assert loss is not None
    return read_with_event(loss)
