"""``holdfast.watch`` saves a run and takes it up again: where, when, what, and what is refused."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel
from torch.utils.data import DataLoader, TensorDataset

import holdfast
from holdfast.checkpoint.file import file_name, save
from holdfast.checkpoint.store import CheckpointStore
from holdfast.checkpoint.tree import flatten
from holdfast.config import CheckpointSettings, RollbackSettings, Settings
from holdfast.errors import CheckpointError, UsageError
from holdfast.run import LaneReader, Run

BATCHES = 8


def settings(**given: Any) -> Settings:
    return Settings(checkpoint=CheckpointSettings(**given))


class Loop:
    """An ordinary script: dropout, running statistics, a schedule, an average, accumulation."""

    def __init__(self, run: Path, seed: int = 0, window: int = 1, **given: Any) -> None:
        torch.manual_seed(seed)
        self.net = nn.Sequential(
            nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.3), nn.Linear(8, 1)
        )
        self.optimizer = torch.optim.AdamW(self.net.parameters(), lr=1e-2)
        self.scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, 40)
        self.average = AveragedModel(self.net)
        data = torch.Generator().manual_seed(7)
        pairs = TensorDataset(
            torch.randn(8 * BATCHES, 4, generator=data), torch.randn(8 * BATCHES, 1, generator=data)
        )
        self.loader = DataLoader(pairs, 8, shuffle=True)
        self.said: list[str] = []
        self.steps = 0
        self.path = Path()
        self.window = window
        given.setdefault("scheduler", self.scheduler)
        self.watch = holdfast.watch(
            self.net, self.optimizer, ema=self.average, run_dir=run, say=self.said.append, **given
        )

    def train(self, epochs: int = 3, stop: int = -1, use_epochs: bool = True) -> Loop:
        """Train; at step ``stop`` the run is saved and the loop left."""
        watch = self.watch
        for _ in watch.epochs(epochs) if use_epochs else range(epochs):
            for x, y in watch(self.loader):
                watch.backward(nn.functional.mse_loss(self.net(x), y))
                if watch.passes < self.window:
                    continue
                watch.step()
                self.scheduler.step()
                self.average.update_parameters(self.net)
                self.steps += 1
                if self.steps == stop:
                    self.path = self.save()
                    return self
        return self

    def weights(self) -> str:
        state = {**self.net.state_dict(), **self.average.state_dict()}
        numbers = [value.tolist() for value in state.values()]
        return json.dumps([numbers, self.optimizer.param_groups[0]["lr"], torch.rand(2).tolist()])

    def save(self, **given: Any) -> Path:
        path = self.watch.save(**given)
        assert path is not None
        self.watch._checkpoints._saver.wait()
        return path

    def abandon(self) -> None:
        """As after a crash: only its last state is written, which is not resumed from."""
        self.watch._close(RuntimeError("crash"))

    def events(self, kind: str) -> list[dict[str, Any]]:
        run = self.watch.run
        assert run is not None
        lanes = [LaneReader(run, lane) for lane in run.lanes()]
        return [dict(e.data) for lane in lanes for e in lane.events() if e.kind == kind]


def whole(tmp_path: Path, **given: Any) -> str:
    loop = Loop(tmp_path / "whole", **given).train()
    loop.watch.close()
    return loop.weights()


@pytest.mark.parametrize("window", [1, 3])
@pytest.mark.parametrize(
    "use_epochs",
    [True, pytest.param(False, marks=pytest.mark.slow)],
    ids=["epochs", "plain"],
)
@pytest.mark.parametrize("stop", [3, pytest.param(8, marks=pytest.mark.slow), 13])
def test_a_run_taken_up_again_ends_as_it_would_have(
    tmp_path: Path, stop: int, use_epochs: bool, window: int
) -> None:
    """In a plain ``range`` the bodies of finished epochs run again, with nothing to train on."""
    stop = min(stop, 24 // window - 1)
    expected = whole(tmp_path, window=window)
    loop = Loop(tmp_path / "run", window=window).train(stop=stop, use_epochs=use_epochs)
    path = loop.path
    loop.abandon()
    assert path.name == f"step-{stop:010d}.r0.safetensors"
    again = Loop(tmp_path / "run", seed=5, window=window, resume=True)
    again.train(use_epochs=use_epochs)
    again.watch.close()
    assert again.weights() == expected
    assert loop.steps + again.steps == 24 // window
    (resumed,) = again.events("resume")
    assert resumed == {"file": str(path), "step": stop, "exact": True, "why": ""}
    # The rows go on in a lane of their own, with the numbers they would have had.
    run = again.watch.run
    assert run is not None and len(run.lanes()) == 2
    rows = LaneReader(run, run.lanes()[1]).steps()
    assert rows["step"].tolist() == list(range(stop, 24 // window))


def test_amid_an_accumulation_window(tmp_path: Path) -> None:
    expected = whole(tmp_path, window=3)
    loop = Loop(tmp_path / "run", window=3)
    for number, (x, y) in enumerate(loop.watch(loop.loader)):
        loop.watch.backward(nn.functional.mse_loss(loop.net(x), y))
        if number == 1:
            loop.save()
            break
    loop.abandon()
    again = Loop(tmp_path / "run", seed=5, window=3, resume=True)
    assert again.watch.passes == 2
    assert all(p.grad is not None for p in again.net.parameters())
    again.train(use_epochs=False)
    again.watch.close()
    assert again.weights() == expected


@pytest.mark.slow
def test_periodic_ones_come_by_themselves_and_old_ones_go(tmp_path: Path) -> None:
    loop = Loop(tmp_path / "run", settings=settings(steps=5, best=0))
    # Each is due at the end of an iteration; where the disk is slow the next comes later, at the
    # worst as the last of the run.
    loop.train(epochs=3)
    loop.watch.close()
    store = CheckpointStore(tmp_path / "run" / "checkpoints")
    entries = store.entries()
    assert len(entries) == 2 and all(entry.good for entry in entries)
    assert entries[-1].step == 24
    reported = loop.events("checkpoint")
    kinds = [event["kind"] for event in reported]
    assert kinds[0] == "step" and set(kinds[:-1]) == {"step"} and kinds[-1] in ("step", "end")
    assert all(event["good"] for event in reported)
    assert math.isfinite(entries[-1].metric("loss"))


def test_by_the_clock(tmp_path: Path) -> None:
    loop = Loop(tmp_path / "run", settings=settings(minutes=1.0))
    loop.train(epochs=1)
    assert not (tmp_path / "run" / "checkpoints").exists()
    loop.watch._checkpoints._saver._time -= 60
    loop.train(epochs=1)
    loop.watch.close()
    kinds = [event["kind"] for event in loop.events("checkpoint")]
    assert kinds == ["time", "end"]


def test_a_run_that_saved_nothing_leaves_nothing(tmp_path: Path) -> None:
    loop = Loop(tmp_path / "run").train(epochs=1)
    loop.watch.close()
    assert not (tmp_path / "run" / "checkpoints").exists()


@pytest.mark.slow
def test_the_last_thing_of_an_epoch(tmp_path: Path) -> None:
    expected = whole(tmp_path)
    loop = Loop(tmp_path / "run").train(epochs=2)
    path = loop.save(metrics={"val": torch.tensor(0.25)})
    loop.abandon()
    assert CheckpointStore(path.parent).entries()[0].metric("val") == 0.25
    again = Loop(tmp_path / "run", seed=5, resume="auto").train(epochs=3)
    again.watch.close()
    assert again.steps == BATCHES and again.weights() == expected


def test_a_poisoned_state_is_not_written_and_the_last_good_one_stays(tmp_path: Path) -> None:
    loop = Loop(tmp_path / "run").train(stop=3)
    good = loop.path
    with torch.no_grad():
        next(loop.net.parameters())[0, 0] = math.nan
    bad = loop.train(stop=4).path
    loop.abandon()
    assert bad != good and not bad.exists() and good.exists()
    failed = [event["failed"] for event in loop.events("checkpoint") if event["failed"]]
    assert len(failed) == 1 and "model.0.weight" in failed[0]
    again = Loop(tmp_path / "run", resume=True)
    assert all(torch.isfinite(p).all() for p in again.net.parameters())
    again.watch.close()


class Odd:
    """An object whose state cannot be saved, or not even be asked for."""

    def __init__(self, fails: bool) -> None:
        self.fails = fails

    def state_dict(self) -> dict[str, Any]:
        if self.fails:
            raise RuntimeError("not now")
        return {"odd": torch.eye(2).to_sparse()}

    def load_state_dict(self, state: Any) -> None: ...


@pytest.mark.parametrize(("fails", "why"), [(True, "not now"), (False, "others.thing.odd")])
def test_what_cannot_be_saved_does_not_end_the_training(
    tmp_path: Path, fails: bool, why: str
) -> None:
    given = {"settings": settings(steps=3), "state": {"thing": Odd(fails)}}
    # Without snapshots: the guard would look at it as well.
    given["settings"] = replace(given["settings"], rollback=RollbackSettings(snapshots=0))
    loop = Loop(tmp_path / "run", **given).train(epochs=1)
    loop.watch.close()
    assert loop.steps == BATCHES
    failed = [event["failed"] for event in loop.events("checkpoint")]
    assert failed and all(why in text for text in failed)


def test_nowhere_to_write(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    loop = Loop(tmp_path / "file" / "run", settings=settings(steps=2)).train(epochs=1)
    assert loop.steps == BATCHES and loop.watch.save() is None
    loop.watch.close()


def test_infinities_that_were_always_there_are_no_poison(tmp_path: Path) -> None:
    net = nn.Linear(2, 1)
    net.register_buffer("mask", torch.full((2, 2), -math.inf))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    with holdfast.watch(net, optimizer, run_dir=tmp_path / "run", say=lambda s: None) as watch:
        watch.backward(net(torch.ones(1, 2)).sum())
        watch.step()
        path = watch.save()
    assert path is not None and path.exists()


def test_a_damaged_one_is_refused_and_an_older_one_used(tmp_path: Path) -> None:
    loop = Loop(tmp_path / "run").train(stop=3)
    older = loop.path
    newer = loop.train(stop=5).path
    loop.abandon()
    data = bytearray(newer.read_bytes())
    data[len(data) // 2] ^= 4
    newer.write_bytes(data)
    again = Loop(tmp_path / "run", resume=True)
    assert any(f"{newer.name} is damaged" in line for line in again.said)
    assert again.watch._checkpoints.steps == 3
    again.train(stop=1)
    assert again.events("resume")[0]["file"] == str(older)
    again.watch.close()
    with pytest.raises(CheckpointError, match="is damaged"):
        Loop(tmp_path / "other", resume=newer)


def test_lasting_workers_are_reported_also_between_epochs(tmp_path: Path) -> None:
    for resume in (None, True):
        torch.manual_seed(0)
        net = nn.Linear(4, 1)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        loader = DataLoader(
            TensorDataset(torch.randn(16, 4)), 4, shuffle=True,
            num_workers=1, persistent_workers=True,
        )  # fmt: skip
        with holdfast.watch(
            net, optimizer, run_dir=tmp_path / "run", resume=resume, say=lambda s: None
        ) as watch:
            for _ in watch.epochs(2 if resume else 1):
                for (x,) in watch(loader):
                    watch.backward(net(x).square().mean())
                    watch.step()
                watch.save()
    run = Run.open(tmp_path / "run")
    (event,) = [e for e in LaneReader(run, run.lanes()[1]).events() if e.kind == "resume"]
    assert event.step == 4 and "random numbers of their own" in event.data["why"]


@pytest.mark.slow
def test_a_finished_run_has_nothing_left_to_do(tmp_path: Path) -> None:
    loop = Loop(tmp_path / "run").train(epochs=2)
    loop.save()
    loop.watch.close()
    expected = loop.weights()
    again = Loop(tmp_path / "run", seed=5, resume=True).train(epochs=2)
    again.watch.close()
    assert again.steps == 0 and again.weights() == expected
    assert [event["step"] for event in again.events("resume")] == [16]


@pytest.mark.slow
def test_which_one_is_meant(tmp_path: Path) -> None:
    loop = Loop(tmp_path / "run").train(stop=3)
    path = loop.path
    loop.train(stop=4).abandon()
    for number, (given, steps) in enumerate(
        [(path, 3), (path.with_suffix(".json"), 3), (path.parent, 4), (tmp_path / "run", 4)]
    ):
        again = Loop(tmp_path / f"run{number}", resume=given)
        assert again.watch._checkpoints.steps == steps
        again.watch.close()
    fresh = Loop(tmp_path / "new", resume="auto")
    assert fresh.watch._checkpoints.steps == 0
    fresh.watch.close()
    with pytest.raises(CheckpointError, match=r"no good checkpoint to resume from, in .*new"):
        Loop(tmp_path / "new2", resume=True)
    net = nn.Linear(1, 1)
    with pytest.raises(UsageError, match="does not say from which run"):
        holdfast.watch(net, torch.optim.SGD(net.parameters(), lr=1.0), resume=True)


def test_what_does_not_fit_is_one_message_and_changes_nothing(tmp_path: Path) -> None:
    loop = Loop(tmp_path / "run").train(stop=2)
    path = loop.path
    loop.abandon()
    net = nn.Sequential(nn.Linear(4, 9))
    before = next(net.parameters()).tolist()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    with pytest.raises(CheckpointError) as caught:
        holdfast.watch(net, optimizer, run_dir=tmp_path / "other", resume=path)
    text = str(caught.value)
    assert text.startswith(f"{path.name} cannot be resumed from: ")
    assert "model.0.weight" in text and "[8, 4]" in text and "[9, 4]" in text
    assert next(net.parameters()).tolist() == before
    assert not optimizer._optimizer_step_pre_hooks, "no hook is left behind"


def test_a_schedule_we_were_not_told_of_is_said(tmp_path: Path) -> None:
    Loop(tmp_path / "run", scheduler=None).train(stop=3).abandon()
    again = Loop(tmp_path / "run", scheduler=None, resume=True).train(stop=1)
    again.watch.close()
    (resumed,) = again.events("resume")
    assert resumed["exact"] is False and "watch(scheduler=) was not given" in resumed["why"]


def test_a_loop_without_a_loader_is_reported_to_be_inexact(tmp_path: Path) -> None:
    for resume in (None, True):
        net = nn.Linear(2, 1)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        with holdfast.watch(
            net, optimizer, run_dir=tmp_path / "run", resume=resume, say=lambda s: None,
            settings=settings(steps=2),
        ) as watch:  # fmt: skip
            for _ in range(4):
                watch.backward(net(torch.ones(1, 2)).sum())
                watch.step()
    run = Run.open(tmp_path / "run")
    (event,) = [e for e in LaneReader(run, run.lanes()[1]).events() if e.kind == "resume"]
    assert event.step == 4 and event.data["exact"] is False
    assert "its place is not known" in event.data["why"]


def test_things_without_a_state_are_refused() -> None:
    net = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=1.0)
    wrong: dict[str, Any] = {"scheduler": [object()], "ema": object(), "state": {"x": object()}}
    for name, given in wrong.items():
        arguments: dict[str, Any] = {name: given}
        with pytest.raises(UsageError, match=f"{name}.*got a object, which has no state_dict"):
            holdfast.watch(net, optimizer, **arguments)


def test_the_guard_uses_what_the_watch_was_given(tmp_path: Path) -> None:
    loop = Loop(tmp_path / "run")
    given = loop.watch.engine.state.recovery.live.given
    assert given is not None and list(given.ema) == ["ema"] and given.schedulers
    assert not loop.watch.engine.state.recovery.checkpoints.wanted
    loop.watch.close()


def test_a_state_the_guard_has_saved(tmp_path: Path) -> None:
    """After a stop, for one: everything but the place in the data."""
    loop = Loop(tmp_path / "run").train(stop=3)
    engine = loop.watch.engine
    state = loop.watch._checkpoints._training_state.state()
    loop.abandon()
    path = tmp_path / file_name(2)
    save(path, *flatten(state), {"step": 2, "kind": "stop"})
    again = Loop(tmp_path / "other", seed=5, resume=path)
    assert again.watch._checkpoints.steps == 3 == engine.state.training.iteration + 1
    weights = [p.tolist() for p in loop.net.parameters()]
    assert [p.tolist() for p in again.net.parameters()] == weights
    (resumed,) = again.events("resume")
    assert resumed["exact"] is False and "does not know the loader position" in resumed["why"]
    again.watch.close()


def test_running_statistics_of_a_resumed_run_are_what_a_skip_goes_back_to(tmp_path: Path) -> None:
    Loop(tmp_path / "run").train(stop=6).abandon()
    again = Loop(tmp_path / "run", seed=5, resume=True)
    norm = again.net[1]
    assert isinstance(norm, nn.BatchNorm1d) and norm.running_mean is not None
    before = norm.running_mean.tolist()
    again.watch.backward(again.net(torch.full((8, 4), 9.0)).mean() * math.nan)
    again.watch.step()
    assert norm.running_mean.tolist() == before
    again.watch.close()
