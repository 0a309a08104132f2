"""The device path on a real device: exact, and without a host sync. Run on a machine with CUDA."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from holdfast.actions.switch_to_fused import _ADAGRAD_ON_CUDA

from ..guard import foreign
from ..guard.conftest import MakeEngine
from ..guard.conftest import make_engine as make_engine
from ..guard.loops import differences, poisoned_steps, train
from ..guard.test_exact_skip import OPTIMIZERS

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA"),
]

# Their step counters live on the host; a skip takes them back when the flag arrives, a few
# steps later, so arithmetic that uses the counter is not exact in between.
COUNT_ON_HOST = {"adafactor"}


@contextmanager
def no_syncs() -> Iterator[None]:
    """Every call that waits for the device raises in here."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # "a prototype feature"
        torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


def run(make_engine: MakeEngine, optimizer: str, guard: dict[str, Any], **loop: Any) -> Any:
    # Poisoned by number: a batch handed out twice would shift what comes after.
    engine = make_engine(replay=False, **guard)
    result = train(OPTIMIZERS[optimizer], dropout=False, device="cuda", **loop)
    torch.cuda.synchronize()
    engine.close()
    assert not engine.off, engine.memory.of_kind("holdfast_error")  # type: ignore[attr-defined]
    del result["random"]
    return engine, result


@pytest.mark.parametrize("poison", [poisoned_steps(3), {0, 1, 5}], ids=["random", "first"])
@pytest.mark.parametrize("how", ["loss", "gradient"])
@pytest.mark.parametrize("fused", [True, False], ids=["switch", "no-switch"])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_exact_skip(
    make_engine: MakeEngine, optimizer: str, fused: bool, how: str, poison: set[int]
) -> None:
    if optimizer in COUNT_ON_HOST:
        pytest.skip("counts steps on the host: not exact on a device, said so in the docs")
    if optimizer == "adagrad-fused" and not _ADAGRAD_ON_CUDA:
        pytest.skip("this torch has no fused Adagrad on CUDA")
    torch.use_deterministic_algorithms(False)
    guard = {"fused": fused}
    engine, poisoned = run(make_engine, optimizer, guard, poison=poison, how=how)
    rows = engine.memory.rows()
    assert set(rows["step"][rows["skipped"] == 1].tolist()) == poison
    _, clean = run(make_engine, optimizer, guard, omitted=poison)
    assert differences(poisoned, clean) == []


@pytest.mark.parametrize("optimizer", ["adamw", "adamw-fused", "sgd-momentum", "rmsprop", "nadam"])
def test_no_host_sync(make_engine: MakeEngine, optimizer: str) -> None:
    """Whole guarded steps, poisoned ones included, with synchronising calls forbidden."""
    engine = make_engine()
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(64, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 8)).cuda()
    opt = OPTIMIZERS[optimizer](net.parameters())
    x = torch.randn(32, 64, device="cuda")
    poison = torch.tensor(float("nan"), device="cuda")

    def step(bad: bool) -> None:
        loss = net(x).square().mean()
        (loss * poison if bad else loss).backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        opt.step()
        opt.zero_grad()

    for _ in range(3):
        step(False)
    torch.cuda.synchronize()
    with no_syncs():
        for i in range(150):
            step(i % 10 == 3)
    engine.close()
    rows = engine.memory.rows()  # type: ignore[attr-defined]
    assert not engine.off, engine.memory.of_kind("holdfast_error")  # type: ignore[attr-defined]
    assert len(rows) == 153
    assert rows["skipped"].sum() == 15
    assert all(torch.isfinite(p).all() for p in net.parameters())


def test_first_step_under_sync_error(make_engine: MakeEngine) -> None:
    """The one wait at an optimizer's first step goes through an event and raises nothing."""
    engine = make_engine()
    net = nn.Linear(8, 8).cuda()
    opt = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9, fused=True)
    poison = torch.tensor(float("nan"), device="cuda")
    x = torch.randn(4, 8, device="cuda")
    with no_syncs():
        for i in range(6):
            (net(x).square().mean() * (poison if i == 0 else 1.0)).backward()
            opt.step()
            opt.zero_grad()
    engine.close()
    assert not engine.off, engine.memory.of_kind("holdfast_error")  # type: ignore[attr-defined]
    assert torch.isfinite(net.weight).all()


@pytest.mark.parametrize("scaled", ["fused", "plain"])
def test_grad_scaler(make_engine: MakeEngine, scaled: str) -> None:
    """The user's scaler and the guard together: overflow is the scaler's, NaN is skipped."""
    engine = make_engine()
    torch.manual_seed(0)
    net = nn.Linear(16, 4).cuda()
    opt = torch.optim.AdamW(net.parameters(), lr=1e-3, fused=scaled == "fused")
    scaler = torch.amp.GradScaler("cuda", init_scale=2.0**40)
    for i in range(60):
        with torch.autocast("cuda", dtype=torch.float16):
            loss = net(torch.randn(8, 16, device="cuda")).float().square().mean()
        if i == 50:
            loss = loss * float("nan")
        scaler.scale(loss).backward()
        scaler.step(opt)
        scaler.update()
        opt.zero_grad()
    engine.close()
    rows = engine.memory.rows()  # type: ignore[attr-defined]
    assert not engine.off, engine.memory.of_kind("holdfast_error")  # type: ignore[attr-defined]
    assert len(rows) == 60
    assert torch.isfinite(net.weight).all()
    assert rows["scaler_skipped"].sum() >= 5
    good = rows[(rows["scaler_skipped"] == 0) & (rows["skipped"] == 0)]
    assert (good["loss"] < 100).all(), "the loss is recorded unscaled"


