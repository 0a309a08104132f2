"""``train.graph`` on a real device: replayed passes train the same, and are guarded."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from holdfast.training.cuda_graphs import Graphs

from ..training.test_trainer import Seen, settings
from ..training.test_trainer import fit as fit_trainer

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA"),
]


def net() -> nn.Module:
    torch.manual_seed(0)
    layers = [nn.Linear(4, 32), nn.BatchNorm1d(32), nn.GELU(), nn.Dropout(0.2), nn.Linear(32, 1)]
    return nn.Sequential(*layers)


def data(count: int = 200) -> TensorDataset:
    x = torch.randn(count, 4, generator=torch.Generator().manual_seed(1))
    return TensorDataset(x, x.sum(1, keepdim=True))


def loss(model: nn.Module, batch: Any) -> Any:
    found = nn.functional.mse_loss(model(batch[0]), batch[1])
    return found, {"twice": 2 * found, "samples": len(batch[0])}


def run(
    path: Path, model: nn.Module, of: Callable[..., Any] = loss, train: Any = None, **more: Any
) -> tuple[Any, list[str]]:
    seen = Seen()
    how = settings(epochs=3, device="cuda", **more)
    result = fit_trainer(path, how, model, progress=seen, loss=of, train=train or data())
    return result, [line for line in seen.lines if line.startswith("graph:")]


def flat(model: nn.Module) -> Tensor:
    return torch.cat([one.detach().flatten().float() for one in model.state_dict().values()])


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
@pytest.mark.parametrize("accumulate", [1, 2])
def test_a_replayed_run_trains_the_same(tmp_path: Path, precision: str, accumulate: int) -> None:
    plain, replayed = net(), net()
    more = {"precision": precision, "accumulate": accumulate}
    run(tmp_path / "plain", plain, **more)
    _, said = run(tmp_path / "graph", replayed, graph=True, **more)
    assert said == ["graph: forward, loss and backward are replayed as CUDA graphs"]
    torch.testing.assert_close(flat(replayed), flat(plain), atol=2e-3, rtol=2e-3)


def test_a_bad_batch_is_skipped_and_replays_go_on(tmp_path: Path) -> None:
    rows = data()
    x = rows.tensors[0].clone()
    x[160] = torch.nan
    model = net()
    result, said = run(tmp_path, model, train=TensorDataset(x, rows.tensors[1]), graph=True)
    assert result.skipped >= 1 and len(said) == 1 and flat(model).isfinite().all()


def reads_the_loss(model: nn.Module, batch: Any) -> Tensor:
    found = nn.functional.mse_loss(model(batch[0]), batch[1])
    return found * (1.0 if float(found.detach()) > 0 else 0.5)


def test_a_loss_that_the_host_reads_is_refused_and_training_goes_on(tmp_path: Path) -> None:
    result, said = run(tmp_path, net(), reads_the_loss, graph=True)
    assert len(said) == 1 and "could not be captured" in said[0], said
    assert result.step == 75 and result.skipped == 0


def test_numbers_of_the_step_are_no_part_of_a_graph() -> None:
    model, graphs = net().cuda(), Graphs()
    x = torch.randn(8, 4, device="cuda")
    seen = []
    for _ in range(6):
        found = graphs.run(lambda x: (model(x).square().mean(),), [x], [model], carries=1)
        value = model(x).square().mean() if found is None else found[0]
        value.backward()
        seen.append(float(value.detach()))
    assert graphs.replays == 4 and graphs.reason is None
    assert len(set(seen)) == 6  # dropout draws anew


def test_a_compiled_loss_is_captured_too(tmp_path: Path) -> None:
    plain, replayed = net(), net()
    for model in (plain, replayed):
        model[3].p = 0.0  # type: ignore[union-attr]
    run(tmp_path / "plain", plain)
    how: Any = {"compile": {"mode": "default", "loss": True}}
    _, said = run(tmp_path / "graph", replayed, graph=True, **how)
    assert said == ["graph: forward, loss and backward are replayed as CUDA graphs"]
    # Not weights: of a bias below a batch norm the gradient is rounding, and Adam makes steps of
    # it. A running mean follows them late; that of a batch has them all.
    x = data().tensors[0].cuda()
    with torch.no_grad():
        torch.testing.assert_close(replayed.train()(x), plain.train()(x), atol=2e-2, rtol=2e-2)
