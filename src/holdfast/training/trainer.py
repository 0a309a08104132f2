"""``Trainer``: puts the parts of a run together and has the loop go through them."""

from __future__ import annotations

import contextlib
import math
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from torch import nn

from ..checkpoint.search import Resume
from ..config import Settings
from ..records.trainer import SettingsChanged, TrainerSetup, TrainingEnded
from ..watching.recorded_run import with_folder
from ..watching.watch import watch
from . import channels, distributed, parallel, seeding
from .averaging import Average
from .compiling import CompiledModel
from .data.loaders import EpochLoaders
from .data.transfer import Transfer
from .device import Place
from .initial_state import parameter_counts, tell_initial_state
from .loop.accumulation import AccumulationWindow
from .loop.artifacts import RunHooks
from .loop.health import Health
from .loop.interrupts import Interrupts
from .loop.loop import Counter, Loop
from .loop.measuring import ModelMeasure
from .loop.parts import LoopParts
from .loop.profiling import Profiler, wanted
from .loop.progress import Progress, make_progress
from .loop.reporting import StepReporter
from .loop.stopping import BestSoFar
from .loop.validation_schedule import BEST, ValidationSchedule
from .optimizers import make_optimizer
from .precision import Precision
from .recompute import keep_activations, recompute
from .restarting import going_on
from .schedules import Schedule
from .settings import TrainSettings
from .sharding import is_sharded
from .step_loss import StepLoss
from .task import Data, Loss, Task
from .tuning import Tuning


@dataclass(frozen=True, kw_only=True)
class Result:
    """How a run ended."""

    why: str
    step: int
    skipped: int
    seconds: float
    compile_seconds: float
    rate: float
    """Samples per second of training, without validation and compilation."""
    validation: Mapping[str, float] = field(default_factory=dict[str, float])
    headline: tuple[str, ...] = ()
    """Of ``validation``, the numbers that people look at first; all where there are none."""
    best: float = math.nan
    best_step: int = 0
    run: Path | None = None
    interrupted: bool = False
    norms: str = ""
    """How large gradients were before clipping, and what that says of the clip."""
    hook_errors: int = 0
    """Calls of ``Task.improved`` and ``Task.ended`` that failed."""
    report: str = ""


