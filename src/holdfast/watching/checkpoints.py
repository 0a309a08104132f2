"""Checkpoints of a watched loop: when to save, what to save, and how to resume.

A state is saved between two batches, when a step is complete, the loop's own schedules and averages
included. Besides the live objects it holds the loader position, the gradients of an unfinished
accumulation window and the RNG state.
"""

from __future__ import annotations

import math
import os
import statistics
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from ..checkpoint import rng
from ..checkpoint.data_position import Position
from ..checkpoint.loader_pass import LoaderPass
from ..checkpoint.saver import LAST_WAIT, Saver
from ..checkpoint.training_state import BestState, TrainingState, has_state, loose
from ..config import CheckpointSettings
from ..errors import CheckpointError, UsageError
from ..guard.engine import Engine
from ..records.resuming import CheckpointResult, Resumed

# The loss saved with a checkpoint is the median of this many: one batch says little.
_RECENT = 32
_SMALL = 4096


class LoopCheckpoints:
    """Saves and resumes a run."""

    def __init__(
        self,
        training_state: TrainingState,
        engine: Engine,
        settings: CheckpointSettings,
        rank: int,
        say: Callable[[str], None],
    ) -> None:
        self.position = Position()
        self.passes = 0
        """Backward passes since the last step."""
        self._training_state = training_state
        self._engine = engine
        self._saver = Saver(settings, self._run_folder, self._reported)
        self._rank = rank
        self._say = say
        self._meant = training_state.infinite()
        self._losses: deque[Tensor] = deque(maxlen=_RECENT)
        self._due = ""
        self._sharded: bool | None = None
        self._tree: Mapping[str, Any] | None = None
        self._resumed: tuple[Path, int] | None = None
        self._why: list[str] = []

    # ------------------------------------------------------------------ going on

    def resume(self, entry: Path) -> None:
        """Restore everything that a checkpoint holds; the data follows when the loop asks."""
        tree, record = self._training_state.read(entry, rank=self._rank)
        others = _of_other_ranks(record, self._rank)
        if _whose(record, self._rank) != self._rank:
            tree["dice"] = rng.state()  # two ranks that draw the same numbers would be one
        try:
            self._training_state.put_back(tree)
        except CheckpointError as error:
            raise CheckpointError(f"{entry.name} cannot be resumed from: {error}") from None
        # The guard names a state after the step it follows, we after the number of steps taken.
        step = int(record.get("steps", int(record["step"]) + ("position" not in tree)))
        self._engine.resumed(step)
        self._saver.last_step = step
        self._resumed = entry, step
        self._why = [why for why in (rng.missing(tree.get("dice", {})), others) if why]
        if tree.get("left_out"):
            self._why.append("not saved: " + ", ".join(tree["left_out"]))
        if "position" in tree:
            self.passes = int(tree["passes"])
            self.position.resume(tree["position"], tree["dice"])
            self._tree = tree
        else:
            self._why.append("it was saved by the guard, which does not know the loader position")
        if self._tree is None or self.position.why:
            self._tell_resumed()

    def _tell_resumed(self) -> None:
        """Record where the run resumes, once that is known."""
        if self._resumed is None:
            return
        why = "; ".join([*self._why, *([self.position.why] if self.position.why else [])])
        (file, step), self._resumed = self._resumed, None
        resumed = Resumed(file=str(file), step=step, exact=not why, why=why)
        self._engine.note(step, resumed)

    # ------------------------------------------------------------------ the loop

    def begins(self, loader: Iterable[Any], *, fast: bool) -> LoaderPass | None:
        """A loop over a loader begins; None when it was over before the checkpoint."""
        loader_pass = self.position.begins(loader, fast=fast, say=self._say)
        if loader_pass is not None and self._tree is not None:
            if self.position.left_out:
                # What the script does around a loop that hands out nothing was done before.
                rolled = rng.state()
                self._training_state.put_back(self._tree)
                rng.put_back(rolled)
            if not self.position.pending:
                self._tree = None
        if loader_pass is not None and not self.position.pending:
            self._tell_resumed()
        return loader_pass

    def between(self) -> None:
        """The loop asks for its next batch: the last step is complete."""
        # While one is being written the next may wait: a copy in memory is not free.
        # Where ranks save together that would be another answer on each of them.
        if self._due and (self._saver.idle or self._sharded):
            kind, self._due = self._due, ""
            self.save(kind)

    def saw_loss(self, loss: Tensor) -> None:
        """A backward pass begins."""
        self.passes += 1
        # Not a view of something large, which would be kept alive.
        if loss.numel() == 1 and loss.untyped_storage().nbytes() <= _SMALL:
            self._losses.append(loss.detach())

    def stepped(self) -> None:
        """A step is over; a checkpoint that is due waits for the end of the iteration."""
        self.passes = 0
        if self._resumed is not None:
            self._why.append("the loop does not take its batches from watch(loader)")
            self._tell_resumed()
            self._tree = None
        self._saver.tell_news()
        if self._sharded is None:
            self._sharded = self._training_state.is_sharded()
        self._due = self._saver.due(self.steps, sharded=self._sharded) or self._due
        if self._due and not self.position.under_way:
            self.between()

    @property
    def steps(self) -> int:
        """How many steps the run has made."""
        return self._engine.steps

    # ------------------------------------------------------------------ saving

    def save(self, kind: str, metrics: Mapping[str, float] | None = None) -> Path | None:
        """Copy the state and have it written; returns its path, None on failure.

        A failure is recorded as an event: training goes on.
        """
        began = time.perf_counter()
        try:
            return self._save(kind, metrics)
        except Exception as error:
            text = " ".join(str(error).split())
            text = text if isinstance(error, CheckpointError) else f"{type(error).__name__}: {text}"
            self._reported(self.steps, CheckpointResult(why=kind, failed=text))
            return None
        finally:
            # Our time, not that of the phase of the loop it falls into.
            self._engine.spent(time.perf_counter() - began)

    def _save(self, kind: str, metrics: Mapping[str, float] | None) -> Path | None:
        tree = self._training_state.state(gradients=True)
        tree["position"], tree["passes"] = self.position.state(), self.passes
        if self._unknown_schedule():
            tree["left_out"].append("a learning-rate schedule that watch(scheduler=) was not given")
        meant = {**self._meant, **loose(tree)}
        known = {**self._level(), **{k: float(v) for k, v in (metrics or {}).items()}}
        return self._saver.save(
            tree, self.steps, kind, rank=self._rank, metrics=known, meant=meant, copy=True
        )

    @property
    def saved(self) -> bool:
        """Whether nothing is being written."""
        return self._saver.idle

    def await_saved(self) -> None:
        """Wait for what is being written."""
        self._saver.wait()

    def best(self) -> BestState | None:
        """The best state by the metric of the settings, read from disk; None without one."""
        entry = self._saver.best(self._rank)
        if entry is None:
            return None
        tree, _ = self._training_state.read(entry.path, rank=self._rank)
        return BestState(tree, entry.step, entry.metric(self._saver.metric))

    def _unknown_schedule(self) -> bool:
        groups = [group for one in self._training_state.optimizers for group in one.param_groups]
        # Every schedule of torch leaves this key behind.
        return not self._training_state.schedulers and any(
            "initial_lr" in group for group in groups
        )

    def close(self, *, finished: bool) -> None:
        """The run ends: save its last state if others of it were, and wait for the disk."""
        self._tell_resumed()
        if finished and self._saver.used and self.steps > self._saver.last_step:
            self._saver.wait()
            self.save("end")
        if not self._saver.close():
            self._say(f"a checkpoint was not finished within {LAST_WAIT:.0f} s")

    def _run_folder(self) -> Path | None:
        run = self._engine.open()
        return None if run is None else run.path

    def _reported(self, step: int, result: CheckpointResult) -> None:
        self._engine.note(step, result)

    def _level(self) -> dict[str, float]:
        values = [float(loss) for loss in self._losses]
        finite = [value for value in values if math.isfinite(value)]
        return {"loss": statistics.median(finite)} if finite else {}


