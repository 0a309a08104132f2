from __future__ import annotations

from functools import partial

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from holdfast_models.energy_flow.model import loop
from holdfast_models.energy_flow.model.lattice import Core
from holdfast_models.energy_flow.model.noise import Key
from holdfast_models.energy_flow.model.stepping import LatticePass


def surface(batch: int = 3, height: int = 5, width: int = 6) -> torch.Tensor:
    return torch.randn(batch, height, width, generator=torch.Generator().manual_seed(0))


class HostReads(TorchDispatchMode):
    """Counts what makes the host wait for a value, or a shape depend on one."""

    NAMES = ("_local_scalar_dense", "nonzero", "masked_select", "unique", "is_nonzero", "equal")

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.overloadpacket.__name__
        if name.startswith(self.NAMES):
            self.seen.append(name)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("splat", ["bilinear", "nearest"])
def test_an_untrained_core_hands_the_surface_on(small_settings, splat):
    core = Core(small_settings(flows={"splat": splat})).eval()
    given_BHW = surface()
    out = core(given_BHW, step=0, seed=0)
    torch.testing.assert_close(out.surface_BS, given_BHW.flatten(1), atol=1e-5, rtol=0)
    assert out.filled_BS.all()


def test_the_default_drift_brings_every_flow_to_a_face_in_time(small_settings):
    out = Core(small_settings()).eval()(surface(), step=0, seed=0)
    assert out.stats.done == out.stats.made == 90 and out.stats.completion == 1
    assert (out.exit_N == 2).all() and (out.k_N == 4).all()  # 8 steps of a quarter: 4 to the face


def test_drift_goes_where_the_flow_tends_to(small_settings):
    core = Core(small_settings()).eval()
    with torch.no_grad():
        core.carrier.move_end.bias[2] = -0.01
    assert (core(surface(), step=0, seed=0).exit_N == 1).all()


def test_flows_at_rest_are_projected_or_dropped(small_settings):
    still = {"z_drift": 0.0}
    given_BHW = surface()
    out = Core(small_settings(carrier=still)).eval()(given_BHW, step=0, seed=0)
    torch.testing.assert_close(out.surface_BS, given_BHW.flatten(1), atol=1e-5, rtol=0)
    assert out.stats.projected == 90 and out.stats.done == 0 and out.stats.completion == 0
    assert (out.exit_N == 1).all() and (out.k_N == 8).all()  # the middle is a tie: z = 0
    dropped = Core(small_settings(carrier=still, flows={"end": "drop"})).eval()
    out = dropped(given_BHW, step=0, seed=0)
    assert not out.surface_BS.any() and not out.filled_BS.any() and out.stats.projected == 0


def test_every_step_is_as_the_rules_say_flow_by_flow(busy_core):
    core = busy_core(flows={"filter_below": 0.28}).eval()
    given_BHW = surface(2)
    with torch.no_grad():
        out = core(given_BHW, step=0, seed=0)
        fates = []
        for n in range(60):
            b, y, x = n // 30, n % 30 // 6, n % 6
            p_13 = torch.tensor([[2 * x / 5 - 1, 2 * y / 4 - 1, 0.0]])
            e_11, h_LNC = given_BHW[b, y, x].view(1, 1), torch.zeros(2, 1, 12)
            face, steps, died = 0, 0, False
            while steps < 8 and not face and not died:
                u_1o = core.neuron(p_13, e_11)
                e_11, delta_13, h_LNC, _ = core.carrier.step(u_1o, e_11, h_LNC, 1.0)
                delta = delta_13[0].tolist()
                delta[2] += 0.03 if delta[2] >= 0 else -0.03
                q = [a + d for a, d in zip(p_13[0].tolist(), delta, strict=True)]
                face = 1 if q[2] <= -1 else 2 if q[2] >= 1 else 0
                q[2] = max(-1.0, min(1.0, q[2]))
                q[:2] = [-2 - a if a < -1 else 2 - a if a > 1 else a for a in q[:2]]
                p_13, steps = torch.tensor([q]), steps + 1
                died = not face and sum(d * d for d in delta) ** 0.5 < 0.28
            fates.append("died" if died else "out" if face else "projected")
            assert out.k_N[n] == steps
            torch.testing.assert_close(out.p_N3[n], p_13[0], atol=1e-5, rtol=0)
            torch.testing.assert_close(out.e_N1[n], e_11[0], atol=1e-5, rtol=0)
            nearer = 2 if p_13[0, 2] > 0 else 1
            assert out.exit_N[n] == (face or (0 if died else nearer))
    stats = out.stats
    assert set(fates) == {"died", "out", "projected"}  # or the test shows less than it seems
    assert stats.died == fates.count("died") and stats.done == fates.count("out")
    assert stats.projected == fates.count("projected")


def test_every_flow_ends_exactly_once_and_the_counts_add_up(busy_core):
    flows = {"spawn_most": 2, "spawn_threshold": 0.1, "capacity": 800, "filter_below": 0.2}
    out = busy_core(flows=flows)(surface(), step=0, seed=0)
    stats = out.stats
    assert stats.made == 90 + stats.spawned and stats.spawned > 0 and stats.died > 0
    assert stats.done + stats.projected + stats.died == stats.made
    used_N = torch.arange(out.k_N.shape[0]) < 90
    used_N |= out.born_N >= 0
    assert used_N.sum() == stats.made
    assert (out.exit_N > 0).sum() == stats.made - stats.died
    assert not (out.exit_N[~used_N] > 0).any() and not out.k_N[~used_N].any()
    # A flow cannot take more steps than were left when it was born.
    assert (out.k_N + out.born_N < 8).all()
    torch.testing.assert_close(stats.filled, out.filled_BS.float().mean())
    got_N = out.exit_N > 0
    torch.testing.assert_close(stats.mean_steps, out.k_N[got_N].float().mean())
    torch.testing.assert_close(stats.energy_mean, out.e_N1[got_N].mean())
    torch.testing.assert_close(stats.energy_std, out.e_N1[got_N].std(correction=0))
    assert 0 < stats.state_most < 1 and 0 < stats.input_most <= 10 and stats.guarded == 0


