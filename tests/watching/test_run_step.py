"""``watch.run_step``: a batch that does not fit is split, with the gradients of the whole."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from torch import Tensor, nn

import holdfast
from holdfast.run import LaneReader

ROWS = 12


def train(
    folder: Path, reduction: Literal["mean", "sum"], fits: int, phase: str = "forward"
) -> tuple[list[Tensor], list[float], holdfast.Watch]:
    torch.manual_seed(0)
    model = nn.Linear(4, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    watch = holdfast.watch(model, optimizer, run_dir=folder, say=lambda line: None)

    def ask(rows: int) -> None:
        if rows > fits:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")

    def loss(batch: dict[str, Any]) -> Tensor:
        assert len(batch["names"]) == len(batch["x"]) and batch["scale"] == 2.0
        out = model(batch["x"]) * batch["scale"]
        if phase == "forward":
            ask(len(out))
        else:
            model.bias.register_hook(lambda g: None)
            out.register_hook(lambda g: ask(len(g)))  # the weights' gradient is there by then
        return nn.functional.cross_entropy(out, batch["y"], reduction=reduction)

    losses: list[float] = []
    for _ in range(3):
        batch = {
            "x": torch.randn(ROWS, 4),
            "y": torch.randint(0, 3, (ROWS,)),
            "names": ["a"] * ROWS,
            "scale": 2.0,
        }
        losses.append(watch.run_step(loss, batch, reduction=reduction).item())
    watch.close()
    return [p.detach() for p in model.parameters()], losses, watch


@pytest.mark.parametrize("phase", ["forward", "backward"])
@pytest.mark.parametrize("reduction", ["mean", pytest.param("sum", marks=pytest.mark.slow)])
def test_pieces_give_the_same_step(
    tmp_path: Path, reduction: Literal["mean", "sum"], phase: str
) -> None:
    wanted, losses, _ = train(tmp_path / "a", reduction, ROWS)
    found, others, watch = train(tmp_path / "b", reduction, 3, phase)
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other)
    assert others == pytest.approx(losses)
    assert watch.run is not None
    lane = LaneReader(watch.run, "r0")
    rows = lane.steps()
    # The record has the loss of the batch, once.
    assert rows["loss"].tolist() == pytest.approx(losses)
    assert rows["backwards"].tolist() == [1, 1, 1]
    (finding,) = watch.findings
    assert finding.code == "MEM008" and finding.evidence["parts"] == 4


def test_gradients_of_before_are_kept(tmp_path: Path) -> None:
    model = nn.Linear(4, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    with holdfast.watch(model, optimizer, run_dir=tmp_path, say=lambda line: None) as watch:
        before = model.weight.detach().clone()
        model(torch.ones(1, 4)).sum().backward()

        def loss(batch: Tensor) -> Tensor:
            if len(batch) > 2:
                raise torch.OutOfMemoryError("CUDA out of memory.")
            return model(batch).mean(0).sum()

        watch.run_step(loss, torch.ones(8, 4))
    torch.testing.assert_close(before - model.weight, torch.full((3, 4), 2.0))


def test_an_error_of_another_kind_and_one_sample_go_through(tmp_path: Path) -> None:
    model = nn.Linear(4, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    with holdfast.watch(model, optimizer, run_dir=tmp_path, say=lambda line: None) as watch:

        def loss(batch: Tensor) -> Tensor:
            raise (ValueError if len(batch) == 4 else torch.OutOfMemoryError)("out of memory")

        with pytest.raises(ValueError):
            watch.run_step(loss, torch.ones(4, 4))
        with pytest.raises(torch.OutOfMemoryError):
            watch.run_step(loss, torch.ones(1, 4))
