"""Every setting changes the network, the data or the step: none is there for show."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from holdfast.config import Section
from holdfast_models.liquid.course import Course
from holdfast_models.liquid.data.opening import open_data
from holdfast_models.liquid.model.model import LiquidNet, inputs_of
from holdfast_models.liquid.objective import Objective
from holdfast_models.liquid.run_settings import LiquidSettings

# What a setting needs beside it to matter.
MAMBA = ("model.mamba.on=true",)
PLASTIC = ("plasticity.on=true", "plasticity.interval=1", "plasticity.lr=5.0")
CHANGES: dict[str, tuple[str, tuple[str, ...]]] = {
    "task": ("robotics", ()),
    "label_smoothing": ("0.2", ()),
    "model.num_layers": ("3", ()),
    "model.hidden_dim": ("24", ()),
    "model.liquid_units": ("12", ()),
    "model.spiking_units": ("12", ()),
    "model.embedding_dim": ("24", ()),
    "model.max_position_embeddings": ("32", ()),
    "model.tie_embeddings": ("true", ()),
    "model.liquid_backbone": ("ltc_scan", ()),
    "model.residual": ("concatenation", ()),
    "model.dropout": ("0.5", ()),
    "model.embedding_dropout": ("0.5", ()),
    "model.spikes.threshold": ("0.5", ()),
    "model.spikes.beta": ("0.5", ()),
    "model.spikes.steps": ("5", ()),
    "model.spikes.reset": ("none", ("model.spikes.steps=8",)),
    "model.spikes.surrogate": ("atan", ()),
    "model.spikes.slope": ("3.0", ("model.spikes.slope_from=null",)),
    "model.spikes.slope_from": ("20.0", ()),
    "model.spikes.anneal": ("2", ()),
    "model.spikes.learn_beta": ("true", ()),
    "model.spikes.learn_threshold": ("true", ()),
    "model.spikes.persist": ("true", ()),
    "model.spikes.dropout": ("0.7", ()),
    "model.spikes.decode_method": ("temporal", ()),
    "model.attention.on": ("false", ()),
    "model.attention.heads": ("4", ()),
    "model.attention.spiking": ("false", ()),
    "model.attention.steps": ("6", ()),
    "model.attention.window": ("2", ()),
    "model.attention.dropout": ("0.5", ()),
    "model.mamba.on": ("true", ()),
    "model.mamba.mode": ("parallel", MAMBA),
    "model.mamba.state": ("4", MAMBA),
    "model.mamba.conv": ("2", MAMBA),
    "model.mamba.expand": ("3", MAMBA),
    "model.mamba.kind": ("ssd", MAMBA),
    "model.mamba.conversion": ("rate", MAMBA),
    "model.mamba.tau": ("2.0", MAMBA),
    "model.mamba.exchange": ("two_pass", MAMBA),
    "model.mamba.feedback": ("true", MAMBA),
    "model.mamba.gate": ("true", MAMBA),
    "model.mamba.gate_heads": ("4", (*MAMBA, "model.mamba.gate=true")),
    "model.mamba.gate_floor": ("1.0", (*MAMBA, "model.mamba.gate=true")),
    "model.mamba.cross_attention": ("true", MAMBA),
    "model.mamba.cross_heads": ("4", (*MAMBA, "model.mamba.cross_attention=true")),
    "model.vision.channels": ("8,16,16", ("task=vision",)),
    "model.vision.kernels": ("5,3,3", ("task=vision",)),
    "plasticity.on": ("true", ("plasticity.interval=1",)),
    "plasticity.rule": ("bcm", PLASTIC),
    "plasticity.lr": ("50.0", PLASTIC),
    "plasticity.tau_plus": ("2.0", PLASTIC),
    "plasticity.tau_minus": ("2.0", PLASTIC),
    "plasticity.target_rate": ("0.9", PLASTIC),
    "plasticity.interval": ("2", PLASTIC),
    "plasticity.bound": ("1e-6", PLASTIC),
    "plasticity.cap": ("1e-6", PLASTIC),
    "plasticity.non_negative": ("true", PLASTIC),
    "data.sources": ("topics", ()),
    "data.megabytes": ("0.01", ()),
    "data.tokenizer": ("random", ("data.vocab_size=258",)),
    "data.vocab_size": ("400", ("data.tokenizer=random", "data.vocab_size=300")),
    "data.sequence_length": ("9", ()),
    "data.seed": ("3", ("task=vision",)),
    "data.samples": ("96", ("task=vision",)),
    "data.images": ("shapes", ("task=vision", "data.images=digits")),
    "data.robot": ("arm", ("task=robotics",)),
}
# Seen in other tests: the trainer's own, pictures, files; forms that compute the same; tasks in
# turn and the controller, which need more steps than these.
ELSEWHERE = (
    "train.", "continual.", "plasticity.meta.", "pictures", "self_check", "data.folder",
    "model.mamba.form", "model.graph",
)  # fmt: skip


def names(kind: type, before: str = "") -> Iterator[str]:
    for field in dataclasses.fields(kind):
        value = getattr(kind(), field.name)
        if isinstance(value, Section):
            yield from names(type(value), f"{before}{field.name}.")
        else:
            yield f"{before}{field.name}"


def test_every_setting_is_walked() -> None:
    known = [name for name in names(LiquidSettings) if not name.startswith(ELSEWHERE)]
    assert sorted(known) == sorted(CHANGES)


def trace(settings: Any) -> list[Any]:
    """What two training steps compute, and the sizes of everything."""
    torch.manual_seed(0)
    opened = open_data(settings)
    net = LiquidNet(settings.model, opened.sizes, settings.plasticity)
    course = Course(settings, net, opened.tasks, opened.train, 100)
    objective = Objective(settings, opened.sizes, course, opened.bytes_per_token)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    course.prepared(optimizer)
    batch = opened.train.__getitems__(range(4)).batch  # type: ignore[attr-defined]
    found: list[Any] = [tuple(opened.sizes), len(opened.train)]  # type: ignore[arg-type]
    found += [(name, tuple(one.shape)) for name, one in net.named_parameters()]
    found += [name for name, one in net.named_parameters() if not one.requires_grad]
    found += [tuple(one.shape) for one in inputs_of(settings.task, batch) if one is not None]
    for step in (1, 2, 3):
        loss, _ = objective.loss(net, batch)
        loss.backward()
        found.append(float(loss.detach()))
        optimizer.step()
        optimizer.zero_grad()
        course.stepped(step)
    # Fast weights are buffers; what they move the loss by can be below its last digit.
    floats = [one for one in net.buffers() if one.is_floating_point()]
    return [*found, *(float(one.double().sum()) for one in floats)]


@pytest.fixture(scope="module")
def traced() -> dict[tuple[str, ...], list[Any]]:
    """What settings compute before one of them is changed: the same for many of them."""
    return {}


@pytest.mark.parametrize("name", CHANGES)
def test_a_setting_changes_what_is_computed(
    name: str, settings_of: Any, traced: dict[tuple[str, ...], list[Any]]
) -> None:
    value, needs = CHANGES[name]
    common = ("model.dropout=0.1", "train.data.batch=4", *needs)
    if common not in traced:
        traced[common] = trace(settings_of(*common))
    plain = traced[common]
    changed = trace(settings_of(*common, f"{name}={value}"))
    assert all(math.isfinite(one) for one in changed if isinstance(one, float))
    assert plain != changed


def test_the_same_settings_compute_the_same(settings_of: Any) -> None:
    assert trace(settings_of(*MAMBA, *PLASTIC)) == trace(settings_of(*MAMBA, *PLASTIC))
