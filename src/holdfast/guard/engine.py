"""Engine of the guard: turns the hooks of a training loop into guarded steps.

    fetch_begins ─ fetched ─ backward_begins ─ backward_ends ─ step_begins ─ step_ends ─ …

The only door into the guard: patches, optimizer hooks and ``holdfast.watch`` call its methods and
nothing behind them. Whatever goes wrong in here is caught, switched off for the rest of the run
and recorded as an Event: training goes on.
"""

from __future__ import annotations

import contextlib
import functools
import math
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ..actions import replace_sample, split_batch
from ..actions.split_batch import Compute, Piece
from ..checkpoint.training_state import BestState, TrainingState
from ..config import Settings
from ..diagnosis.crash import exception
from ..diagnosis.crash.given_up import behind
from ..diagnosis.crash.record import ends_the_run
from ..diagnosis.memory.footprint import line_of
from ..diagnosis.memory.watcher import OUT
from ..diagnosis.nonfinite.investigation import Investigation
from ..diagnosis.throughput import worker_samples
from ..diagnosis.watchers import Watchers
from ..policy import Policy
from ..probes import learning_rate
from ..probes._host_norms import read_on_host
from ..probes.batches import Batch, LoaderLedger
from ..probes.gradients import EarlyNorms
from ..probes.loss import Losses
from ..probes.ranks import ranks
from ..probes.readback import wait_for
from ..probes.replicas import EVERY as REPLICAS_EVERY
from ..probes.replicas import checksums
from ..probes.step_record import StepRecord
from ..probes.timing import Phases
from ..probes.updates import EVERY as UPDATES_EVERY
from ..recovery.last_state import LastState, Moment
from ..recovery.rollback import Recovery
from ..recovery.together import END
from ..run import Recorder, Run
from .closures import closure_of, why_not_skippable, with_guard
from .decisions import Decisions
from .fail_open import attempt, fail_open, out_of_reach
from .fast_paths import FastPaths
from .feed import Feed
from .finite_loss import FiniteLoss, place_of_call
from .grad_scaler import Scaling, note_skip
from .kernel_cost import EVERY as COST_EVERY
from .last_words import LastWords
from .optimizer_guard import OptimizerGuard
from .registry import OptimizerRegistry
from .step_writer import StepWriter
from .stretch import Stretch, Stretches
from .training import GuardedTraining

__all__ = ["Engine", "Piece"]


