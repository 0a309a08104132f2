"""When a state goes to disk by itself."""

from __future__ import annotations

from pathlib import Path

import torch

from holdfast.checkpoint.saver import Saver
from holdfast.config import CheckpointSettings


def test_the_first_one_may_be_due_sooner_than_those_that_follow(tmp_path: Path) -> None:
    saver = Saver(CheckpointSettings(minutes=10), lambda: tmp_path, lambda *about: None)
    saver._time -= 31.0
    assert not saver.due(5) and saver.due(5, first=30.0) == "time"
    assert not saver.due(5, first=45.0)
    saver.save({"w": torch.zeros(1)}, 5, "time")
    saver._time -= 31.0
    assert not saver.due(9, first=30.0)
    assert saver.close()
    sooner = Saver(CheckpointSettings(minutes=0.1), lambda: tmp_path, lambda *about: None)
    sooner._time -= 7.0
    assert sooner.due(5, first=30.0) == "time"
    none = Saver(CheckpointSettings(minutes=0), lambda: tmp_path, lambda *about: None)
    none._time -= 70.0
    assert not none.due(5, first=30.0)
