"""How many cores a process may use."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.run import host_cores


def test_cores_are_shared_among_ranks_and_limited_by_the_container(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(host_cores.os, "sched_getaffinity", lambda pid: set(range(16)))
    monkeypatch.setattr(host_cores, "_quota", lambda path: None)
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    assert host_cores.cores_here() == 16
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    assert host_cores.cores_here() == 4
    monkeypatch.setattr(host_cores, "_quota", lambda path: 2.5)
    assert host_cores.cores_here() == 1
    monkeypatch.undo()
    for text, expected in (("250000 100000", 2.5), ("max 100000", None), ("odd", None)):
        (tmp_path / "cpu.max").write_text(text)
        assert host_cores._quota(tmp_path / "cpu.max") == expected
    assert host_cores._quota(tmp_path / "missing") is None