def _of_other_ranks(record: Mapping[str, Any], rank: int) -> str:
    """Why a checkpoint is not this rank's own; empty if it is."""
    saved, now = int(record.get("world", 1)), int(os.environ.get("WORLD_SIZE", "1"))
    if saved != now:
        return f"it was saved by {saved} rank{'s' * (saved > 1)}, there {_number(now)} now"
    by = _whose(record, rank)
    return f"it was saved by rank {by}" if by != rank else ""


def _whose(record: Mapping[str, Any], rank: int) -> int:
    """The rank whose own state, beside what all have together, is read from a checkpoint."""
    if "files" in record:
        return rank % int(record.get("world", 1))
    return int(record.get("rank", rank))


def _number(count: int) -> str:
    return "is 1" if count == 1 else f"are {count}"


def gather(
    models: Sequence[nn.Module],
    optimizers: Sequence[Optimizer],
    *,
    scheduler: Any,
    scaler: Any,
    ema: Any,
    state: Mapping[str, Any] | None,
) -> TrainingState:
    """What ``watch`` was given, under the names it is saved with."""
    return TrainingState(
        {"model" if i == 0 else f"model{i + 1}": one for i, one in enumerate(models)},
        optimizers,
        schedulers=_listed("scheduler", scheduler),
        scaler=_checked("scaler", scaler),
        ema=_named("ema", ema),
        others=_named("state", state),
    )


def _checked(argument: str, thing: Any) -> Any:
    if thing is not None and not has_state(thing):
        raise UsageError(
            f"{argument}= got a {type(thing).__name__}, which has no state_dict and "
            "load_state_dict; its state cannot be saved"
        )
    return thing


def _listed(argument: str, given: Any) -> list[Any]:
    things = list(given) if isinstance(given, list | tuple) else [given]
    return [_checked(argument, thing) for thing in things if thing is not None]


def _named(argument: str, given: Any) -> dict[str, Any]:
    if given is None:
        return {}
    things = given if isinstance(given, Mapping) else {argument: given}
    return {str(name): _checked(f"{argument}[{name!r}]", one) for name, one in things.items()}
