"""What is timed is what is trained: the reference says the same, and every rate is there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from holdfast.cli import main
from holdfast_models.liquid.evaluation.reference import plain_reference, token_by_token
from holdfast_models.liquid.model.model import LiquidNet, Sizes
from holdfast_models.liquid.settings import ModelSettings, PlasticitySettings

from ..conftest import SMALL


@pytest.mark.parametrize("reset", ["subtract", "zero", "none"])
def test_the_plain_reference_says_the_same(reset: str) -> None:
    torch.manual_seed(0)
    given: dict[str, Any] = {
        "hidden_dim": 16, "liquid_units": 8, "spiking_units": 8, "embedding_dim": 16,
        "dropout": 0.0, "embedding_dropout": 0.0, "attention": {"heads": 2},
        "spikes": {"dropout": 0.0, "reset": reset},
    }  # fmt: skip
    settings = ModelSettings(**given)
    net = LiquidNet(settings, Sizes("llm", 20, 20), PlasticitySettings())
    tokens_BT, found = torch.randint(20, (2, 7)), []
    for reference in (False, True):
        net.zero_grad()
        if reference:
            with plain_reference():
                y_BTV = token_by_token(net, tokens_BT)
                y_BTV.square().mean().backward()
        else:
            y_BTV = net(tokens_BT).y_BTV
            y_BTV.square().mean().backward()
        grads = torch.cat([one.grad.flatten() for one in net.parameters()])  # type: ignore[union-attr]
        found.append((y_BTV.detach(), grads))
    for own, theirs in zip(*found, strict=True):
        torch.testing.assert_close(own, theirs, atol=1e-6, rtol=1e-4)


def test_bench_answers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = [f"--set={one}" for one in (*SMALL, f"data.folder={tmp_path}")]
    how = ["--device", "cpu", "--steps", "2", "--warm", "1", "--generate", "8", "--format", "json"]
    assert main(["liquid", "bench", *words, *how]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["device"] == "cpu"
    assert found["training"]["tokens/s"] > 0
    assert 0 < found["training"]["share of a large product %"] < 100
    assert found["writing"]["tokens/s, last quarter"] > 0
    assert found["kernels that are not used"] == []
