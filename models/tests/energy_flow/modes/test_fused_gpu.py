"""Fused mode on a GPU: the loop beside dense mode, and its CUDA graphs beside eager passes."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from holdfast.training import free_memory
from holdfast_models.energy_flow.kernels.plan import BlockSizes, KernelPlan
from holdfast_models.energy_flow.model import loop
from holdfast_models.energy_flow.model.ending import Finished
from holdfast_models.energy_flow.model.lattice import Core
from holdfast_models.energy_flow.model.noise import Key
from holdfast_models.energy_flow.model.settings import (
    CarrierSettings,
    ConvergenceSettings,
    FlowSettings,
    LatticeSettings,
    ModelSettings,
)
from holdfast_models.energy_flow.model.stepping import LatticePass
from holdfast_models.energy_flow.modes.entry import why_not_fused
from holdfast_models.energy_flow.modes.fused import prepare, run_pass

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
HIDDEN = 48
SEED = 5 + (2 << 32)  # as the third of several ranks has it
Named = dict[str, Tensor]


@pytest.fixture(autouse=True)
def exact() -> Iterator[None]:
    """Products of fp32 in fp32; and no test leaves a mode behind."""
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = False
    yield
    torch.backends.cuda.matmul.allow_tf32 = before
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # "a prototype feature"
        torch.cuda.set_sync_debug_mode("default")


def make_core(**flows: Any) -> Core:
    settings = ModelSettings(
        lattice=LatticeSettings(width=12, height=9, depth=8),
        carrier=CarrierSettings(hidden=HIDDEN),
        flows=FlowSettings(**{"spawn_most": 0, "noise_cells": 0.3} | flows),
        convergence=ConvergenceSettings(on=False),
        width=16,
    )
    torch.manual_seed(1)
    core = Core(settings)
    with torch.no_grad():
        for one in (core.carrier.energy_end, core.carrier.move_end):
            one.weight.normal_(0, 0.25)
            one.bias.normal_(0, 0.15)
    return core.to(DEVICE)


def surface(seed: int = 0, batch: int = 4) -> Tensor:
    random = torch.Generator().manual_seed(seed)
    return torch.randn(batch, 9, 12, generator=random).to(DEVICE).requires_grad_()


def passed(core: Core, given_BHW: Tensor, step: int = 3) -> tuple[Finished, Named]:
    """Forward and backward through the core: what came out, and all gradients."""
    core.zero_grad()
    out = core(given_BHW, step=step, seed=SEED)
    (out.surface_BS.square().mean() + out.p_N3.square().mean() + out.e_N1.mean()).backward()
    named = dict(core.named_parameters()) | {"surface": given_BHW}
    return out, {name: one.grad.clone() for name, one in named.items() if one.grad is not None}


def apart(got: Tensor, wanted: Tensor) -> float:
    got, wanted = got.detach().double(), wanted.detach().double()
    return float((got - wanted).norm() / wanted.norm().clamp(min=1e-12))


# The whole loop.


@pytest.mark.parametrize("half", [False, True])
def test_the_loop_agrees_with_dense_mode_in_fp32(half):
    core = make_core(graph=False)
    given_BHW = surface()
    with torch.autocast("cuda", torch.bfloat16, enabled=half):
        assert core.mode_for(given_BHW) == "fused", why_not_fused(core.parts, given_BHW)
        out, grads = passed(core, given_BHW)
    plain = make_core(mode="dense")
    wanted, wanted_grads = passed(plain, surface())
    values, slopes = (0.02, 0.05) if half else (1e-4, 1e-3)
    assert apart(out.surface_BS, wanted.surface_BS) < values
    assert apart(out.p_N3, wanted.p_N3) < values
    together = [torch.cat([one[name].flatten() for name in grads]) for one in (grads, wanted_grads)]
    assert apart(*together) < slopes
    if not half:
        assert torch.equal(out.exit_N, wanted.exit_N) and torch.equal(out.k_N, wanted.k_N)


def test_chunks_agree_with_the_loop():
    core = make_core(mode="chunked", chunk=3)
    out, grads = passed(core, surface())
    wanted, wanted_grads = passed(make_core(graph=False), surface())
    assert apart(out.surface_BS, wanted.surface_BS) < 1e-4
    assert max(apart(grads[name], wanted_grads[name]) for name in grads) < 1e-3


def test_blocks_of_any_size_give_the_same():
    core = make_core()
    lattice_pass = LatticePass(4, 4, Key(5, 3), training=True, scale=1.0)
    outs = []
    for blocks in (BlockSizes(), BlockSizes(heads_back_rows=64, heads_programs=7)):
        fused_pass = prepare(core.parts, lattice_pass, surface())
        plan: KernelPlan = fused_pass.plan._replace(blocks=blocks)
        given_BHW = surface()
        out = run_pass(fused_pass._replace(plan=plan), given_BHW)
        core.zero_grad()
        out.surface_BS.square().mean().backward()
        outs.append(torch.cat([one.grad.flatten() for one in core.parameters()]))  # type: ignore[union-attr]
    assert apart(outs[1], outs[0]) < 1e-3


# Graphs.


def warm(core: Core) -> None:
    """Until it is captured."""
    for _ in range(3):
        passed(core, surface())
    assert core.graphs.reason is None and core.graphs.replays == 1, core.graphs.reason


def same(got: tuple[Finished, Named], wanted: tuple[Finished, Named]) -> None:
    """But for the order in which a cell's flows are added."""
    for name, value in wanted[0]._asdict().items():
        if name != "stats":
            assert apart(getattr(got[0], name), value) < 1e-5, name
    for name, value in wanted[0].stats._asdict().items():
        assert apart(getattr(got[0].stats, name), value) < 1e-5, name
    assert set(got[1]) == set(wanted[1])
    for name, grad in wanted[1].items():
        assert apart(got[1][name], grad) < 1e-4, name