class Trainer:
    """Trains any module on any data, guarded, saved and resumable.

        def loss(model, batch):
            x, y = batch
            return torch.nn.functional.mse_loss(model(x), y)

        result = Trainer(model, loss, train_set, validation_set).fit()

    Args:
        model: what is trained.
        loss: ``loss(model, batch)``, the mean over the batch; may return numbers beside it.
        train: a dataset, or a loader of your own.
        validation: the same for validation, if there is one.
        settings: how; see ``TrainSettings``.
        run_dir: folder of the run; a new one under ``runs/`` by default.
        resume: as in ``holdfast.watch``.
        name: what the run is called.
        progress: where it shows how far it is; a bar or lines on standard error by default.
        opened: called with the run folder before the first step, on the first rank.
        more: further fields of ``Task``.
    """

    def __init__(
        self,
        model: nn.Module,
        loss: Loss,
        train: Data,
        validation: Data | None = None,
        settings: TrainSettings | None = None,
        *,
        run_dir: str | os.PathLike[str] | None = None,
        name: str | None = None,
        resume: Resume = None,
        progress: Progress | None = None,
        opened: Callable[[Path], None] | None = None,
        **more: Any,
    ) -> None:
        self.task = Task(model=model, loss=loss, train=train, validation=validation, **more)
        self.settings = settings or TrainSettings()
        self._run_dir, self._name, self._resume = run_dir, name, resume
        self._progress, self._opened = progress, opened

    @classmethod
    def of(cls, task: Task, settings: TrainSettings, **how: Any) -> Trainer:
        """A trainer for a task that a recipe has made."""
        trainer = cls(task.model, task.loss, task.train, settings=settings, **how)
        trainer.task = task
        return trainer

    def fit(self) -> Result:
        """Train until the settings say that it is enough."""
        settings = self.settings
        with contextlib.ExitStack() as stack:
            place = stack.enter_context(distributed.joined(settings.device))
            stack.callback(seeding.prepare(settings.seed, place.rank))
            quiet = settings.holdfast.run.quiet
            progress = self._progress or make_progress(place, quiet=quiet, every=settings.log.every)
            stack.callback(progress.ends)
            say = progress.say if place.main else None
            stack.callback(channels.setup(settings.log, place, say))
            return self._fit(place, progress, stack)

    def _fit(self, place: Place, progress: Progress, stack: contextlib.ExitStack) -> Result:
        task, settings = self.task, self.settings
        began = time.perf_counter()
        precision = Precision(settings.precision, place.device, settings.holdfast.scaler)
        tell_initial_state(task.model, settings.seed)
        recompute(task.model, settings.recompute)
        stack.callback(keep_activations, task.model)
        model = parallel.put_in_place(
            task.model,
            place,
            precision,
            progress.say,
            kind=settings.parallel,
            replicas=settings.replicas,
            blocks=settings.shard,
        )
        sharded = is_sharded(model)
        epoch_loaders = EpochLoaders(task, settings, place, progress.say)
        stack.callback(epoch_loaders.close)
        steps = epoch_loaders.steps()
        optimizer = make_optimizer(model, settings.optimizer, place.device)
        if task.prepared is not None:
            task.prepared(optimizer)
        schedule = Schedule(optimizer, settings.schedule, steps, epoch_loaders.epoch_steps)
        average = Average(model, settings.average) if settings.average.decay else None
        progress.say(precision.why)
        compiled = CompiledModel(
            model,
            settings.compile,
            place.device,
            epoch_loaders.workers,
            progress.say,
            loss=task.loss,
            ranks=place.world,
            start=settings.data.start,
            accumulate=settings.accumulate,
        )
        stack.callback(compiled.undo)
        loss = StepLoss(model, compiled, graph=settings.graph, place=place, say=progress.say)
        net = parallel.wrap(model, place, late=settings.reduce_late)
        best_so_far, counter = BestSoFar(settings.stop), Counter()
        window = AccumulationWindow(settings.accumulate, epoch_loaders.usual, place)
        tuning = Tuning(optimizer, schedule, settings.optimizer, schedule.settings, steps)
        own = {"standing": best_so_far, "window": window, "counter": counter, "feed": epoch_loaders}
        guarded = _guarded(settings, place, validated=task.validation is not None)
        clip = guarded.clip.norm
        guarded = with_folder(guarded, self._run_dir, False) or guarded
        resume = going_on(self._resume, guarded, self._name, place, progress.say)
        guard = watch(
            model,
            optimizer,
            scheduler=schedule,
            scaler=precision.scaler,
            ema=average,
            state={**own, **task.state, "tuning": tuning},
            resume=resume,
            name=self._name,
            settings=guarded,
            say=progress.say if place.main else None,
            summary=False,  # it is part of the result
        )
        with guard:
            folder = guard.open()
            for opened in (task.opened, self._opened):
                if opened is not None and folder is not None and place.main:
                    opened(folder.path)
            setup = TrainerSetup(
                precision=precision.name,
                compile=compiled.mode,
                workers=epoch_loaders.workers,
                **parameter_counts(model),
            )
            guard.note(setup.kind, setup.to_dict())
            if tuning.changes:
                progress.say(f"from step {counter.step} on: {', '.join(tuning.changes)}")
                changed = SettingsChanged(changes=tuple(tuning.changes))
                guard.note(changed.kind, changed.to_dict())
            if window.fits and guarded.guard.split:
                guard.fits = window.fits
                compiled.batches_are_cut()
                progress.say(
                    f"batches are split, {window.fits} samples at once, as before the resume"
                )
            step_reporter = StepReporter(
                progress,
                place,
                steps=steps,
                epochs=settings.epochs,
                watch=guard,
                optimizer=optimizer,
                compiled=compiled,
            )
            health = Health(settings.health, clip, guard, progress.say)
            transfer = Transfer(place.device)
            measured = ModelMeasure(
                task,
                place,
                epoch_loaders,
                average,
                precision,
                transfer,
                compiled,
                batches=settings.validation.batches,
                sharded=sharded,
            )
            hooks = RunHooks(folder, guard.note, progress.say) if folder and place.main else None

            def best_validated(step: int) -> None:
                if task.improved is None:
                    return
                with measured.for_one_rank():
                    if hooks is not None:
                        hooks.improved(task.improved, step, measured.in_place())

            examination = ValidationSchedule(
                settings.validation,
                measured if task.validation is not None else None,
                best_so_far,
                settings.stop.metric,
                place,
                watch=guard,
                schedule=schedule,
                progress=progress,
                pace=step_reporter.pace,
                headline=task.headline,
                after_each=[task.validated] if task.validated is not None else [],
                after_best=best_validated,
            )
            profiler = Profiler(
                wanted(settings.profile),
                lambda: folder.path if folder is not None and place.main else None,
                progress.say,
            )
            stack.callback(profiler.close)
            loop = Loop(
                LoopParts(
                    settings=settings,
                    place=place,
                    model=model,
                    net=net,
                    loss=loss,
                    epoch_loaders=epoch_loaders,
                    schedule=schedule,
                    average=average,
                    precision=precision,
                    compiled=compiled,
                    transfer=transfer,
                    watch=guard,
                    window=window,
                    step_reporter=step_reporter,
                    health=health,
                    examination=examination,
                    profiler=profiler,
                    stepped=task.stepped,
                    say=progress.say,
                ),
                counter,
            )
            progress.begins(steps, f"training on {place.device}")
            with Interrupts() as interrupts:
                why = loop.run(interrupts)
            trained = step_reporter.run.seconds
            norms = health.run_ends()
            ended = TrainingEnded(
                why=why,
                interrupted=interrupts.asked is not None,
                best=best_so_far.best,
                best_step=best_so_far.best_step,
                step=counter.step,
                seconds=time.perf_counter() - began,
            )
            guard.note(ended.kind, ended.to_dict())
            progress.ends()
            if task.ended is not None and hooks is not None:
                guard.await_saved()  # it may ask for the best weights, which may be the last ones
                hooks.ended(task.ended, counter.step)
        return Result(
            why=why,
            step=counter.step,
            skipped=guard.skipped,
            seconds=time.perf_counter() - began,
            compile_seconds=compiled.seconds,
            rate=step_reporter.run.samples * place.world / trained,
            validation=examination.latest,
            headline=task.headline,
            best=best_so_far.best,
            best_step=best_so_far.best_step,
            run=None if folder is None else folder.path,
            interrupted=interrupts.asked is not None,
            norms=norms,
            hook_errors=0 if hooks is None else hooks.errors,
            report=guard.report() if place.main else "",
        )


def _guarded(settings: TrainSettings, place: Place, *, validated: bool) -> Settings:
    """The guard's settings, with what the trainer's own say about the same things."""
    guard = settings.holdfast
    clip, keep = guard.clip, guard.checkpoint
    if clip.norm is None:
        clip = replace(clip, norm=settings.clip)
    if validated and keep.metric == "loss":
        # The loss of the last steps says less about a model than its validation.
        keep = replace(keep, metric=BEST, mode=settings.stop.mode)
    if place.world > 1:
        keep = replace(
            keep, minutes=0.0, steps=0
        )  # the loop sees to it that ranks save the same steps
    return replace(guard, clip=clip, checkpoint=keep)
