from __future__ import annotations

import platform

import pytest
import torch

from holdfast.errors import UsageError
from holdfast.training import platforms


@pytest.fixture
def machine(monkeypatch):
    def put(name: str, cuda: bool) -> None:
        monkeypatch.setattr(platform, "machine", lambda: name)
        monkeypatch.setattr(torch.cuda, "is_available", lambda: cuda)

    return put


@pytest.mark.parametrize(
    ("processor", "cuda", "found"),
    [
        ("aarch64", False, "arm"),
        ("aarch64", True, "arm"),
        ("ARM64", False, "arm"),
        ("x86_64", True, "cuda"),
        ("AMD64", False, "cpu"),
    ],
)
def test_the_machine_is_known_by_its_processor_and_its_gpu(machine, processor, cuda, found):
    machine(processor, cuda)
    assert platforms.detect().name == found
    assert platforms.named("auto") == platforms.detect()


def test_arm_wants_one_worker_and_says_why():
    (line,) = platforms.named("arm").lines()
    assert line.startswith("platform arm: train.data.workers=1: ") and "threads" in line


def test_where_the_defaults_fit_nothing_is_suggested():
    for name in ("cuda", "cpu", "none"):
        assert not list(platforms.named(name).lines())


def test_a_wrong_name_is_told_the_nearest():
    with pytest.raises(UsageError, match="did you mean 'cuda'"):
        platforms.named("cudda")
    with pytest.raises(UsageError, match="there are auto, arm, cuda, cpu, none"):
        platforms.named("xyz")