def test_children_begin_where_the_parent_stood_with_what_it_has(busy_core):
    flows = {"spawn_most": 2, "spawn_threshold": 0.12, "capacity": 100_000}
    core = busy_core(flows=flows).eval()
    seen = []
    watched = partial(loop.run_steps, visit=lambda t, flows: seen.append(flows))
    lattice_pass = LatticePass(2, 3, Key(0, 0), training=False, scale=1.0)
    loop.run(core.parts, lattice_pass, surface(2), loop=watched)
    born = 0
    for t in range(3):
        before, after = seen[t], seen[t + 1]
        child_R = (after.born_N == t).nonzero()[:, 0]
        parent_R = after.parent_N[child_R]
        assert torch.equal(after.p_N3[child_R], before.p_N3[parent_R])
        assert torch.equal(after.e_N1[child_R], after.e_N1[parent_R])
        assert torch.equal(after.h_LNC[:, child_R], after.h_LNC[:, parent_R])
        assert torch.equal(after.sample_N[child_R], after.sample_N[parent_R])
        assert not after.k_N[child_R].any() and after.alive_N[child_R].all()
        way_N = (after.p_N3 - before.p_N3).norm(dim=1)
        goes_N = before.alive_N & after.alive_N
        wanted_N = (way_N / 0.12).floor().sub(1).clamp(0, 2).long() * goes_N
        assert torch.equal(parent_R.bincount(minlength=len(wanted_N)), wanted_N)
        born += len(child_R)
    assert born > 50


def test_children_are_made_while_each_samples_share_of_the_capacity_lasts(busy_core):
    flows = {"spawn_most": 2, "spawn_threshold": 0.1, "capacity": 100}
    out = busy_core(flows=flows)(surface(2), step=0, seed=0)
    assert out.stats.made == 100 and out.k_N.shape[0] == 100
    assert out.sample_N[60:].bincount().tolist() == [20, 20]


def test_noise_is_there_in_training_only_and_falls_to_nothing(busy_core):
    core = busy_core(flows={"noise_anneal": 100})
    given_BHW = surface()

    def places(step: int, seed: int) -> torch.Tensor:
        with torch.no_grad():
            return core(given_BHW, step=step, seed=seed).p_N3

    noisy_N3 = places(0, 1)
    assert torch.equal(noisy_N3, places(0, 1))
    assert not torch.equal(noisy_N3, places(0, 2)) and not torch.equal(noisy_N3, places(1, 1))
    quiet_N3 = places(100, 1)
    core.eval()
    assert torch.equal(quiet_N3, places(0, 1)) and torch.equal(quiet_N3, places(0, 2))


def test_noise_keeps_off_z_where_it_is_told_to(small_settings):
    still = {"z_drift": 0.0}
    for on_z in (True, False):
        core = Core(small_settings(carrier=still, flows={"noise_on_z": on_z}))
        p_N3 = core(surface(), step=0, seed=0).p_N3
        assert bool(p_N3[:, 2].any()) is on_z
        # 8 steps of a tenth of a cell, two fifths of the unit on x: 0.04 * sqrt(8).
        moved_N = p_N3[:, 0] - torch.linspace(-1, 1, 6).repeat(15)
        inner_N = p_N3[:, 0].abs() < 0.8
        assert 0.07 < moved_N[inner_N].std() < 0.16


def test_a_nan_is_seen_in_its_own_sample_and_counted(busy_core):
    core = busy_core().eval()
    given_BHW = surface()
    clean = core(given_BHW, step=0, seed=0)
    given_BHW[1, 2, 3] = torch.nan
    out = core(given_BHW, step=0, seed=0)
    assert not out.surface_BS[1].isfinite().all()
    torch.testing.assert_close(out.surface_BS[[0, 2]], clean.surface_BS[[0, 2]])
    assert out.stats.guarded > 0 and clean.stats.guarded == 0


@pytest.mark.parametrize("coupling", [False, True])
def test_the_host_reads_nothing_in_a_training_step(busy_core, coupling):
    flows = {"spawn_most": 2, "spawn_threshold": 0.1, "capacity": 300, "coupling": coupling}
    core = busy_core(flows=flows | {"filter_below": 0.05})
    given_BHW = surface().requires_grad_()
    with HostReads() as reads:
        core(given_BHW, step=0, seed=0).surface_BS.square().sum().backward()
    assert reads.seen == []


def test_the_counter_of_host_reads_counts(busy_core):
    core = busy_core(flows={"mode": "compact", "compact_every": 1})
    with HostReads() as reads:
        core(surface(), step=0, seed=0).surface_BS.sum().item()
    assert "_local_scalar_dense" in reads.seen


@pytest.mark.slow
def test_the_loop_is_one_graph_for_the_compiler(busy_core):
    flows = {"spawn_most": 1, "spawn_threshold": 0.15, "capacity": 300, "steps": 2}
    core = busy_core(flows=flows, convergence={"on": True, "least_steps": 1})
    compiled = torch.compile(core, backend="eager", fullgraph=True)
    with torch.no_grad():
        wanted = core(surface(), step=0, seed=0).surface_BS
        assert torch.equal(compiled(surface(), step=0, seed=0).surface_BS, wanted)
