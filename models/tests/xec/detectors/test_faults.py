"""Small runs that fall into what the detectors look for, and one that does not."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch

from holdfast.detectors import ALL
from holdfast.report.replay import replay
from holdfast.run import Run
from holdfast.training import Place, Trainer, resolve
from holdfast.training.loop import reporting
from holdfast.training.loop.progress import Progress
from holdfast_models.xec.data.normalization import NOT_AVAILABLE
from holdfast_models.xec.data.synth_files import write_batches
from holdfast_models.xec.data.synthetic import generate
from holdfast_models.xec.detectors import DETECTORS
from holdfast_models.xec.recipes import REGRESSOR, build
from holdfast_models.xec.settings import SynthSettings

pytest.importorskip("uproot")
TINY = [
    "train.data.batch=2", "train.data.workers=0", "train.data.shuffle=false", "train.device=cpu",
    "train.epochs=1", "data.cache=none", "data.num_threads=1", "tasks.angle.enabled=false",
    "tasks.uvwFI.enabled=false", "tasks.timing.enabled=false", "train.validation.epochs=0",
]  # fmt: skip


@pytest.fixture(autouse=True)
def noted_often(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Records every other step instead of every fiftieth."""
    monkeypatch.setattr(reporting, "_NOTED_EVERY", 2)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def events(path: Path, count: int, *, seed: int = 1, lost: int = 0) -> None:
    """A file, with some energies that are not available."""
    made = generate(SynthSettings(seed=seed), count)
    made["energy"][:lost] = NOT_AVAILABLE
    write_batches(path, iter([made]))


def findings(folder: Path, files: str, *more: str) -> list[Any]:
    given = [*TINY, f"data.train_path={folder / files}", *more]
    settings = resolve(REGRESSOR, None, "small", given, "none")
    torch.manual_seed(0)
    task = build(settings, Place(torch.device("cpu"), rank=1))
    task = dataclasses.replace(task, improved=None, ended=None)
    Trainer.of(task, settings.train, run_dir=folder / "run", progress=Progress()).fit()
    found = replay(Run.open(folder / "run"), (*ALL, *DETECTORS)).findings
    return [one for one in found if one.code.startswith("XEC")]


def test_a_wrong_normalisation_and_a_beta_of_one_are_reported(tmp_path: Path) -> None:
    events(tmp_path / "a.root", 8)
    wrong = "normalization.npho_scheme=linear", "normalization.npho_scale=1"
    found = findings(tmp_path, "a.root", "tasks.energy.loss_beta=1", *wrong)
    assert {one.code: one.evidence.get("how", one.evidence.get("task")) for one in found} == {
        "XEC002": "bright",
        "XEC003": "energy",
    }


def test_a_run_on_good_events_is_silent(tmp_path: Path) -> None:
    events(tmp_path / "a.root", 12)
    assert findings(tmp_path, "a.root") == []


@pytest.mark.slow
def test_energies_that_are_not_available_are_reported(tmp_path: Path) -> None:
    events(tmp_path / "a.root", 8, lost=3)
    found = findings(tmp_path, "a.root")
    assert [(one.code, one.evidence["since"]) for one in found] == [("XEC004", 2)]


@pytest.mark.slow
def test_files_of_another_period_one_after_the_other_are_reported(tmp_path: Path) -> None:
    events(tmp_path / "a.root", 8, seed=1)
    events(tmp_path / "b.root", 8, seed=2)
    found = findings(tmp_path, "?.root", "data.cache=ram")
    assert [(one.code, one.evidence["since"]) for one in found] == [("XEC001", 6)]
    assert 80 < found[0].evidence["sensors"] < 130, "61 others are dead"
