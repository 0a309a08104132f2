from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from holdfast_models.energy_flow.model.ending import Finished
from holdfast_models.energy_flow.model.lattice import Core
from holdfast_models.energy_flow.modes.compact import bucket
from holdfast_models.energy_flow.modes.memory import activation_bytes

CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "nearest, dropped at the end": {"flows": {"splat": "nearest", "end": "drop"}},
    "filter": {"flows": {"filter_below": 0.25}},
    "overflow": {"flows": {"capacity": 50}},
    "children": {"flows": {"spawn_most": 1, "spawn_threshold": 0.25, "capacity": 1000}},
    "hardly room for children": {
        "flows": {"spawn_most": 2, "spawn_threshold": 0.1, "capacity": 140, "filter_below": 0.2}
    },
    "coupling": {"flows": {"coupling": True, "deterministic": True}},
    "coupling and children": {
        "flows": {"coupling": True, "spawn_most": 1, "spawn_threshold": 0.15, "capacity": 400}
    },
    "early stop": {"convergence": {"on": True, "least_steps": 2, "threshold": 0.4}},
    "energy as before, clamped": {"carrier": {"energy": "tanh", "bound": "clamp", "layers": 1}},
}
MODES: dict[str, dict[str, Any]] = {
    "compact": {"mode": "compact", "compact_every": 1},
    "compact, now and then": {"mode": "compact", "compact_every": 3},
    "chunks of one": {"mode": "chunked", "chunk": 1},
    "chunks of three": {"mode": "chunked", "chunk": 3},
}


def surface(batch: int = 4) -> Tensor:
    return torch.randn(batch, 5, 6, generator=torch.Generator().manual_seed(0)).requires_grad_()


def with_mode(case: dict[str, Any], mode: dict[str, Any]) -> dict[str, Any]:
    return case | {"flows": case.get("flows", {}) | mode}


def trained(core: Core) -> tuple[Finished, dict[str, Tensor]]:
    """One forward and backward, with a loss that all of the surface and all positions are in."""
    given_BHW = surface()
    out = core(given_BHW, step=2, seed=7)
    weight = torch.randn(out.surface_BS.shape, generator=torch.Generator().manual_seed(3))
    ((out.surface_BS * weight).mean() + 0.01 * out.p_N3.square().mean()).backward()
    named = dict(core.named_parameters()) | {"surface": given_BHW}
    return out, {name: one.grad for name, one in named.items() if one.grad is not None}


@pytest.mark.parametrize("case", CASES)
def test_modes_agree_in_values_and_gradients(busy_core, case):
    wanted, wanted_grads = trained(busy_core(**CASES[case]))
    for mode in MODES:
        core = busy_core(**with_mode(CASES[case], MODES[mode]))
        out, grads = trained(core)
        for name in ("surface_BS", "e_N1", "p_N3"):
            close(getattr(out, name), getattr(wanted, name), f"{mode}: {name}")
        for name in ("filled_BS", "k_N", "exit_N", "projected_N", "sample_N", "parent_N", "born_N"):
            assert torch.equal(getattr(out, name), getattr(wanted, name)), f"{mode}: {name}"
        for name, value in out.stats._asdict().items():
            close(value, getattr(wanted.stats, name), f"{mode}: {name}")
        assert set(grads) == set(wanted_grads) == {*dict(core.named_parameters()), "surface"}
        for name, grad in grads.items():
            assert wanted_grads[name].any(), name
            close(grad, wanted_grads[name], f"{mode}: gradient of {name}")


def close(got: Tensor, wanted: Tensor, what: str) -> None:
    torch.testing.assert_close(got, wanted, atol=1e-5, rtol=1e-5, msg=lambda why: f"{what}: {why}")


def test_the_cases_are_what_they_are_called(busy_core):
    stats = {name: trained(busy_core(**case))[0].stats for name, case in CASES.items()}
    plain = stats["plain"]
    assert 0 < plain.done < plain.made == 120 and plain.projected > 0
    assert stats["filter"].died > 0 and stats["overflow"].made == 48
    assert stats["children"].spawned > 100 and stats["children"].made < 1000
    assert stats["hardly room for children"].spawned == 20
    assert stats["coupling and children"].spawned > 0
    assert 2 <= stats["early stop"].steps < 8 and stats["early stop"].projected > 0


