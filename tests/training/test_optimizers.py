"""Optimizers by name: which class, which groups, and one clear line for what cannot be."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from holdfast.config import load
from holdfast.errors import SettingsError, UsageError
from holdfast.training.optimizers import OptimizerSettings, check, make_optimizer

CPU = torch.device("cpu")


class Lion(torch.optim.Optimizer):
    """An optimizer of the user's own, which takes whatever it is given."""

    def __init__(self, params: Any, lr: float = 1e-4, **options: Any) -> None:
        super().__init__(params, {"lr": lr, **options})

    def step(self, closure: Any = None) -> Any:
        """Nothing."""


class Saved(nn.Sequential):
    no_decay = True


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(7, 4)
        self.inner = nn.Linear(4, 4)
        self.head = nn.Linear(4, 7, bias=False)
        self.head.weight = self.embedding.weight


def names(model: nn.Module, optimizer: torch.optim.Optimizer) -> list[tuple[float, list[str]]]:
    """Decay and parameter names of every group."""
    known = {id(p): name for name, p in model.named_parameters()}
    return [
        (group["weight_decay"], [known[id(p)] for p in group["params"]])
        for group in optimizer.param_groups
    ]


def test_the_default_is_a_fused_adamw():
    optimizer = make_optimizer(nn.Linear(2, 2), OptimizerSettings(), CPU)
    assert type(optimizer) is torch.optim.AdamW
    assert all(group["fused"] is True and group["lr"] == 3e-4 for group in optimizer.param_groups)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("SGD", torch.optim.SGD),
        ("sgd", torch.optim.SGD),
        ("AdamW", torch.optim.AdamW),
        ("nadam", torch.optim.NAdam),
        ("adafactor", torch.optim.Adafactor),
        ("torch.optim:RMSprop", torch.optim.RMSprop),
    ],
)
def test_any_class_of_torch_by_name_in_any_case_makes_a_step(name, kind):
    model = nn.Linear(3, 2)
    before = model.weight.detach().clone()
    optimizer = make_optimizer(model, OptimizerSettings(name=name, lr=0.1), CPU)
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    assert type(optimizer) is kind
    assert not torch.equal(before, model.weight)


def test_a_class_of_the_users_own_gets_what_it_takes():
    settings = OptimizerSettings(name=f"{__name__}:Lion", betas=(0.9, 0.99))
    optimizer = make_optimizer(nn.Linear(2, 2), settings, CPU)
    assert type(optimizer).__name__ == "Lion"
    assert optimizer.param_groups[1]["betas"] == (0.9, 0.99)


@pytest.mark.parametrize(
    ("given", "reported"),
    [
        ({"name": "adamq"}, "unknown optimizer 'adamq'; did you mean 'adam"),
        ({"name": "quite other"}, "known are adadelta"),
        ({"name": "optimizer"}, "unknown optimizer 'optimizer'"),
        ({"name": "nowhere.at.all:X"}, "cannot be imported (ModuleNotFoundError"),
        ({"name": "torch.optim:Nothing"}, "cannot be imported (AttributeError"),
        ({"name": "torch.nn:Linear"}, "is no torch.optim.Optimizer"),
        ({"name": "lbfgs"}, "LBFGS computes the loss again within a step"),
        ({"name": "adamw", "momentum": 0.9}, "AdamW takes no momentum (0.9); remove it"),
        ({"name": "sgd", "betas": (0.9, 0.9)}, "SGD takes no betas"),
        ({"name": "rprop"}, "Rprop takes no weight_decay (0.01); set it to 0"),
        ({"name": "adafactor", "eps": 1e-8}, "Adafactor takes eps as (None, 0.001), not 1e-08"),
        ({"betas": (0.9, 1.0)}, "betas must be from 0 to below 1, not 1.0"),
    ],
)
def test_what_cannot_be_is_reported_without_a_model(given, reported):
    with pytest.raises(SettingsError) as error:
        check(OptimizerSettings(**given))
    assert reported in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("text", ["lr=0", "lr=-1", "weight_decay=-0.1", "eps=0", "momentum=-1"])
def test_impossible_numbers_are_refused_when_they_are_read(text):
    with pytest.raises(SettingsError, match=text.partition("=")[0]):
        load(None, [text], kind=OptimizerSettings)


def test_a_rate_is_read_as_people_write_it():
    assert load(None, ["lr=1e-4", "betas=0.9,0.95"], kind=OptimizerSettings) == OptimizerSettings(
        lr=1e-4, betas=(0.9, 0.95)
    )


def test_an_optimizer_without_decay_takes_one_of_zero():
    optimizer = make_optimizer(
        nn.Linear(2, 2), OptimizerSettings(name="rprop", weight_decay=0), CPU
    )
    assert len(optimizer.param_groups) == 1
    assert "weight_decay" not in optimizer.param_groups[0]


def test_a_decay_of_zero_beats_the_default_of_the_class():
    optimizer = make_optimizer(nn.Linear(2, 2), OptimizerSettings(weight_decay=0.0), CPU)
    assert [group["weight_decay"] for group in optimizer.param_groups] == [0.0, 0.0]


