"""What is wrong with files, settings or checkpoints is one line of the command that meets it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast.cli import main
from holdfast_models.xec.data.synth_files import write_batches
from holdfast_models.xec.loading import FACTS

pytest.importorskip("uproot")


@pytest.fixture
def train(
    tmp_path: Path, tiny: list[str], capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str]]:
    """``train("reg", "train.steps=2")``: the exit code of ``holdfast train`` and its errors."""

    def call(kind: str, *more: str) -> tuple[int, str]:
        given = [word for one in (*tiny, *more) for word in ("--set", one)]
        code = main(["train", f"xec.{kind}", "--preset", "small", "--platform", "none",
                     "--run-dir", str(tmp_path / "run"), *given])  # fmt: skip
        return code, capsys.readouterr().err

    return call


@pytest.fixture
def no_model(monkeypatch: pytest.MonkeyPatch, run_of: Callable[[str], Path]) -> None:
    """Fails as soon as somebody builds a model, be it only to see how long a step takes."""
    run_of("mae")  # the tests share it; it is trained before that
    for module in ("recipes", "forecast"):
        monkeypatch.setattr(
            f"holdfast_models.xec.{module}.make_model", lambda *_: pytest.fail("a model was built")
        )


@pytest.mark.usefixtures("no_model")
@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (["data.train_path=", "data.synth.events=0"], "data.train_path is empty"),
        (["data.train_path=nowhere/*.root"], "nowhere/*.root"),
        (["data.val_path=nowhere.root"], "nowhere.root"),
        (["init.encoder=nowhere"], "no run or checkpoint at nowhere"),
    ],
    ids=["no path", "no files", "no file of validation", "encoder of nowhere"],
)
@pytest.mark.parametrize("kind", ["reg", "mae"])
def test_paths_that_lead_nowhere_are_one_line_before_a_model_is_built(
    kind: str, wrong: list[str], said: str, train: Any, tmp_path: Path
) -> None:
    code, reported = train(kind, *wrong)
    assert code == 2 and reported.count("\n") == 1 and said in reported, reported
    assert not (tmp_path / "run").exists()


def test_files_that_are_damaged_or_lack_a_branch_are_named(
    train: Any, synth: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast_models.xec.forecast._trial", lambda *_: 0.1)
    monkeypatch.setattr(
        "holdfast_models.xec.recipes.make_model", lambda *_: pytest.fail("a model was built")
    )
    events = {name: one[:4] for name, one in synth.events.items()}
    lacking, cut = tmp_path / "lacking.root", tmp_path / "cut.root"
    write_batches(lacking, iter([{n: one for n, one in events.items() if n != "energy"}]))
    code, reported = train("reg", f"data.train_path={lacking}")
    assert code == 2 and reported.count("\n") == 1
    assert "lacking.root: no branch 'energyTruth'" in reported
    whole = next(Path(synth.val).glob("*.root")).read_bytes()
    cut.write_bytes(whole[: len(whole) // 2])
    code, reported = train("mae", f"data.train_path={cut}")
    assert code == 2 and reported.count("\n") == 1 and "cut.root" in reported


@pytest.mark.usefixtures("no_model")
def test_another_geometry_or_normalisation_is_refused_by_every_command(
    train: Any, run_of: Any, synth: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    elsewhere = tmp_path / "elsewhere"
    shutil.copytree(run_of("mae"), elsewhere)
    facts = json.loads((elsewhere / FACTS).read_text())
    (elsewhere / FACTS).write_text(json.dumps(facts | {"geometry": "0123abcd"}))
    (checkpoint,) = (elsewhere / "checkpoints").glob("*.safetensors")
    predict = ["xec", "predict", str(checkpoint), synth.val, "--out", str(tmp_path / "p.root")]
    capsys.readouterr()
    for code, reported in (
        train("reg", f"init.encoder={elsewhere}"),
        train("mae", f"init.weights={checkpoint}"),
        (main(predict), capsys.readouterr().err),
    ):
        assert code == 2 and reported.count("\n") == 1
        assert "another geometry (0123abcd" in reported
    code, reported = train("reg", f"init.encoder={run_of('mae')}", "normalization.time_scale=3e-8")
    assert code == 2 and reported.count("\n") == 1
    assert "normalization.time_scale was 2e-08, is 3e-08" in reported
    assert not (tmp_path / "p.root").exists()
