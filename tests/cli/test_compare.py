from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from holdfast.cli import main


@pytest.fixture
def pair(make_run, make_rows):
    """Two runs that differ in what the test says about the second."""

    def make(second=None, **given):
        count = 100
        first = make_run(make_rows(count), name="first")
        rows = make_rows(count, **(second or {}))
        return str(first.path), str(make_run(rows, name="second", **given).path)

    return make


def times(milliseconds: float):
    noise = np.random.default_rng(0).normal(0, 1e-5, 100)
    return 1.7e9 + np.arange(100) * milliseconds / 1000 + noise


def test_the_same_run_is_not_worse(pair, capsys):
    assert main(["compare", *pair()]) == 0
    reported = capsys.readouterr().out
    assert "not worse" in reported and "step time" in reported and "+0.0%" in reported


@pytest.mark.parametrize(
    ("second", "reason"),
    [
        ({"time": times(13)}, "step time 10 ms → 13 ms (+"),
        ({"rss": 6e8}, "host memory (rss) 476.8 MiB → 572.2 MiB (+20.0%), limit 10 %"),
        ({"loss": 5.0}, "loss 1.9"),
        ({"loss": {50: np.nan}, "loss_bad": {50: 1}}, "new: NUM001 nonfinite loss"),
    ],
    ids=["time", "memory", "loss", "finding"],
)
def test_a_worse_run_is_reported_with_its_reason(pair, capsys, second, reason):
    assert main(["compare", *pair(second)]) == 1
    reported = capsys.readouterr().out
    assert reason in reported and ": worse" in reported


def test_a_loss_that_became_nan_is_worse_and_told_so(pair, capsys):
    last = dict.fromkeys(range(92, 100), 1)
    runs = pair({"loss": dict.fromkeys(last, np.nan), "loss_bad": last})
    assert main(["compare", *runs, "--fail-on", "findings=off"]) == 1
    reported = capsys.readouterr().out
    assert "→ not finite" in reported and "inf%" not in reported
    assert main(["compare", *reversed(runs), "--fail-on", "findings=off"]) == 0


def test_better_in_everything_is_not_worse(pair, capsys):
    second = {"time": times(5), "rss": 1e8, "loss": 0.01}
    assert main(["compare", *pair(second)]) == 0
    reported = capsys.readouterr().out
    assert "-80.0%" in reported and "inf" not in reported


def test_a_difference_within_the_noise_is_none(make_run, make_rows):
    noise = np.random.default_rng(1)
    runs = []
    for name, mean in (("a", 0.010), ("b", 0.0115)):
        steps = np.cumsum(np.abs(noise.normal(mean, 0.008, 12)))
        runs.append(str(make_run(make_rows(12, time=1.7e9 + steps), name=name).path))
    assert main(["compare", *runs, "--fail-on", "loss=off"]) == 0


def test_limits_can_be_changed(pair):
    runs = pair({"rss": 6e8, "loss": 5.0, "data_wait": 0.01})
    assert main(["compare", *runs, "--fail-on", "rss=25%,loss=off"]) == 0
    assert (
        main(["compare", *runs, "--fail-on", "rss=25%,loss=off", "--fail-on", "data_wait=1"]) == 1
    )


def test_a_run_that_failed_is_worse_than_one_that_finished(pair, capsys):
    runs = pair(exit_code=1)
    assert main(["compare", *runs]) == 1
    assert "the first finished" in capsys.readouterr().out
    assert main(["compare", *runs, "--fail-on", "ending=off"]) == 0


def test_what_is_gone_is_reported_and_is_no_reason(pair, capsys):
    first, second = pair({"loss": {50: np.nan}, "loss_bad": {50: 1}})
    assert main(["compare", second, first]) == 0
    assert "only in the first: NUM001" in capsys.readouterr().out


def test_as_json(pair, capsys):
    assert main(["compare", *pair({"rss": 6e8}), "--json"]) == 1
    reported = json.loads(capsys.readouterr().out)
    figures = {figure["name"]: figure for figure in reported["figures"]}
    assert reported["worse"] and figures["rss"]["verdict"] == "worse" and reported["at_step"] == 99
    assert figures["rss"]["change"] == pytest.approx(0.2)


@pytest.mark.parametrize(
    "bad", ["speed=1", "rss=much", "rss=-1", "findings=bad", "ending=1", "rss"]
)
def test_a_wrong_limit_is_one_line(pair, capsys, bad):
    assert main(["compare", *pair(), "--fail-on", bad]) == 2
    error = capsys.readouterr().err
    assert "--fail-on" in error and error.count("\n") == 1


