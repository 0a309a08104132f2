from __future__ import annotations

from pathlib import Path

import pytest

from holdfast import HoldfastError, Run
from holdfast_models.answers import named_run


def test_a_run_may_be_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Run.create("runs/2026-11-15-1204-train", {})
    for word in ("last", "2026-11-15", "runs/2026-11-15-1204-train"):
        assert named_run(word) == "runs/2026-11-15-1204-train"
    with pytest.raises(HoldfastError, match="does not exist"):
        named_run("nowhere")
