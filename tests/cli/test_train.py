from __future__ import annotations

import dataclasses
import platform
import sys
import types
from pathlib import Path
from typing import Any

import pytest
import torch

from holdfast.checkpoint.file import save
from holdfast.checkpoint.store import CheckpointStore
from holdfast.checkpoint.tree import flatten
from holdfast.cli import main
from holdfast.config import Section
from holdfast.errors import HoldfastError
from holdfast.run import Run
from holdfast.training import recipes
from holdfast.training.differences import Difference
from holdfast.training.other_names import Ignored
from holdfast.training.recipes import (
    CONFIG,
    Recipe,
    resolve,
    to_yaml,
)
from holdfast.training.settings import TrainSettings


@pytest.fixture(autouse=True)
def nothing_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is installed beside us offers nothing here."""
    monkeypatch.setattr("importlib.metadata.entry_points", lambda group: [])


@dataclasses.dataclass(frozen=True, kw_only=True)
class Own(Section):
    width: int = 8
    train: TrainSettings = dataclasses.field(default_factory=lambda: TrainSettings(epochs=3))


def build(settings: Any, place: Any) -> Any:
    raise AssertionError("the command builds no model")


RECIPE = Recipe(
    name="mine",
    summary="What it learns.\nAnd more.",
    settings=Own,
    build=build,
    presets={"small": {"width": 2}, "large": {"width": 99}},
)


@pytest.fixture(autouse=True)
def place(monkeypatch, tmp_path):
    """One recipe from a plugin, an empty working directory, a machine that suggests nothing."""
    module: Any = types.ModuleType("holdfast_test_train")
    module.RECIPES = (RECIPE,)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setenv("HOLDFAST_PLUGINS", module.__name__)
    monkeypatch.setattr(recipes, "RECIPES", ())
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    monkeypatch.delenv("RANK", raising=False)
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def trained(monkeypatch):
    """What the trainer was called with, instead of a training."""
    calls: list[dict[str, Any]] = []

    def run_recipe(recipe: Any, settings: Any, **given: Any) -> int:
        calls.append({"recipe": recipe, "settings": settings, **given})
        return 5

    module: Any = types.ModuleType("holdfast.training.recipe_run")
    module.run_recipe = run_recipe
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return calls


def run_folder(name: str = "first", settings: Own | None = None) -> Path:
    path = Run.create(name, {"script": "mine"}).path
    (path / CONFIG).write_text(to_yaml(settings or Own(width=5)))
    return path


def one_line(capsys: Any, *words: str) -> str:
    assert main(["train", *words]) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err.count("\n") == 1
    return captured.err.removeprefix("holdfast: error: ")


def test_the_trainer_gets_recipe_and_settings_and_gives_the_exit_code(trained, capsys):
    assert main(["train", "mine", "--set", "train.epochs=2", "--preset", "small"]) == 5
    (call,) = trained
    assert call["recipe"] is RECIPE and call["settings"].width == 2
    assert call["settings"].train.epochs == 2
    assert (call["run_dir"], call["resume"], call["quiet"]) == (None, None, False)
    captured = capsys.readouterr()
    assert captured.out == captured.err == ""


def test_folder_and_quiet_are_handed_on(trained):
    assert main(["train", "mine", "--run-dir", "out/first", "--quiet"]) == 5
    assert (trained[0]["run_dir"], trained[0]["quiet"]) == ("out/first", True)
    assert not Path("out").exists()


def test_the_list_names_recipes_and_presets(capsys, monkeypatch):
    monkeypatch.setenv("HOLDFAST_PLUGINS", "holdfast_test_train,no_such_module_x")
    assert main(["train", "--list"]) == 0
    captured = capsys.readouterr()
    source = "[holdfast_test_train (HOLDFAST_PLUGINS)]"
    assert captured.out == (
        f"mine          What it learns.  {source}\n              presets: small, large\n"
    )
    assert captured.err.startswith("holdfast: plugin no_such_module_x")


def test_the_printed_settings_are_settings(trained, capsys):
    words = ["train", "mine", "--preset", "large", "--set", "train.optimizer.lr=1e-4"]
    assert main([*words, "--print-config"]) == 0
    captured = capsys.readouterr()
    Path("mine.yaml").write_text(captured.out)
    assert captured.err == "" and not trained
    assert main(words) == main(["train", "mine", "--config", "mine.yaml"]) == 5
    assert trained[0]["settings"] == trained[1]["settings"]
    assert trained[0]["settings"].train.optimizer.lr == 1e-4


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ([], "no recipe was given; list them: holdfast train --list"),
        (["--resume", "mine"], "RUN follows --resume: holdfast train mine --resume"),
        (["mien"], "no recipe 'mien'; did you mean 'mine'?"),
        (["mine", "--preset", "smal"], "did you mean 'small'?"),
        (["mine", "--platform", "amr"], "no platform 'amr'; did you mean 'arm'?"),
        (["mine", "--config", "gone.yaml"], "gone.yaml: no such file"),
        (["mine", "--set", "train.optimizer.lrr=1"], "did you mean 'train.optimizer.lr'?"),
        (["mine", "--set", "train.optimzer.lr=1"], "did you mean 'train.optimizer'?"),
        (["mine", "--set", "lr=1"], "did you mean 'train.optimizer.lr'?"),
        (["mine", "--set", "train.optimizer.lr=fast"], "must be a number above 0"),
        (["mine", "--set", "train.accumulate=0"], "a whole number of at least 1"),
        (["mine", "--set", "train.epochs=null"], "the run would never end"),
        (["mine", "--resume"], "write --resume RUN, --resume latest or add --run-dir DIR"),
        (["mine", "--resume", "auto"], "--resume auto does not say which run; add --run-dir"),
        (["mine", "--resume", "auto", "--run-dir", "other"], "recipe was stranger, is mine"),
        (["mine", "--resume", "first", "--set", "width=6"], "width was 5, is 6"),
        (["mine", "--resume", "first", "--preset", "small"], "width was 5, is 2"),
        (
            ["mine", "--resume", "first", "--set", "train.optimizer.name=sgd"],
            "train.optimizer.name was adamw, is sgd",
        ),
        (
            ["mine", "--resume", "first", "--set", "train.average.decay=0.9"],
            "train.average.decay was 0, is 0.9",
        ),
        (
            ["mine", "--resume", "first", "--set", "train.precision=fp16"],
            "train.precision was auto, is fp16",
        ),
        (["mine", "--resume", "other"], "recipe was stranger, is mine"),
        (["mine", "--resume", "latest"], "no run of mine with a checkpoint under runs"),
        (["mine", "--resume", "best"], "no run of mine with a checkpoint under runs"),
        (["mine", "--resume", "first@best"], "no good checkpoint that was validated"),
        (["mine", "--resume", "gone@best"], "gone does not exist, and no run in runs"),
        (
            ["mine", "--resume", "first@best", "--run-dir", "first"],
            "goes on beyond its best checkpoint",
        ),
        (["mine", "--resume", "gone"], "gone does not exist, and no run in runs"),
        (["mine", "--resume", "gone", "--preset", "small"], "gone does not exist, and no"),
        (["mine", "--run-dir", "gone", "--resume"], "the run folder gone does not exist"),
        (["mine", "--run-dir", "first"], "already holds a run"),
        (["no/such.py:RECIPE"], "no such recipe file"),
        (["mine", "--pre", "small"], "unknown option '--pre'"),
    ],
)
def test_a_mistake_is_one_line_before_anything_is_built(trained, capsys, words, says):
    run_folder()
    Run.create("other", {"script": "stranger"})
    assert says in one_line(capsys, *words)
    assert not trained


def test_a_run_goes_on_in_its_own_folder_with_its_own_settings(trained, capsys):
    path = run_folder()
    for words in (["--resume", "first"], ["--run-dir", "first", "--resume"]):
        assert main(["train", "mine", *words, "--set", "train.epochs=9"]) == 5
        call = trained.pop()
        assert (call["run_dir"], call["resume"]) == ("first", True)
        assert (call["settings"].width, call["settings"].train.epochs) == (5, 9)
        reported = capsys.readouterr().err
        assert reported == (
            f"holdfast: settings of the previous run, {path / CONFIG}, "
            "changed: train.epochs 3 -> 9\n"
        )


def test_one_checkpoint_of_a_run_may_be_named(trained):
    entry = run_folder() / "checkpoints" / "one"
    entry.mkdir(parents=True)
    assert main(["train", "mine", "--resume", str(entry)]) == 5
    assert (trained[0]["run_dir"], trained[0]["resume"]) == ("first", str(entry))
    assert trained[0]["settings"].width == 5


def test_a_run_may_go_on_in_another_folder(trained):
    run_folder()
    assert main(["train", "mine", "--resume", "first", "--run-dir", "second"]) == 5
    assert (trained[0]["run_dir"], trained[0]["resume"]) == ("second", "first")
    assert trained[0]["settings"].width == 5


def test_given_settings_replace_those_of_the_run(trained, capsys):
    run_folder()
    Path("mine.yaml").write_text("width: 5\ntrain: {epochs: 7, data: {batch: 16}}\n")
    assert main(["train", "mine", "--resume", "first", "--config", "mine.yaml"]) == 5
    assert (trained[0]["settings"].train.epochs, trained[0]["resume"]) == (7, True)
    assert capsys.readouterr().err == (
        "holdfast: settings of your own, changed: train.epochs 3 -> 7, "
        "train.data.batch 32 -> 16\n"
        "holdfast: warning: train.data.batch was 32, is 16\n"
    )


def test_checkpoints_that_lie_by_themselves_need_settings(trained, capsys):
    Path("kept").mkdir()
    assert "kept is not a run folder" in one_line(capsys, "mine", "--resume", "kept")
    assert main(["train", "mine", "--resume", "kept", "--preset", "small"]) == 5
    assert (trained[0]["run_dir"], trained[0]["resume"]) == (None, "kept")


def test_a_run_without_saved_settings_says_what_to_do(trained, capsys):
    (run_folder() / CONFIG).unlink()
    assert f"has no {CONFIG}" in one_line(capsys, "mine", "--resume", "first")


def saved(run: Path, *validations: float) -> list[Path]:
    """Checkpoints of a run, ten steps apart, with what validation said of each."""
    store = CheckpointStore(run / "checkpoints")
    store.folder.mkdir()
    for step, value in enumerate(validations, 1):
        tree = flatten({"weight": torch.ones(4)})
        meta = {"step": 10 * step, "metrics": {"validation": value}}
        save(store.path(10 * step), *tree, meta)
    return [entry.path for entry in store.entries()]


def test_the_best_checkpoint_of_a_run_goes_on_in_a_folder_of_its_own(trained, capsys):
    _, best, _ = saved(run_folder("runs/a"), 3.0, 1.0, 2.0)
    for words in (["runs/a@best"], ["best"], ["latest@best"], ["last@best"], ["a@best"]):
        assert main(["train", "mine", "--resume", *words]) == 5
        call = trained.pop()
        assert call["run_dir"] is None and call["resume"].samefile(best)
        assert call["settings"].width == 5
        reported = capsys.readouterr().err
        assert (
            "the best checkpoint of runs/a is that of step 20; going on in a new folder" in reported
        )
    assert main(["train", "mine", "--resume", "best", "--run-dir", "b", "--quiet"]) == 5
    assert trained.pop()["run_dir"] == "b" and capsys.readouterr().err == ""


def test_the_best_checkpoint_is_refused_in_one_line_too(trained, capsys):
    saved(run_folder("runs/a"), 3.0, 1.0)
    reported = one_line(capsys, "mine", "--resume", "best", "--set", "width=6")
    assert reported.startswith("runs/a cannot go on with these settings: width was 5, is 6")


def test_a_damaged_best_is_passed_over(trained):
    first, best, _ = saved(run_folder("runs/a"), 1.5, 1.0, 2.0)
    best.write_bytes(b"x" * best.stat().st_size)
    assert main(["train", "mine", "--resume", "best"]) == 5
    assert trained[0]["resume"].samefile(first)


def test_the_newest_run_of_a_recipe_is_found_among_others(trained):
    for name, script, day in (("a", "mine", 1), ("b", "mine", 2), ("c", "stranger", 3)):
        run = Run.create(f"runs/{name}", {"script": script, "created": f"2026-01-0{day}T00:00:00"})
        (run.path / CONFIG).write_text(to_yaml(Own(width=5)))
        saved(run.path, 1.0)
    Run.create("runs/d", {"script": "mine", "created": "2026-01-04T00:00:00"})  # nothing saved yet
    for word in ("latest", "last", "b"):
        assert main(["train", "mine", "--resume", word]) == 5
        call = trained.pop()
        assert (call["run_dir"], call["resume"]) == ("runs/b", True)


def test_auto_begins_a_run_and_goes_on_in_it_with_its_settings(trained):
    run_folder()
    words = ["train", "mine", "--resume", "auto", "--run-dir"]
    assert main([*words, "new", "--set", "width=3"]) == 5
    assert main([*words, "first"]) == 5
    assert [(one["run_dir"], one["resume"]) for one in trained] == [
        ("new", "auto"), ("first", "auto")
    ]  # fmt: skip
    assert [one["settings"].width for one in trained] == [3, 5]
    (Path("first") / CONFIG).unlink()  # ended before its first step
    assert main([*words, "first"]) == 5
    assert trained[2]["settings"].width == 8


def test_a_recipe_with_a_dot_in_its_name_is_listed_and_resumed(trained, monkeypatch, capsys):
    dotted = dataclasses.replace(RECIPE, name="family.member")
    monkeypatch.setattr(sys.modules["holdfast_test_train"], "RECIPES", (RECIPE, dotted))
    assert main(["train", "--list"]) == 0
    assert "\nfamily.member What it learns." in capsys.readouterr().out
    run = Run.create_in("runs", dotted.name, {"script": dotted.name})
    assert run.path.name.endswith("family.member")
    (run.path / CONFIG).write_text(to_yaml(Own(width=5)))
    saved(run.path, 1.0)
    assert main(["train", "family.member", "--resume", "latest"]) == 5
    assert trained[0]["recipe"] is dotted and Path(trained[0]["run_dir"]) == run.path


def test_settings_of_another_program_are_read_and_what_is_ignored_is_said(
    trained, monkeypatch, capsys
):
    monkeypatch.setitem(RECIPE.__dict__, "reads", {"size": "width", "gpus": Ignored("torchrun")})
    Path("other.yaml").write_text("size: 3\ngpus: 4\n")
    assert main(["train", "mine", "--config", "other.yaml"]) == 5
    assert trained[0]["settings"].width == 3
    assert capsys.readouterr().err == "holdfast: gpus is ignored: torchrun\n"


def test_lenient_warns_of_unknown_settings_of_the_file_alone(trained, capsys):
    Path("other.yaml").write_text("widht: 3\ntrain:\n  epochs: 4\n  speed: 1\n")
    assert "did you mean 'width'?" in one_line(capsys, "mine", "--config", "other.yaml")
    assert main(["train", "mine", "--config", "other.yaml", "--lenient"]) == 5
    assert trained[0]["settings"].train.epochs == 4 and trained[0]["settings"].width == 8
    first, second = capsys.readouterr().err.splitlines()
    assert (
        "other.yaml: unknown setting 'widht'; did you mean 'width'? (ignored: --lenient)" in first
    )
    assert "'train.speed'" in second
    words = ("mine", "--lenient", "--set", "widht=3")
    assert "unknown setting 'widht'" in one_line(capsys, *words)


def test_a_recipe_says_which_of_its_settings_may_change(trained, monkeypatch, capsys):
    run_folder()
    monkeypatch.setitem(RECIPE.__dict__, "may_change", ("wid*",))
    assert main(["train", "mine", "--resume", "first", "--set", "width=6"]) == 5
    assert trained[0]["settings"].width == 6
    assert "changed: width 5 -> 6" in capsys.readouterr().err


def test_a_recipe_may_compare_its_settings_itself(trained, monkeypatch, capsys):
    run_folder()

    def compare(saved: Own, wanted: Own) -> list[Difference]:
        odd = saved.width % 2 != wanted.width % 2
        return [Difference("error" if odd else "warning", "width", saved.width, wanted.width)]

    monkeypatch.setitem(RECIPE.__dict__, "compare", compare)
    assert "width was 5, is 6" in one_line(capsys, "mine", "--resume", "first", "--set", "width=6")
    assert main(["train", "mine", "--resume", "first", "--set", "width=7"]) == 5
    assert "holdfast: warning: width was 5, is 7\n" in capsys.readouterr().err


def test_what_the_machine_suggests_is_reported_unless_it_was_set(trained, capsys):
    assert main(["train", "mine", "--platform", "shared"]) == 5
    assert trained[-1]["settings"].train.data.workers == 2
    assert "holdfast: platform shared: train.data.workers=2 (" in capsys.readouterr().err
    assert (
        main(
            [
                "train",
                "mine",
                "--platform",
                "shared",
                "--set",
                "train.data.workers=4",
                "--set",
                "train.data.threads=1",
            ]
        )
        == 5
    )
    assert trained[-1]["settings"].train.data.workers == 4
    assert capsys.readouterr().err == ""
    assert main(["train", "mine", "--platform", "shared", "--quiet"]) == 5
    assert capsys.readouterr().err == ""


def test_the_printed_settings_say_which_machine_they_are_for(capsys, tmp_path):
    assert main(["train", "mine", "--platform", "shared", "--print-config"]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("# platform shared: train.data.workers=2 (")
    (tmp_path / "mine.yaml").write_text(printed)
    assert resolve(RECIPE, str(tmp_path / "mine.yaml"), platform="none").train.data.workers == 2
    assert main(["train", "mine", "--platform", "cpu", "--print-config"]) == 0
    assert capsys.readouterr().out.startswith("# platform cpu\n")


def test_one_rank_of_several_speaks_and_joins_the_folder(trained, capsys, monkeypatch):
    run_folder()
    monkeypatch.setenv("RANK", "1")
    assert main(["train", "mine", "--platform", "arm", "--run-dir", "first"]) == 5
    assert capsys.readouterr().err == ""


def test_every_preset_of_our_own_recipes_is_valid(monkeypatch):
    monkeypatch.undo()
    monkeypatch.setenv("HOLDFAST_PLUGINS", "none")
    offers, warnings = recipes.known_recipes()
    assert "demo" in {offer.value.name for offer in offers} and not warnings
    for offer in offers:
        for preset in (None, *offer.value.presets):
            for kind in ("arm", "cuda", "cpu", "none"):
                settings = resolve(offer.value, None, preset, (), kind)
                assert isinstance(settings, offer.value.settings)
        with pytest.raises(HoldfastError, match="unknown setting"):
            resolve(offer.value, overrides=["train.nothing_of_this_name=1"])