def test_a_replay_gives_what_an_eager_pass_gives_for_new_inputs_steps_and_weights():
    core, eager = make_core(), make_core(graph=False)
    warm(core)
    for number in (1, 2):
        with torch.no_grad():  # as an optimizer changes them: in place
            for one in (core, eager):
                for parameter in one.parameters():
                    parameter *= 1.03
        got = passed(core, surface(number), step=100 * number)
        assert core.graphs.reason is None
        same(got, passed(eager, surface(number), step=100 * number))


def test_the_noise_of_a_replay_changes_with_the_step_and_ends_with_its_annealing():
    core = make_core()
    warm(core)
    out = [passed(core, surface(), step=step)[0].p_N3 for step in (3, 4, 3, 5000)]
    assert core.graphs.reason is None
    assert torch.equal(out[0], out[2]) and not torch.equal(out[0], out[1])
    scale = core.settings.carrier.scale
    lattice_pass = LatticePass(4, 4, Key(5, 3), training=False, scale=scale)
    wanted = loop.run(core.parts, lattice_pass, surface())
    assert apart(out[3], wanted.p_N3) < 1e-4


def test_results_of_a_replay_stay_when_the_next_one_comes():
    core = make_core()
    warm(core)
    out, grads = passed(core, surface(1))
    kept = out.surface_BS.clone(), out.stats.energy_mean.clone(), grads["surface"].clone()
    passed(core, surface(2))
    assert torch.equal(kept[0], out.surface_BS) and torch.equal(kept[1], out.stats.energy_mean)
    assert torch.equal(kept[2], grads["surface"])


def test_gradients_of_two_batches_add_up():
    core, eager = make_core(), make_core(graph=False)
    warm(core)
    for one in (core, eager):
        one.zero_grad()
        for seed in (1, 2):
            one(surface(seed), step=0, seed=SEED).surface_BS.square().mean().backward()
    assert core.graphs.reason is None
    for own, theirs in zip(core.parameters(), eager.parameters(), strict=True):
        assert own.grad is not None and theirs.grad is not None
        assert apart(own.grad, theirs.grad) < 1e-4


def test_a_second_forward_before_the_backward_of_the_first_is_computed_without_a_graph():
    core, eager = make_core(), make_core(graph=False)
    warm(core)
    for one in (core, eager):
        one.zero_grad()
        first = one(surface(1), step=0, seed=SEED)
        second = one(surface(2), step=0, seed=SEED)
        (first.surface_BS.square().mean() + second.surface_BS.square().mean()).backward()
    assert core.graphs.reason == "an earlier pass waits for its backward"
    for own, theirs in zip(core.parameters(), eager.parameters(), strict=True):
        assert own.grad is not None and theirs.grad is not None
        assert apart(own.grad, theirs.grad) < 1e-4
    del first, second
    passed(core, surface())
    assert core.graphs.reason is None


def test_nothing_is_read_by_the_host():
    core = make_core()
    warm(core)
    given = [surface(number) for number in range(3)]
    torch.cuda.synchronize()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # "a prototype feature"
        torch.cuda.set_sync_debug_mode("error")
    for step, given_BHW in enumerate(given):
        core.zero_grad()
        core(given_BHW, step=step, seed=SEED).surface_BS.square().mean().backward()
    torch.cuda.set_sync_debug_mode("default")
    assert core.graphs.replays == 4 and core.graphs.reason is None


def test_evaluation_moved_weights_and_copies_are_noticed():
    core = make_core()
    warm(core)
    with torch.no_grad():
        core(surface(), step=0, seed=SEED)
    assert core.graphs.reason == "nothing is trained"
    twin = copy.deepcopy(core)
    passed(twin, surface())
    assert twin.graphs.replays == 0
    core.carrier.heads.weight.data = core.carrier.heads.weight.data.clone()
    same(passed(core, surface()), passed(twin, surface()))
    assert core.graphs.reason == "it is not captured yet"


def test_a_capture_that_fails_leaves_training_as_it_is(monkeypatch):
    core = make_core()

    def refuse(*args: Any, **how: Any) -> None:
        raise RuntimeError("no graphs today")

    monkeypatch.setattr(torch.cuda, "graph", refuse)
    for _ in range(4):
        passed(core, surface())
    assert core.graphs.replays == 0
    assert core.graphs.reason == "it could not be captured before"


def test_memory_of_a_batch_in_chunks_is_bounded():
    core = make_core(mode="chunked", chunk=1)
    whole = make_core(graph=False)
    peaks = []
    for one in (core, whole):
        passed(one, surface(batch=64))
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        passed(one, surface(batch=64))
        peaks.append(torch.cuda.max_memory_allocated() - before)
    assert peaks[0] < 0.7 * peaks[1]
    assert free_memory(DEVICE) > 0
