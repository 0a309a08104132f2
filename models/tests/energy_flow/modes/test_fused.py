"""Fused mode through the plain forms of its kernels, beside dense mode."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from holdfast import HoldfastError
from holdfast.training import Graphs
from holdfast_models.energy_flow.kernels import weights
from holdfast_models.energy_flow.kernels.ops import has_triton, references
from holdfast_models.energy_flow.kernels.plan import BlockSizes, plan_for, saved_bytes, slots
from holdfast_models.energy_flow.kernels.support import unsupported, unsupported_by_kernels
from holdfast_models.energy_flow.model import loop
from holdfast_models.energy_flow.model.ending import Finished
from holdfast_models.energy_flow.model.lattice import Core
from holdfast_models.energy_flow.model.noise import Key
from holdfast_models.energy_flow.model.settings import ModelSettings
from holdfast_models.energy_flow.model.stepping import LatticePass, Parts
from holdfast_models.energy_flow.modes import graph
from holdfast_models.energy_flow.modes.chunked import run_fused
from holdfast_models.energy_flow.modes.fused import prepare, run_pass
from holdfast_models.energy_flow.modes.memory import chunk_for

CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "one layer": {"carrier": {"layers": 1}},
    "three layers": {"carrier": {"layers": 3}},
    "energy as before, clamped": {"carrier": {"energy": "tanh", "bound": "clamp"}},
    "no reflection, dropped": {"flows": {"reflect": False, "end": "drop"}},
    "early stop": {"convergence": {"on": True, "least_steps": 2, "threshold": 0.4}},
    "overflow": {"flows": {"capacity": 50}},
    "nearest": {"flows": {"splat": "nearest"}},
    "one step": {"flows": {"steps": 1}},
    "deterministic": {"flows": {"deterministic": True}},
}


@pytest.fixture
def calm_core(small_settings: Callable[..., ModelSettings]) -> Callable[..., Core]:
    """A core whose flows move a little: rounding must not grow from step to step."""

    def make(**given: dict[str, Any]) -> Core:
        carrier = {"hidden": 48, "neuron_hidden": 32, "neuron_output": 64}
        given["carrier"] = carrier | given.get("carrier", {})
        given["flows"] = {"noise_cells": 0.3} | given.get("flows", {})
        with torch.random.fork_rng():
            torch.manual_seed(1)
            core = Core(small_settings(**given))
            with torch.no_grad():
                for one in (core.carrier.energy_end, core.carrier.move_end):
                    one.weight.normal_(0, 0.25)
                    one.bias.normal_(0, 0.15)
                for parameter in core.parameters():
                    if parameter.dim() == 1:
                        parameter += 0.1 * torch.randn_like(parameter)
        return core

    return make


def surface(batch: int = 4) -> Tensor:
    given_BHW = torch.randn(batch, 5, 6, generator=torch.Generator().manual_seed(0))
    return (1.5 * given_BHW).requires_grad_()


def lattice_pass(core: Core, *, training: bool = True) -> LatticePass:
    return LatticePass(4, core.settings.steps, Key(7 + (3 << 32), 40), training, scale=1.3)


def fused(parts: Parts, lattice_pass: LatticePass, surface_BHW: Tensor) -> Finished:
    return run_pass(prepare(parts, lattice_pass, surface_BHW), surface_BHW)


def trained(core: Core, out: Finished, given_BHW: Tensor) -> dict[str, Tensor]:
    """Gradients of a loss that surface, positions and energies are in."""
    core.zero_grad()
    random = torch.Generator().manual_seed(3)
    loss = torch.zeros(())
    for one in (out.surface_BS, out.p_N3, out.e_N1):
        loss = loss + (one * torch.randn(one.shape, generator=random)).mean()
    loss.backward()
    named = dict(core.named_parameters()) | {"surface": given_BHW}
    return {name: one.grad.clone() for name, one in named.items() if one.grad is not None}


def close(got: Tensor, wanted: Tensor, what: str, limit: float = 1e-5) -> None:
    """As near as fp32 allows, relative to its size."""
    if not wanted.is_floating_point():
        assert torch.equal(got, wanted), what
        return
    apart = (got.double() - wanted.double()).norm() / wanted.double().norm().clamp(min=1e-12)
    assert apart < limit, f"{what}: {apart:.1e}"


def alike(core: Core, run: Any, *, training: bool = True) -> Finished:
    """Run both, compare everything."""
    first, second = surface(), surface()
    wanted = loop.run(core.parts, lattice_pass(core, training=training), first)
    wanted_grads = trained(core, wanted, first)
    out = run(core.parts, lattice_pass(core, training=training), second)
    grads = trained(core, out, second)
    for name, value in wanted._asdict().items():
        if name != "stats":
            close(getattr(out, name), value, name)
    for name, value in wanted.stats._asdict().items():
        close(getattr(out.stats, name), value, name)
    assert set(grads) == {*dict(core.named_parameters()), "surface"}
    for name, grad in grads.items():
        close(grad, wanted_grads[name], f"gradient of {name}", 5e-5)
    return wanted


@pytest.mark.parametrize("case", CASES)
def test_fused_mode_agrees_with_dense_mode_in_values_statistics_and_gradients(calm_core, case):
    core = calm_core(**CASES[case])
    wanted = alike(core, fused)
    assert wanted.stats.made > 0 and wanted.stats.guarded == 0
    if case == "early stop":
        assert wanted.stats.steps < core.settings.steps
    if case == "overflow":
        assert wanted.stats.made == 48


def test_it_agrees_where_there_is_no_noise(calm_core):
    alike(calm_core(), fused, training=False)


def test_the_first_layer_is_the_same_in_one_product_and_in_three(calm_core, monkeypatch):
    monkeypatch.setattr(weights, "_ONE_PRODUCT", 0)
    alike(calm_core(), fused)


@pytest.mark.parametrize("case", ["plain", "early stop", "overflow"])
@pytest.mark.parametrize("chunk", [1, 3])
def test_chunks_agree_with_dense_mode_too(calm_core, case, chunk):
    flows = CASES[case].get("flows", {}) | {"chunk": chunk}
    alike(calm_core(**(CASES[case] | {"flows": flows})), run_fused)


def test_chunks_follow_the_budget(busy_core):
    def chunk_of(**flows: Any) -> int:
        return chunk_for(busy_core(flows=flows).settings, 8, one, torch.device("cpu"))

    one = 30 * saved_bytes(plan_for(busy_core().parts, 8), 4)
    assert chunk_of(chunk=3) == 3
    assert chunk_of(activation_budget_gb=3.5 * one / 1e9) == 3
    assert chunk_of(activation_budget_gb=5.5 * one / 1e9) == 4  # two alike, not five and three
    assert chunk_of(activation_budget_gb=0.1 * one / 1e9) == 1


def test_nothing_of_the_first_pass_of_chunks_stays_but_the_ends(busy_core):
    core = busy_core(flows={"chunk": 1})
    held: dict[int, int] = {}

    def hold(tensor: Tensor) -> Tensor:
        held[tensor.data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(hold, lambda tensor: tensor):
        run_fused(core.parts, lattice_pass(core), surface())
    parameters = sum(one.numel() * 4 for one in core.parameters())
    assert sum(held.values()) < parameters + 4 * 30 * saved_bytes(plan_for(core.parts, 8), 4) / 10


def test_an_early_stop_ends_the_same_flows_in_chunks_however_they_are_cut(busy_core):
    case = {"convergence": {"on": True, "least_steps": 2, "threshold": 0.4}}
    outs = []
    for chunk in (1, 2, 4):
        core = busy_core(**case, flows={"chunk": chunk})
        outs.append(run_fused(core.parts, lattice_pass(core), surface()))
    assert outs[0].stats.steps < 8
    assert all(torch.equal(one.k_N, outs[0].k_N) for one in outs)


def test_fused_mode_is_reached_through_the_core_and_says_why_it_has_no_graph(busy_core):
    core = busy_core(flows={"mode": "fused"})
    assert core.mode_for(surface()) == "fused"
    given_BHW = surface()
    out = core(given_BHW, step=3, seed=1)
    way = LatticePass(4, 8, Key(1, 3), training=True, scale=core.settings.carrier.scale)
    wanted = loop.run(core.parts, way, surface())
    close(out.surface_BS, wanted.surface_BS, "surface")
    assert core.graphs.reason == "it is not on a GPU" and core.graphs.replays == 0
    with torch.no_grad():
        assert core.mode_for(surface()) == "fused"


def test_auto_is_compact_with_children_and_dense_without_where_there_is_no_gpu(busy_core):
    assert busy_core(flows={"mode": "auto"}).mode_for(surface()) == "dense"
    children = {"mode": "auto", "spawn_most": 1, "spawn_threshold": 0.1, "capacity": 500}
    assert busy_core(flows=children).mode_for(surface()) == "compact"


def test_what_fused_mode_cannot_do_is_said(busy_core):
    given = {
        "coupling": {"coupling": True},
        "filter_below": {"filter_below": 0.2},
        "children": {"spawn_most": 1, "spawn_threshold": 0.1, "capacity": 500},
    }
    for word, flows in given.items():
        core = busy_core(flows=flows)
        assert word in (unsupported(core.settings, 4) or "")
        with pytest.raises(HoldfastError, match=word):
            fused(core.parts, lattice_pass(core), surface())
    full = busy_core(flows=given["children"] | {"capacity": 120})  # no room for a child
    assert unsupported(full.settings, 4) is None
    assert "Triton" in (unsupported_by_kernels(full.settings, torch.device("cpu")) or "")
    assert not has_triton(torch.device("cpu"))


def test_backward_twice_is_an_error_with_a_way_out(busy_core):
    core = busy_core()
    loss = fused(core.parts, lattice_pass(core), surface()).surface_BS.sum()
    loss.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match=r"flows\.mode=dense"):
        loss.backward()


def test_frozen_parameters_stay_alone(busy_core):
    core = busy_core(flows={"chunk": 2})
    core.neuron.requires_grad_(False)
    for run in (fused, run_fused):
        core.zero_grad()
        run(core.parts, lattice_pass(core), surface()).surface_BS.sum().backward()
        assert all(one.grad is None for one in core.neuron.parameters())
        assert all(one.grad is not None for one in core.carrier.parameters())


def test_products_are_made_in_the_dtype_of_autocast(calm_core):
    core = calm_core()
    wanted = loop.run(core.parts, lattice_pass(core), surface()).surface_BS
    with torch.autocast("cpu", torch.bfloat16):
        fused_pass = prepare(core.parts, lattice_pass(core), surface())
        got = run_pass(fused_pass, surface()).surface_BS
    assert fused_pass.dtype == torch.bfloat16 and got.dtype == torch.float32
    apart = (got - wanted).norm() / wanted.norm()
    assert 1e-6 < apart < 0.05


def test_a_pass_without_gradients_keeps_a_few_slabs_only(busy_core):
    core = busy_core(carrier={"hidden": 64})
    sizes: list[int] = []
    ops = references()

    def gates_forward(gates_NG: Tensor, *rest: Any) -> None:
        sizes.append(gates_NG.untyped_storage().nbytes())
        ops.gates_forward(gates_NG, *rest)

    watched = ops._replace(gates_forward=gates_forward)
    for grad in (True, False):
        with torch.set_grad_enabled(grad):
            run_pass(prepare(core.parts, lattice_pass(core), surface(), watched), surface())
    assert sizes[0] == 8 * sizes[-1]


def test_a_copied_or_pickled_core_has_no_graphs_of_the_first(busy_core):
    core = busy_core()
    core.graphs.replays = 5
    assert copy.deepcopy(core).graphs.replays == 0
    assert isinstance(pickle.loads(pickle.dumps(core.graphs)), Graphs)


def test_every_program_of_a_kernel_has_a_slot(busy_core):
    plan = plan_for(busy_core(carrier={"hidden": 1040}).parts, 8)
    assert {slots(kind, 999, plan) for kind in ("neuron", "gates_sums", "heads")} == {1}
    cut = {"gates_block": 4096, "gates_back_block": 1024, "gates_programs": 528, "heads_rows": 16}
    back = {"heads_back_rows": 16, "heads_programs": 792}
    plan = plan._replace(blocks=BlockSizes(**cut, **back))
    # 1040 columns are three tiles of 512; eight rows of 512 make a block of 4096.
    assert slots("gates", 999, plan) == 125 * 3
    assert slots("gates_sums", 999, plan) == 528 // 3
    assert slots("heads", 999, plan) == 63
    assert slots("heads_sums", 999, plan) == 63  # 792 programs for nine and two groups of columns
    assert slots("neuron", 999, plan) == 16
    assert slots("neuron_sums", 999, plan) == 63
    assert slots("neuron", 999, plan._replace(neuron=128)) == 63


def test_steps_after_an_early_stop_are_not_computed(busy_core):
    computed = []
    core = busy_core(convergence={"on": True, "least_steps": 2, "threshold": 0.4})
    ops = references()

    def gates_forward(*given):
        computed.append(1)
        ops.gates_forward(*given)

    watched = ops._replace(gates_forward=gates_forward)
    out = run_pass(prepare(core.parts, lattice_pass(core), surface(), watched), surface())
    assert out.stats.steps < 8
    assert len(computed) == core.settings.carrier.layers * int(out.stats.steps)


def test_many_flows_rather_stop_early_than_run_as_a_graph(busy_core):
    on = {"on": True, "least_steps": 2, "threshold": 0.4}
    many = torch.empty(64, 60, 60)
    for case, says in (({"convergence": on}, True), ({}, False)):
        core = busy_core(**case, flows={"capacity": 200_000})
        fused_pass = prepare(core.parts, lattice_pass(core), surface())
        assert (graph._stops(fused_pass, many) is not None) == says
        assert graph._stops(fused_pass, surface()) is None
