"""``watch(accelerator)`` around a loop of Accelerate, which stays as it is."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from holdfast.errors import MissingPackageError, UsageError
from holdfast.report import summarize
from holdfast.run import LaneReader

from .conftest import finite, framework, same_weights

pytestmark = [pytest.mark.usefixtures("untouched"), pytest.mark.filterwarnings("ignore")]

POISONED = 21


@pytest.fixture(scope="module")
def parts() -> tuple[Any, Any]:
    return framework("accelerate", "accelerate")


def loop(
    parts: tuple[Any, Any], watched: dict[str, Any] | None, *, poisoned: bool = False
) -> tuple[torch.nn.Module, Any]:
    """Eight batches, two to a step."""
    accelerate, form = parts
    torch.manual_seed(0)
    x = torch.randn(64, 4)
    y = x.sum(1, keepdim=True)
    if poisoned:
        y[POISONED] = 0.0
    layers = torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 1)
    net: Any = torch.nn.Sequential(*layers)
    opt: Any = torch.optim.AdamW(net.parameters(), lr=1e-2)
    schedule = torch.optim.lr_scheduler.StepLR(opt, 1)
    accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=2)
    loader = DataLoader(TensorDataset(x, y), 8, shuffle=True)
    net, opt, loader, schedule = accelerator.prepare(net, opt, loader, schedule)
    guard = contextlib.nullcontext() if watched is None else form.watch(accelerator, **watched)
    with guard:
        for x, y in loader:
            with accelerator.accumulate(net):
                scale = y.abs().log()  # HERE
                loss = (net(x) * scale - y).square().mean()
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(net.parameters(), 1.0)
                opt.step()
                schedule.step()
                opt.zero_grad()
    return net, guard


def test_a_poisoned_batch_is_skipped_and_explained(
    tmp_path: Path, parts: tuple[Any, Any], assert_explained: Callable[..., None]
) -> None:
    said: list[str] = []
    net, guard = loop(parts, {"run_dir": tmp_path / "run", "say": said.append}, poisoned=True)
    assert finite(net)
    assert guard.skipped == 1
    rows = LaneReader(guard.run, "r0").steps()
    assert rows["step"].tolist() == list(range(4)) and set(rows["backwards"]) == {2.0}
    (finding,) = guard.findings
    assert_explained(finding, loop, POISONED)
    page = tmp_path / "run" / "report.html"
    assert page.is_file() and summarize(guard.run).outcome == "finished"
    assert [str(page) in line for line in said].count(True) == 1


def test_a_healthy_loop_ends_with_the_same_bits(tmp_path: Path, parts: tuple[Any, Any]) -> None:
    net, guard = loop(parts, {"run_dir": tmp_path / "run", "quiet": True})
    assert same_weights(loop(parts, None)[0], net)
    assert guard.findings == [] and guard.run is not None


def test_not_an_accelerator(parts: tuple[Any, Any]) -> None:
    with pytest.raises(
        UsageError, match=r"accelerate\.Accelerator, got Linear; .* holdfast\.watch"
    ):
        parts[1].watch(torch.nn.Linear(1, 1))


@pytest.mark.parametrize("form", ["lightning", "transformers", "accelerate"])
def test_a_framework_that_is_not_installed(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in [name for name in sys.modules if name.split(".")[0] == form]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, form, None)  # python's way to say that there is none
    monkeypatch.delitem(sys.modules, "pytorch_lightning", raising=False)
    monkeypatch.delitem(sys.modules, f"holdfast.integrations.{form}", raising=False)
    with pytest.raises(MissingPackageError, match=f"needs {form}, .*: pip install {form}") as error:
        __import__(f"holdfast.integrations.{form}")
    assert isinstance(error.value, ImportError)
