from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from holdfast import HoldfastError
from holdfast_models.xec.data import synth_files
from holdfast_models.xec.data.synth_files import ensure_synth
from holdfast_models.xec.settings import SynthSettings

uproot = pytest.importorskip("uproot")

SCHEMA = {
    "npho": "float[4760]", "relative_time": "float[4760]", "time": "float[4760]",
    "energyTruth": "float", "timeTruth": "float", "uvwTruth": "float[3]", "xyzTruth": "float[3]",
    "xyzVTX": "float[3]", "emiVec": "float[3]", "emiAng": "float[2]", "run": "int32_t",
    "event": "int32_t", "dead": "bool[4760]", "nDead": "int32_t", "npho_clean": "float[4760]",
}  # fmt: skip


def test_files_have_the_branches_of_the_specification(synth) -> None:
    with uproot.open(f"{synth.train}/000.root") as file:
        tree = file["tree"]
        assert SCHEMA.items() <= dict(tree.typenames()).items()
        arrays = tree.arrays(["npho", "emiAng", "event", "nDead", "dead"], library="np")
    np.testing.assert_array_equal(arrays["npho"], synth.events["npho"])
    np.testing.assert_array_equal(arrays["emiAng"], synth.events["angle"])
    np.testing.assert_array_equal(arrays["event"], np.arange(192))
    np.testing.assert_array_equal(arrays["nDead"], arrays["dead"].sum(1))


def test_validation_events_are_others_with_the_same_sensors(synth) -> None:
    with uproot.open(f"{synth.val}/000.root") as file:
        val = file["tree"].arrays(["event", "dead", "run", "energyTruth"], library="np")
    assert val["event"].tolist() == list(range(192, 256))
    same_run = val["run"] == 3
    assert (val["dead"][same_run] == synth.events["dead"][-1].numpy()).all()
    assert not np.isin(val["energyTruth"], synth.events["energy"].numpy()).any()


def test_a_set_is_generated_once_and_said_so(tmp_path: Path) -> None:
    settings = SynthSettings(events=10, validation=3, folder=str(tmp_path))
    said: list[str] = []
    first = ensure_synth(settings, say=said.append)
    assert "13 events" in said[0] and "10 of 10 events" in said[1]
    stamp = Path(first[0], "000.root").stat().st_mtime_ns
    said.clear()
    assert ensure_synth(settings, say=said.append) == first and not said
    assert Path(first[0], "000.root").stat().st_mtime_ns == stamp
    other = ensure_synth(dataclasses.replace(settings, seed=2), say=said.append)
    assert other != first and said


def test_a_set_that_was_cut_short_is_not_used(tmp_path: Path, monkeypatch) -> None:
    settings = SynthSettings(events=70, validation=3, folder=str(tmp_path))
    whole = synth_files.write_events

    def breaks(path: Path, *args, **more) -> None:
        whole(path, *args, **more)
        if "val" in str(path):
            raise KeyboardInterrupt

    monkeypatch.setattr(synth_files, "write_events", breaks)
    with pytest.raises(KeyboardInterrupt):
        ensure_synth(settings, say=lambda _: None)
    assert {path.suffix for path in tmp_path.iterdir()} == {".part", ".lock"}
    monkeypatch.undo()
    train, val = ensure_synth(settings, say=lambda _: None)
    with uproot.open(f"{train}/000.root") as file, uproot.open(f"{val}/000.root") as other:
        assert (file["tree"].num_entries, other["tree"].num_entries) == (70, 3)
    assert not [*tmp_path.glob("*.part")]


def test_large_sets_are_several_files(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(synth_files, "FILE_EVENTS", 64)
    settings = SynthSettings(events=100, validation=1, folder=str(tmp_path))
    train, _ = ensure_synth(settings, say=lambda _: None)
    files = sorted(Path(train).iterdir())
    events = [uproot.open(file)["tree"]["event"].array(library="np") for file in files]
    assert [len(one) for one in events] == [64, 36]
    assert np.concatenate(events).tolist() == list(range(100))


def test_no_events_asked_for_is_an_error() -> None:
    with pytest.raises(HoldfastError, match=r"data\.synth\.events is 0"):
        ensure_synth(SynthSettings())
