from __future__ import annotations

import dataclasses
import platform
from typing import Any

import pytest
import torch

from holdfast.config import Section
from holdfast.errors import SettingsError, UsageError
from holdfast.training import platforms
from holdfast.training.recipes import Recipe, in_force, resolve
from holdfast.training.resolving import suggested
from holdfast.training.settings import TrainSettings


@dataclasses.dataclass(frozen=True, kw_only=True)
class Own(Section):
    train: TrainSettings = dataclasses.field(default_factory=TrainSettings)


def made(**given: Any) -> Recipe:
    return Recipe(name="mine", summary="a test", settings=Own, build=lambda s, p: s, **given)


@pytest.fixture
def machine(monkeypatch):
    def put(name: str, gpu: str) -> None:
        monkeypatch.setattr(platform, "machine", lambda: name)
        monkeypatch.setattr(torch.cuda, "is_available", lambda: bool(gpu))
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda: gpu)

    return put


@pytest.mark.parametrize(
    ("processor", "gpu", "found"),
    [
        ("aarch64", "", "arm"),
        ("aarch64", "NVIDIA GH200 480GB", "gh200"),
        ("aarch64", "NVIDIA A100", "arm"),
        ("ARM64", "", "arm"),
        ("x86_64", "NVIDIA H200", "h200"),
        ("x86_64", "NVIDIA H100 80GB HBM3", "h100"),
        ("x86_64", "NVIDIA A100-SXM4-40GB", "a100"),
        ("x86_64", "NVIDIA GeForce RTX 3060", "cuda"),
        ("AMD64", "", "cpu"),
    ],
)
def test_the_machine_is_known_by_its_processor_and_its_gpu(machine, processor, gpu, found):
    machine(processor, gpu)
    assert platforms.detect().name == found
    assert platforms.named("auto") == platforms.detect()


def values(name: str, recipe: Recipe | None = None) -> dict[str, str]:
    return {one.key: one.value for one in suggested(recipe or made(), name)}


def test_where_the_defaults_fit_nothing_is_suggested():
    for name in ("h200", "cuda", "arm", "cpu", "none"):
        assert not suggested(made(), name)


PLATFORMS = {
    "cuda": {"train.data.batch": 64, "train.compile.mode": "default"},
    "h200": {"train": {"data": {"batch": 8192, "workers": 8, "threads": 2}}},
    "interactive": {"train.data.batch": 16, "train.accumulate": 2},
    "arm": {"train.data.workers": 2},
}


def test_a_recipe_says_more_about_a_kind_and_has_kinds_of_its_own():
    recipe = made(platforms=PLATFORMS)
    train = resolve(recipe, platform="h200").train
    assert (train.data.batch, train.data.workers, train.data.threads) == (8192, 8, 2)
    assert train.compile.mode == "default"  # of a CUDA GPU
    assert resolve(recipe, platform="interactive").train.accumulate == 2
    assert values("gh200", recipe) == {"train.data.workers": "2", "train.data.threads": "8"}
    assert resolve(recipe, platform="none") == Own()
    again = resolve(recipe, overrides=["train.data.batch=5"], platform="h200")
    assert again.train.data.batch == 5
    assert [one.key for one in in_force(recipe, "h200", again)] == [
        "train.compile.mode",
        "train.data.workers",
        "train.data.threads",
    ]


def test_a_setting_that_is_none_is_refused():
    with pytest.raises(SettingsError, match=r"unknown setting 'train.data.bach'.*batch"):
        resolve(made(platforms={"cpu": {"train.data.bach": 1}}), platform="cpu")


def test_no_kind_of_ours_changes_what_is_learned():
    free = {"train.data.workers", "train.data.threads"}
    assert {one.key for kind in platforms.PLATFORMS for one in kind.suggestions} <= free


def test_a_wrong_name_is_reported_the_nearest():
    with pytest.raises(UsageError, match="did you mean 'cuda'"):
        platforms.named("cudda")
    with pytest.raises(UsageError, match=r"there are auto, .*, arm, cuda, cpu, shared, none, mine"):
        platforms.named("xyz", ["mine"])
