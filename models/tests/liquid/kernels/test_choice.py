"""When kernels are taken, and what is computed around them; plain functions stand for them."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from holdfast_models import liquid
from holdfast_models.liquid.kernels import check, choice, ops
from holdfast_models.liquid.kernels.choice import takes, using
from holdfast_models.liquid.model import model as model_file
from holdfast_models.liquid.model.mamba import selective as selective_file
from holdfast_models.liquid.model.mixing import causal as causal_file
from holdfast_models.liquid.model.spiking.surrogates import surrogate_of

CPU = torch.device("cpu")


def _scan(decay: Tensor, value: Tensor, initial: Tensor, reverse: bool) -> Tensor:
    tokens = range(value.shape[1])
    h, found = torch.zeros_like(initial) if reverse else initial, {}
    for t in reversed(tokens) if reverse else tokens:
        at = t + 1 if reverse else t
        h = value[:, t] + (decay[:, at] * h if at in tokens else 0)
        found[t] = h
    return torch.stack([found[t] for t in tokens], 1)


def _fire(i: Tensor, u: Any, slope: Tensor, steps: int, *how: Any) -> tuple[Tensor, ...]:
    beta, threshold, reset = how
    train, membranes, u = [], [], torch.zeros_like(i[0]) if u is None else u
    for s in range(steps):
        fired = (u > threshold).float()
        u = beta * u * (1 - fired * (reset == "zero")) + i[s if len(i) > 1 else 0]
        u = u - fired * threshold * (reset == "subtract")
        membranes.append(u)
        train.append((u > threshold).float())
    both = torch.stack(train), torch.stack(membranes)
    near = ((both[1] - threshold).abs() * slope < 1).float().mean() * torch.tensor([0.25, 0.75])
    return *both, both[0].mean(0), both[1].mean(0), near


def _fire_backward(membranes: Tensor, start: Any, slope: Tensor, *rest: Any) -> Any:
    start = torch.zeros_like(membranes[0]) if start is None else start
    train, every, rate, mean, constant, beta, threshold, reset, surrogate = rest
    none, steps = torch.zeros_like(membranes), len(membranes)
    by_z = (none if train is None else train) + (0 if rate is None else rate / steps)
    by_u = (none if every is None else every) + (0 if mean is None else mean / steps)
    by_u = by_u + by_z * surrogate_of(surrogate).derivative(membranes - threshold, slope)
    kept = beta * (1 - (membranes > threshold).float() * (reset == "zero"))
    later, found = torch.zeros_like(start), []
    for s in reversed(range(steps)):
        later = by_u[s] + kept[s] * later
        found.append(later)
    of_current = torch.stack(found[::-1])
    of_start = beta * (1 - (start > threshold).float() * (reset == "zero")) * later
    return of_current.sum(0, keepdim=True) if constant else of_current, of_start


def _cfc(z: Tensor, by_state: Tensor, later: Any, bias: Any, h: Tensor, time: Any, dt: Any) -> Any:
    states = []
    for t in range(z.shape[1]):
        gates = z[:, t] + h @ by_state.T
        if later is not None:
            gates = 1.7159 * torch.tanh(0.666 * gates) @ later.T + bias
        f, g, a, c = gates.chunk(4, -1)
        k = torch.sigmoid(a * (dt if time is None else time[:, t]) + c)
        h = torch.tanh(f) * (1 - k) + k * torch.tanh(g)
        states.append(h)
    return torch.stack(states, 1)


def _cfc_backward(grads: Tensor, slopes: Tensor, by_state: Tensor, later: Any, inner: Any) -> Any:
    back, totals = torch.zeros_like(grads[:, 0]), []
    for t in reversed(range(grads.shape[1])):
        back = back + grads[:, t]
        totals.append(back)
        back = (slopes[:, t] * back[:, None]).flatten(1)
        back = (back if later is None else (back @ later) * inner[:, t]) @ by_state
    return torch.stack(totals[::-1], 1), back


def _selective(*given: Tensor) -> tuple[Tensor, ...]:
    return *selective_file.selective_loop(*given), given[5].clone()  # backward begins from it


def _selective_backward(*given: Tensor) -> tuple[Tensor, ...]:
    x, delta, b, c, a, kept, of_y, of_end = given
    again = torch.func.vjp(selective_file.selective_loop, x, delta, b, c, a, kept)[1]
    return again((of_y, of_end))


def _attend(q: Tensor, k: Tensor, v: Tensor, keys: Tensor, values: Tensor, *rest: Any) -> Tensor:
    (place, *_), window, base = rest
    q, k, v = (one.view(len(q), keys.shape[1], keys.shape[3]) for one in (q, k, v))
    if base:
        q, k = (causal_file.rotated(one[:, :, None], int(place))[:, :, 0] for one in (q, k))
    keys[:, :, place], values[:, :, place] = k, v
    seen = slice(max(0, int(place) + 1 - window) if window else 0, int(place) + 1)
    scores = torch.einsum("bad,bapd->bap", q, keys[:, :, seen]) * keys.shape[3] ** -0.5
    return torch.einsum("bap,bapd->bad", scores.softmax(-1), values[:, :, seen]).flatten(1)[:, None]


def _norm(x: Tensor, weight: Tensor, bias: Tensor, base: Any, *how: Any) -> Tensor:
    eps, share, act = how
    y = torch.nn.functional.layer_norm(x, (x.shape[-1],), weight, bias, eps)
    y = torch.nn.functional.gelu(y) if act else y
    return y if base is None else base + share * y


STAND_INS = {
    "scan": _scan, "fire": _fire, "fire_backward": _fire_backward, "cfc": _cfc,
    "cfc_backward": _cfc_backward, "selective": _selective,
    "selective_backward": _selective_backward, "attend": _attend,
    "rows": torch.nn.functional.linear, "norm": _norm,
}  # fmt: skip
USERS = [
    module
    for name, module in sys.modules.items()
    if name.startswith(liquid.__name__)
    and name != ops.__package__
    and getattr(module, "ops", None) is ops
]
"""Every file that calls the operators; they are loaded with the network."""


@pytest.fixture
def stand_ins(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Plain functions in the place of the operators, wherever they are called."""
    given = SimpleNamespace(MOST=ops.MOST, **STAND_INS)
    for file in USERS:
        monkeypatch.setattr(file, "ops", given)
    return given


