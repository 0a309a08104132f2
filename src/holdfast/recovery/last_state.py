"""Save the last state of a run that ends early: an exception, Ctrl-C, SIGTERM, out of memory.

    as the loop asks for a batch            the live state, and what the script is resumed by
    between two steps                       the live state, as it is after the last complete step
    inside optimizer.step, lost device      the newest snapshot, which is some steps older

A forward pass that was cut short has changed running statistics and drawn random numbers: both are
saved as they were before it, as far as the guard has kept them. Nothing is written without weights,
with non-finite weights, or where the disk would be nearly full.
"""

from __future__ import annotations

import contextlib
import shutil
import signal
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, Literal

import torch
from torch import Tensor

from ..checkpoint.file import save
from ..checkpoint.record import LAST
from ..checkpoint.store import entry_at
from ..checkpoint.training_state import RNG
from ..checkpoint.tree import flatten
from ..config import CheckpointSettings
from ..errors import CheckpointError
from ..records.recovery import LastStateResult, SavingLastState
from ..shards import is_sharded
from .end_signals import EndSignals, EndsTraining
from .rollback import Recovery
from .snapshots import Snapshot
from .training import Training

_LARGE = 256 << 20
"""Bytes. More than this takes more than a moment on an ordinary disk, and is announced."""

_LEAST_FREE = 0.1
"""Share of the disk that stays free: it belongs to other programs too."""

_SIGNAL = "signal"
"""Why a checkpoint was saved: ranks have agreed to end."""

_SHARDED = "its parameters are sharded over ranks, which may be gone; see the last checkpoint"

_COMMITTED = 5.0
"""Seconds. Ranks write at the same time."""

_DEVICE_WAIT = 30.0
"""Seconds. A device that has not answered by then waits for something that will not come."""


@dataclass(frozen=True, slots=True)
class Moment:
    """Where the run was when it ended."""

    why: str
    """What ended it."""
    doubt: str = ""
    """Why weights may be half updated; empty between two steps."""
    rng: Tensor | None = None
    """The RNG state of the CPU when the last batch was fetched."""
    statistics: Sequence[tuple[Tensor, Tensor]] = ()
    """Running statistics, with copies from the end of the last complete step."""
    resume: Mapping[str, Any] | None = None
    """What a script is resumed by, where the run ended as it asked for its next batch."""


@dataclass(frozen=True, slots=True)
class _Candidate:
    """A state that may be saved."""

    tree: Mapping[str, Any]
    step: int
    source: Literal["live", "snapshot"]