def test_compact_mode_computes_fewer_rows(busy_core):
    rows: list[int] = []
    core = busy_core(flows={"mode": "compact", "compact_every": 1})
    core.neuron.register_forward_hook(lambda _, inputs, __: rows.append(inputs[0].shape[0]))
    core.eval()(surface(), step=0, seed=0)
    assert rows[0] == 120 and rows[-1] < 60 and rows == sorted(rows, reverse=True)


def test_rows_come_from_a_short_ladder():
    sizes = {bucket(rows, 1000) for rows in range(1001)}
    assert len(sizes) == 10 and max(sizes) == 1000 and min(sizes) == 16
    assert all(rows <= bucket(rows, 1000) <= max(16, 2 * rows) for rows in range(1001))
    assert bucket(1, 1) == bucket(0, 1) == 1


def kept_for_backward(core: Core) -> int:
    """Bytes that the graph of one forward holds, parameters apart."""
    own = {one.untyped_storage().data_ptr() for one in core.parameters()}
    held: dict[int, Tensor] = {}

    def pack(tensor: Tensor) -> Tensor:
        if tensor.untyped_storage().data_ptr() not in own:
            held[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        core(surface(), step=0, seed=0)
    return sum(tensor.untyped_storage().nbytes() for tensor in held.values())


def test_the_first_pass_of_chunked_mode_keeps_no_activations(busy_core):
    kept = kept_for_backward(busy_core(flows={"mode": "chunked"}))
    assert kept < 0.1 * kept_for_backward(busy_core())


@pytest.mark.parametrize("hidden", [32, 128])
def test_the_estimate_of_activations_is_near_what_is_kept(busy_core, hidden):
    widths = {"hidden": hidden, "neuron_hidden": 32, "neuron_output": 64}
    core = busy_core(carrier=widths)
    guess = 4 * activation_bytes(core.settings, 30, core.settings.steps)
    assert 0.8 < kept_for_backward(core) / guess < 1.2


def test_a_budget_decides_the_mode_and_the_chunk(busy_core):
    one = activation_bytes(busy_core().settings, 30, 8)
    ample = busy_core(flows={"activation_budget_gb": 4.1 * one / 1e9})
    assert ample.mode_for(surface()) == "dense"
    tight = busy_core(flows={"activation_budget_gb": 3.9 * one / 1e9})
    assert tight.mode_for(surface()) == "chunked"
    with torch.no_grad():
        assert tight.mode_for(surface()) == "dense"
    rows: list[int] = []
    given_BHW = surface()
    out = tight(given_BHW, step=0, seed=0)
    tight.neuron.register_forward_hook(lambda _, inputs, __: rows.append(inputs[0].shape[0]))
    out.surface_BS.sum().backward()
    assert set(rows) == {60}  # three samples would fit at once; two and two are alike


def test_chunked_mode_computes_its_gradients_under_the_same_autocast(busy_core):
    grads = []
    for flows in ({}, {"mode": "chunked", "chunk": 4}):
        core = busy_core(flows=flows)
        given_BHW = surface()
        with torch.autocast("cpu", torch.bfloat16):
            out = core(given_BHW, step=0, seed=0)
        out.surface_BS.square().mean().backward()
        assert given_BHW.grad is not None
        grads.append(given_BHW.grad)
    torch.testing.assert_close(grads[0], grads[1], atol=1e-6, rtol=1e-5)


def test_chunked_mode_notices_parameters_that_were_changed_before_backward(busy_core):
    core = busy_core(flows={"mode": "chunked"})
    out = core(surface(), step=0, seed=0)
    with torch.no_grad():
        core.carrier.energy_end.bias += 1
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.surface_BS.sum().backward()


def test_chunked_mode_leaves_frozen_parameters_alone(busy_core):
    core = busy_core(flows={"mode": "chunked", "chunk": 2})
    core.neuron.requires_grad_(False)
    core(surface().detach(), step=0, seed=0).surface_BS.sum().backward()
    assert all(one.grad is None for one in core.neuron.parameters())
    assert all(one.grad is not None for one in core.carrier.parameters())
