"""What is done to save a run: a training writes each kind, and it is read back as it was."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from torch import nn

from holdfast.config import load
from holdfast.detectors.judge import Judge
from holdfast.errors import Stopped
from holdfast.records import KINDS, Kind, recovery
from holdfast.records.recovery import (
    ClippingSwitched,
    LastStateResult,
    LoweredRate,
    NewLossLevel,
    NewTask,
    OnlyObserved,
    OrderedAction,
    RolledBack,
    RunStopped,
    SavingLastState,
    SnapshotTotals,
    TrialResult,
)
from holdfast.recovery import last_state
from holdfast.recovery.orders import Orders
from holdfast.run.jsonl import decode, encode
from holdfast.types import Event

from ..guard.conftest import MakeEngine
from ..guard.conftest import make_engine as make_engine
from ..recovery.test_last_state import Crash
from ..recovery.test_last_state import Task as LoaderTask
from ..recovery.test_last_state import settings as saving_settings
from ..recovery.test_rollback import Task, damage, settings


def written(engine: Any) -> dict[str, list[Kind]]:
    """The records of this theme that a training has written, each read from its JSON."""
    engine.close()
    found: dict[str, list[Kind]] = {}
    for word, _, data in engine.memory.events:
        kind = KINDS.get(word)
        if kind is not None and kind.__module__ == recovery.__name__:
            record = kind.from_dict(decode(encode(data)))
            assert encode(record.to_dict()) == encode(data)
            found.setdefault(word, []).append(record)
    return found


def one(found: dict[str, list[Kind]], kind: type[Any]) -> Any:
    (record,) = found[kind.kind]
    return record


def test_a_rollback_and_the_snapshots_it_goes_back_to(make_engine: MakeEngine) -> None:
    engine = make_engine(settings())
    Task().run(160, before=damage(100))
    engine.new_task()
    found = written(engine)
    back, kept = one(found, RolledBack), one(found, SnapshotTotals)
    assert (back.code, back.why) == ("OPT001", "loss") and back.to < back.first
    assert back.tried < back.loss and back.lr_factor == 1.0 and back.left is not None
    assert kept.count > 10 and kept.every == 8 and kept.bytes > 0
    assert one(found, NewTask) == NewTask()


def test_a_trial_that_shows_other_data_and_the_new_level(make_engine: MakeEngine) -> None:
    def other_data(step: int, net: nn.Module, optimizer: Any) -> None:
        task.level = 1.0 if step < 100 else 100.0

    engine = make_engine(settings("policy.OPT002=observe", "policy.OPT003=observe"))
    task = Task()
    task.run(130, before=other_data)
    found = written(engine)
    trial, level = found[TrialResult.kind][0], found[NewLossLevel.kind][0]
    assert isinstance(trial, TrialResult) and isinstance(level, NewLossLevel)
    assert trial.verdict == "data" and trial.tried > trial.usual
    assert level.after > level.before


def test_what_is_only_observed_where_losses_cannot_be_compared(make_engine: MakeEngine) -> None:
    engine = make_engine(load(None, ["rollback.every=8", "rollback.cost=1"]))
    Task().run(130, before=damage(100))
    seen = written(engine)[OnlyObserved.kind][0]
    assert isinstance(seen, OnlyObserved)
    assert seen.instead == ("rollback",) and "makes its own data" in seen.why


def test_a_rate_that_is_lowered_and_gradients_that_are_clipped(make_engine: MakeEngine) -> None:
    engine = make_engine(settings("policy.OPT002.do=[skip,clip,lower_lr]"))
    Task().run(60).run(4, poison=range(1, 4))
    found = written(engine)
    lowered, clipping = one(found, LoweredRate), found[ClippingSwitched.kind][0]
    assert isinstance(clipping, ClippingSwitched) and clipping.on and clipping.limit > 0
    assert lowered.factor == 0.5 and lowered.norm > 10 * lowered.usual


def test_a_run_that_is_stopped(make_engine: MakeEngine, tmp_path: Path) -> None:
    budget = ["policy.OPT002.do=skip", "policy.OPT002.budget=3", f"checkpoint.dir={tmp_path}"]
    engine = make_engine(settings(*budget))
    with pytest.raises(Stopped):
        Task().run(200, poison=range(100, 200))
    stop = one(written(engine), RunStopped)
    assert stop.code == "OPT002" and "budget" in stop.why and Path(stop.checkpoint).exists()


def test_the_last_state(
    make_engine: MakeEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(last_state, "_LARGE", 0)
    engine = make_engine(saving_settings(tmp_path))
    with pytest.raises(Crash) as raised:
        LoaderTask().run(20)
    engine.end(raised.value)
    found = written(engine)
    saved = one(found, LastStateResult)
    assert (saved.why, saved.source, saved.failed) == ("Crash", "live", "")
    assert Path(saved.file).exists() and saved.models == ("Sequential",) and saved.good
    assert one(found, SavingLastState).bytes > 0


@pytest.mark.parametrize(("action", "done"), [("lower_lr", True), ("restart", False)])
def test_what_the_judging_process_asks_for(action: str, done: bool) -> None:
    reported: list[tuple[int, OrderedAction]] = []
    training: Any = SimpleNamespace(record_at=lambda *event: reported.append(event))
    alone: Any = SimpleNamespace(begin=lambda: False)
    restoring: Any = SimpleNamespace(lower_rates=lambda: 0.5)
    nobody: Any = None
    orders = Orders(training, restoring, nobody, nobody, nobody, nobody, alone)
    orders.obey({"action": action, "code": "ACME001", "found": 3, "why": ""}, 5)
    ((step, taken),) = reported
    assert (taken.kind, step) == ("action", 5)
    assert OrderedAction.from_dict(taken.to_dict()) == taken
    assert (taken.action, taken.code, taken.found, taken.done) == (action, "ACME001", 3, done)
    assert bool(taken.why) != done


def test_a_renamed_key_is_reported(make_rows: Any) -> None:
    done = RolledBack(opt=0, code="OPT001", why="loss", to=2, steps=3, loss=61.0, usual=2.0)
    data = done.to_dict()
    data["baseline"] = data.pop("usual")
    judge = Judge()
    judge.feed(make_rows(8), [Event(time=0.0, rank=0, step=5, kind=done.kind, data=data)])
    (error,) = judge.errors
    assert error.data["where"] == "reading an event rollback"
    assert "no key 'usual', and the unknown key 'baseline'" in error.data["error"]
    assert not any(finding.action == "rollback" for finding in judge.findings)


@pytest.mark.parametrize(
    ("word", "data"),
    [
        (
            "observed",  # of ranks that refused a rollback
            {"code": "OPT001", "why": "x", "step": 9, "first": 5, "loss": 9.0, "usual": 1.0,
             "limit": 3.0, "cause": "", "opt": 0, "asked": False, "instead": ["rollback"],
             "asked_by": 1},
        ),
        ("lowered_lr", {"kind": "asked", "asked_by": 1, "factor": 0.5}),
        ("last_state", {"why": "SIGTERM", "source": "live", "file": "a", "bytes": 3,
                        "seconds": 0.1, "models": ["Net"], "optimizers": 1}),
        ("stop", {"code": "OPT001", "action": "stop", "why": "x", "checkpoint": ""}),
        ("clipping", {"opt": 0, "on": False, "limit": "NaN", "why": "x"}),
    ],
)  # fmt: skip
def test_records_of_before_there_was_this_room_are_read(word: str, data: dict[str, Any]) -> None:
    assert KINDS[word].from_dict(data).kind == word
