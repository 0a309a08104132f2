"""Where a stretch of steps begins and ends (``stretch``)."""

from __future__ import annotations

from torch.optim import Optimizer

from ..diagnosis.nonfinite.investigation import Investigation
from ..diagnosis.watchers import Watchers
from ..probes.loss import KEPT, Losses
from ..probes.ranks import ranks
from ..probes.timing import Phases
from ..recovery.rollback import Recovery
from .device_fast_path import DevicePlan
from .feed import Feed
from .finite_loss import FiniteLoss, Ready
from .grad_scaler import Scaling
from .step_writer import StepWriter
from .stretch import Stretch, Unwritten
from .stretch_rows import StretchRows

MOST = 8
"""Steps whose records may wait: rows from a device are a few steps late anyway."""
# Seconds that they may wait: batches are held meanwhile, in case one is bad, and where steps are
# long, host time does not matter. A guess.
_LATE = 0.16


class Stretches:
    """Begins stretches where that is possible, and ends them.

    Args:
        writer: of the rows.
        recovery: may have something to do between two steps.
        investigation: may want to see a step.
        watchers: may want to see a step.
        finite_loss: knows how losses are written.
        scaling: knows the scaler that is at work.
        feed: of the loop.
        phases: its clock.
    """

    def __init__(
        self,
        writer: StepWriter,
        recovery: Recovery,
        investigation: Investigation,
        watchers: Watchers,
        finite_loss: FiniteLoss,
        scaling: Scaling,
        feed: Feed,
        phases: Phases,
    ) -> None:
        self.now: Stretch | None = None
        self._writer, self._recovery, self._investigation = writer, recovery, investigation
        self._watchers, self._finite_loss, self._scaling = watchers, finite_loss, scaling
        self._feed, self._phases = feed, phases
        self._rows = StretchRows(writer, recovery)

    def begin(self, optimizer: Optimizer, plan: DevicePlan, losses: Losses) -> None:
        """After a step of the fast path: begin one where the next steps will be like it.

        ``losses``: those that it had.
        """
        guard, left = plan.guard, self._left(plan)
        ready = _unwritten(losses) if self._finite_loss.inside else self._ready(losses.passes)
        if left < 2 or not ready or not self._calm(plan):
            return
        buffers = guard.buffers.steady(plan.device)
        if buffers is None:
            return
        device, outliers, scaler = plan.device, guard.outliers, self._scaling.scaler
        scale = None if scaler is None else scaler._get_scale_async()
        terms = {"alone": True, "clipped": plan.clips, "may_skip": True}
        asked = outliers.question(device, scale=scale if plan.still_scaled else None, **terms)
        grad = optimizer.param_groups[0]["params"][0].dtype
        meter = guard.meter(device)
        if asked is None:
            return
        repeat = meter.repeat(True, grad, ready[0][0], asked, scale, buffers.measured)
        if repeat is not None:
            comparability = self._writer.training.comparability
            about = buffers, ready, self._scaling, self._feed, self._phases, comparability
            self.now = Stretch(optimizer, plan, left, repeat, *about)

    def _ready(self, passes: int) -> list[Ready]:
        """What writes each loss of a step, where they are of one kind; otherwise nothing."""
        known = self._finite_loss.ready
        ready = [known[turn] for turn in range(1, min(passes, KEPT) + 1) if turn in known]
        alike = len(ready) == passes and len({one[:2] for one in ready}) == 1
        return ready if alike else []

    def _left(self, plan: DevicePlan) -> int:
        """How many steps there are until something is due."""
        writer, step = self._writer, self._writer.training.iteration
        most = min(MOST, self._phases.stays_idle, self._watchers.resumes - step - 1)
        most = min(most, _LATE / max(1e-6, writer.budget.pace))
        if self._feed.ledger is None:
            most = min(most, self._recovery.look_at - step)
        for every in (plan.every, writer.often(writer.memory_every)):
            most = min(most, every - 1 - step % every)
        return int(most)

    def _calm(self, plan: DevicePlan) -> bool:
        guard, writer, training = plan.guard, self._writer, self._writer.training
        memory, recovery, looks = training.memory, self._recovery, self._investigation
        scaling = self._scaling
        return (
            plan.fused
            and scaling.scaler is (scaling.last() if plan.scaled else None)
            and len(training.registry) == 1
            and writer.stepped == {guard.index}
            and not (writer.suspicious or guard.notes or guard.detect_only or guard.skip.armed)
            and writer.scaler.policy is None
            and looks.idle
            and not (looks.alert or looks.replaying or looks.again)
            and not (recovery.awaits_step or recovery.replay.running or recovery.replay.again)
            and recovery.quiet
            and not (memory.lost or memory.held or memory.again or memory.split.news)
            and not guard.outliers.clipping
            and self._finite_loss.on
            and ranks() == 1
        )

    def end(self) -> Stretch | None:
        """Whatever comes next is not part of it: write the rows of its steps."""
        stretch, self.now = self.now, None
        if stretch is not None:
            stretch.give_up(self._writer)
            self._rows.close(stretch)
        return stretch


def _unwritten(losses: Losses) -> list[Unwritten]:
    """What is known of losses like that of a step with one pass; otherwise nothing."""
    if len(losses.values) != 1 or losses.passes != 1:
        return []
    loss = losses.values[0]
    return [(loss.dtype, loss.get_device(), None, None)]
