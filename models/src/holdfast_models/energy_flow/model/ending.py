"""What comes out of the loop: the surface, the flows' ends and the counts.

B batch, S cells, N rows of flows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from .collection import Collected, collect, project
from .flows import Flows
from .settings import ModelSettings
from .stepping import FlowStep

__all__ = ["Finished", "Stats", "Tally", "count", "finish"]


class Tally(NamedTuple):
    """Running counts of one run through the lattice; scalars on the device."""

    done: Tensor  # reached a face
    died: Tensor
    spawned: Tensor
    steps: Tensor
    guarded: Tensor
    input_most: Tensor
    state_most: Tensor

    @classmethod
    def zero(cls, device: torch.device) -> Tally:
        """Nothing counted yet."""
        whole = torch.zeros((), dtype=torch.long, device=device)
        most = torch.zeros((), device=device)
        return cls(whole, whole, whole, whole, whole, most, most)


class Stats(NamedTuple):
    """Numbers of one run through the lattice; scalars on the device, without a gradient."""

    made: Tensor  # first generation and children
    done: Tensor  # reached a face by themselves
    projected: Tensor  # were alive at the end, and counted at the nearer face
    spawned: Tensor
    died: Tensor  # were filtered
    steps: Tensor  # lattice steps until the loop stopped
    completion: Tensor  # done / made
    mean_steps: Tensor  # of the flows that were collected
    filled: Tensor  # share of cells that a flow reached
    input_most: Tensor  # largest absolute input of the GRU
    state_most: Tensor  # largest absolute state of the GRU
    guarded: Tensor  # inputs of the GRU that were not finite or out of range
    energy_mean: Tensor  # of the flows that were collected
    energy_std: Tensor


class Finished(NamedTuple):
    """The output surface, and how each flow ended.

    Flows stand in the order of their numbers in every mode. Rows that no flow took, and flows
    that died or were dropped, have exit 0 and are not in the surface.
    """

    surface_BS: Tensor
    filled_BS: Tensor
    e_N1: Tensor
    p_N3: Tensor
    k_N: Tensor
    exit_N: Tensor  # 0 none, 1 the face z = 0, 2 the face z = depth; projected ones as well
    projected_N: Tensor
    sample_N: Tensor
    parent_N: Tensor
    born_N: Tensor
    stats: Stats


def count(tally: Tally, step: FlowStep, spawned: Tensor | int, stopped: Tensor) -> Tally:
    """The counts with those of one more step."""
    return Tally(
        done=tally.done + step.left,
        died=tally.died + step.died,
        spawned=tally.spawned + spawned,
        steps=tally.steps + ~stopped,
        guarded=tally.guarded + step.guarded,
        input_most=torch.maximum(tally.input_most, step.input_most),
        state_most=torch.maximum(tally.state_most, step.state_most),
    )


def finish(
    flows: Flows,
    tally: Tally,
    settings: ModelSettings,
    batch: int,
    first: int,
    *,
    gather: Callable[[Flows, Tensor], Collected] | None = None,
) -> Finished:
    """Collect the flows on the surface, those still alive by ``flows.end``.

    Args:
        flows: all rows, in the order of their numbers; their states are not used.
        tally: from the loop.
        settings: of the whole model.
        batch: B.
        first: flows of the first generation.
        gather: collects the flows that are told by a mask; None: ``collection.collect`` does.
    """
    projected_N = flows.alive_N
    if settings.flows.end == "drop":
        projected_N = torch.zeros_like(projected_N)
    exit_N = flows.exit_N + project(flows.p_N3.detach(), projected_N)
    got_N = exit_N > 0
    if gather is not None:
        surface_BS, filled_BS = gather(flows, got_N)
    else:
        surface_BS, filled_BS = collect(
            flows.e_N1[:, 0],
            flows.p_N3,
            flows.k_N,
            flows.sample_N,
            got_N,
            settings.lattice,
            batch,
            splat=settings.flows.splat,
            deterministic=settings.flows.deterministic,
        )
    stats = _measure(flows, tally, got_N, projected_N, filled_BS, first)
    return Finished(
        surface_BS=surface_BS,
        filled_BS=filled_BS,
        e_N1=flows.e_N1,
        p_N3=flows.p_N3,
        k_N=flows.k_N,
        exit_N=exit_N,
        projected_N=projected_N,
        sample_N=flows.sample_N,
        parent_N=flows.parent_N,
        born_N=flows.born_N,
        stats=stats,
    )


def _measure(
    flows: Flows, tally: Tally, got_N: Tensor, projected_N: Tensor, filled_BS: Tensor, first: int
) -> Stats:
    with torch.no_grad():
        made = tally.spawned + first
        got = got_N.sum().clamp(min=1)
        e_N = flows.e_N1.detach()[:, 0]
        mean = e_N.where(got_N, 0.0).sum() / got
        spread = (e_N - mean).square().where(got_N, 0.0).sum() / got
        return Stats(
            made=made,
            done=tally.done,
            projected=projected_N.sum(),
            spawned=tally.spawned,
            died=tally.died,
            steps=tally.steps,
            completion=tally.done / made.clamp(min=1),
            mean_steps=flows.k_N.where(got_N, 0).sum() / got,
            filled=filled_BS.float().mean(),
            input_most=tally.input_most,
            state_most=tally.state_most,
            guarded=tally.guarded,
            energy_mean=mean,
            energy_std=spread.sqrt(),
        )