class LastState:
    """Writes the last state, once after the same step.

    Args:
        settings: where checkpoints go, and whether the last state is wanted.
        training: of this process.
        recovery: knows the live state and the snapshots.
    """

    def __init__(
        self, settings: CheckpointSettings, training: Training, recovery: Recovery
    ) -> None:
        self._settings, self._training, self._recovery = settings, training, recovery
        self._began = time.time()
        self._wanted = settings.at_end
        self._saved_after = -1
        """The last step of the state that was written, or could not be."""
        self.signals: EndSignals | None = None
        """Those that have the run saved before they end it, once training has begun."""
        recovery.all_ranks.ends_by = self._end_together

    @property
    def _done(self) -> bool:
        """Whether there is nothing to write, or nothing new: a script may go on after Ctrl-C."""
        return not self._wanted or self._saved_after == self._training.iteration

    def watch_signals(self, training: EndsTraining) -> None:
        """Training begins: have it saved before a signal ends the process."""
        if self._wanted:
            self.signals = EndSignals(training, self._settings.signals, self._settings.wait)
            self.signals.install()

    def end_here(self, at: FrameType) -> None:
        """The step at work is over, and the loop asks for its next batch: save, and end."""
        if self.signals is not None:
            self.signals.finish(at)

    def _end_together(self, name: str, snapshot: Snapshot | None) -> None:
        """All ranks are at the step after which they end by a signal: save, and end."""
        signals = self.signals
        if signals is None:  # not for this process; the launcher ends it
            return
        signals.finish_together(name, lambda: self._save_together(name, snapshot))

    def _save_together(self, name: str, snapshot: Snapshot | None) -> bool:
        if self._done or snapshot is None:
            return self._done
        began, step = time.monotonic(), snapshot.step
        path = self._recovery.checkpoints.save(snapshot, _SIGNAL)
        self._recovery.checkpoints.close()
        # Of one that is sharded the first rank renames the folder, once it has all parts.
        if path is None or not _within(_COMMITTED, path.exists):
            return False
        self._saved_after = self._training.iteration
        parts = path.rglob("*") if path.is_dir() else [path]
        result = LastStateResult(
            why=name,
            source="live" if step == self._training.iteration else "snapshot",
            file=str(path),
            bytes=sum(part.stat().st_size for part in parts),
            seconds=round(time.monotonic() - began, 3),
            models=tuple(snapshot.tree["models"]),
            optimizers=len(snapshot.tree["optimizers"]),
        )
        self._record(step, result)
        return True

    def not_saved(self, why: str, reason: str) -> None:
        """The process ends and its training thread does not answer."""
        if not self._done:
            self._saved_after = self._training.iteration
            self._record(self._training.iteration, LastStateResult(why=why, failed=reason))

    def close(self) -> None:
        """Signals end the process at once again."""
        if self.signals is not None:
            self.signals.remove()

    def save(self, moment: Moment) -> None:
        """Write the state after the last complete step, or say in an Event why not."""
        if self._done:
            return
        step = self._saved_after = self._training.iteration
        try:
            failed = self._save(moment)
        except KeyboardInterrupt:
            # A third one must not meet any code of ours.
            with contextlib.suppress(ValueError):
                signal.signal(signal.SIGINT, signal.SIG_DFL)
            failed = "interrupted while it was being written"
        except Exception as error:
            text = " ".join(str(error).split())
            known = isinstance(error, CheckpointError)
            failed = text if known else f"{type(error).__name__}: {text}"
        if failed:
            self._record(step, LastStateResult(why=moment.why, failed=failed))

    def _save(self, moment: Moment) -> str:
        """Save the first state that is whole; the reason when there is none."""
        reasons: list[str] = []
        for candidate in self._candidates(moment, reasons):
            bad = self._recovery.checkpoints.damage.of(candidate.tree)
            if bad is None:
                skeleton, tensors = flatten(candidate.tree)
                self._write(candidate, skeleton, tensors, moment.why, "; ".join(reasons))
                return ""
            reasons.append(f"{bad} holds NaN or infinity after step {candidate.step}")
        return "; ".join(dict.fromkeys(reasons))

    # ------------------------------------------------------------------ what could be saved

    def _candidates(self, moment: Moment, reasons: list[str]) -> Iterator[_Candidate]:
        """States from the newest to the oldest; each reason why one is none."""
        step = self._training.iteration
        snapshots = self._recovery.snapshots.taken()
        if moment.doubt:
            if step == 0 and not snapshots:
                return  # no step was complete: there is nothing to lose
            reasons.append(moment.doubt)
        elif self._recovery.trying:
            reasons.append("the run ended while older weights were tried")
        else:
            tree = self._live(moment, reasons)
            if tree is not None:
                if moment.resume is not None:
                    tree["resume"] = moment.resume
                yield _Candidate(tree, step, "live")
        for snapshot in snapshots:
            if any(map(is_sharded, flatten(snapshot.tree)[1])):
                reasons.append(_SHARDED)
                return
            if _complete(snapshot) and _has_weights(snapshot.tree):
                yield _Candidate(snapshot.tree, snapshot.step, "snapshot")
        reasons.append("there is no earlier snapshot" if snapshots else "no snapshot was taken")

    def _live(self, moment: Moment, reasons: list[str]) -> dict[str, Any] | None:
        """The live state; None when it is not all there any more."""
        live = self._recovery.live
        live.look()
        training_state = live.training_state()
        try:
            tree = training_state.state()
            why_not = _why_not(tree)
        except RuntimeError as error:
            reasons.append(f"the device is lost ({' '.join(str(error).split())[:200]})")
            return None
        if why_not:
            reasons.append(why_not)
            return None
        if moment.rng is not None:
            tree[RNG] = {**tree[RNG], "torch": moment.rng}
        kept = {live.data_ptr(): copy for live, copy in moment.statistics}
        tree["models"] = {
            name: {key: _kept(value, kept) for key, value in values.items()}
            for name, values in tree["models"].items()
        }
        return tree

    # ------------------------------------------------------------------ writing

    def _write(
        self, candidate: _Candidate, skeleton: Any, tensors: Sequence[Tensor], why: str, note: str
    ) -> None:
        store = self._recovery.checkpoints.store()
        if store is None:
            raise CheckpointError("there is no run folder to write it to")
        # A watch counts steps, the guard names the last one: neither may overwrite the other's.
        counted = self._recovery.live.given is not None
        rank, step = self._training.rank, candidate.step
        path = store.path(step + counted, rank)
        size = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
        result = LastStateResult(
            why=why,
            source=candidate.source,
            note=note,
            models=tuple(candidate.tree["models"]),
            optimizers=len(candidate.tree["optimizers"]),
            counted=counted,
        )
        there = entry_at(path)
        if there.good and float(there.record["time"]) >= self._began:
            self._record(step, result.replace(file=str(there.path), bytes=there.bytes))
            return
        store.open_for_writing(rank)
        _refuse_full_disk(store.folder, size)
        if size >= _LARGE:
            rate = self._recovery.checkpoints.bytes_per_second
            saving = SavingLastState(bytes=size, expected=round(size / rate, 1) if rate else None)
            self._training.record_at(step, saving)
        meta = {
            "step": step + counted,
            "steps": step + 1,
            "rank": rank,
            "kind": LAST,
            "good": self._recovery.no_incident,
            **({"resume": True} if "resume" in candidate.tree else {}),
            **store.whose,
        }
        written = save(path, skeleton, tensors, meta, compress=self._settings.compress)
        result = result.replace(
            file=str(written.path),
            bytes=written.bytes,
            seconds=round(written.seconds, 3),
            good=self._recovery.no_incident,
        )
        self._record(step, result)

    def _record(self, step: int, result: LastStateResult) -> None:
        self._training.record_at(step, result)


