"""MLflow with a database that may be locked, and a run that goes on."""

from __future__ import annotations

import shutil
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from holdfast.cli import main
from holdfast.config import TrackSettings
from holdfast.integrations.mlflow import SPILL, MlflowSink
from holdfast.integrations.tracker import Tracker
from holdfast.run import Run

# What MLflow and SQLAlchemy warn of is theirs.
pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(scope="session")
def empty_database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tables of MLflow, which take seconds to make."""
    from mlflow import MlflowClient

    path = tmp_path_factory.mktemp("mlflow") / "empty.db"
    MlflowClient(tracking_uri=f"sqlite:///{path}").search_experiments()
    return path


@pytest.fixture(autouse=True)
def database(empty_database: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.chdir(tmp_path)
    shutil.copy(empty_database, tmp_path / "mlruns.db")
    return tmp_path / "mlruns.db"


def runs(database: Path) -> list[Any]:
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=f"sqlite:///{database}")
    found = client.search_runs([one.experiment_id for one in client.search_experiments()])
    return sorted(found, key=lambda run: run.info.run_name)


def history(database: Path, run: Any, key: str) -> list[int]:
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=f"sqlite:///{database}")
    return sorted(point.step for point in client.get_metric_history(run.info.run_id, key))


def impatient(run: Run, said: list[str]) -> Tracker:
    settings = TrackSettings()
    sink = MlflowSink(run, settings, said.append, busy=0.05, waits=(0.01,))
    return Tracker(run, sink, settings)


def test_a_run_in_mlflow(make_run, make_rows, make_event, database):
    events = [make_event("validation", 0, 20, loss=1.5), make_event("validation", 0, 30, loss=0.5)]
    run = make_run(make_rows(30), events=events)
    (run.path / "train.yaml").write_text("model:\n  width: 8\n  api_key: abc\n")
    (run.path / "curve.png").write_bytes(b"picture")
    for _ in range(2):
        assert main(["track", str(run.path), "--to", "mlflow"]) == 0
    (found,) = runs(database)
    assert found.info.run_name == "run" and found.info.status == "FINISHED"
    assert found.data.params["model.width"] == "8"
    assert found.data.params["model.api_key"] == "***"
    assert found.data.metrics["val/loss"] == 0.5
    assert history(database, found, "val/loss") == [20, 30]
    assert history(database, found, "train/loss") == [10, 20, 30]
    assert found.data.tags["holdfast.run"] == str(run.path)
    stored = Path(found.info.artifact_uri)
    assert (stored / "train.yaml").is_file() and (stored / "curve.png").is_file()
    with sqlite3.connect(database) as connection:
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)


def test_a_locked_database_spills_and_is_served_later(make_run, make_rows, database):
    run = make_run(make_rows(30))
    said: list[str] = []
    lock = sqlite3.connect(database, isolation_level=None)
    lock.execute("BEGIN EXCLUSIVE")
    locked = impatient(run, said)
    assert locked.finish() == 3  # nothing is raised, nothing is lost
    assert (run.track_folder / SPILL).is_file()
    assert "database is locked" in said[0] and "--to mlflow" in said[1]
    lock.execute("ROLLBACK")
    lock.close()
    assert main(["track", str(run.path), "--to", "mlflow"]) == 0
    assert not (run.track_folder / SPILL).exists()
    (found,) = runs(database)
    assert history(database, found, "train/loss") == [10, 20, 30]
    assert found.info.status == "FINISHED" and found.data.params["device"] == "cpu"


def test_a_lock_that_is_gone_in_time_is_waited_for(make_run, make_rows, database):
    run = make_run(make_rows(10), finished=False, end=False)
    said: list[str] = []
    tracker = impatient(run, said)
    lock = sqlite3.connect(database, isolation_level=None)
    lock.execute("BEGIN EXCLUSIVE")
    tracker.poll()
    assert tracker.sink.waiting
    lock.execute("ROLLBACK")
    lock.close()
    tracker.finish()  # what was spilled goes first, in the same process
    assert not tracker.sink.waiting and len(said) == 1
    (found,) = runs(database)
    assert history(database, found, "train/loss") == [10] and found.info.status == "KILLED"


def test_a_resumed_run_goes_on_in_the_same_run_unless_it_is_reported_not_to(
    make_run, make_rows, make_event, record_lane, database
):
    run = make_run(make_rows(20))
    command = ["track", str(run.path), "--to", "mlflow"]
    main(command)
    resume = [make_event("resume", 0, 20)]
    record_lane(run, make_rows(20, start=20), lane="r0-p7", events=resume)
    main(command)
    (found,) = runs(database)
    assert history(database, found, "train/loss") == [10, 20, 30, 40]
    main([*command, "--new-run", "--name", "second", "--experiment", "mine"])
    first, second = runs(database)
    assert history(database, first, "train/loss") == [10, 20, 30, 40]
    assert history(database, second, "train/loss") == [10, 20, 30, 40]
    assert second.info.run_name == "second" and second.info.experiment_id != "0"
    assert second.data.params["resumed"] == "at step 20"


def test_a_run_that_was_removed_and_a_record_that_is_refused_do_not_block_the_rest(
    make_run, make_rows, record_lane, database
):
    from mlflow import MlflowClient

    run = make_run(make_rows(20))
    said: list[str] = []
    impatient(run, said).finish()
    (gone,) = runs(database)
    with sqlite3.connect(database) as connection:
        for table in ("metrics", "latest_metrics", "params", "tags", "runs"):
            connection.execute(f"DELETE FROM {table}")
    record_lane(run, make_rows(20, start=20), lane="r0-p7")
    impatient(run, said).finish()
    (found,) = runs(database)
    assert found.info.run_id != gone.info.run_id
    assert history(database, found, "train/loss") == [30, 40]
    sink = MlflowSink(run, TrackSettings(), said.append, busy=0.05, waits=(0.01,))
    sink._own = {"run_id": found.info.run_id}
    sink._deliver([{"params": {"lr": "1"}}, {"params": {"lr": "2"}}, {"params": {"seed": "3"}}])
    assert not sink.waiting and "refused" in said[-1]
    client = MlflowClient(tracking_uri=f"sqlite:///{database}")
    assert client.get_run(found.info.run_id).data.params == {"lr": "1", "seed": "3"}
