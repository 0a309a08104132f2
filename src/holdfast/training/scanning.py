"""Parameter scans: every combination of some settings, each as a run of its own.

    SCAN/
      scan.json, scan.csv        what is scanned, and the table of what is there
      lr=1e-3,batch=64/          the run folder of one combination
      lr=1e-3,batch=64.log       its output, where several run at once

Every run is ``holdfast train`` in a process of its own, so that one that fails takes nothing with
it. A scan has no state but its folders: called again it goes on with what is not finished.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from types import FrameType
from typing import Any

from ..checkpoint.store import FOLDER, CheckpointStore
from ..errors import RunFolderError, UsageError
from ..regular_files import read_regular
from ..run import Run, decode, encode
from ..run.durable import opener, replace_file
from ..run.jsonl import LONGEST
from .scan_table import Row, read_row, write_csv

PLAN, TABLE = "scan.json", "scan.csv"
_PAUSE = 0.1
_LONGEST = 120  # characters of a folder's name
_ENDED = ("finished", "stopped")
_NO_FAILURE = (0, 3, 130)  # done, stopped by holdfast, interrupted


@dataclass(frozen=True, kw_only=True)
class Combination:
    """One run of a scan: its name, which is that of its folder, and its settings."""

    name: str
    values: Mapping[str, str]

    @property
    def overrides(self) -> list[str]:
        """As ``--set`` takes them."""
        return [f"{key}={value}" for key, value in self.values.items()]


@dataclass(frozen=True, kw_only=True)
class FolderScan:
    """A scan in a folder.

    Args:
        folder: holds the run folders.
        recipe: what is trained, as the user wrote it.
        arguments: further words of ``holdfast train`` that all runs share.
        combinations: the runs.
        metric: the number of the validation that decides which is best.
        mode: whether the smallest (``min``) or the largest is.
    """

    folder: Path
    recipe: str
    arguments: Sequence[str] = ()
    combinations: Sequence[Combination] = field(default_factory=list[Combination])
    metric: str = "loss"
    mode: str = "min"

    def claim(self) -> None:
        """Write down what is scanned, together with what an earlier call was to scan.

        ``UsageError`` where the folder holds another scan, or a run.
        """
        if (self.folder / "run.json").exists():
            raise UsageError(f"{self.folder} holds a run, no scan; choose another --run-dir")
        combinations = list(self.combinations)
        if (self.folder / PLAN).exists():
            former = FolderScan.open(self.folder)
            if (former.recipe, list(former.arguments)) != (self.recipe, list(self.arguments)):
                words = shlex.join([former.recipe, *former.arguments])
                raise UsageError(
                    f"{self.folder} holds a scan of: holdfast train {words}; give the same "
                    "arguments to go on, or another --run-dir"
                )
            known = {one.name: one for one in combinations}
            for one in former.combinations:
                if known.get(one.name, one).values.keys() != combinations[0].values.keys():
                    keys = ", ".join(one.values)
                    raise UsageError(
                        f"{self.folder} holds a scan of {keys}; choose another --run-dir"
                    )
            combinations += [one for one in former.combinations if one.name not in known]
        self.folder.mkdir(parents=True, exist_ok=True)
        replace(self, combinations=combinations).write()

    @classmethod
    def open(cls, folder: Path) -> FolderScan:
        """The scan in a folder; ``UsageError`` where there is none."""
        try:
            plan: dict[str, Any] = decode(read_regular(folder / PLAN, LONGEST))
            made = [Combination(**one) for one in plan["combinations"]]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise UsageError(
                f"{folder} holds no scan ({PLAN}): {error}; name the folder of one"
            ) from error
        return cls(
            folder=folder,
            recipe=plan["recipe"],
            arguments=plan["arguments"],
            combinations=made,
            metric=plan["metric"],
            mode=plan["mode"],
        )

    def write(self) -> list[dict[str, Any]]:
        """Write ``scan.json`` and ``scan.csv``; returns the rows, best first."""
        found = [(one, self.row(one)) for one in self.combinations]
        sign = 1 if self.mode == "min" else -1
        found.sort(key=lambda pair: (math.isnan(pair[1].best), sign * pair[1].best))
        rows = [{"run": one.name, **one.values, **asdict(row)} for one, row in found]
        plan = {
            "recipe": self.recipe,
            "arguments": list(self.arguments),
            "metric": self.metric,
            "mode": self.mode,
            "combinations": [asdict(one) for one in self.combinations],
            "runs": rows,
        }
        replace_file(self.folder / PLAN, encode(plan, indent=2) + b"\n")
        write_csv(self.folder / TABLE, rows)
        return rows

    def row(self, one: Combination) -> Row:
        """What became of a combination."""
        return read_row(self.folder / one.name, self.metric, self.mode)

    def state(self, one: Combination) -> str:
        """What became of a combination, in a word."""
        return self.row(one).state

    def prepare(self, one: Combination, *, quiet: bool = False) -> list[str]:
        """The command line of a run: from its checkpoint where there is one, else from the start.

        A folder without a checkpoint has nothing to go on from: it is moved aside.
        """
        folder = self.folder / one.name
        words = [sys.executable, "-m", "holdfast", "train", self.recipe, *self.arguments]
        words += [word for text in one.overrides for word in ("--set", text)]
        words += ["--run-dir", str(folder), *["--quiet"] * quiet]
        with contextlib.suppress(RunFolderError):
            Run.open(folder)
            if CheckpointStore(folder / FOLDER).resumable():
                return [*words, "--resume"]
            _move_aside(folder)
        return words


def axes_of(texts: Sequence[str]) -> dict[str, list[str]]:
    """The values of each key: ``["a.lr=1e-3,3e-3", "b=[1,2],[3]"]``.

    >>> axes_of(["a.lr=1e-3,3e-3", "b=[1,2],[3]"])
    {'a.lr': ['1e-3', '3e-3'], 'b': ['[1,2]', '[3]']}
    """
    axes: dict[str, list[str]] = {}
    for text in texts:
        key, equals, given = (part.strip() for part in text.partition("="))
        # A comma inside brackets belongs to a list.
        values = [value.strip() for value in re.split(r",(?![^\[]*\])", given)]
        if not key or not equals or not all(values):
            raise UsageError(f"--scan {text!r}: write it as KEY=VALUE,VALUE")
        if key in axes:
            raise UsageError(f"--scan {key} stands there twice; give all of its values at once")
        axes[key] = list(dict.fromkeys(values))
    return axes


def combinations_of(axes: Mapping[str, Sequence[str]]) -> list[Combination]:
    """Every combination, the last key fastest.

    >>> [one.name for one in combinations_of({"train.lr": ["1e-3", "3e-3"], "width": ["8"]})]
    ['lr=1e-3,width=8', 'lr=3e-3,width=8']
    """
    short = _shortened(list(axes))
    found: dict[str, Combination] = {}
    for values in itertools.product(*axes.values()):
        parts = [f"{short[key]}={value}" for key, value in zip(axes, values, strict=True)]
        base = re.sub(r"[^\w.,=+-]+", "_", ",".join(parts))[:_LONGEST]
        # Values that differ only in what a file name cannot hold.
        numbered = (f"{base}-{number}" for number in itertools.count(2))
        name = next(name for name in itertools.chain([base], numbered) if name not in found)
        found[name] = Combination(name=name, values=dict(zip(axes, values, strict=True)))
    return list(found.values())


def run_scan(scan: FolderScan, jobs: int, say: Callable[[str], None]) -> int:
    """Run what is not finished, ``jobs`` at a time; 0, 1 where a run failed, 130 after Ctrl-C."""
    todo = list(enumerate(scan.combinations, 1))
    running: list[tuple[Combination, subprocess.Popen[bytes]]] = []
    failed = 0
    with _Interrupt() as interrupt:
        while running or (todo and not interrupt.asked):
            if todo and not interrupt.asked and len(running) < jobs:
                number, one = todo.pop(0)
                child = _start(scan, one, f"{number}/{len(scan.combinations)}", jobs, say)
                running += [] if child is None else [(one, child)]
                continue
            for pair in [pair for pair in running if pair[1].poll() is not None]:
                running.remove(pair)
                one, child = pair
                failed += child.returncode not in _NO_FAILURE
                if child.returncode:
                    rest = "" if interrupt.asked else "; the scan goes on"
                    say(f"{one.name}: exit code {child.returncode}{rest}")
            interrupt.forward([child for _, child in running])
            time.sleep(_PAUSE)
    return 128 + signal.SIGINT if interrupt.asked else int(failed > 0)


def _start(
    scan: FolderScan, one: Combination, which: str, jobs: int, say: Callable[[str], None]
) -> subprocess.Popen[bytes] | None:
    state = scan.state(one)
    if state in (*_ENDED, "running"):
        say(f"scan {which}: {one.name} is {state}")
        return None
    say(f"scan {which}: {one.name}{'' if state == 'new' else f' was {state} and goes on'}")
    words = scan.prepare(one, quiet=jobs > 1)
    # A group of its own: Ctrl-C comes once, from us, and is not taken for a second one.
    if jobs == 1:
        return subprocess.Popen(words, process_group=0)
    with open(scan.folder / f"{one.name}.log", "ab", opener=opener) as log:
        return subprocess.Popen(
            words, process_group=0, stdin=subprocess.DEVNULL, stdout=log, stderr=log
        )


class _Interrupt:
    """Ctrl-C and SIGTERM while runs are under way: each is handed to them, once."""

    def __init__(self) -> None:
        self.asked = 0
        self._handed = 0
        self._former: dict[int, Any] = {}

    def __enter__(self) -> _Interrupt:
        for number in (signal.SIGINT, signal.SIGTERM):
            self._former[number] = signal.signal(number, self._hear)
        return self

    def __exit__(self, *exception: object) -> None:
        for number, handler in self._former.items():
            signal.signal(number, handler)

    def _hear(self, number: int, frame: FrameType | None) -> None:
        self.asked += 1

    def forward(self, children: Sequence[subprocess.Popen[bytes]]) -> None:
        """A run saves and ends with the first, and ends at once with the second."""
        while self._handed < self.asked:
            self._handed += 1
            for child in children:
                child.send_signal(signal.SIGINT)


def slurm_script(scan: FolderScan, words: Sequence[str], jobs: int | None) -> str:
    """An sbatch file: one task of an array for each combination.

    Args:
        scan: what is scanned.
        words: the command line after ``holdfast train`` that makes the same scan.
        jobs: how many tasks may run at once; None: as many as the cluster likes.
    """
    folder = scan.folder.resolve()
    last = len(scan.combinations) - 1
    name = re.sub(r"[^\w.-]+", "_", Path(scan.recipe).stem)
    lines = [
        "#!/bin/bash",
        f"#SBATCH --job-name={name}-scan",
        f"#SBATCH --array=0-{last}{f'%{jobs}' if jobs else ''}",
        f"#SBATCH --output={folder}/slurm-%a.out",
        "#SBATCH --open-mode=append",
        "# Add what your cluster asks for: --partition, --time, --gres, --mem, --cpus-per-task.",
        "# A task that is submitted again goes on from its last checkpoint.",
        *(f"# {number}: {one.name}" for number, one in enumerate(scan.combinations)),
        f"cd {shlex.quote(os.getcwd())} || exit 1",
        f"exec {shlex.quote(sys.executable)} -m holdfast train {shlex.join(words)} "
        '--scan-task "$SLURM_ARRAY_TASK_ID"',
    ]
    return "\n".join([*lines, ""])


def _shortened(keys: Sequence[str]) -> dict[str, str]:
    """The last part of each key, and more of it where two end alike."""

    def endings(key: str) -> Iterator[str]:
        parts = key.split(".")
        for count in range(1, len(parts) + 1):
            yield ".".join(parts[-count:])

    return {
        key: next(
            short
            for short in endings(key)
            if short == key or not any(o != key and f".{o}".endswith(f".{short}") for o in keys)
        )
        for key in keys
    }


def _move_aside(folder: Path) -> None:
    aside = (folder.with_name(f"{folder.name}~{number}") for number in itertools.count(1))
    folder.rename(next(path for path in aside if not path.exists()))
