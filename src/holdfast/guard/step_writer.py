"""Write step records as rows, once their numbers have arrived from the device.

Opens the run lane with the first backward pass, so that a script that never trains leaves
nothing behind.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from ..actions.scaler_policy import ScalerPolicy
from ..config import Settings
from ..probes.cost_budget import LEAN, Budget
from ..probes.host import Host
from ..probes.loss import Losses
from ..probes.memory import Memory
from ..probes.readback import Readback
from ..probes.step_record import StepRecord
from ..probes.updates import Before
from ..run import Recorder
from .bad_batches import BadBatches
from .by_hand import UpdatesByHand
from .grad_scaler import exploded
from .kernel_cost import KernelCost
from .lane import Lane
from .layer_norms import LayerTables
from .optimizer_guard import OptimizerGuard


class StepWriter:
    """Writes the rows of the engine."""

    def __init__(
        self,
        settings: Settings,
        open_recorder: Callable[[], Recorder],
        opening: tuple[str, dict[str, Any]] | None = None,
    ) -> None:
        self.iteration = 0
        self.skipped = 0
        self.latest: dict[str, float] = {}
        """The row that was written last."""
        self.in_flight = 0
        self.incident: Callable[[OptimizerGuard, StepRecord], None] | None = None
        """Called for a step that turns out bad only when its numbers arrive from the device."""
        self.known: Callable[[OptimizerGuard, StepRecord], None] | None = None
        """Called for every step when its numbers are on the host."""
        self.lane = Lane(open_recorder, opening)
        self.by_hand = UpdatesByHand(self.lane)
        self.budget = Budget(settings.guard.budget)
        self.bad_batches = BadBatches(settings.quarantine)
        self.scaling: ScalerPolicy | None = None
        """Policy for the script's GradScaler, on request."""
        if settings.scaler.policy:
            self.scaling = ScalerPolicy(
                settings.scaler, lambda data: self.tell("scaler", self.iteration, data)
            )
        self._settings = settings.run
        self._readback = Readback()
        self._host = Host()
        self._memory = Memory()
        self.kernel_cost = KernelCost()
        self._by_layer = LayerTables()
        self._stepped: set[int] = set()
        self._suspicious = False
        self._rows = 0

    def saw_backward(self, losses: Losses) -> None:
        """A backward pass is over; without optimizers nothing else is visible."""
        self.iteration = self.by_hand.saw_backward(losses, self.iteration)

    def number(self, guard: OptimizerGuard) -> int:
        """The iteration that a step of this optimizer belongs to; several may share one."""
        # A new one that comes when others have been through iterations begins its own: stages,
        # folds, fine-tuning after pre-training.
        late = not guard.stepped and self.iteration > 0
        if guard.index in self._stepped or (late and self._stepped):
            self.iteration += 1
            self._stepped.clear()
        guard.stepped = True
        self._stepped.add(guard.index)
        return self.iteration

    def wants_parameters(self, record: StepRecord) -> bool:
        """Whether this step checks the weights too: at the start, periodically, after bad steps."""
        every = self._settings.parameters_every
        return self._suspicious or record.step % (every * LEAN if self.budget.lean else every) == 0

    def samples(self) -> tuple[int, ...]:
        """Every how many steps something is looked at that is not on the others."""
        settings = self._settings
        wanted = (settings.layers_every, settings.memory_every, settings.parameters_every)
        return tuple(map(self.often, wanted))

    def at_ease(self, guard: OptimizerGuard) -> bool:
        """Whether the next step of this optimizer needs its row written and nothing else."""
        norms = self._by_layer.known_norms(guard.index)
        if norms is None or norms.excited or self._suspicious or self.in_flight:
            return False
        return guard.announced and not guard.notes and self.scaling is None

    def often(self, every: int) -> int:
        """Every how many steps an optional measurement is due."""
        return every * LEAN if self.budget.lean else every

    def close_step(self, guard: OptimizerGuard, record: StepRecord) -> None:
        """A step is over: write its row now, or when its numbers have arrived."""
        if record.usual:
            self._put(guard, record)
            return
        self.by_hand.optimizer_stepped()
        if guard.notes or not guard.announced:
            self._announce(guard)
        measured = record.measured
        if record.weights is not None:
            self._send_updates(guard, record, record.weights)
            record.weights = None
        if record.step % self.often(self._settings.memory_every) == 0:
            self._host.read(record.row)
            if measured is not None:
                self._memory.read(measured.flag.device, record.row)
        if measured is None:
            if self.in_flight:
                self._readback.poll()
            if self.scaling is not None and exploded(record):
                self.scaling.explosion()
            self._write(guard, record)
            return
        if self.scaling is not None and record.scaled and measured.factor is not None:
            self.scaling.explosion(measured.factor[1])
        self.in_flight += 1
        self._readback.send(measured.row, functools.partial(self._arrived, guard, record))
        if self.in_flight >= self.budget.together:
            self._readback.poll()

    def _arrived(
        self, guard: OptimizerGuard, record: StepRecord, values: np.ndarray | None
    ) -> None:
        self.in_flight -= 1
        if values is not None:
            record.arrive(values)
            guard.arrived(record)
            if record.bad and self.incident is not None:
                self.incident(guard, record)
        record.measured = None
        self._write(guard, record)

    def _write(self, guard: OptimizerGuard, record: StepRecord) -> None:
        recorder = self.lane.recorder or self.lane.opened()
        if recorder is None:
            return
        row = record.row
        if record.timed is not None:
            row.update(record.timed.seconds())
        if record.cost_events:
            row["guard_device"] = self.kernel_cost.seconds(record)
        if row["skipped"]:
            self.skipped += 1
        if self.scaling is not None and exploded(record):
            scale = self.scaling.lowered(row["scale"])
            data = {"what": "explosion", "scale": scale, "opt": record.opt}
            recorder.event("scaler", record.step, data)
        if self.known is not None:
            self.known(guard, record)
        self._suspicious = record.bad or row["param_bad"] > 0
        self._put(guard, record)

    def _put(self, guard: OptimizerGuard, record: StepRecord) -> None:
        """Write a row that is complete."""
        recorder, steps, row = self.lane.recorder, self.lane.steps, record.row
        if recorder is None or steps is None:
            return
        if record.batches:
            self.bad_batches.tell(recorder, record)
        if self.budget.spend(row["guard"], record.time):
            recorder.event(
                "backed_off",
                record.step,
                {
                    "cost": self.budget.measured,
                    "why": f"the guard took {self.budget.measured:.1%} of the step time: weights, "
                    f"memory and layers are measured {LEAN} times less often; "
                    "skipping goes on as before",
                },
            )
        steps.put(record.step, record.time, row)
        self.latest = row
        if record.reading is not None and record.layers == len(guard.layers) > 0:
            norms = self._by_layer.norms(recorder, guard.index, guard.layers)
            due = not record.usual and record.step % self.often(self._settings.layers_every) == 0
            norms.tell(record, due=due)
        self._rows += 1

    def _send_updates(self, guard: OptimizerGuard, record: StepRecord, weights: Before) -> None:
        def arrived(ratios: np.ndarray | None) -> None:
            recorder = self.lane.opened()
            if ratios is None or recorder is None:
                return
            table = self._by_layer.updates(recorder, guard.index, guard.layers)
            row = np.full(len(guard.layers), np.nan, dtype=np.float32)
            row[weights.positions] = ratios
            table.put_array(record.step, record.time, row)

        if record.measured is None:
            arrived(weights.ratios().numpy())
        else:
            self._readback.send(weights.ratios(), arrived)

    def not_covered(self, what: str, why: str) -> None:
        """Report, once, what the guard cannot do for this run."""
        self.lane.not_covered(self.iteration, what, why)

    def failure(self, where: str, error: Exception) -> None:
        """Record that a part of holdfast failed and was switched off."""
        self.lane.failure(self.iteration, where, error)

    def tell(self, kind: str, step: int, data: dict[str, Any]) -> None:
        """Record what an investigation does or has found."""
        recorder = self.lane.opened()
        if recorder is not None:
            recorder.event(kind, step, data)
            if kind == "cause":
                self.bad_batches.explained(recorder, step, data)

    def _announce(self, guard: OptimizerGuard) -> None:
        recorder = self.lane.opened()
        if recorder is None:
            return
        if not guard.announced and guard.how:
            guard.announced = True
            recorder.event("optimizer", self.iteration, guard.description())
        while guard.notes:
            kind, data = guard.notes.pop(0)
            recorder.event(kind, self.iteration, data)

    # ------------------------------------------------------------------ closing

    def close(self) -> None:
        """Write pending rows and the final record."""
        recorder, passes = self.lane.recorder, self.by_hand.passes
        if recorder is None:
            return
        self._readback.poll(wait=True)
        self.iteration = self.by_hand.write(self.iteration)
        if self._rows == 0 and passes:
            self.not_covered(
                "guarding",
                f"{passes} backward passes and no step of a torch.optim.Optimizer: weights "
                "are updated by hand, by an optimizer of another kind or in a compiled step",
            )
        if self._readback.dropped:
            recorder.event("dropped", self.iteration, {"readings": self._readback.dropped})
        self.bad_batches.close(recorder, self.iteration)
        recorder.event("end", self.iteration, {"steps": self._rows, "skipped": self.skipped})
        recorder.close()
