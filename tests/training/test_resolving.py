from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from holdfast.config import (
    RuleSettings,
    Section,
    Settings,
    bounded,
    from_dict,
    yaml_values,
)
from holdfast.errors import (
    HoldfastError,
    RunFolderError,
    SettingsError,
    UsageError,
)
from holdfast.run import Run
from holdfast.training.recipes import (
    CONFIG,
    Recipe,
    former_run,
    resolve,
    saved_config,
    to_yaml,
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Data(Section):
    batch: int = bounded(32, 1)
    workers: int | Literal["auto"] = "auto"
    shuffle: bool = True


@dataclasses.dataclass(frozen=True, kw_only=True)
class Train(Section):
    lr: float = bounded(3e-4, 0.0)
    steps: int | None = 100
    floor: float = -math.inf
    compile: bool | Literal["none", "default"] = "none"
    parts: tuple[str, ...] = ()
    data: Data = Data()
    holdfast: Settings = dataclasses.field(default_factory=Settings)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Own(Section):
    text: str | None = None
    width: int = 8
    train: Train = Train(steps=7, data=Data(batch=64))


def build(settings: Any, place: Any) -> Any:
    raise AssertionError("no model is built here")


def made(name: str = "mine", **given: Any) -> Recipe:
    return Recipe(name=name, summary="one", settings=Own, build=build, **given)


def failure(function: Any, *args: Any, **given: Any) -> str:
    with pytest.raises(HoldfastError) as caught:
        function(*args, **given)
    assert caught.value.exit_code == 2
    return str(caught.value)


PRESETS = {
    "small": {"width": 2, "train.data.batch": 4, "train.parts": ("a", "b.*"), "text": "x"},
    "nested": {"train": {"data": {"shuffle": False}, "lr": 1e-5}},
    "wrong": {"train.data.btach": 4},
    "misfit": {"width": "wide"},
}


@pytest.fixture
def file(tmp_path: Path):
    def write(text: str) -> str:
        path = tmp_path / "mine.yaml"
        path.write_text(text)
        return str(path)

    return write


def test_nothing_given_is_the_recipes_own_defaults():
    assert resolve(made(), platform="none") == Own()


def test_a_section_given_in_part_keeps_the_recipes_own_default_for_the_rest(file):
    for found in (
        resolve(made(), overrides=["train.lr=1e-2"], platform="none"),
        resolve(made(), file("train:\n  lr: 1e-2\n"), platform="none"),
    ):
        assert found == Own(train=Train(steps=7, lr=1e-2, data=Data(batch=64)))


def test_each_beats_those_before_it(file):
    recipe = made(presets=PRESETS)
    assert resolve(recipe, platform="none").train.data.workers == "auto"
    found = resolve(recipe, platform="shared", preset="small")
    assert (found.train.data.workers, found.train.data.batch, found.width) == (2, 4, 2)
    assert found.train.parts == ("a", "b.*") and found.text == "x"
    config = file("width: 3\ntrain:\n  data: {workers: 5}\n  parts: [c]\n")
    found = resolve(recipe, config, "small", platform="shared")
    assert (found.train.data.workers, found.train.data.batch, found.width) == (5, 4, 3)
    assert found.train.parts == ("c",)
    overrides = ["train.data.batch=9", "width=1", "width=4"]
    found = resolve(recipe, config, "small", overrides, "shared")
    assert (found.train.data.workers, found.train.data.batch, found.width) == (5, 9, 4)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Bare(Section):
    train: Data = Data()


def test_what_a_platform_suggests_may_be_no_setting_of_a_recipe():
    recipe = dataclasses.replace(made(), settings=Bare)
    assert resolve(recipe, platform="shared") == resolve(recipe, platform="none") == Bare()


def test_a_preset_may_be_nested():
    found = resolve(made(presets=PRESETS), preset="nested", platform="none")
    assert not found.train.data.shuffle and found.train.lr == 1e-5 and found.train.steps == 7


def test_an_empty_section_of_a_file_hides_nothing(file):
    config = file("train:\n  data:\n")
    assert resolve(made(presets=PRESETS), config, "small").train.data.batch == 4


def test_yaml_means_what_people_think(file):
    text = "train: {lr: 1e-4, compile: false, steps: null, data: {shuffle: off}}\n"
    found = resolve(made(), file(text)).train
    assert (found.lr, found.compile, found.steps, found.data.shuffle) == (1e-4, False, None, False)
    overrides = ["train.lr=1e-4", "train.compile=none", "train.steps=null", "train.data.shuffle=no"]
    found = resolve(made(), overrides=overrides).train
    assert (found.lr, found.compile, found.steps, found.data.shuffle) == (1e-4, "none", None, False)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"overrides": ["train.data.btach=4"]}, "did you mean 'train.data.batch'?"),
        ({"overrides": ["batch=4"]}, "did you mean 'train.data.batch'?"),
        ({"overrides": ["trian.lr=4"]}, "did you mean 'train'?"),
        ({"overrides": ["train.data.batch=0"]}, "a whole number of at least 1, not '0'"),
        ({"overrides": ["width.x=0"]}, "width must be a whole number"),
        ({"overrides": ["width"]}, "no value; write it as section.key=value"),
        ({"preset": "smal"}, "recipe mine has no preset 'smal'; did you mean 'small'?"),
        ({"preset": "wrong"}, "did you mean 'train.data.batch'?"),
        ({"preset": "wrong"}, "(preset wrong)"),
        ({"preset": "misfit"}, "width=wide (preset misfit)"),
        ({"platform": "vax"}, "no platform 'vax'"),
        ({"config": "no/such.yaml"}, "no/such.yaml: no such file or directory"),
    ],
)
def test_a_mistake_is_one_line_that_helps(given, says):
    reported = failure(resolve, made(presets=PRESETS), **given)
    assert says in reported and "\n" not in reported


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("train: {data: {btach: 4}}", "did you mean 'train.data.batch'?"),
        ("- 1", "holds no settings"),
        ("train: {", "not valid YAML"),
        ("train.lr: 3", "write it as an indented line under its section"),
        ("train: {data: 3}", "train.data must be a section with"),
    ],
)
def test_a_mistake_in_a_file_names_the_file(file, text, says):
    config = file(text)
    reported = failure(resolve, made(), config)
    assert says in reported and reported.startswith(config)


