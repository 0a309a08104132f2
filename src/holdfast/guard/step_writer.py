"""Write step records as rows, once their numbers have arrived from the device."""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from torch import Tensor

from ..actions.scaler_policy import ScalerPolicy
from ..config import Settings
from ..diagnosis.origins import parts_of
from ..probes import learning_rate
from ..probes.cost_budget import LEAN, CostBudget
from ..probes.host import Host
from ..probes.loss import Losses
from ..probes.memory import Memory
from ..probes.norm_rows import PinnedRow
from ..probes.ranks import ranks
from ..probes.readback import Readback
from ..probes.replicas import parallel_facts
from ..probes.step_record import BLANK, StepRecord
from ..probes.updates import Before
from ..records.run import Dropped, End
from ..records.steps import ScalerChange
from ..run import RowTable
from .grad_scaler import ScalerInUse, why_lower
from .kernel_cost import KernelCost
from .layer_norms import LayerNorms
from .optimizer_guard import OptimizerGuard, parameters_of
from .training import GuardedTraining

# Backward passes without any optimizer step before a loop is taken for one that updates by hand.
_PASSES = 64


class StepWriter:
    """Writes the rows of the engine.

    Args:
        settings: of the run.
        training: whose steps these are.
        known: called with each step whose numbers are on the host, before its row is written;
            also says whether they were decided on a device and come later than the step.
    """

    def __init__(
        self,
        settings: Settings,
        training: GuardedTraining,
        known: Callable[[OptimizerGuard, StepRecord, bool], None],
    ) -> None:
        self.training = training
        self.skipped = 0
        self.latest: Mapping[str, float] = {}
        """The row that was written last."""
        self.listeners: list[Callable[[int, Mapping[str, float]], None]] = []
        """Handed every step and its row as it is written."""
        self.budget = CostBudget(settings.guard.budget)
        self.kernel_cost = KernelCost()
        asked: ScalerPolicy | None = None
        if settings.scaler.policy:
            asked = ScalerPolicy(
                settings.scaler,
                lambda change: training.record_at(training.iteration, change),
            )
        self.scaler = ScalerInUse(asked, acts=settings.guard.skip)
        self._known = known
        self._settings = settings.run
        self.readback = Readback()
        self._host = Host()
        self._memory = Memory()
        # By optimizer: tables with a column for each layer.
        self._norms: dict[int, LayerNorms] = {}
        self._updates: dict[int, RowTable] = {}
        self._checksums: dict[int, RowTable] = {}
        self.stepped: set[int] = set()
        """The optimizers that have stepped in this iteration."""
        self._passes: list[tuple[float, float]] = []
        self.suspicious = False
        """Whether the last step that is known was bad: then the weights are looked at."""
        self._rows = 0

    @property
    def parameters_every(self) -> int:
        """Every how many steps the weights are looked at."""
        return self._settings.parameters_every

    @property
    def memory_every(self) -> int:
        """Every how many steps memory is looked at."""
        return self._settings.memory_every

    @property
    def in_flight(self) -> int:
        """How many vectors are on their way from a device."""
        return len(self.readback.flying)

    @property
    def waiting(self) -> bool:
        """Whether no optimizer has stepped so far."""
        return not self.stepped

    def saw_backward(self, losses: Losses) -> None:
        """A backward pass without a step so far: weights may be updated by hand."""
        if self.training.opened() is not None and losses.numbers:
            self._passes.append((time.time(), losses.numbers[-1]))
            if len(self._passes) >= _PASSES:
                self._write_passes()

    def _write_passes(self) -> None:
        """Without an optimizer each backward pass counts as a step."""
        passes, self._passes = self._passes, []
        for at, loss in passes:
            row = {"loss": loss, "backwards": 1.0, "opt": -1.0, "skipped": 0.0}
            row["loss_bad"] = float(not math.isfinite(loss))
            if self.training.steps is not None:
                self.training.steps.put(self.training.iteration, at, BLANK | row)
            self.training.iteration += 1

    def number(self, guard: OptimizerGuard) -> int:
        """The iteration that a step of this optimizer belongs to; several may share one."""
        # A new one that comes when others have been through iterations begins its own: stages,
        # folds, fine-tuning after pre-training.
        late = not guard.stepped and self.training.iteration > 0
        if guard.index in self.stepped or (late and self.stepped):
            self.training.iteration += 1
            self.training.yet_to_step = self.stepped - {guard.index}
            self.stepped.clear()
        guard.stepped = True
        self._passes = []
        self.stepped.add(guard.index)
        self.training.yet_to_step.discard(guard.index)
        return self.training.iteration

    def upcoming(self, guard: OptimizerGuard) -> int:
        """What ``number`` will say to an optimizer that has stepped before."""
        return self.training.iteration + (guard.index in self.stepped)

    def stepped_last(self, guard: OptimizerGuard | None) -> bool:
        """Whether an optimizer took part in the last iteration.

        Where its guard is gone, python is freeing a cycle of objects: then it did, if no other
        optimizer did that is left.
        """
        if guard is not None:
            return guard.index in self.stepped
        left = {other.index for _, other in self.training.guards()}
        return bool(self.stepped) and not left & self.stepped

    def wants_parameters(self, record: StepRecord) -> bool:
        """Whether this step checks the weights too: at the start, periodically, after bad steps."""
        return self.suspicious or record.step % self.often(self._settings.parameters_every) == 0

    def samples(self) -> tuple[int, ...]:
        """Every how many steps something is looked at that is not on the others."""
        settings = self._settings
        wanted = (settings.layers_every, settings.memory_every, settings.parameters_every)
        return tuple(map(self.often, wanted))

    def at_ease(self, guard: OptimizerGuard) -> bool:
        """Whether the next step of this optimizer needs its row written and nothing else."""
        norms = self._norms.get(guard.index)
        if norms is None or norms.excited or self.suspicious or self.in_flight:
            return False
        return guard.announced and not guard.notes and self.scaler.policy is None

    def often(self, every: int) -> int:
        """Every how many steps an optional measurement is due."""
        return every * LEAN if self.budget.lean else every

    def close_step(self, guard: OptimizerGuard, record: StepRecord, losses: Losses) -> None:
        """A step is over: write its row now, or when its numbers have arrived."""
        if record.is_ordinary:
            if self.training.followed.scaled:
                self.training.followed.scale(record)
            self.put(guard, [record])
            return
        if guard.notes or not guard.announced:
            self._announce(guard, record)
        measured = record.measured
        if record.checksums is not None:
            self._send_checksums(guard, record, record.checksums)
            record.checksums = None
        if record.weights is not None:
            self._send_updates(guard, record, record.weights)
            record.weights = None
        every = self._settings.memory_every
        if record.step % (every * LEAN if self.budget.lean else every) == 0:
            self._host.read(record.row)
            if measured is not None:
                self._memory.read(measured.flag.device, record.row)
        scaling = self.scaler.policy
        if measured is None:
            self.readback.poll()
            if scaling is not None and why_lower(record):
                scaling.explosion()
            elif scaling is not None and losses.values and not record.skip_ordered:
                # The scaler skipped the step by itself, and the loss is on the device.
                scaling.explosion(loss=losses.on_device(losses.values[0].device))
            self._write(guard, record)
            return
        if scaling is not None and record.scaled and not record.skip_ordered:
            outlier = None if measured.factor is None else measured.factor[1]
            loss = losses.on_device(measured.flag.device)
            if outlier is not None or loss is not None:
                scaling.explosion(outlier, loss)
        readback, then = self.readback, functools.partial(self.arrived, guard, record)
        if isinstance(measured.row, PinnedRow):
            readback.flying.append((measured.row, then))
        else:
            readback.send(measured.row, then)
        # Its gradients may be known before its last phase is over, and they are written together.
        waits = record.timed is not None and record.timed.pending
        if len(readback.flying) >= self.budget.together and not waits:
            readback.poll()

    def discard(self, row: Tensor | PinnedRow) -> None:
        """Nobody wants these numbers; the room they arrive in is used again."""
        if isinstance(row, PinnedRow):
            self.readback.send(row, lambda values: None)

    def arrived(self, guard: OptimizerGuard, record: StepRecord, values: np.ndarray | None) -> None:
        """The numbers of a step are on the host; None where they were dropped."""
        if values is not None:
            record.arrive(values)
            if record.moved or record.refused:
                guard.arrived(record)
        record.measured = None
        self._write(guard, record, late=True)

    def _write(self, guard: OptimizerGuard, record: StepRecord, *, late: bool = False) -> None:
        recorder = self.training.recorder or self.training.opened()
        if recorder is None:
            return
        row = record.row
        if record.timed is not None:
            row.update(record.timed.seconds())
        if record.cost_events:
            row["guard_device"] = self.kernel_cost.seconds(record)
        if self.training.followed.scaled:
            self.training.followed.scale(record)
        # One that was only looked at again has nothing that is out of order.
        again = record.skip_ordered and not (row["loss_bad"] > 0 or row["grad_bad"] > 0)
        if row["skipped"] and not again:
            self.skipped += 1
        scaling = self.scaler.policy
        if scaling is not None and (why := why_lower(record)):
            scale = scaling.lowered(row["scale"])
            if scale < row["scale"]:
                change = ScalerChange(what=why, scale=scale, opt=record.opt)
                recorder.event(record.step, change)
        self._known(guard, record, late)
        self.suspicious = record.bad or row["param_bad"] > 0
        self.put(guard, [record])

    def put(self, guard: OptimizerGuard, records: Sequence[StepRecord]) -> None:
        """Write rows that are complete, of a step or of several in a row that are alike."""
        recorder, steps = self.training.recorder, self.training.steps
        if recorder is None or steps is None:
            return
        self.training.bad_batches.write(recorder, records)
        hidden, budget = self.kernel_cost.hidden, self.budget
        for record in records:
            if dropped := budget.spend(0.0 if hidden else record.row["guard"], record.time):
                recorder.event(record.step, budget.facts(dropped))
        if len(records) == 1:
            steps.put(records[0].step, records[0].time, records[0].row)
        else:
            steps.put_all([(record.step, record.time, record.row) for record in records])
        last = records[-1]
        self.latest = last.row
        for listener in self.listeners:
            for record in records:
                listener(record.step, record.row)
        if last.reading is not None and last.layers == len(guard.layers) > 0:
            norms = self._norms.get(guard.index)
            if norms is None:
                table = recorder.table(f"layers{guard.index}", guard.layers)
                norms = self._norms[guard.index] = LayerNorms(table)
            every = self._settings.layers_every
            norms.write(records, every * LEAN if budget.lean else every)
        self._rows += len(records)

    def _send_updates(self, guard: OptimizerGuard, record: StepRecord, weights: Before) -> None:
        def arrived(ratios: np.ndarray | None) -> None:
            recorder = self.training.opened()
            if ratios is None or recorder is None:
                return
            table = self._updates.get(guard.index)
            if table is None:
                table = recorder.table(f"updates{guard.index}", guard.layers)
                self._updates[guard.index] = table
            row = np.full(len(guard.layers), np.nan, dtype=np.float32)
            row[weights.positions] = ratios
            table.put_array(record.step, record.time, row)

        if record.measured is None:
            arrived(weights.ratios().numpy())
        else:
            self.readback.send(weights.ratios(), arrived)

    def _send_checksums(self, guard: OptimizerGuard, record: StepRecord, sums: Tensor) -> None:
        def arrived(values: np.ndarray | None) -> None:
            recorder = self.training.opened()
            if values is None or recorder is None or len(values) != len(guard.layers):
                return
            table = self._checksums.get(guard.index)
            if table is None:
                table = recorder.table(f"weights{guard.index}", guard.layers)
                self._checksums[guard.index] = table
            table.put_array(record.step, record.time, values.astype(np.float32))

        if record.measured is None:
            arrived(sums.numpy())
        else:
            self.readback.send(sums, arrived)

    def _announce(self, guard: OptimizerGuard, record: StepRecord) -> None:
        training = self.training
        if training.opened() is None:
            return
        if not guard.announced and guard.how:
            guard.announced = True
            training.record_at(training.iteration, guard.description())
            if ranks() > 1:
                self._tell_ranks(guard, record)
        while guard.notes:
            training.record_at(training.iteration, guard.notes.pop(0))

    def _tell_ranks(self, guard: OptimizerGuard, record: StepRecord) -> None:
        """How this optimizer trains together with those of other ranks."""
        training = self.training
        optimizer = next((o for o, g in training.guards() if g is guard), None)
        if optimizer is not None:
            parameters = parameters_of(optimizer)
            drawn = record.batches[0].indices if record.batches else None
            facts = parallel_facts(parameters, guard.layers, ranks()).replace(
                opt=guard.index,
                cls=guard.cls,
                settings=learning_rate.settings(optimizer),
                batch_size=None if drawn is None else len(drawn),
                made=training.origins.of(optimizer),
                loader=training.origins.loader,
            )
            if facts.find_unused:
                facts = facts.replace(parts=tuple(parts_of(training.models(), parameters)))
            training.record_at(training.iteration, facts)
            training.uneven = bool(facts.join)

    def state(self) -> dict[str, Any]:
        """Which step it is and whose, as plain data; every row must be known."""
        return {
            "iteration": self.training.iteration,
            "stepped": sorted(self.stepped),
            "suspicious": self.suspicious,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from what ``state`` gave."""
        self.training.iteration = state["iteration"]
        self.stepped = set(state["stepped"])
        self.suspicious = state["suspicious"]

    def await_rows(self) -> None:
        """Wait until every row is written; only at the very end of a run."""
        self.readback.poll(wait=True)

    def close(self, passes: int) -> None:
        """Write pending rows and the final record; ``passes``: backward passes without a step."""
        training, recorder = self.training, self.training.recorder
        if recorder is None:
            return
        self.await_rows()
        self._write_passes()
        if self._rows == 0 and passes:
            training.not_covered(
                "guarding",
                f"{passes} backward passes and no step of a torch.optim.Optimizer: weights "
                "are updated by hand, by an optimizer of another kind or in a compiled step",
            )
        step = training.iteration
        if self.readback.dropped:
            recorder.event(step, Dropped(readings=self.readback.dropped))
        training.bad_batches.close(recorder, step)
        recorder.event(step, End(steps=self._rows, skipped=self.skipped))
        recorder.close()
