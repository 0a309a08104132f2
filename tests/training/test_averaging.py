"""The average of the weights: its numbers, its place in the model, and its state."""

from __future__ import annotations

import contextlib
import copy
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from holdfast.checkpoint.training_state import TrainingState
from holdfast.config import load
from holdfast.errors import CheckpointError, SettingsError, UsageError
from holdfast.training.averaging import Average, AverageSettings


def settings(decay: float = 0.9, warmup: bool = False) -> AverageSettings:
    return AverageSettings(decay=decay, warmup=warmup)


@torch.no_grad()
def fill(model: nn.Module, value: float) -> None:
    for parameter in model.parameters():
        parameter.fill_(value)


def averaged(average: Average, name: str = "weight") -> torch.Tensor:
    return average.state_dict()["weights"][name]


def test_each_update_moves_the_average_by_the_rest_of_the_decay():
    model = nn.Linear(2, 2)
    fill(model, 1.0)
    average = Average(model, settings(0.9))
    fill(model, 2.0)
    average.update()
    assert averaged(average).flatten().tolist() == pytest.approx([1.1] * 4)
    average.update()
    assert averaged(average, "bias").tolist() == pytest.approx([1.19] * 2)
    assert average.n == 2


def test_warm_up_follows_faster_in_the_first_steps():
    average = Average(nn.Linear(2, 2), settings(0.5, warmup=True))
    found = []
    for _ in range(12):
        found.append(average.decay)
        average.update()
    assert found[:3] == [1 / 10, 2 / 11, 3 / 12]
    assert found[-1] == 0.5
    assert Average(nn.Linear(2, 2), settings(0.5)).decay == 0.5


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_small_steps_of_low_precision_weights_are_not_lost(dtype):
    model = nn.Linear(2, 2).to(dtype)
    fill(model, 1.0)
    average = Average(model, settings(0.999))
    fill(model, 1.5)
    for _ in range(100):
        average.update()
    assert averaged(average).dtype is torch.float32
    assert averaged(average).flatten().tolist() == pytest.approx([1.5 - 0.5 * 0.999**100] * 4)


def test_double_precision_and_complex_weights_keep_theirs():
    model = nn.ParameterDict({"a": torch.zeros(2, dtype=torch.float64), "b": torch.zeros(2) * 1j})
    average = Average(model, settings(0.5))
    fill(model, 1.0)
    average.update()
    assert averaged(average, "a").tolist() == [0.5, 0.5]
    assert averaged(average, "a").dtype is torch.float64
    assert averaged(average, "b").tolist() == [0.5 + 0j, 0.5 + 0j]


def test_many_weights_of_several_kinds_are_all_averaged(monkeypatch):
    monkeypatch.setattr("holdfast.training.averaging._PORTION", 5)
    model = nn.Sequential(*(nn.Linear(2, 2) for _ in range(4)), nn.Linear(2, 2).bfloat16())
    fill(model, 0.0)
    average = Average(model, settings(0.5))
    fill(model, 1.0)
    average.update()
    weights = average.state_dict()["weights"]
    assert weights.keys() == dict(model.named_parameters()).keys()
    assert all((weight == 0.5).all() for weight in weights.values())


def test_in_place_the_model_has_the_averaged_weights_and_afterwards_its_own_bits():
    first = nn.Linear(3, 3)
    model = nn.Sequential(first, nn.BatchNorm1d(3), nn.Linear(3, 3).bfloat16())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    fill(model, 1.0)
    average = Average(model, settings(0.5))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_()
        first.weight[0, 0] = float("nan")
        first.weight[0, 1] = -0.0
    first(torch.ones(2, 3)).sum().backward()
    held = [(p, p.data_ptr(), _bits(p)) for p in model.parameters()]
    gradient = first.weight.grad
    with average.in_place(model):
        assert all((p == 1.0).all() for p in model.parameters())
        assert optimizer.param_groups[0]["params"][0] is first.weight
    for parameter, place, bits in held:
        assert parameter.data_ptr() == place
        assert torch.equal(_bits(parameter), bits)
    assert first.weight.grad is gradient


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().clone().view(torch.uint8)


def test_an_exception_in_the_block_brings_the_weights_back_too():
    model = nn.Linear(2, 2)
    fill(model, 1.0)
    average = Average(model, settings())
    fill(model, 2.0)
    with contextlib.suppress(ZeroDivisionError), average.in_place(model):
        assert (model.weight == 1.0).all()
        raise ZeroDivisionError
    assert (model.weight == 2.0).all()


def test_the_average_is_the_same_after_it_was_in_place_even_if_the_block_changed_the_model():
    model = nn.Linear(2, 2)
    average = Average(model, settings())
    before = averaged(average).clone()
    with average.in_place(model), torch.inference_mode():
        model.weight.zero_()
    assert torch.equal(averaged(average), before)
    assert torch.equal(model.weight.detach(), before)


def test_buffers_are_copied_and_what_a_validation_does_to_them_is_undone():
    model = nn.BatchNorm1d(2)
    mean = model.get_buffer("running_mean")
    average = Average(model, settings(0.9))
    model(torch.randn(8, 2) + 5)
    average.update()
    trained = mean.clone()
    assert torch.equal(average.state_dict()["buffers"]["running_mean"], trained)
    with average.in_place(model):
        model(torch.randn(8, 2) - 50)
        assert not torch.equal(mean, trained)
    assert torch.equal(mean, trained)
    assert "num_batches_tracked" not in average.state_dict()["buffers"]


