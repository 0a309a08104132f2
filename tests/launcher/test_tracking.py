"""The training and the process that tracks it: neither waits for the other for long."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

from holdfast.config import RunSettings, Settings, TrackSettings
from holdfast.launcher import tracking
from holdfast.launcher.tracking import Follower

QUIET = RunSettings(quiet=True)
JSON = Settings(track=TrackSettings(to=("json",)), run=QUIET)


def start(monkeypatch, code: str, said: list[str]) -> Follower:
    monkeypatch.setattr(tracking, "_command", lambda *given: [sys.executable, "-c", code])
    follower = Follower.start(Path("run"), JSON, said.append)
    assert follower is not None
    return follower


def test_nothing_is_started_where_nothing_is_tracked(monkeypatch):
    monkeypatch.setattr(subprocess, "Popen", None)
    assert Follower.start(Path("run"), Settings(), print) is None


def test_it_ends_with_its_standard_input_and_its_words_come_last(monkeypatch):
    said: list[str] = []
    code = "import sys; print('a warning', file=sys.stderr, flush=True); sys.stdin.read()"
    follower = start(monkeypatch, code, said)
    assert said == []
    follower.end()
    assert said == ["a warning"]


def test_a_tracker_that_hangs_keeps_nobody(monkeypatch):
    said: list[str] = []
    follower = start(monkeypatch, "import time; time.sleep(60)", said)
    began = time.monotonic()
    follower.end(patience=0.1)
    assert time.monotonic() - began < 5
    assert "ends by itself" in said[0]
    tracked = int(said[0].partition("process ")[2].partition(",")[0])
    subprocess.run(["kill", "-9", str(tracked)], check=True)


def test_a_process_that_cannot_be_made_is_a_line(monkeypatch):
    said: list[str] = []
    monkeypatch.setattr(tracking, "_command", lambda *given: ["no-such-python"])
    assert Follower.start(Path("run"), JSON, said.append) is None
    assert "not tracked" in said[0]


def test_the_command_has_every_setting():
    settings = TrackSettings(to=("json",), every=5, experiment="-x", name="a b", new_run=True)
    words = tracking._command(Path("one"), settings)
    assert words[4:6] == ["track", str(Path("one").resolve())]
    assert words[-5:] == ["--every", "5", "--experiment=-x", "--name=a b", "--new-run"]
