"""Out of memory in training: batches are cut into pieces, and the step stays the same."""

from __future__ import annotations

import math
import os
import signal
import traceback
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.training.test_trainer import Seen, data, fit, loss, model, settings, weights
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from holdfast.faults._budget import MemoryBudget
from holdfast.run import LaneReader, Run


class Limited:
    """A loss that runs out of memory above so many samples; in backward if it is told so.

    Notes how many samples each call that went well had.
    """

    def __init__(self, most: int, *, backward: bool = False, after: int = 0) -> None:
        self.most, self.backward, self.after = most, backward, after
        self.calls = 0
        self.fit: list[int] = []

    def __call__(self, net: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        self.calls += 1
        samples, found = len(batch[0]), loss(net, batch)
        if samples > self.most and self.calls > self.after:
            if not self.backward:
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
            first = next(iter(net.parameters()))  # its gradient comes last: the others are there
            assert first.requires_grad
            return found + _Fails.apply(first.sum()) * 0.0
        self.fit.append(samples)
        return found


class _Fails(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        raise RuntimeError("CUDA error: out of memory")


def events(path: Path, kind: str) -> list[dict[str, Any]]:
    found = LaneReader(Run.open(path), "r0").events()
    return [dict(event.data) for event in found if event.kind == kind]


SGD = {"optimizer": {"name": "sgd", "lr": 0.05, "weight_decay": 0.0}}


@pytest.mark.parametrize("backward", [False, True], ids=["forward", "backward"])
@pytest.mark.parametrize("accumulate", [1, 3])
@pytest.mark.parametrize("most", [4, 3, pytest.param(1, marks=pytest.mark.slow)])
def test_the_run_is_the_same_as_with_enough_memory(
    tmp_path: Path, most: int, accumulate: int, backward: bool
) -> None:
    plain, short, limited = model(), model(), Limited(most, backward=backward, after=5)
    how = {"epochs": 2, "accumulate": accumulate, **SGD}
    fit(tmp_path / "plain", settings(**how), plain)
    seen = Seen()
    result = fit(tmp_path / "short", settings(**how), short, loss=limited, progress=seen)
    assert weights(short) == pytest.approx(weights(plain), abs=1e-6)
    assert max(limited.fit[6:]) <= most
    pieces = {4: 2, 3: 4, 1: 8}[most]
    (reported,) = [line for line in seen.lines if line.startswith("out of memory at step")]
    (split,) = events(tmp_path / "short/run", "batch_split")
    assert split["parts"] == pieces and split["samples"] == 8 and split["exact"]
    assert f"train.data.batch={8 // pieces} train.accumulate={accumulate * pieces}" in reported
    rows, others = (
        LaneReader(Run.open(tmp_path / name / "run"), "r0").steps() for name in ("short", "plain")
    )
    assert rows["loss"] == pytest.approx(others["loss"], rel=1e-5)
    assert rows["grad_norm"] == pytest.approx(others["grad_norm"], rel=1e-4)
    assert (rows["backwards"] == others["backwards"]).all()
    assert result.step == len(rows)


class Deep(nn.Module):
    """Layers that keep many activations beside few weights."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(12))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = x + nn.functional.gelu(layer(x))
        return x


@pytest.mark.parametrize("accumulate", [1, 2])
def test_a_step_that_needs_three_times_the_budget_has_the_same_gradients(
    tmp_path: Path, accumulate: int
) -> None:
    rows = torch.randn(2048, 8, generator=torch.Generator().manual_seed(1))

    def of_batch(net: nn.Module, batch: tuple[Tensor]) -> Tensor:
        return (net(batch[0]) - batch[0].flip(1)).square().mean()

    def trained(path: Path, limit: float) -> tuple[list[Tensor], int]:
        found: list[Tensor] = []

        def prepared(optimizer: torch.optim.Optimizer) -> None:
            def note(optimizer: Any, *_: Any) -> None:
                found.extend(p.grad.clone() for p in optimizer.param_groups[0]["params"])

            optimizer.register_step_pre_hook(note)

        how = settings(epochs=1, accumulate=accumulate, clip=None, data={"batch": 512}, **SGD)
        more = {"train": TensorDataset(rows), "loss": of_batch, "prepared": prepared}
        with MemoryBudget(limit) as budget:
            fit(path, how, Deep(), **more)
        return found, budget.peak

    wanted, peak = trained(tmp_path / "plenty", math.inf)
    found, used = trained(tmp_path / "short", peak / 3)
    assert used <= peak / 3 and len(found) == len(wanted) > 0
    for one, other in zip(found, wanted, strict=True):
        assert (one - other).abs().max() <= 1e-5 * other.abs().max()
    (split,) = events(tmp_path / "short/run", "batch_split")
    assert split["parts"] >= 4 and split["exact"] and split["module"] == "Deep"


@pytest.mark.slow
def test_numbers_are_those_of_whole_batches_and_count_every_sample_once(tmp_path: Path) -> None:
    limited = Limited(100)

    def numbered(net: nn.Module, batch: tuple[Tensor, Tensor]) -> tuple[Tensor, dict[str, Any]]:
        return limited(net, batch), {"first": batch[0][:, 0].mean()}

    def noted(path: Path, **given: Any) -> dict[str, Any]:
        how = settings(steps=50, epochs=None, accumulate=4, **SGD, **given)
        fit(path, how, loss=numbered, train=data(64))
        return events(path / "run", "numbers")[-1]

    whole = noted(tmp_path / "whole")
    limited = Limited(3, after=6)
    cut = noted(tmp_path / "cut")
    for name in ("first", "loss"):
        assert cut[name] == pytest.approx(whole[name], abs=1e-6)
    assert cut["effective_batch_size"] == whole["effective_batch_size"] == 32
    # The two batches of the second step that had fit were taken once more.
    assert sum(limited.fit) == 50 * 32 + 2 * 8


def test_one_sample_that_does_not_fit_ends_the_run_with_advice(tmp_path: Path) -> None:
    with pytest.raises(torch.OutOfMemoryError, match="Tried to allocate") as caught:
        fit(tmp_path, settings(epochs=1), loss=Limited(0))
    (note,) = caught.value.__notes__
    assert "out of memory with 1 samples at once; make the model smaller" in note


def test_without_splitting_the_error_says_what_to_set(tmp_path: Path) -> None:
    off = {"guard": {"split": False}}
    with pytest.raises(torch.OutOfMemoryError) as caught:
        fit(tmp_path, settings(epochs=1, accumulate=3, holdfast=off), loss=Limited(4))
    printed = "".join(traceback.format_exception(caught.value))
    assert "Tried to allocate 2.00 GiB" in printed and "in __call__" in printed
    assert "with 8 samples at once; train.holdfast.guard.split=true splits batches" in printed
    assert "--find-batch" in printed
    for batch, window in ((4, 6), (2, 12), (1, 24)):
        assert f"\n  train.data.batch={batch} train.accumulate={window}\n" in printed
    assert "train.data.batch=0" not in printed


def test_other_errors_are_not_taken_for_memory(tmp_path: Path) -> None:
    def broken(net: nn.Module, batch: Any) -> Tensor:
        raise RuntimeError("mat1 and mat2 shapes cannot be multiplied")

    with pytest.raises(RuntimeError, match="shapes") as caught:
        fit(tmp_path, settings(epochs=1), loss=broken)
    assert not getattr(caught.value, "__notes__", [])


@pytest.mark.slow
@pytest.mark.parametrize("accumulate", [1, 2])
def test_a_piece_that_is_not_finite_discards_its_whole_window(
    tmp_path: Path, accumulate: int
) -> None:
    """The first piece of one batch: the others of its window do not reach the weights."""
    limited = Limited(2)
    before: list[list[float]] = []

    def poisoned(net: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        found = limited(net, batch)
        # Step 4 and its first batch; the pieces of the batches before it have been counted.
        first = len(limited.fit) == 3 * accumulate * 4 + 1
        return found * float("nan") if first else found

    net = model()

    def stepped(step: int) -> None:
        before.append(weights(net))

    guard = {"guard": {"explain": False}}  # or the window would be fed once more
    how = settings(steps=7, epochs=None, accumulate=accumulate, holdfast=guard, **SGD)
    result = fit(tmp_path, how, net, loss=poisoned, stepped=stepped, train=data(128))
    assert result.skipped == 1
    assert before[3] == before[2] != before[1] and before[4] != before[3]
    rows = LaneReader(Run.open(tmp_path / "run"), "r0").steps()
    assert rows["step"][rows["skipped"] > 0].tolist() == [3]


@pytest.mark.slow
def test_pieces_are_part_of_the_checkpoint(tmp_path: Path) -> None:
    how = settings(epochs=2, steps=None, **SGD)
    whole, parts, again = model(), model(), model()
    fit(tmp_path / "whole", how, whole, loss=Limited(3))

    def stepped(step: int) -> None:
        if step == 5:
            os.kill(os.getpid(), signal.SIGINT)

    assert fit(tmp_path / "parts", how, parts, loss=Limited(3), stepped=stepped).step == 5
    seen, later = Seen(), Limited(3)
    result = fit(tmp_path / "parts", how, again, loss=later, resume=True, progress=seen)
    assert result.step == 16 and weights(again) == weights(whole)
    assert "batches are split, 2 samples at once, as before the resume" in seen.lines
    assert later.calls == len(later.fit)  # nothing ran out of memory again
    off = Seen()
    how = settings(epochs=3, holdfast={"guard": {"split": False}}, **SGD)
    fit(tmp_path / "parts", how, model(), resume=True, progress=off, loss=Limited(8))
    assert not [line for line in off.lines if "are split" in line]
