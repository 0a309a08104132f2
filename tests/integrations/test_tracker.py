"""A run folder, handed to a sink: what arrives, once, however often it is asked for."""

from __future__ import annotations

import csv
import json
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from holdfast.cli import main
from holdfast.config import TrackSettings
from holdfast.integrations import make_sink
from holdfast.integrations.tracker import Tracker
from holdfast.launcher import tracking
from holdfast.records.trainer import (
    EpochBegins,
    EpochEnded,
    OutOfBand,
    TrainerSetup,
    TrainingEnded,
    TrainingNumbers,
    Validated,
)
from holdfast.run import Run


def read(run: Run, name: str = "metrics.jsonl") -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run.track_folder / name).read_text().splitlines()]


def track(run: Run, *more: str) -> int:
    return main(["track", str(run.path), "--to", "json", *more])


def tracker(run: Run, every: int = 10) -> Tracker:
    settings = TrackSettings(every=every)
    return Tracker(run, make_sink("json", run, settings, print), settings)


def numbers(make_event: Any) -> list[Any]:
    values = {"loss": 9.0, "accuracy": 0.5, "throughput_samples_per_sec": 7.0}
    high = {"low": None, "high": 10.0, "critical": None, "band": "median 1"}
    records = [
        (0, EpochBegins(epoch=1)),
        (10, TrainingNumbers(values=values)),
        (10, EpochBegins(epoch=2)),
        (20, EpochEnded(epoch=1, step=20, epoch_seconds=3.0, data_wait_fraction=0.25, loss=1.0)),
        (20, Validated(values={"loss": 1.5}, best=True)),
        (20, OutOfBand(number="grad_norm", value=70.0, state="high", **high)),
        (0, TrainerSetup(precision="fp32", compile="none", workers=0, parameters=12)),
        (25, TrainingEnded(why="25 steps are done", interrupted=False)),
    ]
    return [make_event(record.kind, 0, step, **record.to_dict()) for step, record in records]


def test_rows_and_events_arrive_under_their_names(make_run, make_rows, make_event):
    rows = make_rows(25, loss=np.arange(25.0), skipped={3: 1})
    run = make_run(rows, events=numbers(make_event))
    assert track(run) == 0
    found = {line["step"]: line for line in read(run)}
    assert list(found) == [10, 20, 25]  # two whole windows, and what was left at the end
    assert found[10]["train/loss"] == pytest.approx((45 - 3) / 9)  # without the skipped step
    assert found[10]["train/accuracy"] == 0.5 and found[10]["perf/throughput_samples_per_sec"] == 7
    assert found[10]["perf/step_time"] == pytest.approx(0.01, rel=1e-3)
    assert found[20]["val/loss"] == 1.5 and "val/best" not in found[20]
    assert found[20]["perf/epoch_seconds"] == 3 and found[20]["perf/data_wait_fraction"] == 0.25
    assert [found[step]["epoch"] for step in found] == [1, 2, 2]
    assert [found[step]["train/skipped_steps"] for step in found] == [1, 1, 1]
    about = json.loads((run.track_folder / "about.json").read_text())
    assert about["params"]["setup.compile"] == "none" and about["params"]["version.torch"]
    assert about["tags"]["holdfast.end_reason"] == "25 steps are done"
    assert "grad_norm 70.0 is high" in read(run, "notes.jsonl")[0]["text"]


def test_the_table_has_the_same_keys(make_run, make_event):
    run = make_run(events=numbers(make_event))
    track(run)
    with (run.track_folder / "metrics.csv").open() as file:
        table = list(csv.DictReader(file))
    lines = read(run)
    assert [int(row["step"]) for row in table] == [line["step"] for line in lines]
    for row, line in zip(table, lines, strict=True):
        assert {key: float(value) for key, value in row.items() if value} == line


def test_a_second_call_adds_nothing_and_a_later_lane_is_added(make_run, make_rows, record_lane):
    run = make_run(make_rows(30))
    track(run)
    first = (run.track_folder / "metrics.csv").read_bytes()
    track(run)
    assert (run.track_folder / "metrics.csv").read_bytes() == first
    record_lane(run, make_rows(20, start=30), lane="r0-p7")
    record_lane(run, make_rows(20, start=30), lane="r1")  # another rank: the same numbers again
    track(run)
    assert [line["step"] for line in read(run)] == [10, 20, 30, 40, 50]


def test_a_run_that_goes_on_is_followed_window_by_window(make_run, make_rows, record_lane):
    run = make_run(make_rows(15), finished=False, end=False)
    follower = tracker(run)
    assert follower.poll() == 1  # the second window is not complete
    assert follower.poll() == 0
    follower.close()
    again = tracker(run)  # the follower was killed: another goes on where it was
    assert again.poll() == 0
    assert again.finish() == 1
    assert [line["step"] for line in read(run)] == [10, 15]


