"""RUN004: nothing goes on any more."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..records.crash import NoProgress, ProgressAgain, StandingProcess
from ..types import Event, Finding, Severity, place_words
from ._examples import rows
from ._window import Window
from .base import Detector

_NAME = 32
# Functions and modules in which a process waits for a person or for requests, on purpose.
_ON_PURPOSE = (
    "/pdb.py", "/bdb.py", "/code.py", "/cmd.py", "/socketserver.py", "/tkinter/", "/IPython/",
    "/matplotlib/backends/", "/uvicorn/", "/werkzeug/", "/ipdb/", "/debugpy/",
)  # fmt: skip
_COLLECTIVES = ("distributed_c10d.py", "/torch/distributed/", "torch/nn/parallel/distributed.py")
# Functions in which ranks find each other, before there is a collective.
_MEETING = (
    "rendezvous",
    "_create_c10d_store",
    "_tcp_rendezvous_handler",
    "_env_rendezvous_handler",
)
_LOCKS = ("/threading.py", "/multiprocessing/synchronize.py", "/queue.py", "/filelock/")

_STANDS = NoProgress(
    seconds=900.0, limit=600.0, longest=14.0, cpu=0.01, moves=False,
    file="train.py", line=57, waits_for=1, samples=(3, 4), frames=(),
)  # fmt: skip
_WORKS = _STANDS.replace(moves=True, cpu=1.0)


class Hang(Detector):
    """The run hangs: no step and no batch for much longer than ever before in this run.

    What it detects:
        No step, no batch (of a validation either) and no event for ten minutes
        (``--hang-after``), for three times the longest pause so far, and for three times as long
        before the first step. Then the stacks of all threads and loader workers are taken three
        times: processes that use no CPU and stand on the same lines hang; what computes on one line
        must do so for three times as long, what moves on for ten times as long.

    Why it matters:
        A run that hangs looks like one that is slow, and keeps its GPU for the whole weekend.

    Evidence:
        ``seconds`` without progress, ``limit`` and ``longest`` pause before; ``cpu``: cores that
        its processes kept busy; ``moves``: whether lines of the script changed; ``frames`` of the
        main thread; ``worker``: number of the loader worker that is waited for, ``worker_line``
        its line; ``samples`` it was given, or the one it reads; ``stacks``: the file in the run
        folder with all threads; ``went_on``: seconds after which it went on by itself; ``cause``:
        the lines around; ``sure``: how sure it is, in words.

    Usual causes:
        - A loader worker that waits for a lock which was held when it was forked (OpenCV, HDF5,
          tokenizers, a logger, a thread pool).
        - A file system or a network that does not answer.
        - Several ranks: one of them does not reach a collective, or died.
        - A lock file that another process left behind.

    What to do:
        1. Look at the line and at ``stacks.rN.txt``.
        2. In a worker: ``multiprocessing_context="spawn"``, ``cv2.setNumThreads(0)``, open files in
           the worker; ``timeout=`` of the DataLoader makes it an exception.
        3. ``holdfast run --restart 3`` ends a run that hangs and goes on from its last checkpoint.

    False alarms:
        Long waits on purpose, such as ``time.sleep`` until new data comes; prompts, debuggers and
        servers are known. Work of more than ten minutes between two steps that uses no CPU.

    Cost:
        One 8-byte store per batch; the supervisor compares two numbers twice a second.

    Reproduce:
        ``holdfast run -m holdfast.faults.hang`` with ``--hang-after 4`` names the line and the
        sample at which ``python -m holdfast.faults.hang`` stands still.
    """

    code = "RUN004"
    name = "hang"
    severity = Severity.ERROR
    other_severities = ((Severity.WARNING, "where it went on by itself"),)
    needs = ("loss",)
    since = "0.1"
    within = 20
    judges_events = True
    judges_waiting = True
    fires = rows(8, _STANDS)
    silent = rows(8, _WORKS)

    @dataclass(frozen=True, kw_only=True)
    class Options(Detector.Options):
        """All are guesses: there is no collection of hangs yet."""

        idle: float = 0.1
        """Cores in use below which processes wait; a worker that polls a queue uses 0.01."""
        bytes_per_second: float = 1e5
        """Bytes read and written above which something is copied, however slowly."""
        computes: float = 3.0
        """Multiple of the limit after which work on one line counts as a hang."""
        moves: float = 10.0
        """The same for work that moves on."""

    def scan(self, window: Window) -> Iterator[Finding]:
        """For each step the latest event, with the first row that is not older than it."""
        first = len(window) - window.fresh
        latest = {
            event.step: (event, seen)
            for event in window.events
            if (seen := NoProgress.of(event)) is not None and self._hangs(seen)
        }
        for event, seen in latest.values():
            rows = np.flatnonzero(window.rows["step"] >= event.step)
            if rows.size and rows[0] >= first:
                yield self._finding(window.ending(int(rows[0])), event, seen)

    def check(self, window: Window) -> Finding | None:
        """The same for one row."""
        return next(self.scan(replace(window, fresh=1)), None)

    def _hangs(self, data: NoProgress) -> bool:
        """Whether what was measured is a hang, and no long work or wait on purpose."""
        options = self.options
        if data.gone:
            return False  # it has ended, and ranks that wait for it hang
        ratio = data.seconds / max(1e-9, data.limit)
        if any(part in file for file, *_ in data.frames or () for part in _ON_PURPOSE):
            return False
        idle = data.cpu < options.idle and not data.runnable
        idle = idle and data.bytes_per_second < options.bytes_per_second
        moves = data.moves or (not idle and data.moves_inside)
        if moves:
            return ratio >= options.moves
        return idle or ratio >= options.computes

    def _sure(self, data: NoProgress, over: float) -> tuple[float, str]:
        """How sure it is that this is no long work, as a number and in words; both are guesses."""
        if over:
            return 0.5, "doubtful: it went on by itself, which long work does too"
        limits = "after which time that is a hang is a guess"
        if data.moves:
            return 0.5, f"doubtful: lines of the script still change; {limits}"
        if data.cpu >= self.options.idle or data.runnable:
            return 0.6, f"doubtful: it computes, on one line; {limits}"
        return 0.9, f"likely: three looks found no work, on the same lines; {limits}"

    def _finding(self, window: Window, event: Event, data: NoProgress) -> Finding:
        # Another pause at the same step may have ended before: a script on its way to its place.
        later = (e for e in window.events if e.step == event.step and e.time >= event.time)
        pauses = [again.seconds for e in later if (again := ProgressAgain.of(e)) is not None]
        over = max(pauses, default=0.0)
        worker = data.stuck_worker or StandingProcess()
        blamed, longest = worker if worker.file else data, data.longest
        before = f", the longest pause before was {_span(longest)}" if longest else ""
        went_on = "; then it went on" if over else ""
        pause = max(over, data.seconds)
        silence = f"no step and no batch for {_span(pause)}{before}"
        confidence, sure = self._sure(data, over)
        written = blamed.to_dict()
        shown = {name: written[name] for name in ("function", "excerpt") if name in written}
        finding = self.finding(
            window,
            f"{silence}: {_where(data, worker)}{went_on}",
            _advice(data, worker),
            severity=Severity.WARNING if over else self.severity,
            confidence=confidence,
            evidence={
                "cause": shown,
                "sure": sure,
                "seconds": data.seconds,
                "limit": data.limit,
                "longest": longest,
                "cpu": data.cpu,
                "moves": data.moves,
                "frames": [list(frame) for frame in data.frames or ()],
                "worker": data.waits_for,
                "worker_line": place_words(worker.file, worker.line) if worker.file else "",
                "samples": _samples(data, worker),
                "stacks": data.stacks or "",
                "went_on": over,
            },
        )
        return replace(finding, file=blamed.file or "", line=blamed.line or 0)


def _where(data: NoProgress, worker: StandingProcess) -> str:
    """Where the main process stands, and the worker that it waits for."""
    main = place_words(_short(data.file), data.line) if data.file else ""
    number = data.waits_for
    if number is None:
        if not main:
            return "the process does not answer"
        sample = _samples(data)
        return f"it stands at {main}{f', sample {sample[0]}' if sample else ''}"
    reported = (
        f"waits at {main} for loader worker {number}" if main else f"waits for worker {number}"
    )
    if worker.file:
        reported += f", which stands at {place_words(_short(worker.file), worker.line)}"
    samples = _samples(data, worker)
    if len(samples) == 1:
        return f"{reported}, sample {samples[0]}"
    return f"{reported}, one of samples {samples[0]} …" if samples else reported


def _advice(data: NoProgress, worker: StandingProcess) -> str:
    file, frames = data.stacks, data.frames or ()
    look = f"all threads are in {file}" if file else "its threads could not be asked"
    inside = f"{worker.inside or ''} {data.inside or ''}"
    if data.waits_for is not None:
        cure = _worker_cure(data, worker)
    elif any(function in _MEETING for *_, function in frames):
        cure = (
            "the process group is not there yet: see whether all ranks were started, and reach "
            "its address (MASTER_ADDR, MASTER_PORT)"
        )
    elif any(part in file for file, *_ in frames for part in _COLLECTIVES):
        cure = "see which rank did not come to this collective: its stacks show another line"
    elif any(part in inside for part in _LOCKS):
        cure = "see who holds what this line waits for"
    else:
        cure = "see what this line waits for"
    return (
        f"{cure}; {look}; --restart K ends a run that hangs and starts it again, from its last "
        "checkpoint if there is one"
    )


def _worker_cure(data: NoProgress, worker: StandingProcess) -> str:
    """A lock that was held at the fork is freed by no one; anything else may answer late."""
    reported = ["see what it waits for"]
    forked = data.started in ("fork", None, "")
    if forked and any(part in (worker.inside or "") for part in _LOCKS):
        reported = ["multiprocessing_context='spawn': a lock that was held at the fork stays held"]
    elif data.stuck_worker is None:
        reported = ["num_workers=0 shows it in the main process"]
    if not data.timeout:
        reported.append("timeout= of the DataLoader makes an exception of it")
    return "; ".join(reported)


def _samples(data: NoProgress, worker: StandingProcess | None = None) -> list[Any]:
    for reported in (worker, data) if worker is not None else (data,):
        if reported.sample is not None:
            return [reported.sample]
        if reported.samples:
            return list(reported.samples)
    return []


def _short(path: str) -> str:
    return path if len(path) <= _NAME else "…/" + path.rpartition("/")[2]


def _span(seconds: float) -> str:
    return f"{seconds:.3g} s" if seconds < 120 else f"{seconds / 60:.1f} min"
