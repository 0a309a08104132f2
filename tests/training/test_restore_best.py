"""Damage that rollbacks do not heal: back to the best state by validation, with a lower rate."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.training.test_trainer import Seen, data, loss, model, settings

from holdfast.checkpoint.file import load
from holdfast.checkpoint.store import CheckpointStore
from holdfast.cli import main
from holdfast.errors import Stopped
from holdfast.run import LaneReader, Run
from holdfast.training.trainer import Trainer

OFTEN = {"every": 8, "cost": 1.0}
ONCE = {"OPT003": {"budget": 1}}


class Damaged:
    """Trains 60 epochs of eight steps and multiplies the weights after some of the steps."""

    def __init__(self, tmp_path: Path, *at: int, **guard: Any) -> None:
        self.net, self.run = model(), tmp_path / "run"
        self._at = at
        how = settings(
            epochs=60, optimizer={"lr": 0.01}, holdfast={"rollback": OFTEN, "policy": ONCE, **guard}
        )
        self.trainer = Trainer(
            self.net, loss, data(), data(16, seed=1), how,
            run_dir=self.run, progress=Seen(), stepped=self._damage,
        )  # fmt: skip

    def _damage(self, step: int) -> None:
        if step in self._at:
            with torch.no_grad():
                for parameter in self.net.parameters():
                    parameter.mul_(30.0)

    @property
    def rollbacks(self) -> list[tuple[int, dict[str, Any]]]:
        events = LaneReader(Run.open(self.run), "r0").events()
        return [(event.step, dict(event.data)) for event in events if event.kind == "rollback"]


@pytest.mark.slow
def test_the_best_state_follows_the_last_rollback(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    damaged = Damaged(tmp_path, 150, 200, 250)
    result = damaged.trainer.fit()
    assert result.step == 480
    codes = [data["code"] for _, data in damaged.rollbacks]
    assert codes == ["OPT001", "OPT003", "OPT003"]
    assert [data["lr_factor"] for _, data in damaged.rollbacks] == [1.0, 0.5, 0.5]
    step, back = damaged.rollbacks[-1]
    assert back["to"] < 250 < step and back["validation"] > 0 and back["left"] == 1
    rows = LaneReader(Run.open(damaged.run), "r0").steps()
    assert rows["lr"][-1] == pytest.approx(0.01 / 4)
    assert rows["loss"][step] < 10 * rows["loss"][200 - 20 : 200].max()
    assert result.best < 1.0
    assert main(["report", str(damaged.run)]) == 0
    report = " ".join(capsys.readouterr().out.split())
    assert "Went back to the best state by validation (0." in report
    assert "learning rate × 0.5" in report.partition("Went back")[2]


@pytest.mark.slow
def test_what_is_put_back_is_the_best_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from holdfast.recovery.restore_older import RestoreOlder

    damaged = Damaged(tmp_path, 250, policy={"OPT001": ["restore_best", "lower_lr"]})
    restored: list[tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]] = []
    restore = RestoreOlder.to_best_or_stop

    def compared(self: Any, *about: Any) -> None:
        restore(self, *about)
        entry = CheckpointStore(damaged.run / "checkpoints").best("validation")
        assert entry is not None
        live = {name: value.clone() for name, value in damaged.net.state_dict().items()}
        restored.append((live, load(entry.path)[0]["models"]["model"]))

    monkeypatch.setattr(RestoreOlder, "to_best_or_stop", compared)
    damaged.trainer.fit()
    ((live, saved),) = restored
    assert all(torch.equal(value, live[name]) for name, value in saved.items())
    ((_, back),) = damaged.rollbacks
    assert (back["code"], back["lr_factor"]) == ("OPT001", 0.5)


@pytest.mark.slow
def test_it_is_done_where_no_snapshot_could_be_taken(tmp_path: Path) -> None:
    damaged = Damaged(tmp_path, 250, rollback={**OFTEN, "memory": 0.0})
    damaged.trainer.fit()
    ((_, back),) = damaged.rollbacks
    assert back["to"] <= 250 and back["lr_factor"] == 0.5 and back["validation"] > 0


@pytest.mark.slow
def test_it_is_done_so_often_and_then_the_run_is_stopped(tmp_path: Path) -> None:
    damaged = Damaged(tmp_path, *range(150, 480, 50), rollback={**OFTEN, "best": 1})
    with pytest.raises(Stopped, match=r"restore_best \+ lower_lr 1 time"):
        damaged.trainer.fit()
    assert [bool(data["validation"]) for _, data in damaged.rollbacks[:3]] == [False, False, True]


@pytest.mark.slow
def test_without_a_validation_it_ends_as_it_did(tmp_path: Path) -> None:
    damaged = Damaged(tmp_path, *range(150, 480, 50))
    damaged.trainer.task = type(damaged.trainer.task)(
        model=damaged.net, loss=loss, train=data(), stepped=damaged._damage
    )
    with pytest.raises(Stopped, match="the budget of OPT003 is spent: rollback"):
        damaged.trainer.fit()
    assert not any(data["validation"] for _, data in damaged.rollbacks)
