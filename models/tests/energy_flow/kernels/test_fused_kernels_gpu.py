"""The Triton kernels of fused mode against their plain forms, one by one."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from holdfast_models.energy_flow.kernels import check
from holdfast_models.energy_flow.kernels.ops import Ops, kernels, references
from holdfast_models.energy_flow.kernels.plan import BlockSizes, KernelPlan, plan_for, slots
from holdfast_models.energy_flow.model.collection import collect
from holdfast_models.energy_flow.model.lattice import Core
from holdfast_models.energy_flow.model.settings import (
    CarrierSettings,
    LatticeSettings,
    ModelSettings,
)

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
FLOWS = 784  # divided by 16, as most are: others would be compiled once more
Named = dict[str, Tensor]


def make_plan() -> KernelPlan:
    core = Core(ModelSettings(carrier=CarrierSettings(hidden=48)))
    return plan_for(core.parts, 4)._replace(blocks=BlockSizes())


def apart(got: Tensor, wanted: Tensor) -> float:
    got, wanted = got.detach().double(), wanted.detach().double()
    return float((got - wanted).norm() / wanted.norm().clamp(min=1e-12))


# Each returns what a kernel wrote, sums over slots added up.


class Given:
    """Random numbers for all of them."""

    def __init__(self, dtype: torch.dtype) -> None:
        plan = self.plan = make_plan()
        random = torch.Generator(DEVICE).manual_seed(7)

        def normal(*shape: int, size: float = 1.0, to: torch.dtype = torch.float32) -> Tensor:
            return (size * torch.randn(*shape, generator=random, device=DEVICE)).to(to)

        wide, narrow = plan.hidden, plan.neuron
        self.q = torch.cat((normal(3, FLOWS).clamp(-1, 1), normal(1, FLOWS)))
        self.alive = (normal(FLOWS) < 0.8).to(torch.uint8)
        self.stop = torch.zeros(1, dtype=torch.int32, device=DEVICE)
        self.flat = normal(10 * narrow + narrow**2, size=0.4)
        self.ends = normal(plan.heads + plan.split[0] + 3 * plan.split[1] + 4, size=0.3)
        self.answer = normal(plan.answer, narrow), normal(plan.answer)
        self.noise = normal(3, FLOWS, size=0.1)
        self.gates, self.bias = normal(FLOWS, 4 * wide, to=dtype), normal(4 * wide)
        self.rows = normal(FLOWS, plan.row, size=0.5, to=dtype)
        self.dh, self.du = normal(FLOWS, wide, to=dtype), normal(FLOWS, plan.inputs, to=dtype)
        self.heads = normal(FLOWS, plan.heads, to=dtype)
        self.slopes, self.d = normal(8, FLOWS), normal(4, FLOWS)
        self.state = slice(plan.inputs, plan.inputs + wide)

    def zeros(self, kind: str, *rest: int, whole: bool = False) -> Tensor:
        """One for each slot."""
        dtype = torch.int32 if whole else torch.float32
        return torch.zeros(slots(kind, FLOWS, self.plan), *rest, device=DEVICE, dtype=dtype)


def noise(ops: Ops, g: Given) -> Named:
    stream = torch.arange(-3, 3, device=DEVICE) * 2**60 + 12345
    return {"noise": ops.noise(stream, torch.full((3,), 0.1, device=DEVICE), 5, FLOWS)}


def neuron_forward(ops: Ops, g: Given) -> Named:
    out, most, over = g.rows.clone(), g.zeros("neuron"), g.zeros("neuron", whole=True)
    ops.neuron_forward(g.q, g.alive, g.stop, g.flat, *g.answer, out, most, over, g.plan)
    return {"out": out, "most": most.amax(), "guarded": over.sum()}


def neuron_backward(ops: Ops, g: Given) -> Named:
    d, sums = g.d.clone(), g.zeros("neuron_sums", len(g.flat))
    for _ in range(2):
        ops.neuron_backward(g.q, g.alive, g.stop, g.flat, g.du, g.slopes, d, sums, g.plan)
    return {"d": d, "weights": sums.sum(0)}


def gates_forward(ops: Ops, g: Given, *, first: bool = False) -> Named:
    out, most = torch.zeros_like(g.rows), g.zeros("gates")
    old = None if first else g.rows[:, g.state]
    ops.gates_forward(g.gates, old, g.bias, out[:, g.state], g.alive, g.stop, most, g.plan)
    return {"state": out, "most": most.amax()}


def gates_backward(ops: Ops, g: Given, *, first: bool = False) -> Named:
    gates, dh, sums = g.gates.clone(), g.dh.clone(), g.zeros("gates_sums", 4 * g.plan.hidden)
    ops.gates_backward(gates, None if first else g.rows[:, g.state], g.bias, dh, sums, g.plan)
    return {"gates": gates, "dh": dh, "bias": sums.sum(0)}


def heads_forward(ops: Ops, g: Given) -> Named:
    counters = torch.zeros(2, FLOWS, dtype=torch.int32, device=DEVICE)
    left = g.zeros("heads", whole=True)
    q, alive = torch.empty_like(g.q), torch.empty_like(g.alive)
    slopes, scale = torch.empty_like(g.slopes), torch.full((1,), 1.3, device=DEVICE)
    ops.heads_forward(
        g.heads, g.ends, g.q, g.alive, g.stop, g.noise, scale, q, alive, slopes,
        counters[0], counters[1], left, g.plan,
    )  # fmt: skip
    exact = torch.cat((counters.flatten(), alive, left.sum()[None]))
    return {"q": q, "slopes": slopes, "counters": exact}


def heads_backward(ops: Ops, g: Given) -> Named:
    heads, sums = g.heads.clone(), g.zeros("heads_sums", len(g.ends))
    ops.heads_backward(heads, g.ends, g.slopes, g.d, sums, g.plan)
    ops.heads_backward(g.heads.clone(), g.ends, g.slopes, g.d, sums, g.plan)
    return {"heads": heads, "ends": sums.sum(0)}


def first_gates(ops: Ops, g: Given) -> Named:
    return gates_forward(ops, g, first=True) | gates_backward(ops, g, first=True)


KERNELS: tuple[Callable[[Ops, Given], Named], ...] = (
    noise, neuron_forward, neuron_backward, gates_forward, gates_backward, first_gates,
    heads_forward, heads_backward,
)  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_every_kernel_computes_what_its_plain_form_does(dtype):
    limit = 1e-2 if dtype == torch.bfloat16 else 1e-4
    for kernel in KERNELS:
        got, wanted = kernel(kernels(), Given(dtype)), kernel(references(), Given(dtype))
        far = {name: apart(got[name], wanted[name]) for name in wanted}
        assert max(far.values()) < limit, f"{kernel.__name__}: {far}"
        assert "counters" not in wanted or torch.equal(got["counters"], wanted["counters"])


def test_the_collection_computes_what_that_of_the_model_does():
    from holdfast_models.energy_flow.kernels.collect_kernels import collect as by_kernels

    given, lattice = Given(torch.float32), LatticeSettings(width=12, height=9, depth=8)
    k_N = torch.arange(FLOWS, device=DEVICE) % 9
    sample_N = torch.arange(FLOWS, device=DEVICE) * 3 // FLOWS
    slope_BS = torch.linspace(-1, 1, 3 * 12 * 9, device=DEVICE).view(3, -1)
    found = []
    for collected in (by_kernels, collect):
        e_N, p_N3 = given.q[3].clone().requires_grad_(), given.q[:3].t().clone().requires_grad_()
        out = collected(e_N, p_N3, k_N, sample_N, given.alive != 0, lattice, 3)
        found.append((out.surface_BS, *torch.autograd.grad(out.surface_BS, (e_N, p_N3), slope_BS)))
        assert out.filled_BS.any()
    assert max(apart(*pair) for pair in zip(*found, strict=True)) < 1e-4


def test_the_kernels_pass_the_check_before_they_are_used():
    plan = make_plan()
    for dtype in (torch.float32, torch.bfloat16):
        assert check.fault(plan, dtype, DEVICE) is None


def test_a_wrong_kernel_is_found_before_it_is_used(monkeypatch):
    plan = make_plan()
    wrong = kernels()._replace(heads_backward=lambda *given: None)
    monkeypatch.setattr(check, "kernels", lambda: wrong)
    monkeypatch.setattr(check, "_FAULTS", {})
    assert "gradients" in (check.fault(plan, torch.float32, DEVICE) or "")