def test_lines_behind_what_was_remembered_are_cut_off(make_run, make_rows):
    run = make_run(make_rows(20))
    first = tracker(run)
    first.poll()
    remembered = (run.track_folder / "json.json").read_bytes()
    first.finish()
    first.close()
    whole = (run.track_folder / "metrics.jsonl").read_bytes()
    with (run.track_folder / "metrics.jsonl").open("ab") as file:
        file.write(b'{"step": 99}\n')
    (run.track_folder / "json.json").write_bytes(remembered)
    tracker(run).finish()
    assert (run.track_folder / "metrics.jsonl").read_bytes() == whole


def test_a_run_without_steps_leaves_nothing(make_run, make_rows):
    run = make_run(make_rows(0))
    assert track(run) == 0
    assert not run.track_folder.exists()


def test_findings_are_reported_once_and_secrets_never(make_run, make_rows, tmp_path):
    rows = make_rows(20, loss_bad={7: 1}, loss={7: np.nan}, skipped={7: 1})
    command = ["train.py", "https://user:hunter2@host/data"]
    settings = {"wandb": {"api_key": "abc123"}, "lr": 0.1}
    run = make_run(rows, meta={"command": command, "settings": settings})
    track(run)
    track(run)
    (note,) = [note for note in read(run, "notes.jsonl") if note["kind"] == "finding"]
    assert note["text"].startswith("NUM001") and note["step"] == 7
    text = (run.track_folder / "about.json").read_text()
    about = json.loads(text)
    assert about["tags"]["holdfast.findings"] == "NUM001"
    assert about["params"]["holdfast.lr"] == "0.1"
    assert "hunter2" not in text and "abc123" not in text


def png(path: Path) -> None:
    head = struct.pack(">IIBBBBB", 2, 3, 8, 2, 0, 0, 0)
    body = b"IHDR" + head
    sums = struct.pack(">I", zlib.crc32(body))
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + struct.pack(">I", len(head)) + body + sums)


def test_tensorboard_reads_what_was_written(make_run, make_rows, make_event):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run = make_run(make_rows(30), events=numbers(make_event))
    png(run.path / "curve.png")
    for _ in range(2):
        main(["track", str(run.path), "--to", "tensorboard"])
    events = EventAccumulator(str(run.path / "tensorboard"))
    events.Reload()
    assert [point.step for point in events.Scalars("train/loss")] == [10, 20, 30]
    assert [point.value for point in events.Scalars("val/loss")] == [1.5]
    (picture,) = events.Images("pictures/curve")
    assert (picture.width, picture.height) == (2, 3)
    assert "parameters" in events.Tags()["tensors"] and "health" in events.Tags()["tensors"]


def test_json_lines_take_over_where_a_package_is_missing(make_run, monkeypatch, capsys):
    monkeypatch.setattr(tracking, "_is_there", lambda package: package != "sqlalchemy")
    run = make_run()
    assert main(["track", str(run.path), "--to", "mlflow", "--to", "json"]) == 0
    reported = capsys.readouterr().err
    assert reported.count("\n") == 1
    assert 'sqlalchemy is missing (pip install "holdfast[mlflow]")' in reported
    assert [line["step"] for line in read(run)] == [10, 20]
    # A server has a database of its own.
    served = {"MLFLOW_TRACKING_URI": "http://localhost:5000"}
    assert tracking.usable(["mlflow"], served) == (["mlflow"], [])


def test_a_run_says_where_it_goes_and_a_command_without_a_tracker_is_refused(make_run, capsys):
    run = make_run(meta={"settings": {"track": {"to": ["json"], "every": 5}}})
    assert main(["track", str(run.path)]) == 0
    assert [line["step"] for line in read(run)] == [5, 10, 15, 20]
    assert main(["track", str(make_run(name="other").path)]) == 2
    assert "no tracker was named" in capsys.readouterr().err


def test_a_tracker_that_cannot_write_is_given_up_and_the_others_go_on(make_run, capsys):
    run = make_run()
    (run.path / "tensorboard").write_text("a file where a folder has to be")
    words = ["track", str(run.path), "--to", "tensorboard", "--to", "json"]
    assert main(words) == 1
    assert "tensorboard is given up" in capsys.readouterr().err
    assert [line["step"] for line in read(run)] == [10, 20]


def test_following_ends_with_the_run(make_run, monkeypatch, record_lane, make_rows):
    """A run that goes on is looked at again, until it says that it is over."""
    from holdfast.cli import track as command

    run = make_run(make_rows(10), finished=False, end=False)
    looks = iter(range(9))

    def sleep(seconds: float) -> None:
        if next(looks) == 1:
            record_lane(run, make_rows(10, start=10), lane="r0-p7")
            run.update_meta(status="finished", exit_code=0)

    clock = iter(range(0, 1000, 2))
    monkeypatch.setattr(command.time, "sleep", sleep)
    monkeypatch.setattr(command.time, "monotonic", lambda: next(clock))
    assert track(run, "--follow") == 0
    assert [line["step"] for line in read(run)] == [10, 20]