class Engine:
    """State of the guarded training in this process, and its hooks."""

    def __init__(self, settings: Settings, open_recorder: Callable[[], Recorder]) -> None:
        self.settings = settings
        self.may_rewrite = settings.guard.fused
        """Whether the script's optimizers may be given a faster form."""
        self.off: set[str] = set()
        policy = Policy.of(settings)
        registry = OptimizerRegistry(settings, policy)

        def begin() -> Recorder:
            self.recovery.checkpoints.script.check_own(settings.restart.own)
            recorder = open_recorder()
            self._last_state.watch_signals(self)
            return recorder

        self.training = GuardedTraining(
            registry,
            settings.quarantine,
            begin,
            policy.lines(),
            split=settings.guard.split,
        )
        self.writer = StepWriter(settings, self.training, self._row_known)
        self.recovery = Recovery(settings, self.training, policy)
        self._last_state = LastState(settings.checkpoint, self.training, self.recovery)
        self.phases = Phases()
        # On CPU tensors a loss may be read by the host, unless a test forbids it.
        self._losses = self._previous = Losses(read=not settings.guard.device_path)
        self._feed = Feed(self.training, keeps_rng=settings.guard.restore_rng)
        self._early: EarlyNorms | None = None
        # By id: a step is open only while its optimizer is busy with it.
        self._open: dict[int, tuple[OptimizerGuard, StepRecord]] = {}
        self._scaling = Scaling()
        self._finite_loss = FiniteLoss(settings.guard)
        self.investigation = Investigation(settings.guard, self.training, self._here)
        self._fast_paths = FastPaths(self.writer, self.investigation, self.recovery)
        self.recovery.checkpoints.script.decisions = Decisions(
            self.writer, self.recovery, self.investigation, self._finite_loss
        )
        self.watchers = Watchers(settings, self.training, self.writer.budget)
        self._stretches = Stretches(
            *(self.writer, self.recovery, self.investigation, self.watchers),
            *(self._finite_loss, self._feed, self.phases),
        )

    def drew(self, iterator: Any, indices: Any) -> tuple[Any] | None:
        """A loader drew the indices of a batch that it will hand out later.

        Without quarantined samples it gives what is left of them, as a tuple of one; in that None
        where nothing is. Mostly it takes them as they are and gives None.
        """
        kept = None
        if self.training.bad_batches.quarantine.skips:
            kept = self._without_poisoned(iterator, indices)
            indices = indices if kept is None else kept[0]
        if "loader probe" not in self.off and indices is not None:
            # Without the wrapper, which takes as long as what it calls.
            try:
                self._feed.drew(iterator, indices)
            except Exception as error:
                self.failed("loader probe", error)
        return kept

    def pass_begins(self, loader: Any, original: Callable[[Any], Any]) -> Any:
        """A loop over a loader begins: its iterator, or one that hands out nothing any more."""
        script = self.recovery.checkpoints.script
        if not script.on or script.busy or "resume" in self.off:
            return original(loader)
        frame = sys._getframe(1)
        if script.pending:
            instead = script.instead(loader, frame)
            if instead is not None:
                return instead
        begun = attempt(self, "resume", script.begins, loader, self.steps, frame)
        iterator = original(loader)
        if begun is not None:
            attempt(self, "resume", script.began, loader, iterator, begun, self.steps)
        return iterator

    def follow_script(self) -> None:
        """This is the process of an unmodified script: its checkpoints can be resumed from."""
        self.recovery.checkpoints.script.on = self.recovery.checkpoints.wanted

    def resume_from(self, checkpoint: Path) -> None:
        """Go on from a checkpoint of an earlier run of this script, which has not begun yet."""
        self.recovery.checkpoints.script.resume(checkpoint)

    @property
    def holds_off_saving(self) -> bool:
        """Whether the script's own ``torch.save`` must not write: it did before the checkpoint."""
        return self.recovery.checkpoints.script.pending

    @fail_open("resume")
    def loads(self, file: Any) -> None:
        """The script loads a file."""
        self.recovery.checkpoints.script.loads(file, sys._getframe())

    def passes_over(self, data: object) -> None:
        """What the next pass of a loop reads, where it is no DataLoader."""
        self.training.comparability.passes_over(data)

    @fail_open("loader probe")
    def fetch_begins(self, iterator: Any) -> tuple[int, int] | None:
        """The loop asks for the next batch; those of the last step are no longer ours to hold."""
        if self.phases.idle:
            self.phases.last = time.perf_counter()
        else:
            self.phases.mark("other", time.perf_counter())
        rests = self.recovery.rests(self.training.iteration)
        again: Sequence[Batch] = ()
        if not rests and self.recovery.suspects:
            self._leave_stretch()
            again = self._last_batches(iterator)
        if not self.writer.readback.flying and not again and self._stretches.now is None:
            self._feed.let_go()
        script = self.recovery.checkpoints.script
        if script.on and not script.asks_again(iterator, self.steps):
            attempt(self, "resume", script.asks, iterator, self.steps, sys._getframe(1))
        if self._last_state.signalled and self._asks_now():
            self._last_state.end_here(sys._getframe(1))
        if not rests and self._between and self.recovery.due(self.training.iteration):
            self._leave_stretch()
            # Between a batch and the same batch again no script can be resumed.
            at = None if self.replaying or self._gives_again else sys._getframe(1)
            about = self.training.iteration, True, again, at, self.steps
            attempt(self, "recovery", self.recovery.boundary, *about)
        # Without workers nothing is under way.
        return LoaderLedger.upcoming(iterator) if hasattr(iterator, "_rcvd_idx") else None

    @property
    def _between(self) -> bool:
        """Whether no backward pass has come since the last step."""
        stretch = self._stretches.now
        return not self._losses.passes and (stretch is None or stretch.copy is None)

    def _last_batches(self, iterator: Any) -> Sequence[Batch]:
        """The batches of the last step, where the loop can be given them again; mostly all."""
        ledger = self._feed.ledger
        if ledger is None or ledger.ahead or LoaderLedger.of(iterator, ledger) is not ledger:
            return ()  # fetched ahead, or a validation: it would not be used in the next step
        idle = self.investigation.idle and not self.investigation.replaying
        held = all(batch.content is not None for batch in ledger.used)
        if not (idle and held and self.settings.guard.replay):
            return ()
        self.writer.await_rows()  # their loss, once in a rollback
        return tuple(ledger.used)

    @fail_open("loader probe")
    def fetched(self, iterator: Any, expected: tuple[int, int] | None, content: object) -> None:
        """The loop has its next batch. A skipped step goes back to this RNG state."""
        self.phases.mark("data_wait", time.perf_counter())
        stretch, passes = self._stretches.now, self._losses.passes
        if stretch is not None and stretch.copy is not None:
            passes = 1
        looks = self.investigation
        # A step decided on a device is not repeated with the same RNG state, except in an exam.
        if not self.phases.on_device or looks.alert or not looks.idle:
            self._feed.keep_rng(passes)
        self._feed.handed_out(iterator, expected, content, passes, looks)
        if self.watchers.on:
            attempt(self, "watchers", self.watchers.fetched, iterator, sys._getframe())
        if self.training.bad_batches.unreadable:
            attempt(self, "unreadable samples", self._write_unreadable)
        swallowed, recorder = self.watchers.swallowed, self.training.recorder
        if swallowed.batches and recorder is not None:
            # A batch without a step since the last one, of a validation perhaps: it goes on.
            recorder.ring.beat()
        swallowed.batches += 1
        if swallowed.batches >= swallowed.due:
            attempt(self, "swallowed errors", swallowed.look, sys._getframe())

    def hands_out_again(self, iterator: Any) -> tuple[Any] | None:
        """A bad batch to feed again in place of the next one, for an investigation; mostly None."""
        trial, lost, looked_into = self.recovery.replay, self.training.memory, self.investigation
        if trial.again or lost.again or looked_into.again:
            return self._hands_out_again(iterator)
        trial.running = lost.held = looked_into.replaying = False
        return None

    @fail_open("investigation")
    def _hands_out_again(self, iterator: Any) -> tuple[Any] | None:
        again = self.recovery.replay.next_batch()
        if again is None:
            again = self.training.memory.next_batch(iterator)
        if again is None:
            again = self.investigation.next_batch(iterator)
        if again is None or self._feed.ledger is None:
            return None
        self._feed.hand_out_again(*again)
        return (again[1],)

    @fail_open("loader probe")
    def fetch_fails(self, iterator: Any) -> None:
        """There was no next batch."""
        script = self.recovery.checkpoints.script
        if script.on:
            attempt(self, "resume", script.ends, iterator, self.steps, sys._getframe(1))
        self.recovery.epoch_begins()
        ledger = LoaderLedger.of(iterator, self._feed.ledger)
        ledger.ran_out()
        if ledger is self._feed.ledger and ranks() > 1:
            self.training.pass_ends(ledger)

    @fail_open("copy probe")
    def copied(self, seconds: float) -> None:
        """Tensors went from the host to the device."""
        self.phases.add("h2d", seconds)

    def waited(self, seconds: float) -> None:
        """A collective has returned after so long; in backward it belongs to that phase."""
        if not self._finite_loss.depth:
            self.phases.waited(seconds)

    def backward_begins(self, tensors: object) -> bool:
        """Backward is called; True when the step is lost already, and it need not run."""
        finite = self._finite_loss
        finite.depth += 1
        stretch = self._stretches.now
        if stretch is not None:
            try:
                if stretch.backward_begins(tensors, finite, sys._getframe()):
                    return False
            except Exception as error:
                self.failed("stretch", error)
            self._leave_stretch()
        if finite.depth == 1:
            self._loss_seen(tensors)
        return self.training.memory.lost

    def backward_ends(self, *, freed: bool = False) -> None:
        """Backward has returned or raised; ``freed``: nothing more can be computed by its graph."""
        self._finite_loss.depth -= 1
        if self._finite_loss.depth:
            return
        stretch = self._stretches.now
        if stretch is not None and stretch.root is not None:
            try:
                if freed and stretch.backward_ended():
                    return
            except Exception as error:
                self.failed("stretch", error)
            self._leave_stretch()
        busy = self._losses.latest is not None or not self.investigation.idle
        if busy or self._finite_loss.pending is not None or not self.writer.stepped:
            self._backward_done(freed)
        elif "loss probe" not in self.off:
            # The common case, without the wrapper.
            try:
                if not self.phases.idle:
                    self.phases.mark("backward", time.perf_counter())
            except Exception as error:
                self.failed("loss probe", error)

    @fail_open("loss probe", ends="forward")
    def _loss_seen(self, tensors: object) -> None:
        loss = tensors if self._scaling.made is None else self._scaling.unscaled(tensors)
        number = self._losses.saw(loss)
        bad = number is not None and not math.isfinite(number)
        optimizers = len(self.training.registry)
        if number is not None and not bad and optimizers <= 1:
            self._finite_loss.numbers[self._losses.passes] = number
        elif self._finite_loss.on and "loss reading" not in self.off:
            # Here and below without another wrapper, which takes as long as what it calls.
            try:
                self._see_loss(tensors, loss, number, optimizers)
            except Exception as error:
                self.failed("loss reading", error)
        self.investigation.calls_backward(tensors)
        if self.watchers.on and "watchers" not in self.off:
            try:
                self.watchers.backward(tensors)
            except Exception as error:
                self.failed("watchers", error)
        if not self.investigation.idle:
            attempt(self, "investigation", self.investigation.backward_begins, tensors)
        if bad and self.settings.guard.explain:
            attempt(self, "investigation", self.investigation.loss_is_bad, sys._getframe())

    def _see_loss(self, root: object, loss: object, number: float | None, optimizers: int) -> None:
        bad = number is None or not math.isfinite(number)
        # Only what is skipped may look as if it had not happened.
        planned = len(self._fast_paths.device.plans.known) == optimizers
        if bad and not planned and not self.training.registry.all_skip():
            return
        variable = root if loss is root else self._scaling.variable()
        # Losses of several optimizers are told apart by their lines, others by their turn.
        several = optimizers > 1
        key = place_of_call(sys._getframe()) if several else self._losses.passes
        self._finite_loss.seen(root, loss, variable, number, key, sys._getframe())

    @fail_open("loss probe", ends="backward")
    def _backward_done(self, freed: bool) -> None:
        finite = self._finite_loss
        if finite.pending is not None and not freed:
            finite.pending = None
        elif finite.pending is not None:
            try:
                finite.returned(self._losses)
            except Exception as error:
                self.failed("loss reading", error)
        if self._losses.latest is not None:
            self._losses.settle()
        if not self.writer.stepped:
            self.writer.saw_backward(self._losses)
        if not self.investigation.idle:
            on_host = not self.settings.guard.device_path
            attempt(
                self, "investigation", self.investigation.backward_ends, sys._getframe(), on_host
            )

    # ------------------------------------------------------------------ out of memory

    @property
    def splits_calls(self) -> bool:
        """Whether calls of the model go through a boundary that can split them."""
        return self.training.memory.split.armed

    def forward_fails(self, error: BaseException, module: nn.Module, frame: FrameType) -> bool:
        """A call of a model has raised; True when ``call_split`` should make it again."""
        if out_of_reach():
            return False
        self._leave_stretch()
        place = functools.partial(line_of, error, frame)
        fails = self.training.memory.forward_fails
        return bool(attempt(self, "memory", fails, error, module, frame, place))

    def call_split(
        self, module: nn.Module, run: Callable[..., Any], args: tuple[Any, ...], kwargs: Any
    ) -> Any:
        """Make a call of a model, in parts where the batch does not fit."""
        if "memory" in self.off or split_batch.inside() or out_of_reach():
            return run(module, *args, **kwargs)
        return self.training.memory.call(module, run, args, kwargs)

    def backward_fails(self, error: BaseException, tensors: object) -> bool:
        """Backward has raised; True when the step is skipped and ``backward_lost`` comes next."""
        self._leave_stretch()
        alone = (
            self._finite_loss.depth == 1
            and not self._finite_loss.inside
            and "guard" not in self.off
        )
        if not alone or not self.training.registry.all_skip() or out_of_reach():
            return False
        place = functools.partial(line_of, error, sys._getframe())
        fails = self.training.memory.backward_fails
        return bool(attempt(self, "memory", fails, error, tensors, place))

    @fail_open("memory")
    def backward_lost(self, tensors: object) -> None:
        """A backward pass that ran out of memory is over: free its graph."""
        self._fast_paths.forget()
        self.training.memory.lose(tensors)

    def in_pieces(
        self,
        batches: Sequence[Any],
        compute: Compute,
        undo: Callable[[str], None] | None = None,
        *,
        local: bool = False,
    ) -> None:
        """Forward and backward of the last batch by ``compute``, in pieces where it does not fit.

        The batches before it are those of this step whose gradients ``undo`` takes back; without
        it gradients of before are set aside meanwhile. ``local``: no rank waits for another.
        """
        self._leave_stretch()
        step = self.training.iteration + 1
        self.training.memory.in_pieces(batches, compute, step, undo, local=local)

    @property
    def fits(self) -> int:
        """Samples that are computed at once by ``in_pieces``; 0: all of a batch."""
        return self.training.memory.pieces.fits

    @fits.setter
    def fits(self, samples: int) -> None:
        self.training.memory.pieces.fits = samples

    def window_dropped(self) -> None:
        """The gradients since the last step were cleared: their batches will come once more."""
        self._leave_stretch()
        self._losses = Losses(read=not self.settings.guard.device_path)

    # ------------------------------------------------------------------ the optimizer

    @fail_open("model probe")
    def made(self, optimizer: Optimizer, models: Iterable[nn.Module] | None = None) -> None:
        """An optimizer exists: learn its layers and buffers before the first forward pass."""
        self._leave_stretch()
        self._fast_paths.forget()
        self.training.origins.made(optimizer, sys._getframe())
        self.training.registry.of(optimizer, models)
        self.training.memory.made(self.training.models())

    @fail_open("memory")
    def compiled(self, model: nn.Module) -> None:
        """A compiled form of a model exists: it will be called in its place."""
        self.training.memory.made([model])

    @fail_open("parting snapshot")
    def leaves(self, optimizer: Optimizer) -> None:
        """An optimizer is about to be freed; the state after the last step would go with it."""
        self._leave_stretch()
        whole = not out_of_reach() and id(optimizer) not in self._open
        last = whole and self.writer.stepped_last(self.training.registry.find(optimizer))
        self.recovery.leaves(optimizer, self.training.iteration, last=last)

    def step_begins(
        self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        """``optimizer.step`` is about to run; may hand back other arguments."""
        if out_of_reach():
            if not torch.compiler.is_compiling():
                why = "optimizer.step is captured in a CUDA graph"
                attempt(self, "guard", self.training.not_covered, "guarding", why)
            return None
        closure = closure_of(args, kwargs) if kwargs or len(args) > 1 else None
        stretch = self._stretches.now
        if stretch is not None:
            try:
                if closure is None and stretch.step_begins(optimizer):
                    self.training.iteration += 1
                    return None
            except Exception as error:
                self.failed("stretch", error)
            self._leave_stretch()
        self._finite_loss.inside = closure is not None
        if closure is None:
            self._decide(optimizer)
        guard = None if closure is None else self._closure_guard(optimizer)
        if "guard" in self.off:
            attempt(self, "agreement", self._stand_in, optimizer)
        if guard is None or closure is None:
            return None
        return with_guard(closure, lambda: self._decide(optimizer), guard.only_detect, args, kwargs)

    def step_ends(self, optimizer: Optimizer) -> None:
        """``optimizer.step`` has returned."""
        stretch = self._stretches.now
        if stretch is not None and stretch.armed:
            self._stretch_goes_on(stretch, optimizer)
            return
        self._finite_loss.inside = False
        # A step inside a compiled region was not opened: nothing of ours is traced there.
        if self._open:
            self._conclude(optimizer)

    @fail_open("stretch")
    def _stretch_goes_on(self, stretch: Stretch, optimizer: Optimizer) -> None:
        self.watchers.swallowed.batches = 0
        if not stretch.step_ends(optimizer, self.training.iteration):
            self._leave_stretch()
            self._begin_stretch(optimizer)

    @fail_open("stretch")
    def _leave_stretch(self) -> None:
        """What comes next needs all that is known of the steps before it."""
        stretch = self._stretches.end() if self._stretches.now is not None else None
        if stretch is None:
            return
        if stretch.last is not None:
            self._previous = Losses.of(stretch.last)
        if stretch.root is not None:
            self._loss_seen(stretch.root)
        elif stretch.copy is not None:
            self._losses = Losses.of(stretch.copy)

    def _begin_stretch(self, optimizer: Optimizer) -> None:
        plan = self._fast_paths.device.plans.of(optimizer)
        if plan is not None and not self.off:
            self._stretches.begin(optimizer, plan)

    @fail_open("guard", ends="other")
    def _decide(self, optimizer: Optimizer) -> None:
        lost = self.training.memory.lost
        scale = self._scaling.use() if self._scaling.scaler is not None else None
        early = self._early
        if not lost:
            window = self._losses if self._losses.passes else self._previous
            opened = self._fast_paths.open(optimizer, window, self._losses_decide, scale, early)
            if opened is not None:
                self._open[id(optimizer)] = opened
                return
        self._fast_paths.forget(optimizer)
        guard, parameters = self.training.registry.with_parameters(optimizer)
        record = self._new_record(optimizer, guard)
        began = (
            self.writer.kernel_cost.begin()
            if record.step % self.writer.often(COST_EVERY) == 0
            else None
        )
        window = self._window()
        leave_out = self.replaying or lost
        if self.recovery.awaits_step and attempt(
            self, "recovery", self.recovery.before_step, guard, window
        ):
            leave_out = True
        self.phases.alone = alone = ranks() == 1
        if not alone and self.recovery.together.saw not in self.writer.listeners:
            self.writer.listeners.append(self.recovery.together.saw)
        guard.before(
            optimizer,
            parameters,
            record,
            window,
            # One that was decided along is not what this step is about, or it would be open.
            early=None if early is None or early.decided else early,
            losses_decide=self._losses_decide,
            scale=scale,
            look_at_parameters=self.writer.wants_parameters(record),
            leave_out=leave_out,
            alone=alone,
        )
        if began is not None:
            self.writer.kernel_cost.end(record, began)
        on_device = record.measured is not None and record.measured.flag.is_cuda
        self.phases.runs(on_device=on_device)
        if record.step % self.writer.often(UPDATES_EVERY) == 0:
            record.weights = attempt(self, "update probe", guard.updates.before, parameters)
        if record.step % REPLICAS_EVERY == 0 and ranks() > 1:
            record.checksums = attempt(self, "replica probe", checksums, parameters)
        if (
            self.investigation.alert
            and record.measured is not None
            and wait_for(record.measured.flag)
        ):
            attempt(
                self,
                "investigation",
                self.investigation.caught,
                sys._getframe(),
                guard.index,
                record.step,
            )
        if (record.bad or record.loss_bad) and self.settings.guard.explain:
            self._step_is_bad(sys._getframe(), guard, record, self._here()[0])

    def _stand_in(self, optimizer: Optimizer) -> None:
        """Without the guard of this rank the others still wait for its numbers in every step."""
        guard = self.training.registry.find(optimizer)
        if guard is not None and guard.whole is not None:
            guard.whole.stand_in()

    @fail_open("investigation")
    def _step_is_bad(
        self,
        frame: FrameType | None,
        guard: OptimizerGuard,
        record: StepRecord,
        batches: Sequence[Batch],
    ) -> None:
        blamed = int(record.row["grad_layer"])
        if not record.loss_bad and blamed < 0:
            return  # skipped because its batch was fed again, and nothing is wrong with it
        layer = None if record.loss_bad else guard.layers[blamed]
        # A loop that fetches ahead would use a batch fed again one iteration too late, and a
        # step that was taken must not be taken twice.
        batches = () if self._feed.ahead or not record.acted else batches
        self.investigation.step_is_bad(frame, guard.index, record.step, layer, batches)

    def _here(self) -> tuple[Sequence[Batch], Tensor | None]:
        """The batches of the losses so far, the current one last, and the random state before."""
        return self._feed.here(self._losses.passes)

    @fail_open("guard", ends="optimizer")
    def _conclude(self, optimizer: Optimizer) -> None:
        guard, record = self._open.pop(id(optimizer), (None, None))
        if record is None or guard is None:
            return
        window = self._losses if self._losses.passes else self._previous
        if record.usual:
            guard.keep_buffers()
            self._finish(guard, record, window)
            return
        if record.late:
            guard.measure_late(optimizer, record, window)
        began = self.writer.kernel_cost.begin() if record.cost_events else None
        guard.after(optimizer, record)
        if began is not None:
            self.writer.kernel_cost.end(record, began)
        if record.measured is None and self._feed.rng is not None and record.left_out:
            torch.random.default_generator.set_state(self._feed.rng)
        on_device, planned = record.measured is not None, record.planned
        self._finish(guard, record, window)
        if not planned:
            self._fast_paths.learn(optimizer, guard, record, on_device=on_device)
        else:
            self._begin_stretch(optimizer)

    def _finish(self, guard: OptimizerGuard, record: StepRecord, window: Losses) -> None:
        record.time = time.time()
        record.row["backwards"] = window.passes
        if self.phases.idle:
            record.row.update(self.phases.take_idle())
        elif self.phases.on_device:
            record.timed = self.phases.take()
        else:
            record.row.update(self.phases.take_host())
        ledger, fed = self._feed.ledger, False
        if ledger is not None:
            fed = bool(ledger.fresh)
            record.batches = ledger.step()
        if self.training.memory.lost:  # before the contents of the batches are let go
            attempt(self, "memory", self._step_lost, record)
        own = window is self._losses and window.passes > 0
        several = not own and window.passes > max(1, len(record.batches))
        comparability = self.training.registry.comparability
        if comparability.stepped(record.step, guard.index, fed=fed, own=own, several=several):
            data = {"holds": comparability.holds, "why": comparability.why}
            attempt(self, "notes", self.training.record_at, "comparable", record.step, data)
        self._previous, self._losses = window, Losses(read=not self.settings.guard.device_path)
        if self._early is not None:
            self._drop_early()
        self._feed.rng = None
        self.watchers.swallowed.batches = 0
        self.writer.close_step(guard, record, window)
        if self.watchers.on:
            attempt(self, "watchers", self.watchers.step_ended, record, sys._getframe())
        elif record.step >= self.watchers.resumes:
            self.watchers.resume()
        if not self.investigation.idle:
            attempt(self, "investigation", self.investigation.step_ends)
        if not record.planned and self.recovery.awaits_step:
            attempt(self, "recovery", self.recovery.after_step, guard, record)
        if self.training.memory.split.news:
            attempt(self, "memory", self.training.memory.tell, record.step)
        if (
            ledger is None
            # In the midst of an iteration a graph may wait for the weights it was made with.
            and not self.training.yet_to_step
            and self.recovery.due(self.training.iteration)
        ):
            attempt(self, "recovery", self.recovery.boundary, self.training.iteration, False)

    def _step_lost(self, record: StepRecord) -> None:
        """A step whose backward ran out of memory is over: its batches are handed out again."""
        ledger = self._feed.ledger
        # Where another optimizer steps on the same batch, or the loop has fetched ahead of it, the
        # step is skipped and no more.
        again = ledger is not None and not ledger.ahead and len(self.training.registry) == 1
        source = self.investigation.source if again and self.settings.guard.replay else None
        self.training.memory.step_ends(record.step, record.batches, source)

    def _row_known(self, guard: OptimizerGuard, record: StepRecord, late: bool) -> None:
        if record.loss_bad and self._finite_loss.tell():
            self.training.record_at("loss_replaced", record.step, {"opt": guard.index})
        if late and record.bad and self.settings.guard.explain:
            # A step that was decided on the device turns out to have been bad.
            self._step_is_bad(None, guard, record, record.batches)
        if self.recovery.concerns(record):
            attempt(self, "recovery", self.recovery.known, guard, record)

    def scheduled(self, scheduler: Any) -> bool:
        """A learning-rate schedule is about to be stepped; False when it must not be."""
        if self.replaying or self.training.memory.held:
            return False
        attempt(self, "recovery", self.recovery.live.saw_scheduler, scheduler)
        return True

    @fail_open("guard", ends="other")
    def _closure_guard(self, optimizer: Optimizer) -> OptimizerGuard | None:
        """The guard of an optimizer with a closure; None where the step is only observed."""
        guard = self.training.registry.of(optimizer)
        why = why_not_skippable(optimizer, earlier_passes=self._losses.passes)
        if why:
            guard.only_detect(why)
        if guard.detect_only:
            self._new_record(optimizer, guard).late = True
            return None
        return guard

    @fail_open("clip probe")
    def clip_begins(self, parameters: Iterable[Tensor] | Tensor) -> None:
        """Before clipping: measure, because a non-finite norm ruins every gradient."""
        clipped = [parameters] if isinstance(parameters, Tensor) else list(parameters)
        if (stretch := self._stretches.now) is not None:
            if stretch.clip_begins(clipped):
                return
            self._leave_stretch()
        self._drop_early()
        about = clipped, self._losses, self._losses_decide, self._scaling.last()
        self._early = self._fast_paths.clip(*about)
        if self._early is not None:
            return
        self._early = EarlyNorms.taken(
            clipped,
            None if self.settings.guard.device_path else read_on_host,
            self.training.registry.meters,
            self._window().on_device,
            self._losses_decide,
        )

    def _drop_early(self) -> None:
        early, self._early = self._early, None
        if early is not None and early.on_device is not None and not early.used:
            self.writer.discard(early.on_device.row)

    @fail_open("clip probe")
    def clip_ends(self) -> None:
        """Clipping is over: the measurement holds as long as nobody touches the gradients."""
        if self._stretches.now is not None:
            self._stretches.now.clip_ends()
        elif self._early is not None:
            self._early.seal()

    @fail_open("scaler probe")
    def scaled(self, loss: Any, result: Any) -> None:
        """``GradScaler.scale`` made ``result`` of ``loss``: backward will be called on it."""
        self._leave_stretch()
        self._scaling.scaled(loss, result)

    @fail_open("scaler probe")
    def scaler_begins(self, scaler: Any) -> None:
        """``GradScaler.step`` is about to run."""
        self._leave_stretch()
        self._scaling.begins(scaler)
        self.recovery.live.saw_scaler(scaler)

    @fail_open("scaler probe")
    def scaler_ends(self, optimizer: Optimizer) -> None:
        """``GradScaler.step`` has returned; without a step of ours it was skipped by the scaler."""
        scaler = self._scaling.ends()
        if scaler is None:
            return
        guard = self.training.registry.of(optimizer)
        record = self._new_record(optimizer, guard)
        self._open.pop(id(optimizer), None)
        window = self._window()
        note_skip(record, scaler)
        record.told_to = self.replaying or self.training.memory.lost
        guard.note_losses(record, window)
        self._finish(guard, record, window)

    def scaler_used(self, scaler: Any) -> None:
        """A scaler is about to scale a loss: it follows the policy, where there is one."""
        attempt(self, "scaler probe", self._scaling.used, scaler)
        attempt(self, "scaler policy", self.writer.scaler.used, scaler)

    def scaler_updated(self, scaler: Any) -> None:
        """``scaler.update()`` has run."""
        attempt(self, "scaler policy", self.writer.scaler.updated, scaler)

    # ------------------------------------------------------------------ data

    @fail_open("quarantine")
    def _without_poisoned(self, iterator: Any, indices: Any) -> tuple[Any] | None:
        """What is left of a draw, as a tuple of one; None to take it as it is."""
        quarantine = self.training.bad_batches.quarantine
        kept = quarantine.kept(iterator, indices, equal=ranks() > 1)
        while quarantine.skipped:
            samples = quarantine.skipped.pop(0)
            self.training.record("skipped_batch", {"samples": samples})
        return (kept,)

    @fail_open("origins")
    def loader_made(self, loader: Any) -> None:
        """A loader exists."""
        self.training.origins.made(loader, sys._getframe())

    @fail_open("unreadable samples")
    def loader_begins(self, loader: Any, trains: bool = False) -> None:
        """A loop over a loader is about to begin; ``trains``: it is known to train."""
        self.training.origins.pass_begins(loader)
        self.training.bad_batches.loader_begins(loader, trains=trains)

    @fail_open("unreadable samples")
    def loader_began(self, iterator: Any) -> None:
        """Its iterator is there, with its workers; None where that failed."""
        self.training.origins.pass_began(iterator)
        self.training.bad_batches.loader_began(iterator)

    @fail_open("unreadable samples")
    def fetcher(self, made: Any) -> Any:
        """What is to make batches in place of what torch has made for it, often the same."""
        return replace_sample.fetcher(made)

    def _write_unreadable(self) -> None:
        recorder = self.training.opened()
        if recorder is not None:
            self.training.bad_batches.write_unreadable(recorder, self.training.iteration + 1)

    def worker_starts(self) -> None:
        """This process is a worker of a loader: it says which lines keep it busy."""
        if self.watchers.time is not None:
            attempt(self, "watchers", worker_samples.begin)

    # ------------------------------------------------------------------ evaluation

    def evaluates(self, frame: FrameType) -> None:
        """``eval()`` was called on a module."""
        if self.watchers.memory is not None and not torch.compiler.is_compiling():
            attempt(self, "watchers", self.watchers.memory.evaluation.begins, frame)

    def trains(self) -> None:
        """``train()`` was called on a module: once for each of a model, so the answer is short."""
        memory = self.watchers.memory
        if memory is not None and memory.evaluation.open:
            attempt(self, "watchers", memory.evaluation.ends)

    def differentiates(self) -> None:
        """``torch.autograd.grad`` is called."""
        if self.watchers.memory is not None:
            attempt(self, "watchers", self.watchers.memory.evaluation.differentiates)

    def settled(self) -> None:
        """What was done since the step is meant: buffers are good as they are, graphs were used."""
        self._leave_stretch()
        attempt(self, "buffers", self.training.registry.buffers.accept)
        if self.watchers.memory is not None:
            attempt(self, "watchers", self.watchers.memory.evaluation.restarts)

    def new_task(self) -> None:
        """Something else is learned from here on."""
        self._leave_stretch()
        attempt(self, "recovery", self.recovery.new_task, self.training.iteration)

    # ------------------------------------------------------------------ what a watch asks

    @property
    def replaying(self) -> bool:
        """Whether the current batch was fed before, for an investigation or a trial."""
        return self.investigation.replaying or self.recovery.replay.running

    @property
    def last_replay(self) -> bool:
        """Whether it is the last one of its kind."""
        return self.replaying and not (self.investigation.more_again or self.recovery.replay.more)

    @property
    def _gives_again(self) -> bool:
        """Whether the loop will be handed a batch that it has had before."""
        again = self.investigation.more_again or self.recovery.replay.more
        return again or self.training.memory.more

    @property
    def latest(self) -> Mapping[str, float]:
        """The row of the newest step whose numbers are on the host."""
        return self.writer.latest

    def each_row(self, listener: Callable[[Mapping[str, float]], None]) -> None:
        """Hand every row from now on to somebody, on the training thread: it must be quick."""
        self.writer.listeners.append(lambda step, row: listener(row))

    def await_rows(self) -> None:
        """Wait for the rows that are on their way from a device."""
        self._leave_stretch()
        attempt(self, "rows", self.writer.await_rows)

    @property
    def skipped(self) -> int:
        """Steps that were skipped so far, as far as is known on the host."""
        return self.writer.skipped

    @property
    def steps(self) -> int:
        """How many steps the run has made."""
        return self.training.iteration + (not self.writer.waiting)

    @property
    def run(self) -> Run | None:
        """The run folder, once it is open."""
        recorder = self.training.recorder
        return None if recorder is None else recorder.run

    @property
    def lane(self) -> str:
        """The lane of this process in the run folder; empty while it is not open."""
        recorder = self.training.recorder
        return "" if recorder is None else recorder.lane

    def open(self) -> Run | None:
        """Open the run folder now, not with the first backward pass; may raise an error."""
        self.training.opened()
        return self.run

    def note(self, kind: str, step: int, data: Mapping[str, Any]) -> None:
        """Write an Event."""
        attempt(self, "notes", self.training.record_at, kind, step, data)

    def restore_best(self, why: str) -> str:
        """Go back to the best state by validation between two steps; why that was not done."""
        self._leave_stretch()
        refused = attempt(self, "recovery", self.recovery.restore_best, why)
        return "rolling back failed" if refused is None else refused

    def spent(self, seconds: float) -> None:
        """Time of ours that was spent outside: no phase of the loop shall count it."""
        self.phases.guard += seconds
        self.phases.last += seconds

    def state_is(
        self,
        training_state: TrainingState | None,
        best: Callable[[], BestState | None] = lambda: None,
    ) -> None:
        """What the run consists of, from somebody who knows and saves it; None: search again.

        ``best`` reads the best state by validation.
        """
        self._leave_stretch()
        self.recovery.live.given = training_state
        self.recovery.restoring.best_state = best
        if training_state is not None:
            self.recovery.checkpoints.wanted = self.recovery.checkpoints.script.on = False

    def resumed(self, step: int) -> None:
        """Weights, state and buffers were restored to what they were after this many steps."""
        self._leave_stretch()
        self.training.restored()
        self.training.iteration = step

    # ------------------------------------------------------------------ keeping house

    def failed(self, where: str, error: Exception) -> None:
        """A part of holdfast failed: switch it off, restore everything, record it."""
        self.off.add(where)
        if self._stretches.now is not None and where in ("guard", "stretch"):
            self._stretches.now.disarm()
            self._stretches.now = None
        if where == "guard":
            # Disarm what will not be finished. A failed investigation must leave the skip armed.
            for optimizer, guard in self.training.guards():
                with contextlib.suppress(Exception):
                    guard.skip.settle(optimizer, None)
        self.training.failure(where, error)

    def end(self, error: BaseException | None = None, gave_up: object = None) -> None:
        """End of the process, with its ``error`` if any: record it and close.

        ``gave_up``: what the script exited with after it had caught the error.
        """
        if isinstance(error, SystemExit):
            gave_up, error = error.code, behind(error)
        if error is None:
            self.recovery.checkpoints.script.ended()
        if self.training.recorder is None and not ends_the_run(error):
            return
        try:
            recorder = self.training.opened(acts=False)
            if error is not None and recorder is not None:
                # First what cannot be had again.
                self.save_last_state(type(error).__name__)
                self.last_words(error, gave_up).write(recorder)
            self.close()
        except Exception as failure:
            self.failed("closing", failure)

    def last_words(self, error: BaseException, gave_up: object = None) -> LastWords:
        """What can be said of an exception that ends the training; nothing is written."""
        facts = exception.facts(error, self._feed.at_work(), self.training.models())
        memory = self.watchers.memory
        found = attempt(self, "watchers", memory.last_words, error) if memory is not None else None
        found = found or []
        # Out of memory is the memory watcher's to explain.
        ran_out = any(kind == OUT for kind, _ in found)
        facts |= {"explained": "memory" if ran_out else ""}
        if gave_up is not None:
            facts |= {"gave_up": str(gave_up)}
        following = self.training.iteration + 1
        return LastWords.of(error, self.steps, facts, [(k, following, data) for k, data in found])

    @fail_open("resume")
    def asks_soon(self) -> bool:
        """Whether the loop is in a step after which its script can be resumed."""
        settled = self.recovery.settled and not (self.replaying or self._gives_again)
        return settled and self.recovery.checkpoints.script.may_resume

    @fail_open("resume")
    def waits_at(self, frame: FrameType | None) -> FrameType | None:
        """Where the loop waits for a loader worker, if it can be resumed from there.

        Whatever else happens on the way to a batch may have changed something.
        """
        place = self.recovery.checkpoints.script.waits_for_worker(frame)
        return place if place is not None and self._asks_now() else None

    def _asks_now(self) -> bool:
        """Whether the loop, which asks for its next batch, can be resumed from there."""
        between = self._between and not self.recovery.checkpoints.script.waits()
        return between and bool(self.asks_soon())

    def ends_together(self, why: str) -> bool:
        """Ask all ranks to save and end after one step; False where that is not possible.

        Called in a thread, as those below: the clock of the loop must not be touched.
        """
        with contextlib.suppress(Exception):
            together = self.recovery.together
            return together.begin() and together.ask(END, {"signal": why})
        return False

    def left_alone(self) -> str:
        """Why the other ranks will not do so; empty while they may."""
        return self.recovery.together.why_over

    def not_saved(self, why: str) -> None:
        """A signal ends the process, whose training thread is somewhere in native code."""
        reason = self.left_alone() or "there was no step that all ranks came to"
        with contextlib.suppress(Exception):
            self._last_state.not_saved(why, f"{reason}; this one waits in a collective")

    @fail_open("last state")
    def save_last_state(self, why: str, at: FrameType | None = None) -> None:
        """The run ends early: save the state after its last complete step, once.

        ``at`` is where the loop asks for its next batch, if it does: it can be resumed from there.
        """
        if at is not None:
            script = self.recovery.checkpoints.script
            resume = script.take(self.training.iteration, self.steps, at)
            self._last_state.save(Moment(why, resume=resume))
        elif not self.writer.waiting or self.recovery.snapshots.count:
            doubt, stretch = "", self._stretches.now
            cut = stretch is not None and stretch.armed
            if cut or any(id(optimizer) in self._open for optimizer, _ in self.training.guards()):
                doubt = f"step {self.training.iteration} was cut short inside optimizer.step"
            elif "guard" in self.off:
                doubt = "without the guard it is not known whether the last step is complete"
            self._leave_stretch()
            statistics = self.training.registry.buffers.statistics()
            self._last_state.save(Moment(why, doubt, self._feed.rng, statistics))

    def _new_record(self, optimizer: Optimizer, guard: OptimizerGuard) -> StepRecord:
        if not guard.stepped:
            attempt(self, "parting snapshot", self.recovery.live.first_step)
        record = StepRecord(self.writer.number(guard), guard.index)
        row = record.row
        row["lr"], row["opt"], row["skipped"] = learning_rate.read(optimizer), guard.index, 0.0
        self._open[id(optimizer)] = guard, record
        return record

    def _window(self) -> Losses:
        """The losses this step is about; optimizers sharing one loss share one window."""
        return self._losses if self._losses.passes else self._previous

    def _losses_decide(self) -> bool:
        """Whether a bad loss alone makes the step bad."""
        # Ranks see different losses and must decide alike; and whose loss it is must be clear.
        one = len(self.training.registry) <= 1
        return ranks() == 1 and (one or self._window().count == 1)

    def close(self) -> None:
        """End of the process: wait for pending rows and write the final record."""
        self._leave_stretch()
        self._last_state.close()
        self.investigation.close()
        attempt(self, "memory", self.training.memory.tell, self.training.iteration)
        attempt(self, "watchers", self.watchers.close)
        self.recovery.close()
        self.writer.close(self._losses.passes)