class Changing(nn.Module):
    """Its buffers come, go and grow."""

    seen: torch.Tensor | None

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))
        self.register_buffer("seen", torch.zeros(2))
        self.register_buffer("later", None)
        self.register_buffer("mask", torch.zeros(3), persistent=False)


def test_a_buffer_that_is_replaced_is_followed():
    model = Changing()
    average = Average(model, settings())
    model.seen = torch.ones(3)
    model.later = torch.ones(1)
    with average.in_place(model):
        assert model.get_buffer("seen").tolist() == [1.0, 1.0, 1.0]
    average.update()
    assert average.state_dict()["buffers"].keys() == {"seen"}
    assert average.state_dict()["buffers"]["seen"].tolist() == [1.0, 1.0, 1.0]
    model.seen = None
    average.update()
    with average.in_place(model):
        assert model.seen is None


def test_a_tied_weight_is_kept_once():
    model = nn.ModuleDict({"one": nn.Linear(2, 2, bias=False), "two": nn.Linear(2, 2, bias=False)})
    model["two"].weight = model["one"].weight
    average = Average(model, settings(0.5))
    fill(model, 3.0)
    average.update()
    assert list(average.state_dict()["weights"]) == ["one.weight"]
    with average.in_place(model):
        assert model["two"].weight is model["one"].weight


def test_a_wrapper_of_the_model_will_do_and_another_model_will_not():
    model = nn.Linear(2, 2)
    fill(model, 1.0)
    average = Average(model, settings())
    fill(model, 2.0)
    with average.in_place(nn.Sequential(model)):
        assert (model.weight == 1.0).all()
    reported = "Linear is not the model that is averaged: it does not hold weight;"
    with pytest.raises(UsageError, match=reported), average.in_place(nn.Linear(2, 2)):
        pass


def test_a_decay_of_zero_keeps_nothing():
    model = nn.Linear(2, 2)
    average = Average(model, AverageSettings())
    average.update()
    assert not average.state_dict()["weights"]
    before = model.weight.detach().clone()
    with average.in_place(model):
        assert torch.equal(model.weight, before)


def test_a_state_goes_on_bit_for_bit():
    torch.manual_seed(0)
    model, other = (nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3)) for _ in range(2))
    one, two = Average(model, settings(0.9, warmup=True)), Average(other, settings(0.9, True))
    for number in range(3):
        fill(model, number / 7)
        one.update()
    two.load_state_dict(one.state_dict())
    for number in range(3, 6):
        for source, average in ((model, one), (other, two)):
            fill(source, number / 7)
            average.update()
    assert one.n == two.n == 6
    for name, weight in one.state_dict()["weights"].items():
        assert torch.equal(weight, two.state_dict()["weights"][name])


class NothingRead(TorchDispatchMode):
    """Fails where the host asks for a number that a device may still be computing."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        assert "_local_scalar_dense" not in str(func)
        return func(*args, **(kwargs or {}))


def test_nothing_is_read_back_from_the_device():
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2), nn.Linear(2, 2).bfloat16())
    average = Average(model, settings(0.9, warmup=True))
    with NothingRead():
        average.update()
        with average.in_place(model):
            pass
        with pytest.raises(AssertionError):
            torch.ones(1).item()


def test_a_checkpoint_holds_the_average_and_puts_it_back():
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    average = Average(model, settings(0.5))
    training_state = TrainingState({"model": model}, [optimizer], ema={"average": average})
    average.update()
    saved, own = copy.deepcopy(training_state.state()), averaged(average, "0.weight")
    before = own.clone()
    assert not saved["left_out"]
    fill(model, 5.0)
    average.update()
    assert not torch.equal(own, before)
    training_state.put_back(saved)
    assert torch.equal(own, before) and average.n == 1


def test_a_loaded_state_is_copied_into_the_tensors_that_are_there():
    model = nn.Linear(2, 2)
    average = Average(model, settings())
    own = averaged(average)
    other = Average(nn.Linear(2, 2), settings())
    average.load_state_dict(other.state_dict())
    assert averaged(average) is own
    assert torch.equal(own, averaged(other)) and own is not averaged(other)


@pytest.mark.parametrize(
    ("source", "reported"),
    [
        (
            nn.Linear(3, 2),
            r"weight of the saved average has the shape \(2, 3\), of the model \(2, 2",
        ),
        (nn.Linear(2, 2, bias=False), "the saved average has no bias"),
        (nn.Bilinear(2, 2, 2), "weight of the saved average has the shape"),
        (nn.ParameterDict({"other": torch.ones(1)}), "the saved average has no weight"),
    ],
)
def test_a_state_of_another_model_is_refused_before_anything_is_written(source, reported):
    average = Average(nn.Linear(2, 2), settings())
    before = averaged(average).clone()
    with pytest.raises(CheckpointError, match=reported):
        average.load_state_dict(Average(source, settings()).state_dict())
    assert torch.equal(averaged(average), before)
    assert average.n == 0


def test_a_saved_average_is_refused_where_averaging_is_off():
    saved = Average(nn.Linear(2, 2), settings()).state_dict()
    with pytest.raises(CheckpointError, match="the model has no weight"):
        Average(nn.Linear(2, 2), AverageSettings()).load_state_dict(saved)


@pytest.mark.parametrize("text", ["decay=1", "decay=-0.1", "decay=2"])
def test_an_impossible_decay_is_refused(text):
    with pytest.raises(SettingsError, match="decay must be a number from"):
        load(None, [text], kind=AverageSettings)