def test_a_recipe_without_presets_says_so():
    assert "no preset 'x'; it has none" in failure(resolve, made(), preset="x")


def test_a_setting_without_a_default_has_to_be_set():
    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Needs(Section):
        width: int
        train: Train = Train(steps=3)

    needs = Recipe(name="needs", summary="", settings=Needs, build=build)
    assert "width has no default and is missing" in failure(resolve, needs)
    found = resolve(needs, overrides=["width=1", "train.lr=1"])
    assert (found.width, found.train.steps, found.train.lr) == (1, 3, 1.0)


# Writing and reading back.

WORDS = st.one_of(
    st.text(st.characters(exclude_categories=())),
    st.sampled_from(["null", "true", "1e-4", "-", "a: b", "#x", "no", "a\\b\"'", "007", "~", "é"]),
)


@hypothesis_settings(deadline=None, max_examples=60)
@given(
    text=st.none() | WORDS,
    parts=st.lists(WORDS, max_size=3),
    lr=st.floats(0, allow_nan=False),
    compile=st.sampled_from([True, False, "none", "default"]),
    codes=st.lists(st.sampled_from(["OPT001", "NUM", "NUM001"])),
)
def test_what_is_written_reads_back_to_the_same(text, parts, lr, compile, codes):
    guard = Settings(policy={code: RuleSettings(do=("observe",)) for code in codes})
    train = Train(lr=lr, parts=tuple(parts), compile=compile, holdfast=guard)
    settings = Own(text=text, train=train)
    read = yaml_values.parse(to_yaml(settings))
    assert from_dict(read, kind=Own) == settings


def test_every_key_is_written_and_readable(file):
    text = to_yaml(Own(text="a b"))
    assert text.startswith('text: "a b"\nwidth: 8\ntrain:\n  lr: 0.0003\n  steps: 7\n')
    assert "\n  floor: -.inf\n" in text and "\n  compile: none\n  parts: []\n  data:\n" in text
    assert "\n    policy: {}\n" in text
    assert resolve(made(), file(text), platform="none") == Own(text="a b")


# The settings of a former run.


def test_the_run_of_a_checkpoint_is_found(tmp_path):
    run = Run.create(tmp_path / "run", {}).path
    entry = run / "checkpoints" / "one"
    entry.mkdir(parents=True)
    for path in (run, run / "checkpoints", entry):
        assert former_run(str(path)) == run
    (run / CONFIG).write_text(to_yaml(Own(width=3)))
    assert resolve(made(), saved_config(run)).width == 3


def test_a_folder_that_is_no_run_is_reported(tmp_path):
    # What lies beside a run folder is not its own.
    (tmp_path / CONFIG).write_text("width: 3\n")
    (tmp_path / "empty").mkdir()
    with pytest.raises(RunFolderError, match="empty is not a run folder"):
        former_run(str(tmp_path / "empty"))
    with pytest.raises(RunFolderError, match="nowhere does not exist"):
        former_run(str(tmp_path / "nowhere"))
    run = Run.create(tmp_path / "run", {}).path
    with pytest.raises(UsageError, match=r"has no train\.yaml.*--config or --preset"):
        saved_config(run)


def test_settings_of_another_recipe_are_reported(tmp_path):
    run = Run.create(tmp_path / "run", {}).path
    (run / CONFIG).write_text("depth: 3\n")
    with pytest.raises(SettingsError, match=r"train\.yaml: unknown setting 'depth'"):
        resolve(made(), saved_config(run))
