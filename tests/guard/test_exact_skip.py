"""A skipped step leaves no trace: equal, bit for bit, to never having seen it."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
from torch import Tensor, nn, optim

from .conftest import MakeEngine
from .loops import STEPS, differences, poisoned_steps, train


class Lion(optim.Optimizer):
    """A third-party optimizer as they are written: state made on first use, an int counter."""

    def __init__(self, params: Iterable[Any], lr: float = 1e-3) -> None:
        super().__init__(params, {"lr": lr, "betas": (0.9, 0.99), "weight_decay": 0.01, "k": 0})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            group["k"] += 1
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                if not state:
                    state["momentum"] = torch.zeros_like(p)
                    state["step"] = torch.zeros(())
                state["step"] += 1
                p.mul_(1 - group["lr"] * group["weight_decay"])
                p.add_(torch.sign(state["momentum"].lerp(p.grad, 0.1)), alpha=-group["lr"])
                state["momentum"].lerp_(p.grad, 0.01)
        return loss


def muon_and_adam(params: Iterable[Any]) -> optim.Optimizer:
    matrices = [p for p in params if p.ndim == 2]
    return optim.Muon(matrices, lr=1e-2)


OPTIMIZERS: dict[str, Callable[[Any], optim.Optimizer]] = {
    "sgd": lambda p: optim.SGD(p, lr=0.05),
    "sgd-momentum": lambda p: optim.SGD(p, lr=0.05, momentum=0.9, weight_decay=1e-2),
    "sgd-dampening": lambda p: optim.SGD(p, lr=0.05, momentum=0.9, dampening=0.3),
    "sgd-momentum-fused": lambda p: optim.SGD(p, lr=0.05, momentum=0.9, fused=True),
    "sgd-dampening-fused": lambda p: optim.SGD(p, lr=0.05, momentum=0.9, dampening=0.3, fused=True),
    "adam": lambda p: optim.Adam(p, lr=1e-2),
    "adam-amsgrad-fused": lambda p: optim.Adam(p, lr=1e-2, amsgrad=True, fused=True),
    "adamw": lambda p: optim.AdamW(p, lr=1e-2),
    "adamw-fused": lambda p: optim.AdamW(p, lr=1e-2, fused=True),
    "rmsprop": lambda p: optim.RMSprop(p, lr=1e-3, momentum=0.5, centered=True),
    "nadam": lambda p: optim.NAdam(p, lr=1e-2),
    "radam": lambda p: optim.RAdam(p, lr=1e-2),
    "adagrad": lambda p: optim.Adagrad(p, lr=1e-2),
    "adagrad-fused": lambda p: optim.Adagrad(p, lr=1e-2, fused=True),
    "adafactor": lambda p: optim.Adafactor(p, lr=1e-2),
    "adadelta": lambda p: optim.Adadelta(p),
    "asgd": lambda p: optim.ASGD(p, lr=1e-2),
    "muon": muon_and_adam,
    "lion (third party)": lambda p: Lion(p, lr=1e-3),
}

# One of each way to step: plain, with momentum, fused, by foreach, factored, a third party's. The
# others take a minute together and are part of `make prove`.
_ALWAYS = {"sgd-dampening-fused", "adamw", "adamw-fused", "adafactor", "lion (third party)"}
EVERY = [
    pytest.param(name, marks=[] if name in _ALWAYS else [pytest.mark.slow]) for name in OPTIMIZERS
]

POISON = poisoned_steps(seed=3)


def compare(make_engine: MakeEngine, optimizer: str, *, guard: dict[str, Any], **loop: Any) -> None:
    make = OPTIMIZERS[optimizer]
    poison = loop.pop("poison", POISON)
    # The loop is poisoned by number: a batch handed out twice would shift what comes after.
    guard = {"replay": False, **guard}
    engine = make_engine(**guard)
    poisoned = train(make, poison=poison, **loop)
    engine.close()
    rows = engine.memory.rows()  # type: ignore[attr-defined]
    assert not engine.off, engine.memory.of_kind("holdfast_error")  # type: ignore[attr-defined]
    assert set(rows["step"][rows["skipped"] == 1].tolist()) == poison
    make_engine(**guard)
    clean = train(make, omitted=poison, **loop)
    if guard.get("device_path"):
        # The random state is put back only where the decision is known on the host.
        del poisoned["random"], clean["random"]
    assert differences(poisoned, clean) == []


@pytest.mark.parametrize("how", [pytest.param("loss", marks=pytest.mark.slow), "gradient"])
@pytest.mark.parametrize("optimizer", EVERY)
def test_host_path(make_engine: MakeEngine, optimizer: str, how: str) -> None:
    compare(make_engine, optimizer, guard={}, how=how)


@pytest.mark.parametrize("how", ["loss", pytest.param("gradient", marks=pytest.mark.slow)])
@pytest.mark.parametrize("optimizer", EVERY)
def test_device_path_on_cpu_tensors(make_engine: MakeEngine, optimizer: str, how: str) -> None:
    compare(make_engine, optimizer, guard={"device_path": True}, how=how, dropout=False)


@pytest.mark.parametrize("optimizer", ["sgd-momentum", "adamw", "adam", "adagrad", "rmsprop"])
def test_device_path_without_the_fused_switch(make_engine: MakeEngine, optimizer: str) -> None:
    guard = {"device_path": True, "fused": False}
    compare(make_engine, optimizer, guard=guard, dropout=False)


@pytest.mark.parametrize("device_path", [False, True])
@pytest.mark.parametrize("optimizer", ["sgd-momentum", "adamw-fused", "nadam", "adafactor"])
def test_accumulation_drops_the_whole_window(
    make_engine: MakeEngine, optimizer: str, device_path: bool
) -> None:
    guard = {"device_path": device_path}
    compare(make_engine, optimizer, guard=guard, accumulate=4, dropout=False)


@pytest.mark.parametrize("device_path", [False, True])
@pytest.mark.parametrize("optimizer", EVERY)
def test_first_steps_poisoned(make_engine: MakeEngine, optimizer: str, device_path: bool) -> None:
    """Fused SGD would go on with an uninitialised momentum buffer here, others with a counter."""
    guard = {"device_path": device_path}
    compare(make_engine, optimizer, guard=guard, poison={0, 1, 5}, dropout=False)


@pytest.mark.parametrize("seed", range(5))
def test_ten_percent_at_random(make_engine: MakeEngine, seed: int) -> None:
    compare(make_engine, "adamw", guard={}, poison=poisoned_steps(seed))


def test_equal_to_plain_torch_on_cpu(make_engine: MakeEngine) -> None:
    """Where nothing is switched, the reference may as well be torch without holdfast."""
    make_engine()
    poisoned = train(OPTIMIZERS["adamw"], poison=POISON)
    from holdfast.boot import patches

    patches.uninstall()
    clean = train(OPTIMIZERS["adamw"], omitted=POISON)
    assert differences(poisoned, clean) == []


def test_the_comparison_can_fail(make_engine: MakeEngine) -> None:
    """Without skipping, the same poison ruins the weights."""
    make_engine(skip=False)
    ruined = train(OPTIMIZERS["adamw"], poison=POISON)
    clean = train(OPTIMIZERS["adamw"], omitted=POISON)
    assert differences(ruined, clean)
    assert torch.isnan(ruined["model"]["first.weight"]).any()


def test_a_fused_kernel_goes_on_when_found_inf_is_two() -> None:
    """The trap behind the clamp: a scaler's sum over two devices is taken for "no overflow"."""
    p = nn.Parameter(torch.ones(3))
    optimizer = optim.AdamW([p], fused=True)
    p.grad = torch.full((3,), float("nan"))
    optimizer.found_inf, optimizer.grad_scale = torch.tensor(2.0), None  # type: ignore[attr-defined]
    optimizer.step()
    assert torch.isnan(p).all()


