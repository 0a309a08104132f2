"""The profiler's window: which steps, what is written, and that it never ends a run."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from holdfast.training.loop import profiling
from holdfast.training.loop.profiling import Profiler, ProfileSettings


def loop(profiler: Profiler, steps: int) -> None:
    for n in range(1, steps + 1):
        with torch.profiler.record_function(f"my_step_{n}"):
            torch.mm(torch.ones(16, 16), torch.ones(16, 16))
        profiler.step()


def names(path: Path) -> set[str]:
    text = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    return {event.get("name", "") for event in json.loads(text)["traceEvents"]}


def own(path: Path) -> list[str]:
    return sorted(name for name in names(path) if name.startswith("my_step_"))


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_the_steps_of_the_window_are_written_and_no_others(tmp_path):
    said: list[str] = []
    profiler = Profiler(ProfileSettings(start=3, steps=2), lambda: tmp_path, said.append)
    loop(profiler, 8)
    profiler.close()
    assert own(tmp_path / "trace.json") == ["my_step_4", "my_step_5"]
    assert "aten::mm" in (tmp_path / "profile.txt").read_text()
    assert files(tmp_path) == ["profile.txt", "trace.json"]
    assert said == [
        f"profile of steps 4 to 5: {tmp_path / 'trace.json'} and {tmp_path / 'profile.txt'}"
    ]


def test_a_run_that_ends_inside_the_window_leaves_what_was_seen(tmp_path):
    said: list[str] = []
    profiler = Profiler(ProfileSettings(start=2, steps=100), lambda: tmp_path, said.append)
    loop(profiler, 4)
    profiler.close()
    profiler.close()
    assert own(tmp_path / "trace.json") == ["my_step_3", "my_step_4"]
    assert len(said) == 1 and "steps 3 to 4" in said[0]


def test_a_run_that_ends_before_the_window_leaves_nothing(tmp_path):
    profiler = Profiler(ProfileSettings(start=10, steps=2), lambda: tmp_path)
    loop(profiler, 4)
    profiler.close()
    loop(profiler, 20)
    assert not files(tmp_path)


def test_off_and_without_a_folder_no_profiler_is_made(tmp_path, monkeypatch):
    made: list[int] = []
    monkeypatch.setattr(profiling, "profile", lambda **how: made.append(1))
    asked: list[int] = []

    def nowhere() -> None:
        asked.append(1)

    for settings in (ProfileSettings(), ProfileSettings(start=1, steps=1)):
        profiler = Profiler(settings, nowhere)
        loop(profiler, 4)
        profiler.close()
    assert not made and len(asked) == 1


def test_a_large_trace_is_packed(tmp_path, monkeypatch):
    monkeypatch.setattr(profiling, "_LARGE", 100)
    said: list[str] = []
    profiler = Profiler(ProfileSettings(start=1, steps=1), lambda: tmp_path, said.append)
    loop(profiler, 3)
    assert files(tmp_path) == ["profile.txt", "trace.json.gz"]
    assert own(tmp_path / "trace.json.gz") == ["my_step_2"]
    assert "trace.json.gz" in said[0]
    monkeypatch.undo()
    loop(Profiler(ProfileSettings(start=1, steps=1), lambda: tmp_path), 3)
    assert files(tmp_path) == ["profile.txt", "trace.json"]  # not two traces of two windows


@pytest.mark.parametrize(("field", "found"), [("shapes", "Input Dims"), ("memory", "[memory]")])
def test_shapes_and_memory_are_noted_when_asked_for(tmp_path, field, found):
    sizes: list[bool] = []
    for asked in (False, True):
        settings = ProfileSettings(start=1, steps=1, **{field: asked})
        loop(Profiler(settings, lambda: tmp_path), 3)
        sizes.append(found in (tmp_path / "trace.json").read_text())
    assert sizes == [False, True]


def test_a_folder_that_cannot_be_written_is_reported_and_the_run_goes_on(tmp_path):
    said: list[str] = []
    profiler = Profiler(
        ProfileSettings(start=1, steps=1), lambda: tmp_path / "missing", said.append
    )
    loop(profiler, 5)
    profiler.close()
    assert len(said) == 1 and said[0].startswith("no profile: ")


def test_a_profiler_that_cannot_start_is_reported_and_the_run_goes_on(tmp_path, monkeypatch):
    class Broken:
        def __init__(self, **how: Any) -> None:
            raise RuntimeError("profiler is already enabled")

    monkeypatch.setattr(profiling, "profile", Broken)
    said: list[str] = []
    profiler = Profiler(ProfileSettings(start=1, steps=1), lambda: tmp_path, said.append)
    loop(profiler, 5)
    profiler.close()
    assert said == ["no profile: RuntimeError: profiler is already enabled"]
