"""Engine of the guard: turns the hooks of a training loop into guarded steps.

    fetch_begins ─ fetched ─ backward_begins ─ backward_ends ─ step_begins ─ step_ends ─ …

The only door into the guard: patches, optimizer hooks and ``holdfast.watch`` call its methods and
nothing behind them. What a hook does stands in ``hooks/``, one file for each kind of event; what
the hooks share is made in ``engine_state``. Whatever goes wrong in here is caught, switched off for
the rest of the run and recorded as an Event: training goes on.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.optim import Optimizer

from ..actions.split_batch import Compute, Piece
from ..checkpoint.training_state import BestState, TrainingState
from ..config import Settings
from ..diagnosis.throughput import worker_samples
from ..records import Kind, RecordError, note
from ..run import Recorder, Run
from .engine_state import EngineState
from .fail_open import EnginePart, attempt, fail_open
from .hooks.backward import BackwardHooks
from .hooks.clip import ClipHooks
from .hooks.end import EndHooks
from .hooks.loader import LoaderHooks
from .hooks.memory import MemoryHooks
from .hooks.optimizer import OptimizerHooks
from .hooks.rounds import RoundHooks
from .hooks.scaler import ScalerHooks
from .last_words import LastWords

__all__ = ["Engine", "Piece"]


class _Hooks(NamedTuple):
    """What the engine does, by kind of event."""

    backward: BackwardHooks
    loader: LoaderHooks
    clip: ClipHooks
    optimizers: OptimizerHooks
    scaler: ScalerHooks
    memory: MemoryHooks
    end: EndHooks
    rounds: RoundHooks

    @classmethod
    def of(cls, state: EngineState) -> _Hooks:
        optimizers = OptimizerHooks(state)
        return cls(
            BackwardHooks(state),
            LoaderHooks(state),
            ClipHooks(state),
            optimizers,
            ScalerHooks(state, optimizers.skipped_by),
            MemoryHooks(state),
            EndHooks(state, lambda: optimizers.busy),
            RoundHooks(state),
        )


_OF_STEPS = (
    *("drew", "fetch_begins", "fetched", "backward_begins", "backward_ends"),
    *("clip_begins", "clip_ends", "scaler_used", "scaled", "scaler_begins", "scaler_ends"),
    *("scaler_updated", "step_begins", "step_ends", "scheduled"),
)
"""Hooks that every step of a training goes through."""


def _nothing(*about: object, **named: object) -> None:
    """In place of one of them."""


class Engine(EnginePart):
    """The hooks of the guarded training in this process.

    Args:
        settings: of the run.
        open_recorder: makes the recorder when training begins.
        fast: whether steps may be made cheaper; as HOLDFAST_FAST says where it is not given.
    """

    def __init__(
        self,
        settings: Settings,
        open_recorder: Callable[[], Recorder],
        *,
        fast: bool | None = None,
    ) -> None:

        def begin() -> Recorder:
            state.recovery.checkpoints.script.check_own(settings.restart.own)
            recorder = open_recorder()
            state.last_state.watch_signals(self._hooks.end)
            return recorder

        self.state = state = EngineState(settings, begin, fast=fast)
        super().__init__(state)
        self.may_rewrite = settings.guard.fused and state.fast.on
        """Whether the script's optimizers may be given a faster form."""
        self.torch_time_saved = state.fast.torch_time_saved
        """What faster forms spare."""
        self._hooks = hooks = _Hooks.of(state)
        # The hooks of every step: as they are, for a call in between takes its time.
        loader, backward, clip = hooks.loader, hooks.backward, hooks.clip
        self.drew, self.fetch_begins = loader.drew, loader.fetch_begins
        self.fetched = loader.fetched
        self.backward_begins = backward.backward_begins
        self.backward_ends = backward.backward_ends
        self.clip_begins, self.clip_ends = clip.clip_begins, clip.clip_ends
        scaler, optimizers = hooks.scaler, hooks.optimizers
        self.scaler_used, self.scaled = scaler.scaler_used, scaler.scaled
        self.scaler_begins, self.scaler_ends = scaler.scaler_begins, scaler.scaler_ends
        self.scaler_updated = scaler.scaler_updated
        self.step_begins, self.step_ends = optimizers.step_begins, optimizers.step_ends
        self.scheduled = optimizers.scheduled
        state.fast.connect(vars(self), backward.loss_seen)

    @property
    def settings(self) -> Settings:
        """Of the run."""
        return self.state.settings

    # ------------------------------------------------------------------ the script

    def follow_script(self) -> None:
        """This is the process of an unmodified script: its checkpoints can be resumed from."""
        checkpoints = self.state.recovery.checkpoints
        if checkpoints.wanted:
            checkpoints.script.follow()

    def resume_from(self, checkpoint: Path) -> None:
        """Go on from a checkpoint of an earlier run of this script, which has not begun yet."""
        script = self.state.recovery.checkpoints.script
        script.resume(checkpoint)
        if script.trains_before:
            script.goes_on = self._stand_still()

    def _stand_still(self) -> Callable[[], None]:
        """Follow nothing that trains until the call that this gives."""
        at_work = {name: getattr(self, name) for name in _OF_STEPS}
        script = self.state.recovery.checkpoints.script

        def asked(iterator: Any) -> None:
            script.asks(iterator, 0, sys._getframe(1))

        still = {**dict.fromkeys(_OF_STEPS, _nothing), "fetch_begins": asked}
        vars(self).update(still, scheduled=lambda scheduler: True)
        return lambda: vars(self).update(at_work)

    @property
    def holds_off_saving(self) -> bool:
        """Whether the script's own ``torch.save`` must not write: it did before the checkpoint."""
        return self.state.recovery.checkpoints.script.pending

    @fail_open("resume")
    def loads(self, file: Any) -> None:
        """The script loads a file."""
        self.state.recovery.checkpoints.script.loads(file, sys._getframe())

    @fail_open("comparison")
    def compares(self, steps: object) -> int:
        """A step of an optimizer is at a turn of the comparison; the next one is after so many."""
        return self.torch_time_saved.turn(steps)

    @fail_open("copy probe")
    def copied(self, seconds: float) -> None:
        """Tensors went from the host to the device."""
        self.phases.add("h2d", seconds)

    def waited(self, seconds: float) -> None:
        """A collective has returned after so long; in backward it belongs to that phase."""
        if not self.state.finite_loss.depth:
            self.phases.waited(seconds)

    # ------------------------------------------------------------------ data

    def passes_over(self, data: object) -> None:
        """What the next pass of a loop reads, where it is no DataLoader."""
        self.state.training.comparability.passes_over(data)

    def loader_made(self, loader: Any) -> None:
        """A loader exists."""
        self._hooks.loader.loader_made(loader)

    def pass_begins(self, loader: Any, original: Callable[[Any], Any]) -> Any:
        """A loop over a loader begins: its iterator, or one that hands out nothing any more."""
        return self._hooks.loader.pass_begins(loader, original)

    def loader_begins(self, loader: Any, trains: bool = False) -> None:
        """A loop over a loader is about to begin; ``trains``: it is known to train."""
        self._hooks.loader.loader_begins(loader, trains)

    def loader_began(self, iterator: Any) -> None:
        """Its iterator is there, with its workers; None where that failed."""
        self._hooks.loader.loader_began(iterator)

    def fetcher(self, made: Any) -> Any:
        """What is to make batches in place of what torch has made for it, often the same."""
        return self._hooks.loader.fetcher(made)

    def fetch_fails(self, iterator: Any) -> None:
        """There was no next batch."""
        self._hooks.loader.fetch_fails(iterator)

    def worker_starts(self) -> None:
        """This process is a worker of a loader: it says which lines keep it busy."""
        if self.state.watchers.time is not None:
            attempt(self, "watchers", worker_samples.begin)

    # ------------------------------------------------------------------ out of memory

    @property
    def splits_calls(self) -> bool:
        """Whether calls of the model go through a boundary that can split them."""
        return self.state.training.memory.split.armed

    def compiled(self, model: nn.Module) -> None:
        """A compiled form of a model exists: it will be called in its place."""
        self._hooks.memory.compiled(model)

    def forward_fails(self, error: BaseException, module: nn.Module, frame: FrameType) -> bool:
        """A call of a model has raised; True when ``call_split`` should make it again."""
        return self._hooks.memory.forward_fails(error, module, frame)

    def call_split(
        self, module: nn.Module, run: Callable[..., Any], args: tuple[Any, ...], kwargs: Any
    ) -> Any:
        """Make a call of a model, in parts where the batch does not fit."""
        return self._hooks.memory.call_split(module, run, args, kwargs)

    def backward_fails(self, error: BaseException, tensors: object) -> bool:
        """Backward has raised; True when the step is skipped and ``backward_lost`` comes next."""
        return self._hooks.memory.backward_fails(error, tensors)

    def backward_lost(self, tensors: object) -> None:
        """A backward pass that ran out of memory is over: free its graph."""
        self._hooks.memory.backward_lost(tensors)

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
        self._hooks.memory.in_pieces(batches, compute, undo, local=local)

    @property
    def fits(self) -> int:
        """Samples that are computed at once by ``in_pieces``; 0: all of a batch."""
        return self.state.training.memory.pieces.fits

    @fits.setter
    def fits(self, samples: int) -> None:
        self.state.training.memory.pieces.fits = samples

    def window_dropped(self) -> None:
        """The gradients since the last step were cleared: their batches will come once more."""
        self.state.fast.close()
        self.state.window.drop()

    # ------------------------------------------------------------------ the optimizer

    def registers(self, module: nn.Module) -> None:
        """A module has been given a parameter or a module of its own."""
        attempt(self, "model probe", self.state.training.registry.registers, module)

    def made(self, optimizer: Optimizer, models: Iterable[nn.Module] | None = None) -> None:
        """An optimizer exists: learn its layers and buffers before the first forward pass."""
        self._hooks.optimizers.made(optimizer, models)

    def leaves(self, optimizer: Optimizer) -> None:
        """An optimizer is about to be freed; the state after the last step would go with it."""
        self._hooks.optimizers.leaves(optimizer)

    # ------------------------------------------------------------------ evaluation

    def evaluates(self, frame: FrameType) -> None:
        """``eval()`` was called on a module."""
        watchers = self.state.watchers
        if watchers.memory is not None and not torch.compiler.is_compiling():
            # The backward pass of a part that is frozen by eval() must be seen, to end it.
            self.state.fast.close()
            attempt(self, "watchers", watchers.evaluation_begins, frame)

    def trains(self) -> None:
        """``train()`` was called on a module while an evaluation was going on."""
        memory = self.state.watchers.memory
        if memory is not None and memory.evaluation.open:
            attempt(self, "watchers", memory.evaluation.ends)

    def differentiates(self) -> None:
        """``torch.autograd.grad`` is called."""
        memory = self.state.watchers.memory
        if memory is not None:
            attempt(self, "watchers", memory.evaluation.differentiates)

    # ------------------------------------------------------------------ what a watch says

    def settled(self) -> None:
        """What was done since the step is meant: buffers are good as they are, graphs were used."""
        self.state.fast.close()
        attempt(self, "buffers", self.state.training.registry.buffers.accept)
        memory = self.state.watchers.memory
        if memory is not None:
            attempt(self, "watchers", memory.evaluation.restarts)

    def new_task(self) -> None:
        """Something else is learned from here on."""
        self.state.fast.close()
        iteration = self.state.training.iteration
        attempt(self, "recovery", self.state.recovery.new_task, iteration)

    def note(self, step: int, record: Kind) -> None:
        """Write an Event."""
        attempt(self, "notes", self.state.training.record_at, step, record)

    def note_of_script(self, kind: str, data: Mapping[str, Any]) -> None:
        """Write what the script or a plugin notes; a kind of ours must have the data of ours."""
        attempt(self, "notes", self._note_of_script, kind, data)

    def _note_of_script(self, kind: str, data: Mapping[str, Any]) -> None:
        try:
            record = note(kind, data)
        except RecordError as error:
            # Of the others nothing is wrong.
            self.state.training.failure("a note of the script", error)
        else:
            self.state.training.record_at(self.steps, record)

    def restore_best(self, why: str) -> str:
        """Go back to the best state by validation between two steps; why that was not done."""
        self.state.fast.close()
        refused = attempt(self, "recovery", self.state.recovery.restore_best, why)
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
        self.state.fast.close()
        recovery = self.state.recovery
        recovery.live.given = training_state
        recovery.restoring.best_state = best
        if training_state is not None:
            recovery.checkpoints.wanted = recovery.checkpoints.script.on = False

    def resumed(self, step: int) -> None:
        """Weights, state and buffers were restored to what they were after this many steps."""
        self.state.fast.close()
        self.state.training.restored()
        self.state.training.iteration = step

    # ------------------------------------------------------------------ what a watch asks

    @property
    def replaying(self) -> bool:
        """Whether the current batch was fed before, for an investigation or a trial."""
        return self.state.position.replaying

    @property
    def last_replay(self) -> bool:
        """Whether it is the last one of its kind."""
        return self.state.position.last_replay

    @property
    def steps(self) -> int:
        """How many steps the run has made."""
        return self.state.position.steps

    @property
    def skipped(self) -> int:
        """Steps that were skipped so far, as far as is known on the host."""
        return self.state.writer.skipped

    @property
    def latest(self) -> Mapping[str, float]:
        """The row of the newest step whose numbers are on the host."""
        return self.state.writer.latest

    def each_row(self, listener: Callable[[Mapping[str, float]], None]) -> None:
        """Hand every row from now on to somebody, on the training thread: it must be quick."""
        self.state.writer.listeners.append(lambda step, row: listener(row))

    def await_rows(self) -> None:
        """Wait for the rows that are on their way from a device."""
        self.state.fast.close()
        attempt(self, "rows", self.state.writer.await_rows)

    @property
    def run(self) -> Run | None:
        """The run folder, once it is open."""
        recorder = self.state.training.recorder
        return None if recorder is None else recorder.run

    @property
    def lane(self) -> str:
        """The lane of this process in the run folder; empty while it is not open."""
        recorder = self.state.training.recorder
        return "" if recorder is None else recorder.lane

    def open(self) -> Run | None:
        """Open the run folder now, not with the first backward pass; may raise an error."""
        self.state.training.opened()
        return self.run

    # ------------------------------------------------------------------ the end

    def end(self, error: BaseException | None = None, gave_up: object = None) -> None:
        """End of the process, with its ``error`` if any: record it and close.

        ``gave_up``: what the script exited with after it had caught the error.
        """
        self._hooks.end.end(error, gave_up)

    def last_words(self, error: BaseException, gave_up: object = None) -> LastWords:
        """What can be said of an exception that ends the training; nothing is written."""
        return self._hooks.end.last_words(error, gave_up)

    def save_last_state(self, why: str) -> None:
        """The run ends early: save the state after its last complete step, once."""
        self._hooks.end.save_last_state(why)

    def close(self) -> None:
        """End of the process: wait for pending rows and write the final record."""
        self._hooks.end.close()
