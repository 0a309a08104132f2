"""Scripts of the collections, killed at a random step and resumed: right, refused or wrong.

    python benchmarks/resume.py                     # the table
    python benchmarks/resume.py --write             # also into benchmarks/results/
    python benchmarks/resume.py --only tile_codec   # scripts whose name holds this

A script runs to its end once, is then killed (SIGKILL) at a random step, and is resumed. Right:
loss and gradient norm of every step after the checkpoint are those of the run that was not killed,
bit for bit, and it prints the same last line. Where the killed run differs from the first one
before the kill, the script is not the same twice by itself.
"""

from __future__ import annotations

import argparse
import os
import random
import runpy
import signal
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import torch
from overhead import hardware

from holdfast import config
from holdfast.boot import OWNER_VARIABLE, RESUME_VARIABLE, RUN_VARIABLE, SETTINGS_VARIABLE
from holdfast.errors import HoldfastError
from holdfast.run import LaneReader, Run
from holdfast.run.resumption import resumable

CORPUS = Path(__file__).parents[1] / "corpus"
WITH = ("healthy", "ordinary", "noisy")
PATIENCE = 100.0
BEGAN = time.monotonic()


@dataclass(frozen=True)
class Outcome:
    """What became of one script."""

    script: str
    steps: int = 0
    killed: int = -1
    resumed: int = -1
    word: str = ""
    why: str = ""


def chosen(count: int, seed: int, only: str) -> list[Path]:
    """Scripts that read a DataLoader, those of healthy collections first, and a few without one."""
    everything = sorted(CORPUS.glob("*/*.py"))
    generator = random.Random(seed)
    fed = [path for path in everything if "DataLoader(" in path.read_text()]
    healthy = [path for path in fed if any(word in path.parent.name for word in WITH)]
    others = [path for path in fed if path not in healthy and "crashes" not in path.parent.name]
    bare = [path for path in everything if path not in fed and "healthy" in path.parent.name]
    generator.shuffle(others)
    generator.shuffle(bare)
    picked = (healthy + others)[: count - 3] + bare[:3]
    return [path for path in (everything if only else picked) if only in path.stem]


