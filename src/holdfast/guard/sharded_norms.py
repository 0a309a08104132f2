"""Gradients that are spread over ranks: their whole norms, and one decision about a step.

Every rank measures its parts. One sum over all ranks, inside ``optimizer.step``, adds up the
squares; what is not finite on one rank is then not finite on any, and since all hold the same
numbers to the last bit they decide alike, about outliers too. With the squares goes a count of the
ranks that cannot skip: is there one, nobody does. On a device nothing is waited for.
"""

from __future__ import annotations

import hashlib
import itertools
import math
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from ..probes.gradients import DeviceReading, NormMeter
from ..probes.host_norms import INF, GradientReading
from ..records.run import NotCovered
from ..shards import is_sharded, local

# Seconds to wait, once, for the other ranks to say that they take part. Ranks that compile reach
# their first step at different times; one that is not guarded never answers.
_PATIENCE = 60.0
# How often this process has asked: an answer of before is none.
_turn = itertools.count()
_FLAT = ("_is_flat_param", "_fsdp_flattened")


class ShardedNorms:
    """Sums over the ranks that hold parts of the same parameters.

    Args:
        groups: to sum over, one after the other; mostly one.
        shares: for each parameter, what the squares of one rank count: parts that stand on
            several ranks are counted once.
        home: where the sum is made.
    """

    def __init__(self, groups: Sequence[Any], shares: Sequence[float], home: torch.device) -> None:
        self.taken_part = False
        """Whether this rank has done so in this step; the others wait for it."""
        self.home = home
        self._groups = groups
        self._shares = np.array(shares)
        self._shares_there: Tensor | None = None
        self._reported = False
        # Parameters with gradients here, and the same on the device.
        self._places: tuple[Sequence[int], Any] = (), slice(0)

    @classmethod
    def of(cls, parameters: Sequence[Tensor], name: str) -> tuple[ShardedNorms | None, str]:
        """One for the parameters of an optimizer; None where each rank can decide for itself.

        The second is why ranks that ought to agree cannot; else empty. ``name`` says which
        optimizer it is, alike on all ranks.
        """
        if any(hasattr(p, mark) for p in parameters for mark in _FLAT):
            return None, "parameters are flattened (FSDP1) and ranks cannot agree on a skip"
        sharded: list[Any] = [p for p in parameters if is_sharded(p)]
        meshes = {id(p.device_mesh): p.device_mesh for p in sharded}.values()
        if not any(mesh.size() > 1 for mesh in meshes):
            return None, ""
        ranks = {id(mesh): mesh.mesh.flatten().tolist() for mesh in meshes}
        widest = max(meshes, key=lambda mesh: mesh.size())
        all_ranks = ranks[id(widest)]
        if not all(set(all_ranks).issuperset(some) for some in ranks.values()):
            return None, "parameters are spread over ranks that have no mesh in common"
        shapes = [tuple(p.shape) for p in parameters]
        about = name, next(_turn), sorted(all_ranks), shapes
        key = hashlib.sha256(repr(about).encode()).hexdigest()[:16]
        if not _all_take_part(f"holdfast/sharded_norms/{key}", len(all_ranks)):
            return None, "not every rank that holds a part of the parameters is guarded alike"
        groups = _groups(widest)
        shares = [_share(p, len(all_ranks)) for p in parameters]
        return cls(groups, shares, _home(local(sharded[0]).device, widest, groups)), ""

    # ------------------------------------------------------------------ taking part

    def on_host(
        self, reading: GradientReading, positions: Sequence[int], *, refuses: bool
    ) -> tuple[GradientReading, bool]:
        """The norms over all ranks, of every parameter, and whether one of them cannot skip.

        Args:
            reading: of the parts on this rank.
            positions: which parameters have gradients here.
            refuses: whether this rank cannot skip the step.
        """
        sums = np.zeros(len(self._shares) + 1)
        with np.errstate(over="ignore"):
            squares = np.square(np.asarray(reading.norms, dtype=np.float64))
        sums[list(positions)] = squares * self._shares[list(positions)]
        sums[-1] = refuses
        sums = self._sum(torch.from_numpy(sums).to(self.home)).cpu().numpy()
        norms = np.sqrt(sums[:-1])
        whole = GradientReading(norms, math.sqrt(float(sums[:-1].sum())))
        if not whole.total < INF:
            whole.bad = np.flatnonzero(~np.isfinite(norms)).tolist()
            whole.largest = float(norms[whole.bad[-1]]) if whole.bad else math.nan
        return whole, bool(sums[-1])

    def on_device(
        self,
        norm_meter: NormMeter,
        measured: DeviceReading | None,
        positions: Sequence[int],
        *,
        refuses: bool,
    ) -> DeviceReading:
        """The same where the numbers stay on a device; ``measured`` without gradients is None."""
        count = len(self._shares)
        sums = torch.zeros(count + 1, dtype=torch.float64, device=self.home)
        if measured is not None:
            if self._places[0] is not positions:
                some = len(positions) != count
                there = _there(torch.tensor(positions), self.home) if some else slice(0, count)
                self._places = positions, there
            sums[self._places[1]] = measured.squares().to(self.home, non_blocking=True)
            if self._shares_there is None:
                self._shares_there = _there(torch.from_numpy(self._shares), self.home)
            sums[:-1] *= self._shares_there
        if refuses:
            sums[-1:].fill_(1.0)
        return norm_meter.of_all_ranks(self._sum(sums), measured)

    def refusal(self) -> list[NotCovered]:
        """What there is to tell, once, when another rank cannot skip."""
        if self._reported:
            return []
        self._reported = True
        why = "another rank cannot skip, and ranks skip together or not at all"
        return [NotCovered(what="skipping a bad step", why=why)]

    def stand_in(self) -> None:
        """Take part for a guard that cannot decide this step: nobody skips it."""
        if not self.taken_part:
            sums = torch.zeros(len(self._shares) + 1, dtype=torch.float64, device=self.home)
            sums[-1:].fill_(1.0)
            self._sum(sums)
        self.taken_part = False

    def _sum(self, sums: Tensor) -> Tensor:
        self.taken_part = True
        for group in self._groups:
            dist.all_reduce(sums, group=group)
        return sums