def test_biases_norms_embeddings_and_small_tensors_are_not_decayed():
    model = nn.ModuleDict(
        {
            "embed": nn.Embedding(5, 4),
            "bag": nn.EmbeddingBag(5, 4),
            "linear": nn.Linear(4, 4),
            "wide_norm": nn.LayerNorm([4, 4]),
            "rms": nn.RMSNorm([2, 4]),
            "group": nn.GroupNorm(2, 4),
            "batch": nn.BatchNorm2d(4),
            "instance": nn.InstanceNorm1d(4, affine=True),
            "gru": nn.GRU(4, 4),
            "attention": nn.MultiheadAttention(4, 1, add_bias_kv=True),
            "conv": nn.Conv2d(4, 4, 3),
        }
    )
    groups = names(model, make_optimizer(model, OptimizerSettings(), CPU))
    assert groups[0] == (
        0.01,
        [
            "linear.weight",
            "gru.weight_ih_l0",
            "gru.weight_hh_l0",
            "attention.in_proj_weight",
            "attention.out_proj.weight",
            "conv.weight",
        ],
    )
    assert groups[1][0] == 0.0
    assert len(groups[0][1]) + len(groups[1][1]) == len(list(model.parameters()))


def test_modules_and_parameters_can_say_that_they_are_not_decayed():
    last = nn.Linear(2, 2)
    last.weight.no_decay = True  # type: ignore[attr-defined]
    model = nn.Sequential(nn.Linear(2, 2), Saved(nn.Linear(2, 2)), last)
    groups = names(model, make_optimizer(model, OptimizerSettings(), CPU))
    assert groups[0] == (0.01, ["0.weight"])


def test_everything_is_decayed_when_asked():
    model = nn.Linear(2, 2)
    groups = names(model, make_optimizer(model, OptimizerSettings(decay_all=True), CPU))
    assert groups == [(0.01, ["weight", "bias"])]


def test_a_tied_weight_is_there_once_and_as_an_embedding():
    model = Tied()
    groups = names(model, make_optimizer(model, OptimizerSettings(), CPU))
    assert groups == [(0.01, ["inner.weight"]), (0.0, ["embedding.weight", "inner.bias"])]


def test_frozen_parameters_are_left_out():
    model = nn.Linear(2, 2)
    model.bias.requires_grad_(False)
    assert names(model, make_optimizer(model, OptimizerSettings(), CPU)) == [(0.01, ["weight"])]
    model.weight.requires_grad_(False)
    with pytest.raises(UsageError, match="Linear has no parameter that requires a gradient"):
        make_optimizer(model, OptimizerSettings(), CPU)


def test_a_parameter_without_a_shape_is_reported():
    with pytest.raises(UsageError, match=r"weight of LazyLinear .* run one batch"):
        make_optimizer(nn.LazyLinear(2), OptimizerSettings(), CPU)


def test_muon_takes_a_model_of_matrices_and_names_what_is_none():
    settings = OptimizerSettings(name="muon", momentum=0.9)
    assert make_optimizer(nn.Linear(2, 2, bias=False), settings, CPU).param_groups[0]["lr"] == 3e-4
    with pytest.raises(SettingsError, match=r"2-D weights only, but 0.bias of shape \(2,\) and 1"):
        make_optimizer(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)), settings, CPU)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_a_fused_optimizer_steps_with_every_dtype_it_claims(dtype):
    model = nn.Linear(2, 2).to(dtype)
    optimizer = make_optimizer(model, OptimizerSettings(lr=0.5), CPU)
    before = model.weight.detach().clone()
    model.weight.grad = torch.ones_like(model.weight)
    optimizer.step()
    assert optimizer.param_groups[0]["fused"] is True
    assert not torch.equal(before, model.weight)


@pytest.mark.parametrize(
    ("model", "device"),
    [
        (nn.Embedding(3, 2, sparse=True), "cpu"),
        (nn.ParameterDict({"x": torch.zeros(2, dtype=torch.complex64)}), "cpu"),
        (nn.Linear(2, 2), "mps"),
    ],
)
def test_fused_is_left_out_where_there_is_no_kernel(model, device):
    optimizer = make_optimizer(model, OptimizerSettings(name="sgd"), torch.device(device))
    assert optimizer.param_groups[0]["fused"] is None


def test_fused_adagrad_waits_for_the_torch_that_has_it_on_cuda(monkeypatch):
    cuda, settings = torch.device("cuda"), OptimizerSettings(name="adagrad")
    model = nn.Linear(2, 2, device="meta")
    monkeypatch.setattr("holdfast.training.optimizers._ADAGRAD_ON_CUDA", False)
    assert make_optimizer(model, settings, cuda).param_groups[0]["fused"] is None
    monkeypatch.setattr("holdfast.training.optimizers._ADAGRAD_ON_CUDA", True)
    assert make_optimizer(model, settings, cuda).param_groups[0]["fused"] is True


def test_a_refused_fused_kernel_is_refused_to_the_guard_too():
    optimizer = make_optimizer(nn.Linear(2, 2), OptimizerSettings(fused=False), CPU)
    assert [group["fused"] for group in optimizer.param_groups] == [False, False]
