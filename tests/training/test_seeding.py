"""Seeds and switches: what is set, what is put back, and streams that have nothing in common."""

from __future__ import annotations

import os
import random
import warnings

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from holdfast.config import load
from holdfast.errors import SettingsError
from holdfast.training import seeding
from holdfast.training.seeding import SeedSettings, generator, prepare

WORKSPACE = "CUBLAS_WORKSPACE_CONFIG"


@pytest.fixture(autouse=True)
def as_before(monkeypatch):
    """Whatever a test breaks, the next one finds the switches and the dice as they were."""
    monkeypatch.delenv(WORKSPACE, raising=False)
    rng_states = random.getstate(), np.random.get_state(), torch.get_rng_state()
    before = switches()
    yield
    random.setstate(rng_states[0])
    np.random.set_state(rng_states[1])
    torch.set_rng_state(rng_states[2])
    assert switches() == before


def switches() -> tuple[object, ...]:
    cudnn = torch.backends.cudnn
    return (
        cudnn.benchmark,
        cudnn.deterministic,
        cudnn.allow_tf32,
        torch.get_float32_matmul_precision(),
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
        os.environ.get(WORKSPACE),
    )


def drawn() -> tuple[float, float, float]:
    return random.random(), float(np.random.rand()), float(torch.rand(1))


def draws(rank: int, seed: int) -> tuple[float, float, float]:
    prepare(SeedSettings(seed=seed), rank)()
    return drawn()


def test_every_source_of_random_numbers_is_seeded():
    assert draws(0, seed=3) == draws(0, seed=3)
    assert not set(draws(0, seed=3)) & set(draws(0, seed=4))


def test_the_first_rank_draws_what_a_script_with_that_seed_draws():
    prepare(SeedSettings(seed=11), 0)()
    found = torch.rand(3)
    torch.manual_seed(11)
    assert torch.equal(found, torch.rand(3))


def test_ranks_draw_other_numbers_than_each_other():
    found = [draws(rank, seed=5) for rank in range(4)]
    assert len({value for one in found for value in one}) == 12


def test_putting_back_touches_no_random_numbers():
    put_back = prepare(SeedSettings(), 0)
    first = drawn()
    torch.manual_seed(0)
    random.seed(0)
    np.random.seed(0)
    put_back()
    assert drawn() == first


def test_the_switches_are_set_and_put_back_once():
    before = switches()
    put_back = prepare(SeedSettings(benchmark=not torch.backends.cudnn.benchmark, tf32=False), 0)
    assert torch.backends.cudnn.benchmark is not before[0]
    assert torch.backends.cudnn.allow_tf32 is False
    put_back()
    assert switches() == before
    torch.backends.cudnn.set_flags(_benchmark=True, **seeding._UNTOUCHED)
    put_back()  # nothing is left to put back
    assert torch.backends.cudnn.benchmark is True
    torch.backends.cudnn.set_flags(_benchmark=before[0], **seeding._UNTOUCHED)


def test_deterministic_means_every_switch_and_no_timing_of_kernels():
    put_back = prepare(SeedSettings(deterministic=True, benchmark=True), 0)
    assert switches()[:2] == (False, True)
    assert switches()[4:] == (True, False, ":4096:8")
    with pytest.raises(RuntimeError, match="deterministic"):
        torch.zeros(3).put_(torch.tensor([0, 0]), torch.ones(2), accumulate=False)
    put_back()
    assert WORKSPACE not in os.environ


def test_a_workspace_of_the_users_own_stays(monkeypatch):
    monkeypatch.setenv(WORKSPACE, ":16:8")
    put_back = prepare(SeedSettings(deterministic=True), 0)
    assert os.environ[WORKSPACE] == ":16:8"
    put_back()
    assert os.environ[WORKSPACE] == ":16:8"
    monkeypatch.delenv(WORKSPACE)


