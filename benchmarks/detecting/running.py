"""Many scripts one after the other, their trials kept in a file.

The file (``detection.json``) holds a trial for each name. It is written after every script, and a
later run puts its own trials into it, so that one that was cut short can be continued.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from pathlib import Path

from holdfast.errors import UsageError
from holdfast.run.durable import replace_file

from .corpus import Case
from .trial import Trial

FILE = "detection.json"
FORMAT = 2


def read_trials(folder: Path) -> dict[str, Trial]:
    """The trials of earlier runs, by name; none when there is no file."""
    path = folder / FILE
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        if data["format"] != FORMAT:
            raise ValueError(f"format {data['format']}, not {FORMAT}")
        return {name: Trial.of(trial) for name, trial in data["trials"].items()}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, TypeError, KeyError) as error:
        what = f"{type(error).__name__}: {error}"
        raise UsageError(f"{path} holds no trials: {what}; move it or choose a folder") from error


def write_trials(folder: Path, trials: Mapping[str, Trial]) -> None:
    """Put trials into the file, in place of older ones of the same name."""
    merged = {**read_trials(folder), **trials}
    data = {"format": FORMAT, "trials": {name: merged[name].plain() for name in sorted(merged)}}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        replace_file(folder / FILE, json.dumps(data, indent=1).encode() + b"\n")
    except OSError as error:
        raise UsageError(
            f"cannot write {folder / FILE}: {error.strerror}; choose another folder"
        ) from error


def run_all(
    cases: Sequence[Case],
    try_one: Callable[[Case], Trial],
    *,
    jobs: int = 1,
    folders: Sequence[Path] = (),
    ended: Callable[[Case, Trial], None] = lambda case, trial: None,
) -> dict[str, Trial]:
    """Try the cases, ``jobs`` at a time.

    Args:
        cases: what to run.
        try_one: runs one case.
        jobs: scripts beside each other; more than there are cores spoils the times.
        folders: where the trials are written as they come.
        ended: called after each case.
    """
    trials: dict[str, Trial] = {}
    running: dict[Future[Trial], Case] = {}
    queue = list(cases)
    with ThreadPoolExecutor(jobs) as pool:
        while queue or running:
            while queue and len(running) < jobs:
                case = queue.pop(0)
                running[pool.submit(try_one, case)] = case
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                case = running.pop(future)
                trials[case.name] = future.result()
                for folder in folders:
                    write_trials(folder, {case.name: trials[case.name]})
                ended(case, trials[case.name])
    return trials