def test_a_run_that_cannot_be_read_or_has_no_steps(pair, make_run, make_rows, tmp_path, capsys):
    first, second = pair()
    assert main(["compare", first, str(tmp_path / "none")]) == 2
    bare = make_run(make_rows(1)[:0], name="bare")
    assert main(["compare", first, str(bare.path)]) == 2
    assert "no steps" in capsys.readouterr().err
    shutil.rmtree(second)
    assert main(["compare", first, second]) == 2


def test_runs_of_different_scripts_are_not_judged(make_run, make_rows, capsys):
    first = make_run(make_rows(100), name="first", meta={"script": "cnn.py"})
    second = make_run(make_rows(100, loss=9.0, rss=9e8), name="second", meta={"script": "gru.py"})
    runs = [str(first.path), str(second.path)]
    assert main(["compare", *runs]) == 0
    reported = capsys.readouterr().out
    assert "not judged" in reported and "different scripts: cnn.py and gru.py" in reported
    assert main(["compare", *runs, "--format", "html"]) == 0
    assert "Not judged" in (second.path / "compare.html").read_text()
    assert main(["compare", *runs, "--fail-on", "rss=10%"]) == 1


def test_a_script_of_the_same_name_may_be_another(make_run, make_rows, make_event, capsys):
    def run(name, digest, *layers, command=("train.py",), **columns):
        reported = make_event("optimizer", 0, 0, opt=0, layers=list(layers))
        meta = {"script": "train.py", "digest": digest, "command": list(command)}
        made = make_run(make_rows(100, **columns), events=[reported], name=name, meta=meta)
        return str(made.path)

    first = run("first", "aa", "weight", "bias")
    another = run("another", "bb", "0.weight", "0.bias", loss=9e6)
    assert main(["compare", first, another]) == 0
    reported = capsys.readouterr().out
    assert (
        "not judged" in reported and "no weight of the same name" in reported and "× " in reported
    )
    # An edit of a script is what runs are compared for, and so are other arguments.
    edited = run("edited", "cc", "weight", "bias", "more.weight", loss=9.0)
    assert main(["compare", first, edited]) == 1
    assert "different" not in capsys.readouterr().out
    larger = run("larger", "aa", "weight", "bias", command=("train.py", "--batch", "64"), loss=9.0)
    assert main(["compare", first, larger]) == 1
    assert "different arguments: none → --batch 64" in capsys.readouterr().out


def test_without_a_second_run_the_one_before_is_the_reference(make_run, make_rows, capsys):
    for name, script in (("a", "t.py"), ("b", "other.py"), ("c", "t.py")):
        made = make_run(make_rows(100), name=name, meta={"script": script})
        made.update_meta(created=f"2026-11-1{ord(name) - 96}T00:00:00+00:00")
    folder = made.path.parent
    assert main(["compare", str(folder / "c")]) == 0
    assert f"{folder / 'a'} → {folder / 'c'}: not worse" in capsys.readouterr().out
    assert main(["compare", str(folder / "a")]) == 2
    error = capsys.readouterr().err
    assert "no run of t.py before" in error and "holdfast compare A B" in error


def test_nothing_is_written_through_a_link_in_the_folder_of_a_run(pair, tmp_path):
    first, second = pair()
    own = tmp_path / "mine.txt"
    own.write_text("mine")
    (Path(second) / "compare.html").symlink_to(own)
    assert main(["compare", first, second, "--format", "html"]) == 0
    assert (Path(second) / "compare.html").read_text().startswith("<!doctype html>")
    (Path(second) / "track").mkdir()
    (Path(second) / "track" / "metrics.jsonl").symlink_to(own)
    assert main(["track", second, "--to", "json"]) in (0, 1, 2)
    assert own.read_text() == "mine"


@pytest.mark.parametrize(("name", "sink"), [("track", "json"), ("tensorboard", "tensorboard")])
def test_nothing_is_written_through_a_folder_that_is_a_link(pair, tmp_path, name, sink, capsys):
    _, run = pair()
    own = tmp_path / "mine"
    own.mkdir()
    (Path(run) / name).symlink_to(own)
    assert main(["track", run, "--to", sink]) == 2
    assert f"{name} is a link to {own}" in capsys.readouterr().err
    assert not list(own.iterdir())