@pytest.mark.parametrize(("tf32", "precision"), [(True, "high"), (False, "highest")])
def test_matrices_are_multiplied_in_tf32_only_where_there_is_a_gpu(monkeypatch, tf32, precision):
    monkeypatch.setattr(seeding, "_has_gpu", lambda: False)
    put_back = prepare(SeedSettings(tf32=tf32), 0)
    assert torch.get_float32_matmul_precision() == "highest"
    put_back()
    monkeypatch.setattr(seeding, "_has_gpu", lambda: True)
    put_back = prepare(SeedSettings(tf32=tf32), 0)
    assert torch.get_float32_matmul_precision() == precision
    put_back()


def test_what_older_torch_says_of_its_switches_is_not_passed_on(monkeypatch):
    def old() -> str:
        warnings.warn("Please use the new API settings to control TF32 behavior", stacklevel=2)
        return "high"

    monkeypatch.setattr(seeding, "_has_gpu", lambda: True)
    monkeypatch.setattr(torch, "get_float32_matmul_precision", old)
    put_back = prepare(SeedSettings(), 0)  # a warning would be an error here
    monkeypatch.undo()
    put_back()


def test_switches_of_torch_that_disagree_are_reported_in_one_line(monkeypatch):
    def mixed() -> str:
        raise RuntimeError("a mix of the legacy and new APIs\nand much more")

    monkeypatch.setattr(seeding, "_has_gpu", lambda: True)
    monkeypatch.setattr(torch, "get_float32_matmul_precision", mixed)
    with pytest.raises(SettingsError, match="set one of them only") as error:
        prepare(SeedSettings(tf32=False), 0)
    assert "\n" not in str(error.value)
    monkeypatch.undo()


def test_a_switch_that_is_right_already_is_not_touched(monkeypatch):
    asked = []
    original = torch.backends.cudnn.set_flags
    monkeypatch.setattr(
        torch.backends.cudnn,
        "set_flags",
        lambda **flags: (asked.append(flags), original(**flags))[1],
    )
    wrong = not torch.backends.cudnn.benchmark
    prepare(SeedSettings(benchmark=wrong, tf32=torch.backends.cudnn.allow_tf32), 0)()
    read, changed, back = ({k: v for k, v in one.items() if v is not None} for one in asked)
    assert (read, changed, back) == ({}, {"_benchmark": wrong}, {"_benchmark": not wrong})


def test_a_default_device_is_no_concern_of_a_generator():
    torch.set_default_device("meta")
    try:
        made = generator(0, 1)
    finally:
        torch.set_default_device(None)
    assert made.device.type == "cpu"


@given(
    st.lists(st.lists(st.integers(0, 2**40), max_size=3), min_size=2, max_size=6, unique_by=tuple)
)
def test_no_two_salts_give_the_same_numbers(salts):
    found = {tuple(_numbers(SeedSettings(seed=9), *salt)) for salt in salts}
    assert len(found) == len(salts)


@pytest.mark.parametrize(("one", "other"), [((), (0,)), ((1,), (1, 0)), ((1 << 32,), (0,))])
def test_salts_that_look_alike_are_different(one, other):
    assert _numbers(SeedSettings(), *one) != _numbers(SeedSettings(), *other)


def test_a_salt_and_a_seed_give_the_same_numbers_again():
    assert _numbers(SeedSettings(seed=1), 2, 3) == _numbers(SeedSettings(seed=1), 2, 3)
    assert _numbers(SeedSettings(seed=1), 2) != _numbers(SeedSettings(seed=2), 1)


def _numbers(settings: SeedSettings, *salt: int) -> list[float]:
    return torch.rand(2, generator=generator(settings.seed, *salt)).tolist()


@pytest.mark.parametrize("text", ["seed=-1", "seed=4294967296", "seed=1.5", "tf32=maybe"])
def test_impossible_settings_are_refused(text):
    with pytest.raises(SettingsError, match=text.partition("=")[0]):
        load(None, [text], kind=SeedSettings)