@pytest.mark.filterwarnings("ignore")  # of the compiler's own
def test_compiled_model_and_tensor_to(make_engine: MakeEngine) -> None:
    engine = make_engine()
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 4)).cuda()

    @torch.compile
    def forward(x: torch.Tensor) -> torch.Tensor:
        return net(x.to(torch.float32)).to(torch.float64).mean()

    opt = torch.optim.AdamW(net.parameters())
    for i in range(20):
        x = torch.randn(8, 16).to("cuda")
        loss = forward(x)
        (loss * float("nan") if i == 7 else loss).backward()
        opt.step()
        opt.zero_grad()
    torch.cuda.synchronize()
    engine.close()
    rows = engine.memory.rows()  # type: ignore[attr-defined]
    assert not engine.off, engine.memory.of_kind("holdfast_error")  # type: ignore[attr-defined]
    assert rows["skipped"].sum() == 1
    assert (rows["h2d"] > 0).any()
    assert all(torch.isfinite(p).all() for p in net.parameters())


def test_whole_step_cuda_graph_is_left_alone(make_engine: MakeEngine) -> None:
    engine = make_engine()
    net = nn.Linear(16, 16).cuda()
    opt = torch.optim.AdamW(net.parameters(), capturable=True)
    x = torch.randn(8, 16, device="cuda")
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            opt.zero_grad()
            net(x).square().mean().backward()
            opt.step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    opt.zero_grad()
    with torch.cuda.graph(graph):
        net(x).square().mean().backward()
        opt.step()
    before = net.weight.clone()
    for _ in range(5):
        graph.replay()
    torch.cuda.synchronize()
    assert not torch.equal(before, net.weight)
    engine.close()
    assert not engine.off, engine.memory.of_kind("holdfast_error")  # type: ignore[attr-defined]


def test_phases_and_memory_are_measured(make_engine: MakeEngine) -> None:
    engine = make_engine()
    net = nn.Sequential(*(nn.Linear(512, 512) for _ in range(8))).cuda()
    opt = torch.optim.AdamW(net.parameters())
    for _ in range(40):
        net(torch.randn(256, 512, device="cuda")).square().mean().backward()
        opt.step()
        opt.zero_grad()
    torch.cuda.synchronize()
    engine.close()
    rows = engine.memory.rows()[3:]  # type: ignore[attr-defined]
    for column in ("forward", "backward", "optimizer"):
        timed = rows[column][np.isfinite(rows[column])]
        assert len(timed) >= 4 and (timed > 0).all(), "one step in eight"
    sampled = rows["mem_allocated"][np.isfinite(rows["mem_allocated"])]
    assert len(sampled) >= 2 and (sampled > 0).all()


@pytest.mark.parametrize("optimizer", [foreign.Clamped, foreign.Counting, foreign.CountingAdam])
def test_a_step_of_the_script_s_own(make_engine: MakeEngine, optimizer: Any) -> None:
    """What its class keeps is put back on the device, its numbers once the flag is here."""

    def train_on(bad: set[int], *, poison: bool) -> tuple[list[torch.Tensor], Any]:
        engine = make_engine(replay=False, explain=False)
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1)).cuda()
        opt = optimizer(net.parameters())
        nan = torch.tensor(float("nan"), device="cuda")
        inputs = [torch.randn(16, 8, device="cuda") for _ in range(40)]

        def steps(first: int, last: int) -> None:
            for step in range(first, last):
                if step not in bad or poison:
                    loss = net(inputs[step]).square().mean()
                    (loss * nan if step in bad else loss).backward()
                    opt.step()
                    opt.zero_grad()

        steps(0, 4)
        torch.cuda.synchronize()
        with no_syncs():
            steps(4, 40)
        torch.cuda.synchronize()
        engine.close()
        assert not engine.off, engine.memory.of_kind("holdfast_error")  # type: ignore[attr-defined]
        return [*net.parameters(), *getattr(opt, "moments", ())], getattr(opt, "k", 0)

    poisoned, counted = train_on({9, 17, 30}, poison=True)
    clean, expected = train_on({9, 17, 30}, poison=False)
    assert counted == expected
    # The others divide by a count that is one too high until the flag has arrived.
    rtol, atol = (0.0, 0.0) if optimizer is foreign.Clamped else (1e-2, 1e-3)
    for one, other in zip(poisoned, clean, strict=True):
        torch.testing.assert_close(one, other, rtol=rtol, atol=atol)
