"""What a process group is sent: loader workers last until the process that trains ends them."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from multiprocessing.connection import Connection

import pytest

from holdfast.training.data.worker_signals import obey_only
from holdfast.training.loop.interrupts import Interrupts

pytestmark = pytest.mark.skipif(not hasattr(signal, "sigwaitinfo"), reason="not on this system")


def _worker(owner: int, ready: Connection) -> None:
    obey_only(owner)
    ready.send("ready")
    time.sleep(60)


def test_a_worker_ends_only_when_its_owner_says_so() -> None:
    here, there = multiprocessing.Pipe()
    context = multiprocessing.get_context("fork")
    worker = context.Process(target=_worker, args=(os.getpid(), there), daemon=True)
    worker.start()
    assert here.recv() == "ready"
    others = "import os, signal, sys\nfor one in ('SIGTERM', 'SIGINT'):\n"
    others += "    os.kill(int(sys.argv[1]), getattr(signal, one))"
    subprocess.run([sys.executable, "-c", others, str(worker.pid)], check=True)
    worker.join(0.3)
    assert worker.is_alive()
    worker.terminate()
    worker.join(10)
    assert worker.exitcode == 0


def test_two_signals_at_once_are_one_request(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("holdfast.training.loop.interrupts.time.monotonic", lambda: now[0])
    with Interrupts() as interrupts:
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)
        assert interrupts.asked is signal.SIGINT
        now[0] = 2.0
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