def _groups(mesh: Any) -> list[Any]:
    """The groups to sum over, so that every rank of a mesh holds the sum over all of it."""
    if mesh.ndim > 1 and mesh.size() == dist.get_world_size():
        return [dist.group.WORLD]
    # Nobody's group covers such a mesh: along each of its dimensions in turn.
    return [mesh.get_group(dim) for dim in range(mesh.ndim) if mesh.size(dim) > 1]


def _share(parameter: Any, ranks: int) -> float:
    """What the squares of one rank count, so that parts on several ranks are counted once."""
    parts = 1
    if is_sharded(parameter):
        for dim, placement in enumerate(parameter.placements):
            if not placement.is_replicate():
                parts *= parameter.device_mesh.size(dim)
    return parts / ranks


def _home(device: torch.device, mesh: Any, groups: Sequence[Any]) -> torch.device:
    """Where the groups can sum: beside the parameters, if these are not offloaded."""
    if all(device.type in {d.type for d in group._device_types} for group in groups):
        return device
    return torch.device(mesh.device_type, torch.accelerator.current_device_index())


def _there(values: Tensor, device: torch.device) -> Tensor:
    """Numbers of the host on a device, without waiting."""
    pinned = values.pin_memory() if device.type == "cuda" else values
    return pinned.to(device, non_blocking=True)


def _all_take_part(key: str, ranks: int) -> bool:
    """Whether all ranks have come here with the same parameters; alike on all of them.

    A sum in which one does not take part would never end. They count themselves in the store of
    the process group, and the first that knows the answer writes it down for the others.
    """
    store = dist.distributed_c10d._get_default_store()
    came = store.add(f"{key}/came", 1)
    end, pause = time.monotonic() + _PATIENCE, 0.001
    while came < ranks and not store.check([f"{key}/all"]) and time.monotonic() < end:
        time.sleep(pause)
        pause = min(2 * pause, 0.5)
        came = store.add(f"{key}/came", 0)
    answer: Any = store.compare_set(f"{key}/all", "", "yes" if came >= ranks else "no")
    return answer == b"yes"