def trial(script: Path, seed: int) -> Outcome:
    """One script: to its end, killed, resumed."""
    name = f"{script.parent.name.removeprefix('2026-11-')}/{script.stem}"
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        code = _wait(_start(script, root / "whole", every=1_000_000))
        run = _opened(root / "whole")
        if code or run is None or not _steps(run):
            return Outcome(name, word="no run to compare with", why=f"exit code {code}")
        steps = _steps(run)
        every = max(2, steps // 15)
        target = random.Random(f"{seed} {name}").randrange(every + 2, max(every + 3, steps - 2))
        killed = _killed(script, root / "killed", every, target)
        if killed is None:
            return Outcome(name, steps, word="ended before it was killed")
        known = {"script": name, "steps": steps, "killed": _steps(killed)}
        if _differs(run, killed, 0):
            return Outcome(**known, word="not the same twice", why=_differs(run, killed, 0))
        found = resumable(killed)
        if not found.accepted:
            return Outcome(**known, word="refused", why=found.why)
        resume = Path(found.checkpoint)
        code = _wait(_start(script, root / "again", every=1_000_000, resume=resume))
        printed, out = _text(root / "again"), _text(root / "whole")
        if code == 2:
            return Outcome(**known, word="refused", why=_last(printed))
        resumed = _opened(root / "again")
        if resumed is None or code:
            return Outcome(**known, word="wrong", why=f"exit code {code}: {_last(printed)}")
        first = found.step + 1
        wrong = _differs(run, resumed, first)
        if not wrong and _last(out) != _last(printed):
            wrong = f"prints {_last(printed)!r}, not {_last(out)!r}"
        return Outcome(**known, resumed=first, word="wrong" if wrong else "right", why=wrong)


def _start(script: Path, folder: Path, *, every: int, resume: Path | None = None) -> int:
    """Fork a process that runs a script as `holdfast run` does; torch is imported already."""
    run = Run.create(folder, {"script": script.name})
    work = folder.parent / "work"
    work.mkdir(exist_ok=True)
    pid = os.fork()
    if pid:
        return pid
    code = 99
    try:
        out = os.open(folder.parent / f"{folder.name}.out", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
        os.dup2(out, 1)
        os.dup2(out, 2)
        sys.stdout = sys.stderr = os.fdopen(1, "w", 1, closefd=False)
        os.chdir(work)
        settings = config.load(None, [f"checkpoint.steps={every}", "run.ring_mib=128"])
        os.environ |= {RUN_VARIABLE: str(run.path), OWNER_VARIABLE: "benchmark"}
        os.environ[SETTINGS_VARIABLE] = config.to_json(settings)
        if resume is not None:
            os.environ[RESUME_VARIABLE] = str(resume)
        sys.argv, sys.path[0] = [str(script)], str(script.parent)
        code = _guarded(script)
    finally:
        sys.stdout.flush()
        os._exit(code)


def _guarded(script: Path) -> int:
    from holdfast.boot import session
    from holdfast.resume import saving

    session.begin()
    # A thread has a stack of its own, without the frames of this file.
    saving.in_main_thread = lambda: True
    sys.modules.pop("overhead", None)
    failed: list[Any] = []
    threading.excepthook = failed.append
    about = {"target": runpy.run_path, "args": (str(script),), "kwargs": {"run_name": "__main__"}}
    thread = threading.Thread(**about)
    thread.start()
    thread.join()
    engine = session.current()
    if engine is not None:
        engine.end(failed[0].exc_value if failed else None)
    return 1 if failed else 0


def _wait(pid: int) -> int:
    until = time.monotonic() + PATIENCE
    while time.monotonic() < until:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.05)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return 124


def _killed(script: Path, folder: Path, every: int, target: int) -> Run | None:
    pid = _start(script, folder, every=every)
    until = time.monotonic() + PATIENCE
    while time.monotonic() < until:
        run = _opened(folder)
        if run is not None and _steps(run) >= target:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            return Run.open(folder)
        if os.waitpid(pid, os.WNOHANG)[0]:
            return None
        time.sleep(0.02)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return None


def _text(folder: Path) -> bytes:
    return (folder.parent / f"{folder.name}.out").read_bytes()


def _opened(folder: Path) -> Run | None:
    try:
        run = Run.open(folder)
        return run if "r0" in run.lanes() else None
    except HoldfastError:
        return None


def _rows(run: Run) -> Any:
    return LaneReader(run, "r0").steps()


def _steps(run: Run) -> int:
    rows = _rows(run)
    return int(rows["step"][-1]) + 1 if len(rows) else 0


def _columns(rows: Any, column: str) -> Any:
    return zip(rows["step"], rows["opt"], rows[column], strict=True)


def _differs(one: Run, other: Run, first: int) -> str:
    """Where two runs differ from a step on; empty where they do not."""
    left, right = _rows(one), _rows(other)
    for column in ("loss", "grad_norm"):
        a = {(int(s), float(o)): v for s, o, v in _columns(left, column)}
        for s, o, v in _columns(right, column):
            at = int(s), float(o)
            if at[0] < first or at not in a:
                continue
            if not np.array_equal(np.float32(a[at]), np.float32(v), equal_nan=True):
                return f"{column} of step {at[0]}: {float(v)!r}, not {float(a[at])!r}"
    if first and int(right["step"][-1]) != int(left["step"][-1]):
        return f"it ends at step {int(right['step'][-1])}, not {int(left['step'][-1])}"
    return ""


def _last(text: bytes) -> str:
    lines = text.decode(errors="replace").strip().splitlines()
    return lines[-1] if lines else ""


def table(outcomes: list[Outcome]) -> str:
    """The outcomes as markdown."""
    counted = {word: sum(o.word == word for o in outcomes) for word in {o.word for o in outcomes}}
    head = ", ".join(f"{count} {word}" for word, count in sorted(counted.items()))
    home = f"{CORPUS.resolve()}/"  # of this machine
    rows = [
        f"| {o.script} | {o.steps or ''} | {o.killed if o.killed >= 0 else ''} "
        f"| {o.resumed if o.resumed >= 0 else ''} | {o.word} | {o.why.replace(home, '')} |"
        for o in sorted(outcomes, key=lambda o: (o.word, o.script))
    ]
    columns = (
        "| script | steps | killed at | resumed at | outcome | why |\n|---|---|---|---|---|---|"
    )
    return "\n".join([f"{len(outcomes)} scripts: {head}.", "", columns, *rows, ""])


def main() -> None:
    """Run the trials and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--scripts", type=int, default=30)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="")
    parser.add_argument("--minutes", type=float, default=600.0, help="begin no script after this")
    parser.add_argument("--write", action="store_true")
    args = parser.parse_args()
    # Imports what scripts need, once.
    torch.optim.SGD([torch.zeros(1, requires_grad=True)])
    outcomes: list[Outcome] = []
    for path in chosen(args.scripts, args.seed, args.only):
        if time.monotonic() > args.minutes * 60 + BEGAN:
            break
        outcome = trial(path, args.seed)
        outcomes.append(outcome)
        print(f"{outcome.word:12} {outcome.script}  {outcome.why}", file=sys.stderr, flush=True)
    text = table(outcomes)
    print(text)
    if args.write:
        command = f"python benchmarks/resume.py --scripts {args.scripts} --seed {args.seed}"
        place = Path(__file__).parent / "results" / f"resume_cpu_{date.today()}.md"
        place.write_text(f"# Resume of unmodified scripts\n\n`{command}`, {hardware()}\n\n{text}")


if __name__ == "__main__":
    main()
