"""The loss scale of a training in fp16: lowered by ten where the gradients are beyond help."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from tests.training.test_trainer import Seen, data, model, settings
from torch import Tensor, nn

from holdfast.run import LaneReader, Run
from holdfast.training import precision
from holdfast.training.trainer import Trainer

BAD = 50


@pytest.fixture(autouse=True)
def fp16_on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Slow there and therefore refused, but the same scaler and the same policy."""
    monkeypatch.setattr(precision, "_asked", lambda name, device: "asked for")


def scales(tmp_path: Path, factor: float, **given: Any) -> tuple[list[float], list[dict[str, Any]]]:
    """The scale around the step whose loss is multiplied, and what was told of it."""
    calls = 0

    def loss(net: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        nonlocal calls
        calls += 1
        error = nn.functional.mse_loss(net(batch[0]).float(), batch[1])
        return error * factor if calls == BAD else error

    how = settings(epochs=8, precision="fp16", **given)
    Trainer(model(), loss, data(), settings=how, run_dir=tmp_path / "run", progress=Seen()).fit()
    reader = LaneReader(Run.open(tmp_path / "run"), "r0")
    reported = [dict(event.data) for event in reader.events() if event.kind == "scaler"]
    return [float(scale) for scale in reader.steps()["scale"][BAD - 2 : BAD + 3]], reported


@pytest.mark.parametrize("fused", [True, pytest.param(False, marks=pytest.mark.slow)])
@pytest.mark.parametrize("device_path", [True, False])
@pytest.mark.parametrize(
    ("factor", "after", "what"),
    [(math.inf, 1.6, "nonfinite"), (300.0, 1.6, "explosion"), (1e8, 8.0, None)],
    ids=["nonfinite", "explosion", "overflow"],
)
def test_it_falls_to_a_tenth_but_for_an_overflow(
    tmp_path: Path, factor: float, after: float, what: str | None, fused: bool, device_path: bool
) -> None:
    found, reported = scales(
        tmp_path,
        factor,
        optimizer={"lr": 0.05, "fused": fused},
        holdfast={"guard": {"device_path": device_path}, "scaler": {"init": 16.0}},
    )
    # The poisoned batch is computed once more to find its line; that must not lower it again.
    assert found == pytest.approx([16.0, 16.0, after, after, after])
    assert [(one["what"], one["scale"]) for one in reported] == (
        [(what, pytest.approx(after))] if what else []
    )


def test_it_never_falls_below_one(tmp_path: Path) -> None:
    found, _ = scales(tmp_path, math.inf, holdfast={"scaler": {"init": 4.0}})
    assert found[2:] == [1.0] * 3


def test_a_guard_that_only_watches_leaves_it_alone(tmp_path: Path) -> None:
    how = {"guard": {"skip": False}, "scaler": {"init": 16.0}}
    found, reported = scales(tmp_path, 300.0, holdfast=how)
    assert found == [16.0] * 5 and not reported
