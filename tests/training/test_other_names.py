"""Settings under other names, through ``resolve``."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from holdfast.config import Section, bounded, from_dict
from holdfast.errors import SettingsError
from holdfast.training import Deprecated, Ignored, Recipe, resolve


@dataclasses.dataclass(frozen=True, kw_only=True)
class Train(Section):
    lr: float = bounded(3e-4, 0.0)
    precision: str = "auto"
    clip: float | None = 1.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Part(Section):
    on: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class Own(Section):
    width: int = 8
    part: Part = Part()
    train: Train = Train()


def build(settings: Any, place: Any) -> Any:
    raise AssertionError("no model is built here")


def precision(on: bool) -> dict[str, Any]:
    return {"train.precision": "bf16" if on else "fp32"}


def clip(value: float) -> dict[str, Any]:
    if value < 0:
        raise ValueError(f"{value} is no norm")
    return {"train.clip": value or None}


def tasks(given: dict[str, dict[str, Any]]) -> dict[str, Any]:
    return {"part.on": given["energy"]["enabled"]}


READS = {
    "training.lr": "train.lr",
    "training.amp": precision,
    "training.grad_clip": clip,
    "training.old_rate": Deprecated("training.lr", "write training.lr"),
    "old_width": Deprecated("width", "write width"),
    "tasks": tasks,
    "distributed": Ignored("torchrun says how many ranks there are"),
}


def resolved(
    tmp_path: Path, text: str = "", *overrides: str, preset: Any = None, **given: Any
) -> tuple[Own, list[str]]:
    """The settings of a file and overrides, and the lines that were said."""
    path = tmp_path / "other.yaml"
    path.write_text(text)
    presets = {} if preset is None else {"given": preset}
    recipe = Recipe(name="x", summary="", settings=Own, build=build, reads=READS, presets=presets)
    lines: list[str] = []
    name = None if preset is None else "given"
    found = resolve(recipe, str(path), name, overrides, "none", say=lines.append, **given)
    return found, lines


def refusal(tmp_path: Path, text: str = "", *overrides: str, **given: Any) -> str:
    with pytest.raises(SettingsError) as caught:
        resolved(tmp_path, text, *overrides, **given)
    return str(caught.value)


def test_file_preset_and_override_are_translated_alike(tmp_path):
    wanted = Own(part=Part(on=True), train=Train(lr=1e-4, precision="fp32", clip=None))
    file = "training: {lr: 1e-4, amp: no, grad_clip: 0}\ntasks: {energy: {enabled: true}}\n"
    assert resolved(tmp_path, file) == (wanted, [])
    overrides = (
        "training.lr=1e-4",
        "training.amp=false",
        "training.grad_clip=0",
        "tasks.energy.enabled=true",
    )
    assert resolved(tmp_path, "", *overrides) == (wanted, [])
    preset = {"training.lr": 1e-4, "training": {"amp": False}, "training.grad_clip": 0}
    found, _ = resolved(tmp_path, "", preset={**preset, "tasks": {"energy": {"enabled": True}}})
    assert found == wanted


def test_our_own_name_wins_in_its_layer_and_a_later_layer_over_both(tmp_path):
    both = "train: {lr: 1.0}\ntraining: {lr: 2.0}\n"
    assert resolved(tmp_path, both)[0].train.lr == 1.0
    assert resolved(tmp_path, both, "training.lr=3")[0].train.lr == 3.0
    assert resolved(tmp_path, both, "train.lr=4", "training.lr=3")[0].train.lr == 4.0
    assert resolved(tmp_path, "training: {lr: 2}", preset={"train.lr": 5.0})[0].train.lr == 2.0


def test_ignored_and_deprecated_names_are_said_in_one_line_each(tmp_path):
    file = "distributed: {num_gpus: 4}\nold_width: 3\ntraining: {old_rate: 0.5}\n"
    found, lines = resolved(tmp_path, file)
    assert (found.width, found.train.lr) == (3, 0.5)
    assert lines == [
        "distributed is ignored: torchrun says how many ranks there are",
        "old_width is an old name of width: write width",
        "training.old_rate is an old name of training.lr: write training.lr",
    ]


def test_a_section_of_others_may_be_empty(tmp_path):
    assert resolved(tmp_path, "training:\n") == (Own(), [])
    assert resolved(tmp_path, "training: {}\n") == (Own(), [])


def test_errors_name_what_was_written(tmp_path):
    reported = refusal(tmp_path, "training: {grad_clip: -1}")
    assert reported.endswith("other.yaml: training.grad_clip: -1 is no norm")
    reported = refusal(tmp_path, "", "training.grad_clip=-1")
    assert reported == "override 'training.grad_clip=-1': training.grad_clip: -1 is no norm"
    reported = refusal(tmp_path, "training: {lr: high}")
    assert "train.lr must be a number of at least 0.0, not 'high'" in reported
    assert reported.endswith("it was written as training.lr")


@pytest.mark.parametrize(
    ("text", "overrides", "says"),
    [
        ("training: {lrr: 1}", [], "'training.lrr'; did you mean 'training.lr'?"),
        ("", ["training.grad_clp=1"], "'training.grad_clp'; did you mean 'training.grad_clip'?"),
        ("trainin: {lr: 1}", [], "'trainin'; did you mean 'train"),
        ("train: {lrr: 1}", [], "'train.lrr'; did you mean 'train.lr'?"),
        ("distribute: 1", [], "'distribute'; did you mean 'distributed'?"),
    ],
)
def test_hints_know_the_other_names(tmp_path, text, overrides, says):
    assert says in refusal(tmp_path, text, *overrides)


def test_a_lenient_file_loses_what_nobody_knows(tmp_path):
    file = "training: {lr: 0.5, lrr: 1}\nwhat: {ever: 1}\ntrain: {clp: 1, clip: 2}\n"
    found, lines = resolved(tmp_path, file, lenient=True)
    assert found == Own(train=Train(lr=0.5, clip=2.0))
    assert [line.split("'")[1] for line in lines] == ["training.lrr", "what", "train.clp"]


def test_a_number_that_other_readers_take_for_text_is_a_number():
    assert from_dict({"lr": "1e-4", "clip": "1.5e3"}, kind=Train) == Train(lr=1e-4, clip=1.5e3)
    assert from_dict({"precision": "1e-4"}, kind=Train).precision == "1e-4"
    with pytest.raises(SettingsError, match="lr must be a number"):
        from_dict({"lr": "fast"}, kind=Train)
