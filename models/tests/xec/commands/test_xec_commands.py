"""``holdfast xec``: every verb, its answers for programs, and one line for what is wrong."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from holdfast.cli import main
from holdfast.training import Streamed
from holdfast_models.xec.data.normalization import NOT_AVAILABLE
from holdfast_models.xec.loading import load_run
from holdfast_models.xec.predictions.dead_channels import DeadStudy, read_ids
from holdfast_models.xec.predictions.file_predictions import load_predictor, open_files

uproot: Any = pytest.importorskip("uproot")
RunOf = Callable[[str], Path]


@pytest.fixture(autouse=True)
def one_thread() -> Any:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def xec(capsys: pytest.CaptureFixture[str]) -> Callable[..., Any]:
    """``xec("info", ...)``: the exit code and what was printed, read where it is JSON."""

    def call(*words: object) -> Any:
        code = main(["xec", *map(str, words)])
        reported = capsys.readouterr()
        return code, json.loads(reported.out) if "--json" in words else reported.out, reported.err

    return call


def rows(path: Path, tree: str) -> dict[str, Any]:
    with uproot.open(path) as file:
        return file[tree].arrays(library="np")


# ------------------------------------------------------------------ events and detector


def test_synth_writes_what_check_data_reads(tmp_path: Path, xec: Any) -> None:
    code, made, _ = xec("synth", tmp_path / "s", "--events", 8, "--val", 4, "--corrupt", 0.5,
                        "--dead-blocks", 2, "--json")  # fmt: skip
    assert code == 0 and [one["events"] for one in made] == [8, 4]
    train, val = (rows(tmp_path / "s" / f"{name}.root", "tree") for name in ("train", "val"))
    assert len(train["npho"]) == 8 and not {*train["event"]} & {*val["event"]}
    assert train["dead"][0].sum() == pytest.approx(61 + 8, abs=2)
    code, found, _ = xec("check-data", tmp_path / "s", "--preset", "synthetic", "--json")
    assert code == 1, "some values are no numbers"
    assert found["events"] == 12 and any(one["nan"] for one in found["branches"])
    code, _, reported = xec("synth", tmp_path / "s")
    assert code == 2 and "is there already" in reported
    code, _, reported = xec("synth", tmp_path / "b.root", "--pileup", 7)
    assert code == 2 and "pileup" in reported and reported.count("\n") == 1


def test_check_data_suggests_a_normalisation(synth: Any, xec: Any) -> None:
    code, found, _ = xec("check-data", synth.val, "--set", "data.time_branch=time", "--fit",
                         "--json")  # fmt: skip
    assert code == 0 and found["fitted"]["npho_scale"] > 0 and len(found["dead"]) >= 60
    code, _, reported = xec("check-data", "nowhere/*.root")
    assert code == 2 and "nowhere" in reported and reported.count("\n") == 1


def test_the_geometry_is_compared_and_an_event_is_drawn(
    tmp_path: Path, synth: Any, xec: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("matplotlib")
    picture = tmp_path / "event.png"
    code, found, _ = xec(
        "geometry", "--check", "--display", picture, "--files", synth.val, "--json"
    )
    assert code == 0 and all(one["agrees"] for one in found["checks"])
    assert picture.read_bytes()[:4] == b"\x89PNG"
    assert xec("geometry", "--display", picture, "--files", synth.val, "--event", 64)[0] == 2
    monkeypatch.setattr("holdfast_models.xec.geometry.survey.LARGEST_ERROR", 0.0)
    assert xec("geometry", "--check")[0] == 1


def test_baselines_of_events_and_of_filling(synth: Any, xec: Any) -> None:
    code, found, _ = xec("baseline", synth.train, "--json")
    energy = next(one for one in found["rows"] if one["quantity"] == "energy")
    assert code == 0 and energy["ridge"] < 0.2 * energy["mean"]
    code, found, _ = xec("baseline", synth.train, "--fill", "--events", 64, "--json")
    groups = {(one["predictor"], one["group"]) for one in found}
    assert code == 0 and {("neighbours", "inner"), ("solid angle", "all")} <= groups


# ------------------------------------------------------------------ settings


def test_info_without_a_run_counts_the_parameters_of_settings(xec: Any) -> None:
    for kind, total in (("reg", 32_302_599), ("mae", 45_031_436)):
        code, found, _ = xec("info", "--kind", kind, "--json")
        assert code == 0 and found["parameters"]["total"] == total
        assert found["parameters"]["encoder"] == 25_743_104
    code, reported, _ = xec("info", "--kind", "inp", "--set", "model.encoder_dim=64")
    assert code == 0 and "inpainter" in reported and "encoder_dim: 64" in reported


def test_config_prints_what_train_reads(tmp_path: Path, xec: Any) -> None:
    code, reported, _ = xec("config", "mae", "--preset", "small", "--full")
    (tmp_path / "full.yaml").write_text(reported)
    again = xec("config", "mae", "--config", tmp_path / "full.yaml", "--full")
    assert code == 0 and again[1] == reported and "decoder_dim: 32" in reported
    short = xec("config", "mae", "--preset", "small")[1]
    assert (
        "encoder_dim: 128" in short and "tree_name" not in short and len(short) < len(reported) / 2
    )
    code, _, reported = xec("config", "mae", "--set", "model.encoder_dimm=3")
    assert code == 2 and "encoder_dim" in reported and reported.count("\n") == 1
    code, _, reported = xec("config", "reg")
    assert code == 2 and "no task is enabled" in reported


# ------------------------------------------------------------------ trained models


def test_info_of_a_run_tells_what_it_is(run_of: RunOf, xec: Any) -> None:
    code, found, _ = xec("info", run_of("reg"), "--json")
    assert code == 0 and (found["kind"], found["step"]) == ("regressor", "1")
    assert found["settings"]["model"]["encoder_dim"] == 64
    assert {"heads.angle", "heads.energy"} < set(found["parameters"])
    assert "heads.timing" not in found["parameters"] and "init.encoder" in found["can be used"]
    (checkpoint,) = (run_of("reg") / "checkpoints").glob("*.safetensors")
    assert xec("info", checkpoint, "--json")[1]["parameters"] == found["parameters"]
    code, _, reported = xec("info", "no_such_run")
    assert code == 2 and reported.count("\n") == 1


def test_a_regressor_predicts_the_same_in_any_pieces(
    tmp_path: Path, synth: Any, run_of: RunOf, xec: Any
) -> None:
    whole, part = tmp_path / "whole.root", tmp_path / "part.root"
    code, found, _ = xec("predict", run_of("reg"), synth.val, "--out", whole, "--batch", 16,
                         "--chunk", 20, "--json")  # fmt: skip
    assert code == 0 and (found["entries"], found["finished"]) == (64, True)
    columns = rows(whole, "val_tree")
    assert len(columns["run_id"]) == 64 and {"opening_angle", "x_vtx", "true_energy"} <= {*columns}
    assert xec("predict", run_of("reg"), synth.val, "--out", part, "--entries", "30:50")[0] == 0
    for name, column in rows(part, "val_tree").items():
        np.testing.assert_allclose(column, columns[name][30:50], rtol=2e-4, atol=1e-4)
    assert xec("predict", run_of("reg"), synth.val, "--out", part)[0] == 2, "is there already"
    for wrong in ("5", "9:3", "a:b"):
        assert xec("predict", run_of("reg"), synth.val, "--out", "x", "--entries", wrong)[0] == 2


def test_an_autoencoder_and_an_inpainter_predict_hidden_sensors(
    tmp_path: Path, synth: Any, run_of: RunOf, xec: Any
) -> None:
    out = tmp_path / "mae.root"
    assert xec("predict", run_of("mae"), synth.val, "--out", out, "--max-events", 9)[0] == 0
    found = rows(out, "tree")
    assert found["pred_npho"].shape == (9, 4760) and found["event_id"].tolist() == [*range(9)]
    there = (found["truth_time"] < 1e9).sum(1)
    np.testing.assert_array_equal(found["mask"].sum(1), np.floor(there * 0.6))
    out = tmp_path / "inp.root"
    assert xec("predict", run_of("inp"), synth.val, "--out", out, "--entries", "3:6")[0] == 0
    found = rows(out, "tree")
    assert {*found["event_idx"]} == {3, 4, 5} and "pred_time" not in found
    assert len(found["face"]) == sum(int(0.05 * n) for n in _valid(synth.val)[3:6])
    np.testing.assert_allclose(found["error_npho"], found["pred_npho"] - found["truth_npho"])
    assert rows(out, "metadata")["predict_channels"][0] == "npho"


def _valid(path: str) -> list[int]:
    (file,) = Path(path).glob("*.root")
    npho = rows(file, "tree")["npho"]
    return (np.isfinite(npho) & (npho < 9e9)).sum(1).tolist()


def test_the_dead_channel_study_treats_dead_sensors_in_three_ways(
    tmp_path: Path, synth: Any, run_of: RunOf, xec: Any
) -> None:
    out, ids = tmp_path / "study.root", tmp_path / "dead.txt"
    ids.write_text("# the board that was off\n0, 1 2\n4759\n")
    command = "predict", run_of("reg"), synth.val, "--inpainter", run_of("inp"), "--out", out
    assert xec(*command, "--dead", ids, "--entries", "0:4")[0] == 0
    found = rows(out, "tree")
    assert {"energy_raw", "energy_neighavg", "energy_inpainted", "energy_true"} <= {*found}
    dead = [4760 - n for n in _valid(synth.val)[:4]]
    assert all(0 <= more - n <= 4 for more, n in zip(found["n_dead"], dead, strict=True))
    assert len({*found["energy_raw"]} | {*found["energy_neighavg"]}) == 8
    code, _, reported = xec("predict", run_of("inp"), synth.val, "--inpainter", run_of("inp"),
                        "--out", tmp_path / "x.root")  # fmt: skip
    assert code == 2 and "no regressor of the energy" in reported
    ids.write_text("4760")
    assert "is no sensor" in xec(*command, "--dead", ids, "--overwrite")[2]
    ids.write_text("1,2 # and\n3")
    assert read_ids(ids) == [1, 2, 3]


def test_without_dead_sensors_the_three_ways_agree(synth: Any, run_of: RunOf) -> None:
    study = DeadStudy(load_run(run_of("reg")), load_run(run_of("inp")), "branch").eval()
    events = {name: one[:3].clone() for name, one in synth.events.items()}
    events["npho"] = events["npho_clean"]
    events["time"] = torch.where(events["time"] == NOT_AVAILABLE, 0.0, events["time"])
    events["dead"] = torch.zeros_like(events["dead"])
    with torch.no_grad():
        found = study(events)
    assert found["n_dead"].tolist() == [0, 0, 0]
    assert torch.equal(found["energy_raw"], found["energy_inpainted"])
    assert torch.equal(found["energy_raw"], found["energy_neighavg"])


def test_events_across_files_are_read_in_order(synth: Any, run_of: RunOf) -> None:
    predictor = load_predictor(run_of("mae"))
    one = open_files(predictor.settings, predictor.settings.data, synth.train, ())
    doubled = Streamed([*one.shards, *one.shards], chunk=64)
    assert len(doubled) == 384
    found = [int(sample["event"]) for sample in doubled.between(190, 194)]
    assert found == [190, 191, 0, 1]


def test_figures_are_drawn_again_from_tables(tmp_path: Path, xec: Any) -> None:
    pytest.importorskip("matplotlib")
    from holdfast_models.xec.figures.tables import write_tables

    energy = np.random.default_rng(0).uniform(0.015, 0.06, 200)
    truth = {
        "true_energy": energy,
        "pred_energy": energy * 1.01,
        "run_id": energy,
        "event_id": energy,
    }
    write_tables(tmp_path, truth)
    code, found, _ = xec("plot", tmp_path, "--json")
    assert code == 0 and not found["failed"]
    assert {Path(one).suffix for one in found["files"]} == {".png", ".pdf"}
    code, _, reported = xec("plot", tmp_path / "nothing")
    assert code == 2 and "predictions_" in reported


@pytest.mark.slow
def test_bench_measures_a_model_and_its_files(synth: Any, xec: Any) -> None:
    code, found, _ = xec("bench", "reg", "--preset", "small", "--set", "model.encoder_dim=64",
                         "--batch", 4, "--steps", 1, "--files", synth.val, "--device", "cpu",
                         "--json")  # fmt: skip
    assert code == 0 and found["batch"] == 4
    rates = [value for name, value in found.items() if name.endswith("events/s")]
    assert len(rates) == 3 and min(rates) > 0


@pytest.mark.slow
def test_pretraining_is_compared_for_equal_epochs(
    tmp_path: Path, tiny: list[str], run_of: RunOf, xec: Any
) -> None:
    given = [word for one in tiny for word in ("--set", one)]
    command = "compare-pretrain", run_of("mae"), "--preset", "small", *given, "--labels"
    code, found, _ = xec(*command, 16, "--seeds", 1, 2, "--out", tmp_path / "c", "--json")
    assert code == 0 and [(one["labels"], one["way"]) for one in found] == [
        (16, "from scratch"), (16, "pretrained"),
    ]  # fmt: skip
    assert all(len(one["runs"]) == 2 and "val_resolution_deg" in one["mean"] for one in found)
    assert found[0]["mean"]["loss"] != found[1]["mean"]["loss"]
    folders = sorted(one.name for one in (tmp_path / "c").iterdir())
    assert folders == [
        "16_from_scratch_1",
        "16_from_scratch_2",
        "16_pretrained_1",
        "16_pretrained_2",
    ]
    code, _, reported = xec(*command, 193)
    assert code == 2 and "there are 192 events" in reported


def test_the_help_of_every_verb_has_no_need_of_torch() -> None:
    verbs = ("synth", "check-data", "geometry", "baseline", "predict", "export", "plot", "info",
             "config", "compare-pretrain", "bench")  # fmt: skip
    code = (
        "import sys\nfrom holdfast.cli import main\n"
        f"assert not any(main(['xec', verb, '--help']) for verb in {verbs})\n"
        "assert not {'torch', 'uproot', 'matplotlib'} & set(sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
