"""Scripts that are run to their end, and resumed from their checkpoints in processes of their own.

A process is forked from this one, which has imported torch: some hundred milliseconds each.
"""

from __future__ import annotations

import gc
import os
import runpy
import sys
import textwrap
import threading
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from holdfast import config
from holdfast.boot import (
    OWNER_VARIABLE,
    RESUME_VARIABLE,
    RUN_VARIABLE,
    SETTINGS_VARIABLE,
    patches,  # noqa: F401 # `begin` would import it, and the whole guard with it, in each process
    session,
)
from holdfast.checkpoint.saver import Saver
from holdfast.checkpoint.store import CheckpointStore
from holdfast.resume import saving
from holdfast.run import LaneReader, Run
from holdfast.source import ownership
from holdfast.types import Event

# What it imports is imported once, in the process that the others are forked from.
torch.optim.SGD([torch.zeros(1, requires_grad=True)])

HEAD = """
import sys, random
import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset
torch.manual_seed(0)
random.seed(0)
np.random.seed(0)
torch.set_num_threads(1)
def data(n, seed=1):
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 6, generator=g)
    return TensorDataset(x, (x.sum(1) > 0).long())
def net():
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.2),
                         nn.Linear(8, 2))
def told(*models):
    print("end", [float(p.double().sum()) for m in models for p in m.state_dict().values()],
          torch.rand(1).item(), random.random(), np.random.rand())
"""


@dataclass(frozen=True)
class Ended:
    """What a process has printed, its exit code and its run."""

    out: str
    err: str
    code: int
    run: Run

    @property
    def events(self) -> list[Event]:
        return [e for lane in self.run.lanes() for e in LaneReader(self.run, lane).events()]

    @property
    def rows(self) -> Any:
        """The recorded steps."""
        (lane,) = self.run.lanes()
        return LaneReader(self.run, lane).steps()

    @property
    def checkpoints(self) -> list[Path]:
        entries = CheckpointStore(self.run.path / "checkpoints").entries()
        return [one.path for one in entries if one.record.get("resume")]

    @property
    def refusal(self) -> dict[str, Any]:
        reported = [event.data for event in self.events if event.kind == "resumable"]
        return dict(reported[-1]) if reported else {}


class Bench:
    """Runs scripts."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._count = 0

    def script(self, body: str, head: str = HEAD) -> Path:
        path = self.folder / "train.py"
        path.write_text(head + textwrap.dedent(body))
        return path

    def run(
        self, script: Path, resume: Path | None = None, every: int = 5, also: tuple[str, ...] = ()
    ) -> Ended:
        self._count += 1
        run = Run.create(self.folder / f"run{self._count}", {"script": script.name})
        out, err = (self.folder / f"{self._count}.{word}" for word in ("out", "err"))
        pid = os.fork()
        if not pid:
            _child(script, run, out, err, resume, every, also)
        _, status = os.waitpid(pid, 0)
        code = os.waitstatus_to_exitcode(status)
        return Ended(out.read_text(), err.read_text(), code, run)


def _child(
    script: Path,
    run: Run,
    out: Path,
    err: Path,
    resume: Path | None,
    every: int,
    also: tuple[str, ...],
) -> None:
    code = 99
    # Those of the tests before this one are not to be searched as if a script had made them.
    gc.freeze()
    try:
        for number, path in ((1, out), (2, err)):
            os.dup2(os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND), number)
        sys.stdout, sys.stderr = (os.fdopen(n, "w", 1, closefd=False) for n in (1, 2))
        reported = [f"checkpoint.steps={every}", "checkpoint.last=999", "guard.fused=false"]
        settings = config.load(None, [*reported, *also])
        os.environ[RUN_VARIABLE], os.environ[OWNER_VARIABLE] = str(run.path), "test"
        os.environ[SETTINGS_VARIABLE] = config.to_json(settings)
        if resume is not None:
            os.environ[RESUME_VARIABLE] = str(resume)
        os.chdir(script.parent)
        sys.argv, sys.path[0] = [str(script)], str(script.parent)
        session.begin()
        # The modules of these tests, and what others before them imported, are none of the script.
        for name in ownership.user_modules():
            del sys.modules[name]
        ended: list[BaseException] = []
        threading.excepthook = lambda about: ended.append(about.exc_value or SystemExit())
        thread = threading.Thread(
            target=runpy.run_path, args=(str(script),), kwargs={"run_name": "__main__"}
        )
        saving.in_main_thread = lambda: True
        # So small a run is over before a thread has written two checkpoints.
        save = Saver.save
        Saver.save = lambda self, *a, **k: (save(self, *a, **k), self.wait())[0]
        thread.start()
        thread.join()
        code, error = (1, ended[0]) if ended else (0, None)
        if error is not None:
            traceback.print_exception(error)
        engine = session.current()
        assert engine is not None
        engine.end(error)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)
