"""Random state: all generators of the process, exactly."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch

from holdfast.checkpoint import rng
from holdfast.checkpoint.tree import flatten, unflatten


def draw() -> list[Any]:
    """From every generator, gaussians too: those keep a second number in store."""
    return [
        random.random(),
        random.gauss(0, 1),
        float(np.random.rand()),
        float(np.random.randn()),
        torch.rand(3).tolist(),
        torch.randn(3).tolist(),
    ]


def test_every_generator_comes_back_through_a_file_s_form() -> None:
    draw()  # amid a pair of gaussians
    saved = unflatten(*flatten(rng.state()))
    first = draw()
    assert draw() != first
    rng.put_back(saved)
    assert draw() == first


@pytest.mark.parametrize(
    "use",
    [random.random, np.random.rand, lambda: torch.rand(1), lambda: random.gauss(0, 1)],
    ids=["python", "numpy", "torch", "gauss"],
)
def test_one_draw_anywhere_is_seen(use: Any) -> None:
    before = rng.state()
    assert rng.same(before, rng.state())
    use()
    assert not rng.same(before, rng.state())


def test_taking_the_state_draws_nothing() -> None:
    before = rng.state()
    for _ in range(3):
        rng.state()
    assert rng.same(before, rng.state())
    assert torch.cuda.is_initialized() or "cuda" not in before


def test_another_kind_of_numpy_generator() -> None:
    legacy: Any = np.random
    usual = legacy.get_bit_generator()
    try:
        legacy.set_bit_generator(np.random.PCG64(3))
        saved = unflatten(*flatten(rng.state()))
        first = np.random.rand(4)
        rng.put_back(saved)
        assert (np.random.rand(4) == first).all()
    finally:
        legacy.set_bit_generator(usual)


def test_devices_this_machine_has_not_are_named() -> None:
    tree = rng.state()
    assert rng.missing(tree) == ""
    many = torch.cuda.device_count() + 2
    tree["cuda"] = [torch.zeros(16, dtype=torch.uint8)] * many
    assert f"of {many} CUDA devices, this machine has {many - 2}" in rng.missing(tree)
