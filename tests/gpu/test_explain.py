"""Naming the line on a GPU, where a bad step is known only some steps later."""

from __future__ import annotations

import inspect
import warnings
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from ..diagnosis.test_provenance import marked_line
from ..guard.conftest import MakeEngine
from ..guard.conftest import make_engine as make_engine

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA"),
]


@pytest.fixture(autouse=True)
def no_waiting() -> Any:
    """The loops below must not wait for the device, whatever the guard does beside them."""
    yield
    torch.cuda.set_sync_debug_mode("default")


def forbid_waiting() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # "a prototype feature"
        torch.cuda.set_sync_debug_mode("error")


def causes(engine: Any) -> list[dict[str, Any]]:
    torch.cuda.set_sync_debug_mode("default")
    engine.close()
    assert not engine.off, engine.memory.of_kind("holdfast_error")
    return [data for kind, _, data in engine.memory.events if kind == "cause"]


def loader_loop(steps: int = 3) -> None:
    torch.manual_seed(0)
    data = torch.rand(64, 4) + 0.1
    data[37] = 0
    model = nn.Linear(4, 2, bias=False).cuda()
    opt = torch.optim.AdamW(model.parameters())
    loader = DataLoader(TensorDataset(data), batch_size=8, shuffle=True, pin_memory=True)
    for epoch in range(steps):
        for (x,) in loader:
            x = x.cuda(non_blocking=True)
            loss = (x / x.sum(1, keepdim=True) + model(x).sum()).mean()  # HERE
            opt.zero_grad()
            loss.backward()
            opt.step()
        if epoch == 0:
            forbid_waiting()


def test_a_batch_goes_through_the_loop_once_more(make_engine: MakeEngine) -> None:
    engine = make_engine()
    loader_loop()
    found = causes(engine)
    assert [(c["line"], c["sample"], c["how"]) for c in found] == [
        (marked_line(loader_loop), 37, "replay")
    ]


def bare_loop() -> None:
    torch.manual_seed(0)
    model = nn.Linear(4, 2, bias=False).cuda()
    opt = torch.optim.AdamW(model.parameters())
    inputs = [torch.rand(8, 4, device="cuda") for _ in range(60)]
    inputs[20][3] = 0
    inputs[50][3] = 0
    for i, x in enumerate(inputs):
        loss = model(x).square().sum(1).sqrt().mean()  # HERE
        opt.zero_grad()
        loss.backward()
        opt.step()
        if i == 5:
            forbid_waiting()


def test_without_a_loader_the_next_occurrence_is_examined(make_engine: MakeEngine) -> None:
    engine = make_engine()
    bare_loop()
    found = causes(engine)
    assert [(c["line"], c["op"]) for c in found] == [(marked_line(bare_loop), "SqrtBackward0")]
    assert engine.memory.rows()["skipped"].sum() == 2  # type: ignore[attr-defined]


def test_a_poisoned_batch_that_lives_on_the_device(make_engine: MakeEngine) -> None:
    engine = make_engine()
    torch.manual_seed(0)
    data = torch.rand(64, 4, device="cuda")
    data[9, 1] = float("nan")
    model = nn.Linear(4, 1).cuda()
    opt = torch.optim.AdamW(model.parameters())
    for epoch in range(3):
        for (x,) in DataLoader(TensorDataset(data), batch_size=8):
            loss = model(x).square().mean()
            opt.zero_grad()
            loss.backward()
            opt.step()
        if epoch == 0:
            forbid_waiting()
    found = causes(engine)
    assert [(c["phase"], c["sample"]) for c in found] == [("input", 9)]
    assert torch.isfinite(model.weight).all()


def test_a_captured_step_is_said_not_to_be_guarded(make_engine: MakeEngine) -> None:
    engine = make_engine()
    model = nn.Linear(8, 8).cuda()
    opt = torch.optim.AdamW(model.parameters(), capturable=True)
    x = torch.randn(4, 8, device="cuda")

    def step() -> None:
        opt.zero_grad(set_to_none=True)
        model(x).square().mean().backward()
        opt.step()

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(10):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    before = model.weight.detach().clone()
    for _ in range(5):
        graph.replay()
    torch.cuda.synchronize()
    assert not torch.equal(before, model.weight)
    engine.close()
    assert not engine.off, engine.memory.of_kind("holdfast_error")  # type: ignore[attr-defined]
    reported = [d["why"] for d in engine.memory.of_kind("not_covered")]  # type: ignore[attr-defined]
    assert any("CUDA graph" in why for why in reported)


def test_nothing_is_left_switched_on(make_engine: MakeEngine) -> None:
    engine = make_engine()
    loader_loop(1)
    causes(engine)
    assert torch.utils._python_dispatch._get_current_dispatch_mode() is None  # type: ignore
    assert not torch.is_anomaly_enabled()
    assert inspect.isfunction(torch.autograd.backward)
