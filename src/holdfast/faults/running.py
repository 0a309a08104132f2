"""Run a training script to its end, under python and under ``holdfast run``."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

LIMIT = 240.0
"""Seconds a script may take; on one busy core the longest of ours need about 40."""

# What a launcher or another holdfast may have put into the environment.
_FOREIGN = ("HOLDFAST", "RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_", "TORCHELASTIC")


@dataclass(frozen=True)
class ProcessEnd:
    """How a process ended."""

    exit_code: int
    """Minus the number of the signal when one ended it, SIGKILL after the limit."""
    seconds: float
    """Of the whole process, imports included."""
    too_long: bool = False
    """It was killed after the limit."""


def run_plain(script: Path, limit: float = LIMIT) -> ProcessEnd:
    """Run a script under python."""
    return _finish([str(script)], limit)


def run_guarded(
    script: Path, run_dir: Path, limit: float = LIMIT, given: Sequence[str] = ()
) -> ProcessEnd:
    """Run a script under holdfast, as a user would, into a run folder.

    Args:
        script: what to run; it is not changed.
        run_dir: where the run folder shall lie; a script that never trains leaves none.
        limit: seconds after which the script is killed, with everything it had started.
        given: further options.
    """
    options = ["--quiet", "--run-dir", str(run_dir.absolute()), *given]
    return _finish(["-m", "holdfast", "run", *options, str(script)], limit)


def _finish(words: Sequence[str], limit: float) -> ProcessEnd:
    env = {k: v for k, v in os.environ.items() if not k.startswith(_FOREIGN)}
    env |= {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    started = time.monotonic()
    too_long = False
    with tempfile.TemporaryDirectory() as folder:
        process = subprocess.Popen(
            [sys.executable, *words],
            cwd=folder,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            process.wait(timeout=limit)
        except subprocess.TimeoutExpired:
            too_long = True
        finally:
            if process.poll() is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        return ProcessEnd(process.returncode, round(time.monotonic() - started, 2), too_long)