def _has_weights(tree: Mapping[str, Any]) -> bool:
    """Whether every parameter of the optimizers is saved with a model; others have no name."""
    names = [name for one in tree["optimizers"] for name, _, _ in one["parameters"]]
    return bool(names) and all(names)


def _why_not(tree: Mapping[str, Any]) -> str:
    """Why a live state cannot be saved; empty when it can."""
    if not _has_weights(tree):
        return "the model or its optimizer is no longer in memory"
    tensors = flatten(tree)[1]
    if any(map(is_sharded, tensors)):
        return _SHARDED
    return _lost_device({tensor.device for tensor in tensors if tensor.is_cuda})


def _kept(value: Any, kept: Mapping[int, Tensor]) -> Any:
    """A running statistic as it was before the last forward pass."""
    if not kept or not isinstance(value, Tensor):
        return value
    copy = kept.get(value.data_ptr())
    return copy if copy is not None and copy.shape == value.shape else value


def _complete(snapshot: Snapshot) -> bool:
    """Whether a snapshot was copied before a device was lost."""
    try:
        return snapshot.ready or _within(_DEVICE_WAIT, lambda: snapshot.ready)
    except RuntimeError:
        return False


def _lost_device(devices: Collection[torch.device]) -> str:
    """Why GPUs cannot be read from; empty when they can, ``RuntimeError`` when they say so."""
    if devices:
        # The finite check needs a few bytes there, also where the run ended out of memory.
        torch.cuda.empty_cache()
    for device in devices:
        done = torch.cuda.Event()
        done.record(torch.cuda.current_stream(device))
        if not _within(_DEVICE_WAIT, done.query):
            return f"{device} did not answer within {_DEVICE_WAIT:.0f} s"
    return ""


def _within(seconds: float, done: Callable[[], bool]) -> bool:
    until = time.monotonic() + seconds
    while not done():
        if time.monotonic() > until:
            return False
        time.sleep(0.01)
    return True


def _refuse_full_disk(folder: Path, size: int) -> None:
    disk = shutil.disk_usage(folder)
    left = (disk.free - size) / disk.total
    if left < _LEAST_FREE:
        raise CheckpointError(
            f"it takes {size / 2**20:,.0f} MiB, which would leave {max(0.0, left):.0%} of the disk "
            f"free, in {folder}; less than {_LEAST_FREE:.0%} is not touched, choose another with "
            "--set checkpoint.dir=DIR"
        )