def test_buffers_of_a_poisoned_forward_come_back(make_engine: MakeEngine) -> None:
    """A NaN input reaches the running statistics before anyone knows."""
    for device_path in (False, True):
        make_engine(device_path=device_path)
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))
        optimizer = optim.SGD(net.parameters(), lr=0.1)
        for step in range(6):
            x = torch.randn(8, 4)
            if step in (0, 3):
                x[2] = float("nan")
            before = {k: v.clone() for k, v in net.named_buffers()}
            net(x).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            after: dict[str, Tensor] = dict(net.named_buffers())
            same = all(torch.equal(before[k], after[k]) for k in before)
            assert same == (step in (0, 3)), (device_path, step)


def test_buffers_come_back_where_a_scaler_skips(make_engine: MakeEngine) -> None:
    """The step is not even called: a NaN would have stayed in them until the next one."""
    engine = make_engine(explain=False, replay=False)
    net = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))
    optimizer = optim.SGD(net.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    for step in range(5):
        x = torch.randn(8, 4) * (torch.nan if step == 3 else 1.0)
        before = {k: v.clone() for k, v in net.named_buffers()}
        scaler.scale(net(x).sum()).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        same = all(torch.equal(before[k], b) for k, b in net.named_buffers())
        assert same == (step == 3)
    assert scaler.get_scale() == 4.0 and not engine.off


def test_a_counter_of_a_poisoned_forward_comes_back(make_engine: MakeEngine) -> None:
    """The only buffer that moves holds integers, which are not measured."""

    class Counting(nn.Linear):
        def forward(self, input: Tensor) -> Tensor:
            self.get_buffer("seen").add_(len(input))
            return super().forward(input)

    make_engine(device_path=True)
    net = Counting(4, 1)
    net.register_buffer("seen", torch.zeros((), dtype=torch.int64))
    optimizer = optim.SGD(net.parameters(), lr=0.1)
    for step in range(6):
        net(torch.full((8, 4), torch.nan if step in (2, 5) else 1.0)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    assert net.get_buffer("seen") == 4 * 8


def test_steps_are_all_there(make_engine: MakeEngine) -> None:
    engine = make_engine()
    train(OPTIMIZERS["sgd"], poison={4})
    engine.close()
    rows = engine.memory.rows()  # type: ignore[attr-defined]
    assert rows["step"].tolist() == list(range(STEPS))
    assert rows["loss_bad"].tolist() == [float(i == 4) for i in range(STEPS)]


@pytest.mark.parametrize("dampening", [0.0, 0.3])
def test_layers_that_thaw_in_a_switched_optimizer_begin_as_in_torch(
    make_engine: MakeEngine, dampening: float
) -> None:
    """Torch's fused SGD raises where a parameter has no momentum and others have."""

    def run() -> list[Tensor]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1)).double()
        model[0].requires_grad_(False)
        optimizer = optim.SGD(model.parameters(), lr=0.1, momentum=0.9, dampening=dampening)
        for step in range(12):
            if step == 3:  # a copy of both goes on
                model, optimizer = copy.deepcopy((model, optimizer))
            model[0].requires_grad_(step >= 6)
            x = torch.randn(
                16, 4, dtype=torch.double, generator=torch.Generator().manual_seed(step)
            )
            (model(x).square().mean() * (torch.nan if step == 6 else 1.0)).backward()
            if step != 6 or guarded:
                optimizer.step()
            optimizer.zero_grad()
        buffers = [held["momentum_buffer"] for held in optimizer.state.values()]
        return [*(p.detach() for p in model.parameters()), *buffers]

    guarded = False
    plain = run()
    guarded = True
    engine = make_engine(device_path=True)
    torch.testing.assert_close(run(), plain)
    switched = engine.memory.of_kind("switched_to_fused")  # type: ignore[attr-defined]
    assert bool(switched) == (not dampening) and not engine.off


def test_a_group_that_is_added_takes_the_form_of_the_others(make_engine: MakeEngine) -> None:
    """Otherwise all would be skipped by copies from then on."""
    engine = make_engine(device_path=True)
    torch.manual_seed(0)
    body, head = nn.Linear(4, 8), nn.Linear(8, 1)
    optimizer = optim.AdamW(head.parameters(), lr=0.1)
    for step in range(8):
        if step == 4:
            optimizer.add_param_group({"params": body.parameters(), "lr": 0.01})
        head(body(torch.randn(16, 4)).tanh()).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    assert [group["fused"] for group in optimizer.param_groups] == [True, True]
    saved = optimizer.state_dict()
    assert [group["fused"] for group in saved["param_groups"]] == [None, None]
    optimizer.load_state_dict(saved)
    head(torch.randn(16, 8)).square().mean().backward()
    optimizer.step()
    assert [group["foreach"] for group in optimizer.state_dict()["param_groups"]] == [None, None]
    how = [data["how"] for data in engine.memory.of_kind("optimizer")]  # type: ignore[attr-defined]
    assert set(how) == {"fused"} and not engine.off
