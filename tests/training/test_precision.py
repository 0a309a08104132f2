"""Which precision is taken where, and that it is the one the model computes in."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from holdfast.config import ScalerSettings
from holdfast.errors import SettingsError
from holdfast.training import precision as home
from holdfast.training.precision import Precision

CPU, CUDA = torch.device("cpu"), torch.device("cuda", 0)


@pytest.fixture
def gpu(monkeypatch):
    """Pretends that there is a GPU of the compute capability it is called with."""

    def pretend(*generation: int) -> None:
        found = generation or None
        monkeypatch.setattr(home, "_generation", lambda device: found)
        scaler = home.apply_scaler_policy("cpu")
        monkeypatch.setattr(
            home, "apply_scaler_policy", lambda device, settings: (scaler, device, settings)
        )

    return pretend


def test_the_cpu_gets_fp32_and_no_scaler():
    precision = Precision("auto", CPU)
    assert (precision.name, precision.scaler) == ("fp32", None)
    assert precision.why.startswith("fp32: ")


@pytest.mark.parametrize(
    ("generation", "name", "why"),
    [
        ((9, 0), "bf16", "the GPU has it"),
        ((8, 0), "bf16", "the GPU has it"),
        ((7, 5), "fp16", "7.5"),
        ((), "bf16", "the GPU has it"),  # AMD
    ],
)
def test_a_gpu_gets_the_16_bits_it_is_good_at(gpu, generation, name, why):
    gpu(*generation)
    precision = Precision("auto", CUDA)
    assert precision.name == name
    assert why in precision.why and "\n" not in precision.why
    assert (precision.scaler is not None) == (name == "fp16")


def test_fp16_has_a_calm_scaler_with_the_given_numbers_for_the_device(gpu):
    gpu(9, 0)
    numbers = ScalerSettings(init=8.0)
    precision = Precision("fp16", CUDA, numbers)
    assert precision.scaler[1:] == ("cuda", numbers)  # type: ignore[index]
    assert precision.why == "fp16: asked for"


def test_bf16_on_an_old_gpu_is_done_and_told_to_be_slow(gpu):
    gpu(7, 0)
    precision = Precision("bf16", CUDA)
    assert precision.name == "bf16" and precision.scaler is None
    assert "compute capability 7.0" in precision.why and "slow" in precision.why


def test_another_kind_of_device_is_left_at_fp32():
    assert Precision("auto", torch.device("mps")).why == "fp32: nothing else is tried on mps"


@pytest.mark.parametrize("device", ["cpu", "mps"])
def test_fp16_without_cuda_is_refused_with_the_next_move(device):
    with pytest.raises(SettingsError, match=f"is on {device}; set precision to bf16, fp32 or auto"):
        Precision("fp16", torch.device(device))


def test_the_model_computes_in_the_precision_and_keeps_its_weights():
    model, x = nn.Linear(2, 2), torch.ones(1, 2)
    for precision, dtype in [
        (Precision("fp32", CPU), torch.float32),
        (Precision("bf16", CPU), torch.bfloat16),
    ]:
        for _ in range(2):  # it can be entered again
            with precision.autocast():
                assert model(x).dtype is dtype
        assert model(x).dtype is torch.float32
    assert model.weight.dtype is torch.float32


def test_weights_that_change_between_two_passes_are_seen():
    model, x = nn.Linear(2, 2, bias=False), torch.ones(1, 2)
    precision = Precision("bf16", CPU)
    with precision.autocast():
        model(x)
    with torch.no_grad():
        model.weight.zero_()
    with precision.autocast():
        assert not model(x).any()


def test_a_pass_without_gradients_leaves_the_next_one_its_own():
    model, x = nn.Linear(2, 2), torch.ones(1, 2)
    with Precision("bf16", CPU).autocast():
        with torch.no_grad():
            model(x)
        loss = model(x).float().sum()
    loss.backward()
    assert model.weight.grad is not None
