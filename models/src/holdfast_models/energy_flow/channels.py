"""Logging channels of the lattice, and what it says on those of the trainer.

    holdfast train energy_flow --set train.log.channels=spawn,convergence

The numbers of the channels are a contract. Reading a value waits for the device, and some messages
compute something of their own; both happen only for messages that are written.

B batch, S cells, N rows of flows, K flows of the first generation of a sample.
"""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from holdfast.training import add_channel, channel

from .data.pairs import PairSets
from .model.carrier import scale_at
from .model.collection import importance
from .model.coordinates import denormalise, start_S3
from .model.ending import Finished
from .model.energy_flow import EnergyFlow, Output
from .model.flows import launch, pick_cells
from .model.lattice import Core
from .model.movement import Z0, ZD
from .model.noise import Key, normal_N3
from .model.settings import ModelSettings
from .model.stepping import LatticePass, advance, push, sigma_3

__all__ = ["tell_beginning", "tell_pass"]

_cache = channel("cache")
_forward = channel("forward")
_init = channel("init")
_memory = channel("memory")
_spatial = add_channel("spatial", 13)
_energy = add_channel("energy", 18)
_spawn = add_channel("spawn", 19)
_convergence = add_channel("convergence", 20)
_relative = add_channel("relative", 23)
_spawn_movement = add_channel("spawn_movement", 24)
_reflection = add_channel("reflection", 25)
_importance = add_channel("importance", 26)

_OF_A_PASS = (
    _forward, _spatial, _energy, _spawn, _convergence, _relative, _spawn_movement, _reflection,
    _importance,
)  # fmt: skip


def tell_beginning(sets: PairSets, model: EnergyFlow, *, seeds: tuple[int, int], text: int) -> None:
    """What a run has been given, before its first step.

    Args:
        sets: the pairs.
        model: as it was made.
        seeds: of the noise and of the data.
        text: bytes of the texts as numbers.
    """
    counts = [len(part) for part in (sets.train, sets.validation, sets.test)]
    embeddings = 2 * 4 * sum(counts) * sets.train.width  # inputs and targets, float32
    _memory(
        "data: %d + %d + %d pairs, %.3f MB of embeddings, %.3f MB of texts as numbers",
        *counts, embeddings / 1e6, text / 1e6,
    )  # fmt: skip
    bridge = model.bridge
    words = "no text bridge" if bridge is None else f"vocabulary of {len(bridge.vocabulary)} pieces"
    _init("noise with seed %d, data with seed %d; %s", *seeds, words)
    if bridge is None or bridge.cache is None:
        _cache("no text cache")
    else:
        room = bridge.cache.surfaces.size
        _cache("text cache: room for %d surfaces and %d texts; training bypasses it", room, room)


def tell_pass(model: EnergyFlow, out: Output, *, step: int, seed: int) -> None:
    """What happened to a batch, on the channels that are on.

    Args:
        model: that it went through.
        out: what came of it.
        step: of the optimizer.
        seed: of the noise.
    """
    if not any(one.on for one in _OF_A_PASS) or out.flows is None or model.core is None:
        return
    with torch.no_grad():
        settings, flows = model.settings, out.flows
        _forward(_forward_reported, model.core, out)
        _spatial(_spatial_reported, flows)
        _energy(_energy_reported, out)
        _spawn(_spawn_reported, flows, settings)
        _convergence(_convergence_reported, flows, settings)
        _relative(_relative_reported, out.surface_BHW, flows, settings)
        _spawn_movement(_spawn_movement_reported, flows, settings)
        _reflection(_reflection_reported, model.core, out.surface_BHW, step, seed)
        _importance(_importance_reported, flows)


def _forward_reported(core: Core, out: Output) -> str:
    mode = core.mode_for(out.surface_BHW)
    return (
        f"{mode} mode, {len(out.y_BE)} samples: input surface {_range(out.surface_BHW)}, output "
        f"surface {_range(out.out_BS)}, embeddings of length {_mean(out.y_BE.norm(dim=-1))}"
    )


def _spatial_reported(flows: Finished) -> str:
    ended = max(1, int((flows.exit_N > 0).sum()))
    own_N = ~flows.projected_N
    low, high = (int(((flows.exit_N == face) & own_N).sum()) / ended for face in (Z0, ZD))
    return (
        f"{float(flows.stats.filled):.0%} of the surface is filled; of the flows collected "
        f"{low:.0%} left at z = 0, {high:.0%} at z = depth, {max(0.0, 1 - low - high):.0%} at none"
    )


def _energy_reported(out: Output) -> str:
    assert out.flows is not None
    stats = out.flows.stats
    return (
        f"flows begin with {_range(out.surface_BHW)}, end with mean "
        f"{float(stats.energy_mean):.3g} and standard deviation {float(stats.energy_std):.3g}; "
        f"collected {_range(out.out_BS)}"
    )


def _spawn_reported(flows: Finished, settings: ModelSettings) -> str:
    stats = flows.stats
    return (
        f"{int(stats.made)} flows, {int(stats.spawned)} of them children, {int(stats.died)} "
        f"died; room for {settings.flows.capacity}"
    )


