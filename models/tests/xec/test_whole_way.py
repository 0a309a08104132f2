"""From generated events to plots, by the commands that a user types."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from holdfast.cli import main
from holdfast_models.xec import artifacts
from holdfast_models.xec.artifacts import Artifacts
from holdfast_models.xec.loading import load_run

uproot: Any = pytest.importorskip("uproot")
pytest.importorskip("matplotlib")
Holdfast = Callable[..., str]

SMALL = [
    "model.hidden_dim=16", "train.data.workers=0", "train.device=cpu", "train.epochs=1",
    "data.num_threads=1", "data.cache=none",
]  # fmt: skip
FEW = ["tasks.angle.enabled=false", "tasks.timing.enabled=false", "tasks.uvwFI.enabled=false",
       "model.encoder_dim=64", "train.data.batch=4", "output.onnx=null"]  # fmt: skip


@pytest.fixture
def holdfast(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Holdfast:
    """``holdfast("xec", "info", "run")``: what a command that succeeds prints, in a new folder."""
    monkeypatch.chdir(tmp_path)

    def call(*words: object) -> str:
        code = main(list(map(str, words)))
        reported = capsys.readouterr()
        assert code == 0, reported.err
        return reported.out

    return call


def sets(*given: str) -> list[str]:
    return [word for one in given for word in ("--set", one)]


def rows(path: Path, tree: str) -> dict[str, Any]:
    with uproot.open(path) as file:
        return file[tree].arrays(library="np")


def pictures(folder: Path) -> set[str]:
    """Those that the report shows; all of them are there."""
    listed = json.loads((folder / "pictures.json").read_text())
    found: set[str] = set()
    for one in listed:
        path = folder / one["file"]
        assert path.exists() and path.stat().st_size > 1000
        found.add(path.name)
    return found


@pytest.mark.slow
def test_19_3_events_are_generated_learned_resumed_predicted_and_drawn(
    tmp_path: Path, holdfast: Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The energy alone, of few events, drawn once, and without ONNX: that takes half a minute."""
    monkeypatch.setattr(artifacts, "_WORST_DRAWN", 0)
    monkeypatch.setattr("holdfast_models.xec.figures.pictures._DOTS_PER_INCH", 40)
    monkeypatch.setattr(Artifacts, "improved", lambda *_: None)
    holdfast("xec", "synth", "events", "--events", 8, "--val", 4)
    given = sets(*SMALL, *FEW, "data.train_path=events/train.root", "data.val_path=events/val.root")
    said = holdfast("train", "xec.reg", "--preset", "small", "--run-dir", "run", *given,
                    *sets("output.artifacts=false"))  # fmt: skip
    assert "ended at step 2" in said and "clipped" in said
    first = load_run("run", best=False).model.state_dict()
    more = sets("train.epochs=2", "output.artifacts=true")
    said = holdfast("train", "xec.reg", "--resume", "run", *more)
    assert "ended at step 4" in said and "hooks" not in said, said
    second = load_run("run", best=False).model.state_dict()
    assert not all(torch.equal(one, first[name]) for name, one in second.items())

    run = tmp_path / "run"
    assert pictures(run / "pictures") == {
        "learning.png", "resolution_energy.png", "saliency_profile.png", "face_weights.png",
        "dead_channels.png", "input_distributions.png",
    }  # fmt: skip
    assert (run / "tables" / "predictions_energy.csv").exists() and (run / "report.html").exists()
    written = rows(run / "predictions.root", "val_tree")
    assert len(written["pred_energy"]) == 4 and np.isfinite(written["pred_energy"]).all()
    holdfast("xec", "predict", "run", "events/val.root", "--out", "again.root")
    again = rows(tmp_path / "again.root", "val_tree")
    np.testing.assert_allclose(again["pred_energy"], written["pred_energy"], rtol=1e-4)
    np.testing.assert_array_equal(again["event_id"], written["event_id"])


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_19_3_the_whole_way_with_five_hundred_events(tmp_path: Path, holdfast: Holdfast) -> None:
    """All four quantities, two epochs, exported twice and verified."""
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    holdfast("xec", "synth", "events", "--events", 512, "--val", 64)
    given = sets(*SMALL, "model.encoder_dim=64", "data.train_path=events/train.root",
                 "data.val_path=events/val.root")  # fmt: skip
    nothing = sets("output.artifacts=false", "output.onnx=null")
    holdfast("train", "xec.reg", "--preset", "small", "--run-dir", "run", *given, *nothing)
    run = tmp_path / "run"
    everything = sets("train.epochs=2", "output.artifacts=true", "output.onnx=model.onnx")
    said = holdfast("train", "xec.reg", "--resume", "run", *everything)
    assert "ended at step 16" in said and "hooks" not in said, said
    assert (run / "model.onnx").exists()

    said = holdfast("xec", "export", "run", "--out", "model.onnx")
    assert "agrees with the model" in said
    assert "agrees with the model" in holdfast(
        "xec", "export", "run", "--out", "model.onnx", "--verify-only"
    )
    for source, out in (("run", "by_run.root"), ("model.onnx", "by_onnx.root")):
        holdfast("xec", "predict", source, "events/val.root", "--out", out)
    found = [rows(tmp_path / name, "val_tree") for name in ("by_run.root", "by_onnx.root")]
    written = rows(run / "predictions.root", "val_tree")
    for name in ("pred_energy", "pred_timing", "pred_theta", "pred_u"):
        scale = np.abs(written[name]).max()
        for one in found:
            np.testing.assert_allclose(one[name], written[name], rtol=1e-3, atol=1e-3 * scale)
    for task in ("energy", "timing", "angle", "uvwFI"):
        assert (run / "tables" / f"predictions_{task}.csv").exists()
        assert f"resolution_{task}.png" in pictures(run / "pictures")
    assert (run / "pictures" / "worst_events" / "worst_05.pdf").exists()
    holdfast("xec", "plot", run / "tables")
    assert (run / "tables" / "resolution_energy.pdf").exists()