CASES = [
    ("scan", ()),
    ("lif", ("subtract", "fast_sigmoid")),
    ("lif", ("zero", "atan")),
    ("lif", ("none", "sigmoid")),
    ("cfc", (6, 5)),
    ("cfc", (4, 0)),
    ("selective", (5, 3)),
    ("attend", (4, 1)),
    ("rows", ()),
    ("norm", ()),
]


@pytest.mark.parametrize(("kind", "sizes"), CASES)
def test_values_and_gradients_around_a_kernel(
    kind: str, sizes: tuple[Any, ...], stand_ins: SimpleNamespace
) -> None:
    torch.manual_seed(0)
    values, gradients = check.compared(kind, CPU, sizes, 9)
    assert values < 1e-5
    assert gradients < 1e-5


@pytest.mark.parametrize(("kind", "broken"), [("scan", "scan"), ("cfc", "cfc_backward")])
def test_a_wrong_kernel_is_found(kind: str, broken: str, stand_ins: SimpleNamespace) -> None:
    right = getattr(stand_ins, broken)

    def wrong(*given: Any) -> Any:
        found = right(*given)
        return found * 1.1 if isinstance(found, Tensor) else (found[0] * 1.1, *found[1:])

    setattr(stand_ins, broken, wrong)
    sizes = () if kind == "scan" else (4, 4)
    said = check.fault(kind, CPU, sizes)
    assert said is not None
    assert "from those of plain torch" in said


def test_a_kernel_that_raises_is_a_reason(stand_ins: SimpleNamespace) -> None:
    stand_ins.scan = lambda *given: 1 / 0
    assert check.fault("scan", CPU, ()) == "ZeroDivisionError: division by zero"


def test_a_check_leaves_the_random_numbers_alone(stand_ins: SimpleNamespace) -> None:
    torch.manual_seed(3)
    wanted = torch.rand(3)
    torch.manual_seed(3)
    assert check.fault("cfc", CPU, (4, 4)) is None
    assert torch.equal(torch.rand(3), wanted)


def test_kernels_are_for_gpus_and_float32() -> None:
    x = torch.zeros(2)
    assert not takes("scan", x)
    with using("always"):
        assert takes("scan", x)
        assert not takes("scan", x.double())
        with using("off"):
            assert not takes("scan", x)
        assert takes("scan", x)


def test_transforms_run_plain_torch() -> None:
    seen = []

    def look(x: Tensor) -> Tensor:
        seen.append(takes("scan", x))
        return x.sum()

    with using("always"):
        torch.func.grad(look)(torch.zeros(3))
        torch.func.vmap(look)(torch.zeros(3, 2))
    assert seen == [False, False]


def test_tried_once_and_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    tried = []

    def fault(kind: str, device: torch.device, sizes: tuple[Any, ...]) -> str | None:
        tried.append(kind)
        return None if kind == "scan" else "it is slow on Sundays"

    monkeypatch.setattr(choice, "_trial", fault)
    monkeypatch.setattr(choice, "_has_triton", lambda device: True)
    monkeypatch.setattr(choice, "_FAULTS", {})
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    with pytest.warns(UserWarning, match="Sundays"):
        assert not choice._sound("cfc", 0, (4, 4))
    assert not choice._sound("cfc", 0, (4, 4))
    assert choice._sound("scan", 0, ())
    assert tried == ["cfc", "scan"]
    assert choice.faults() == ["cfc (4, 4): it is slow on Sundays"]


def test_the_network_says_how_kernels_are_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    assert choice._trial is check.fault and model_file.LiquidNet
    monkeypatch.setattr(choice, "_trial", None)
    monkeypatch.setattr(choice, "_has_triton", lambda device: True)
    monkeypatch.setattr(choice, "_FAULTS", {})
    assert not choice._sound("scan", 0, ())
    assert not choice._FAULTS  # once there is a trial, it is asked


def test_shapes_that_the_compiler_is_reported() -> None:
    """What the operators say of their answers without running, which a graph is built on."""
    z, state, start = torch.empty(2, 5, 8), torch.empty(8, 4), torch.empty(2, 4)
    with torch._subclasses.FakeTensorMode(allow_non_fake_inputs=True):
        assert ops.cfc(z, state, None, None, start, None, 1.0).shape == (2, 5, 4)
        fired = ops.fire(z[:1], z[0], torch.tensor(1.0), 7, 0.9, 1.0, "zero")
        assert [one.shape for one in fired[:3]] == [(7, 5, 8), (7, 5, 8), (5, 8)]
