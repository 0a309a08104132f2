"""Scripts killed at given seconds and gone on with by ``--resume auto``: equal, refused or WRONG.

    python benchmarks/kills.py FOLDER                       # five kills of every script
    python benchmarks/kills.py FOLDER --only ema --at INT:8 KILL:45
    python benchmarks/kills.py FOLDER --at INT:10+KILL:20   # killed twice
    python benchmarks/kills.py FOLDER --at KILL:50%         # of the time that plain python took

Any script will do whose last line on standard output begins with FINAL. It runs once under plain
python. Then, for each trial, it runs under `holdfast run` in a folder of its own, the signal goes
to its whole process group as Ctrl-C in a terminal does, and it is started with `--resume auto`
until it ends. Equal: the FINAL line and all files that the script has written are those of plain
python (weights by their values). A file that two runs of plain python write differently is not
compared.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import pickle
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

import torch

AT = ("INT:8", "KILL:15", "INT:30", "KILL:45", "INT:50%")
PATIENCE = 900.0
"""Seconds that a process may take."""
STARTS = 4
"""Times that a trial is gone on with after its last kill."""
ORDER = ("equal", "ended before the kill", "began anew", "refused", "WRONG")


@dataclass(frozen=True)
class Kill:
    """A signal, and when it is sent: seconds after the start of a process."""

    signal: signal.Signals
    seconds: float


@dataclass(frozen=True)
class Whole:
    """What plain python made of a script."""

    final: str
    seconds: float
    files: dict[str, bytes]


@dataclass(frozen=True)
class Outcome:
    """What became of one trial."""

    script: str
    kills: str
    word: str
    why: str = ""


@dataclass(frozen=True)
class Ended:
    """How a process ended."""

    code: int
    out: str
    err: str
    killed: bool

    @property
    def last(self) -> str:
        """The last line that says something: on standard error, else on standard output."""
        lines = (self.err.strip() or self.out.strip()).splitlines()
        return lines[-1] if lines else ""


def plain(script: Path, work: Path) -> Whole | str:
    """A script under plain python; a text where it cannot be compared with."""
    began = time.monotonic()
    ended = _process([sys.executable, _copied(script, work)], work, None)
    final = _final(ended.out)
    if ended.code or not final:
        return f"plain python: exit code {ended.code}, {'no' if not final else 'a'} FINAL line"
    return Whole(final, time.monotonic() - began, _files(work))


def trial(script: Path, whole: Whole, kills: Sequence[Kill], work: Path) -> tuple[str, str]:
    """A script under holdfast, killed and gone on with: the outcome and why."""
    command = [sys.executable, "-m", "holdfast", "run"]
    name = _copied(script, work)
    ended = _process([*command, name], work, kills[0])
    if not ended.killed:
        return _compared(whole, script, work, ended, "ended before the kill")
    word = "equal"
    left = list(kills[1:])
    for _ in range(len(kills) + STARTS):
        ended = _process([*command, "--resume", "auto", name], work, left.pop(0) if left else None)
        if ended.killed:
            continue
        if "starts anew" in ended.err:
            word = "began anew"
        if ended.code == 0:
            return _compared(whole, script, work, ended, word)
        refusal = _refusal(ended.err)
        if ended.code == 2 and refusal:
            return "refused", refusal
        return "WRONG", f"exit code {ended.code}: {ended.last}"
    return "WRONG", f"did not end in {len(kills) + STARTS} starts"


def _compared(whole: Whole, script: Path, work: Path, ended: Ended, word: str) -> tuple[str, str]:
    final = _final(ended.out)
    if final != whole.final:
        return "WRONG", f"{final or 'no FINAL line'!r}, not {whole.final!r} ({word})"
    files = _files(work)
    other = [
        name
        for name in sorted(whole.files | files)
        if not _is_same(name, whole.files.get(name), files.get(name))
    ]
    if other:
        with tempfile.TemporaryDirectory() as folder:
            again = plain(script, Path(folder))
        same = again.files if isinstance(again, Whole) else whole.files
        other = [name for name in other if whole.files.get(name) == same.get(name)]
    if not other:
        return word, ""
    differ = ", ".join(
        f"{name} ({len(files.get(name, b''))} bytes, not {len(whole.files.get(name, b''))})"
        for name in other[:4]
    )
    # What began anew says so: it has written a second time, as plain python would have.
    return (word if word == "began anew" else "WRONG"), f"files: {differ}"


def _is_same(name: str, one: bytes | None, other: bytes | None) -> bool:
    """Whether two files hold the same; weights by value, since a pickle says who shared a name."""
    if one is None or other is None or one == other or not name.endswith((".pt", ".pth")):
        return one == other
    try:
        loaded = [torch.load(io.BytesIO(each), weights_only=True) for each in (one, other)]
    except (pickle.UnpicklingError, RuntimeError):
        return False
    return _is_equal(*loaded)


def _is_equal(one: Any, other: Any) -> bool:
    if type(one) is not type(other):
        return False
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, dict):
        return list(one) == list(other) and all(_is_equal(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(_is_equal, one, other))
    return repr(one) == repr(other)


def _process(command: Sequence[str], work: Path, kill: Kill | None) -> Ended:
    """A command to its end, or to its kill."""
    environment = {**os.environ, "PYTHONUNBUFFERED": "1", "OMP_NUM_THREADS": "1"}
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        process = subprocess.Popen(
            command, cwd=work, stdin=subprocess.DEVNULL, stdout=out, stderr=err,
            env=environment, start_new_session=True,
        )  # fmt: skip
        killed = False
        try:
            process.wait(min(kill.seconds, PATIENCE) if kill else PATIENCE)
        except subprocess.TimeoutExpired:
            killed = kill is not None
            _signal(process, kill.signal if kill else signal.SIGKILL)
            try:
                process.wait(PATIENCE)
            except subprocess.TimeoutExpired:
                _signal(process, signal.SIGKILL)
                process.wait()
        # A worker that is left would go on writing.
        _signal(process, signal.SIGKILL)
        texts = []
        for stream in (out, err):
            stream.seek(0)
            texts.append(stream.read().decode(errors="replace"))
    return Ended(process.returncode, texts[0], texts[1], killed and process.returncode != 0)


def _signal(process: subprocess.Popen[bytes], which: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, which)


def _copied(script: Path, work: Path) -> str:
    work.mkdir(parents=True, exist_ok=True)
    shutil.copy(script, work / script.name)
    return script.name


def _final(out: str) -> str:
    return next((line for line in reversed(out.splitlines()) if line.startswith("FINAL")), "")


def _refusal(err: str) -> str:
    lines = [line for line in err.splitlines() if "cannot resume" in line]
    return lines[-1].split("cannot resume", 1)[1].strip(" :") if lines else ""


def _files(work: Path) -> dict[str, bytes]:
    """What a script has written, by path in its folder."""
    found: dict[str, bytes] = {}
    for path in sorted(work.rglob("*")):
        name = path.relative_to(work)
        ours = name.parts[0] in ("runs", "__pycache__") or name.parts[0].startswith(".")
        if path.is_file() and not ours and name.suffix != ".py":
            found[str(name)] = path.read_bytes()
    return found


def planned(word: str, seconds: float) -> list[Kill]:
    """The kills that a word means.

    >>> planned("INT:10+KILL:50%", 80.0)[1].seconds
    40.0
    """
    kills: list[Kill] = []
    for one in word.split("+"):
        name, _, when = one.partition(":")
        after = seconds * float(when[:-1]) / 100 if when.endswith("%") else float(when)
        kills.append(Kill(signal.Signals[f"SIG{name}"], after))
    return kills


def outcomes_of(scripts: Sequence[Path], at: Sequence[str], jobs: int) -> list[Outcome]:
    """All trials of all scripts, so many at a time, once plain python has ended each script."""
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(jobs) as pool:
        wholes = pool.map(lambda one: plain(one, Path(folder) / one.stem / "plain"), scripts)
        found: list[Future[Outcome]] = []
        for script, whole in zip(scripts, list(wholes), strict=True):
            for number, word in enumerate(at if isinstance(whole, Whole) else at[:1]):
                work = Path(folder) / script.stem / str(number)
                found.append(pool.submit(_outcome, script, whole, word, work))
        return [one.result() for one in found]


def _outcome(script: Path, whole: Whole | str, word: str, work: Path) -> Outcome:
    if isinstance(whole, str):
        return Outcome(script.stem, "", "WRONG", whole)
    kind, why = trial(script, whole, planned(word, whole.seconds), work)
    print(f"{kind:22} {script.stem:24} {word:12} {why}", file=sys.stderr, flush=True)
    return Outcome(script.stem, word, kind, why.replace(str(work), "."))


def table(outcomes: Sequence[Outcome]) -> str:
    """The outcomes as markdown, the worst last."""
    counted = Counter(one.word for one in outcomes)
    head = ", ".join(f"{counted[word]} {word}" for word in ORDER if counted[word])
    refused = {one.script for one in outcomes if one.word == "refused"}
    scripts = {one.script for one in outcomes}
    rows = [
        f"| {one.script} | {one.kills} | {one.word} | {one.why.replace('|', '/')} |"
        for one in sorted(outcomes, key=lambda one: (one.script, ORDER.index(one.word)))
    ]
    return "\n".join(
        [
            f"{len(outcomes)} trials of {len(scripts)} scripts: {head}; scripts with a refusal: "
            f"{len(refused)}.",
            "",
            "| script | killed | outcome | why |",
            "|---|---|---|---|",
            *rows,
            "",
        ]
    )


def main() -> int:
    """Run the trials and print the table; 1 when something was wrong."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path, help="holds the scripts")
    parser.add_argument("--only", default="", help="scripts whose name holds this")
    parser.add_argument("--at", nargs="+", default=list(AT), metavar="SIGNAL:SECONDS")
    parser.add_argument("--jobs", type=int, default=1, help="processes at a time")
    parser.add_argument("--write", action="store_true", help="also into benchmarks/results/")
    args = parser.parse_args()
    scripts = [
        path for path in sorted(args.folder.resolve().glob("*.py")) if args.only in path.stem
    ]
    outcomes = outcomes_of(scripts, args.at, args.jobs)
    text = table(outcomes)
    print(text)
    if args.write:
        command = f"python benchmarks/kills.py FOLDER --at {' '.join(args.at)}"
        place = Path(__file__).parent / "results" / f"kills_cpu_{date.today()}.md"
        place.write_text(f"# Scripts killed and gone on with\n\n`{command}`\n\n{text}")
    return int(any(one.word == "WRONG" for one in outcomes))


if __name__ == "__main__":
    sys.exit(main())
