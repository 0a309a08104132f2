from __future__ import annotations

import pytest
import torch
from torch import Tensor

from holdfast_models.energy_flow.model import loop
from holdfast_models.energy_flow.model.lattice import Core
from holdfast_models.energy_flow.model.noise import Key
from holdfast_models.energy_flow.model.stepping import LatticePass

MODES = ["dense", "compact", "chunked"]


def surface(batch: int = 3) -> Tensor:
    return torch.randn(batch, 5, 6, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("mode", MODES)
def test_nothing_of_a_step_is_there_after_it(busy_core, mode, living_memory):
    flows = {"mode": mode, "spawn_most": 1, "spawn_threshold": 0.1, "capacity": 200}
    core = busy_core(flows=flows, convergence={"on": True})
    optimizer = torch.optim.SGD(core.parameters(), lr=1e-3)
    losses = []
    for step in range(3):
        with living_memory:
            loss = core(surface(), step=step, seed=0).surface_BS.square().mean()
            loss.backward()
        assert living_memory.bytes > 0, "the loss and the gradients"
        losses.append(loss.item())
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        del loss
        assert living_memory.bytes == 0
    assert losses[0] != losses[1] != losses[2]


@pytest.mark.parametrize("mode", MODES)
def test_the_loop_stops_at_the_step_the_rules_say(small_settings, mode):
    convergence = {"on": True, "least_steps": 1, "every": 1}
    drift = {"z_drift": 0.3}  # the faces are reached in the fourth of eight steps
    settings = small_settings(flows={"mode": mode}, carrier=drift, convergence=convergence)
    calls: list[int] = []
    core = Core(settings).eval()
    core.neuron.register_forward_hook(lambda *_: calls.append(1))
    out = core(surface(), step=0, seed=0)
    assert out.stats.steps == 4 and len(calls) == 4
    assert out.stats.completion == 1 and out.stats.mean_steps == 4


def test_when_the_host_looks_changes_no_number(busy_core):
    rules = {"on": True, "least_steps": 2, "threshold": 0.4}
    outs, calls = [], []
    for every in (1, 100):
        core = busy_core(convergence=rules | {"every": every})
        count: list[int] = []
        core.neuron.register_forward_hook(lambda *_, count=count: count.append(1))
        outs.append(core(surface(), step=0, seed=0))
        calls.append(len(count))
    used = int(outs[0].stats.steps)
    assert calls == [used, 8] and used < 8
    # And both are as if there had been no more steps than that.
    core = busy_core()
    lattice_pass = LatticePass(len(surface()), used, Key(0, 0), training=True, scale=1.0)
    outs.append(loop.run(core.parts, lattice_pass, surface()))
    for out in outs[1:]:
        torch.testing.assert_close(out.surface_BS, outs[0].surface_BS)
        assert torch.equal(out.k_N, outs[0].k_N) and torch.equal(out.exit_N, outs[0].exit_N)
        assert out.stats.projected == outs[0].stats.projected > 0


def test_all_parameters_learn_and_are_saved(busy_core):
    core = busy_core(flows={"coupling": True})
    core(surface(), step=0, seed=0).surface_BS.square().mean().backward()
    for name, parameter in core.named_parameters():
        assert parameter.grad is not None and parameter.grad.any(), name
    assert set(core.state_dict()) == {name for name, _ in core.named_parameters()}


def test_the_untrained_core_can_leave_its_place(small_settings):
    core = Core(small_settings())
    torch.nn.functional.mse_loss(
        core(surface(), step=0, seed=0).surface_BS, torch.zeros(3, 30)
    ).backward()
    for end in (core.carrier.energy_end, core.carrier.move_end):
        assert end.weight.grad is not None and end.weight.grad.any()


@pytest.mark.parametrize("mode", MODES)
def test_a_deterministic_core_repeats_every_bit(busy_core, mode):
    flows = {"mode": mode, "deterministic": True, "spawn_most": 2, "spawn_threshold": 0.1}
    results = []
    for _ in range(2):
        core = busy_core(flows=flows | {"capacity": 300})
        out = core(surface(), step=0, seed=0)
        out.surface_BS.square().mean().backward()
        results.append([out.surface_BS, *(one.grad for one in core.parameters())])
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


def test_a_sample_does_not_depend_on_its_company(busy_core):
    core = busy_core(flows={"coupling": True}).eval()
    alone = core(surface()[:1], step=0, seed=0).surface_BS
    torch.testing.assert_close(core(surface(), step=0, seed=0).surface_BS[:1], alone)


def test_displacements_follow_the_curriculum(busy_core):
    falling = {"scale": 3.0, "scale_min": 1.0, "scale_warmup": 10, "scale_every": 1}
    core, plain = busy_core(carrier=falling).eval(), busy_core().eval()
    wanted_N3 = plain(surface(), step=0, seed=0).p_N3
    assert torch.equal(core(surface(), step=1000, seed=0).p_N3, wanted_N3)
    assert not torch.equal(core(surface(), step=9, seed=0).p_N3, wanted_N3)