def _convergence_reported(flows: Finished, settings: ModelSettings) -> str:
    stats, rules = flows.stats, settings.convergence
    steps, share = int(stats.steps), float(stats.completion)
    of = f"step {steps} of {settings.steps}"
    if rules.on and (steps < settings.steps or share >= rules.threshold):
        return f"converged at {of}: {share:.0%} of flows had reached a face"
    return f"not converged at {of}: {share:.0%} of flows had reached a face"


def _relative_reported(surface_BHW: Tensor, flows: Finished, settings: ModelSettings) -> str:
    """Flows of the first generation, from where each began to where it ended."""
    lattice = settings.lattice
    start_K3 = start_S3(lattice, surface_BHW.device)
    cells_BK = pick_cells(surface_BHW, settings)
    batch = surface_BHW.shape[0]
    start_BK3 = start_K3.expand(batch, -1, -1) if cells_BK is None else start_K3[cells_BK]
    start_N3 = start_BK3.reshape(-1, 3)
    end_N3 = denormalise(flows.p_N3[: len(start_N3)], lattice)
    way_N3 = (end_N3 - denormalise(start_N3, lattice)).abs()
    x, y, z = way_N3.mean(0).tolist()
    return (
        f"from where they began flows moved {x:.2f} cells in x, {y:.2f} in y and {z:.2f} planes "
        f"in z on average, {float(way_N3.max()):.2f} at most"
    )


def _spawn_movement_reported(flows: Finished, settings: ModelSettings) -> str:
    born_N = flows.parent_N >= 0
    rule = f"from moves of {2 * settings.flows.spawn_threshold:g} on"
    if not bool(born_N.any()):
        return f"no flow had a child ({rule}, {settings.flows.spawn_most} at most in a step)"
    # Rows stand in the order of numbers, so that the number of a parent is its row.
    parent_R = flows.parent_N[born_N]
    ends_N3 = denormalise(flows.p_N3, settings.lattice)
    apart_R = (ends_N3[born_N] - ends_N3[parent_R]).norm(dim=-1)
    when_R = flows.born_N[born_N]
    return (
        f"{len(parent_R)} children of {len(parent_R.unique())} flows, born in lattice steps "
        f"{int(when_R.min())} to {int(when_R.max())}, ended {_mean(apart_R)} cells from their "
        f"parents ({rule})"
    )


def _reflection_reported(core: Core, surface_BHW: Tensor, step: int, seed: int) -> str:
    """The first sample goes through the lattice once more: modes do not count reflections."""
    settings = core.settings
    no_children = dataclasses.replace(settings.flows, spawn_most=0)
    settings = dataclasses.replace(settings, flows=no_children)
    parts = core.parts._replace(settings=settings)
    lattice_pass = LatticePass(
        batch=1,
        steps=settings.steps,
        key=Key(seed, step),
        training=core.training,
        scale=scale_at(step, settings.carrier),
    )
    noise_3 = sigma_3(settings, lattice_pass, surface_BHW.device)
    flows = launch(surface_BHW[:1], settings.lattice, settings)
    met_N = torch.zeros_like(flows.alive_N)
    hits = moves = 0
    for t in range(settings.steps):
        pushed = push(parts, lattice_pass, noise_3, flows, flows.alive_N, t)
        q_N3 = flows.p_N3 + pushed.delta_N3
        if noise_3 is not None:
            q_N3 = q_N3 + normal_N3(lattice_pass.key, flows.index_N, t) * noise_3
        beyond_N2 = (q_N3[:, :2].abs() > 1) & flows.alive_N[:, None]
        met_N = met_N | beyond_N2.any(1)
        hits, moves = hits + int(beyond_N2.sum()), moves + int(flows.alive_N.sum())
        flows, _ = advance(parts, lattice_pass, noise_3, flows, flows.alive_N, t)
    done = "reflected" if settings.flows.reflect else "stopped"
    return (
        f"{int(met_N.sum())} of {len(met_N)} flows of the first sample met a side wall; "
        f"{hits} times in {moves} moves one was {done} there"
    )


def _importance_reported(flows: Finished) -> str:
    got_N = flows.exit_N > 0
    weight_N = importance(flows.e_N1[:, 0], flows.p_N3, flows.k_N)
    reached_N, projected_N = got_N & ~flows.projected_N, got_N & flows.projected_N
    parts = [
        f"{int(which_N.sum())} flows that {what}: {_range(weight_N[which_N])}, "
        f"mean {_mean(weight_N[which_N])}"
        for which_N, what in ((reached_N, "reached a face"), (projected_N, "were projected"))
        if bool(which_N.any())
    ]
    return "weights before the softmax of " + "; ".join(parts) if parts else "no flow was collected"


def _range(values: Tensor) -> str:
    values = values.detach().float()
    return f"{float(values.min()):.3g} to {float(values.max()):.3g}"


def _mean(values: Tensor) -> str:
    return f"{float(values.detach().float().mean()):.3g}"
