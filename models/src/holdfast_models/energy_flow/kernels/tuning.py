"""How the kernels are cut into blocks: measured, once for each size, on the device at hand.

N flows, C carrier width. What is measured first is what is known least. The search is over after
``HOLDFAST_FLOW_TUNING`` seconds (1.5 if that is not set; 0: no search, the numbers of ``Blocks``
are used), most of which go into compiling kernels that are not used in the end; later processes
find them compiled. Small batches are not worth it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch

from .ops import Ops, references
from .plan import Blocks, Plan, slots
from .weights import Layer, halve

__all__ = ["SECONDS", "blocks_for", "chosen"]

SECONDS = "HOLDFAST_FLOW_TUNING"
"""Name of the variable that says how long may be searched."""

_LEAST = 8192  # flows
_MOST = 40_960  # rows that are measured
_REPEATS = 5
_AHEAD = 200_000  # cycles that the device waits for the launch of one kernel
_MEASURED = 512  # the carrier's width for which the gates were measured by hand

_SEARCHED: dict[tuple[Any, ...], Blocks] = {}

# Rows, warps, programs; another number of programs is the same kernel, which is compiled by then.
_HEADS_BACK = [(16, 4, 792), (32, 4, 528)]
_HEADS = [(16, 4), (64, 8)]
_NEURON_BACK = [(32, 2), (16, 1)]
_NEURON = [(32, 4)]
_GATES = [(4096, 16), (1024, 4), (8192, 16)]
_GATES_BACK = [(1024, 4, 528), (2048, 8, 264)]


def chosen() -> dict[str, dict[str, Any]]:
    """What was found so far, for people: size by size."""
    return {f"C {key[1]}, {key[4]}": found._asdict() for key, found in _SEARCHED.items()}


def blocks_for(
    plan: Plan, flows: int, dtype: torch.dtype, ops: Ops, device: torch.device
) -> Blocks | None:
    """The blocks for a run of so many flows; None for plain torch, which has none.

    Args:
        plan: sizes.
        flows: N.
        dtype: of states and products.
        ops: the kernels.
        device: where.
    """
    if ops is references():
        return None
    if flows < _LEAST:
        return Blocks()
    key = (device, plan.hidden, plan.neuron, plan.answer, dtype)
    if key not in _SEARCHED:
        seconds = _seconds()
        # Never in the middle of somebody's capture: a search waits for the device.
        if seconds <= 0 or torch.cuda.is_current_stream_capturing():
            return Blocks()
        known = [one for other, one in _SEARCHED.items() if other[2:] == key[2:]]
        with torch.no_grad():
            search = _Search(plan, min(flows, _MOST), dtype, ops, device, seconds)
            _SEARCHED[key] = search.run(known[-1] if known else None)
    return _SEARCHED[key]


def _seconds() -> float:
    try:
        return float(os.environ.get(SECONDS, "1.5"))
    except ValueError:
        return 0.0


class _Search:
    """Times kernels on rows of nothing in particular."""

    def __init__(
        self,
        plan: Plan,
        rows: int,
        dtype: torch.dtype,
        ops: Ops,
        device: torch.device,
        seconds: float,
    ) -> None:
        self._plan, self._rows, self._ops = plan, rows, ops
        self._dtype, self._device = dtype, device
        self._left = seconds

    def run(self, known: Blocks | None) -> Blocks:
        """The fastest of what there was time for.

        Args:
            known: found for another width; the neuron does not depend on it.
        """
        best = Blocks()
        if known is not None:
            best = best._replace(
                neuron_rows=known.neuron_rows,
                neuron_warps=known.neuron_warps,
                neuron_back_rows=known.neuron_back_rows,
                neuron_back_warps=known.neuron_back_warps,
            )
        best = self._fastest(best, self._products, [{"first_products": n} for n in (2, 3)])
        names = ("heads_back_rows", "heads_back_warps", "heads_programs")
        best = self._fastest(best, self._heads_back, _named(names, _HEADS_BACK))
        best = self._fastest(best, self._heads, _named(("heads_rows", "heads_warps"), _HEADS))
        if known is None:
            names = ("neuron_back_rows", "neuron_back_warps")
            best = self._fastest(best, self._neuron_back, _named(names, _NEURON_BACK))
            names = ("neuron_rows", "neuron_warps")
            best = self._fastest(best, self._neuron, _named(names, _NEURON))
        if self._plan.hidden != _MEASURED:
            names = ("gates_back_block", "gates_back_warps", "gates_programs")
            best = self._fastest(best, self._gates_back, _named(names, _GATES_BACK))
            best = self._fastest(best, self._gates, _named(("gates_block", "gates_warps"), _GATES))
        return best

    def _fastest(
        self,
        best: Blocks,
        work: Callable[[Plan], Callable[[], None]],
        others: list[dict[str, int]],
    ) -> Blocks:
        least = self._try(work, best)  # has to be compiled anyway
        for blocks in _changed(best, others):
            if self._left <= 0:
                break
            began = time.perf_counter()
            took = self._try(work, blocks)
            self._left -= time.perf_counter() - began
            if took < 0.98 * least:  # no change for the noise of a clock
                least, best = took, blocks
        return best

    def _try(self, work: Callable[[Plan], Callable[[], None]], blocks: Blocks) -> float:
        try:
            return self._time(work(self._plan._replace(blocks=blocks)))
        except Exception:  # does not fit the device: not a candidate
            return float("inf")

    def _time(self, work: Callable[[], None]) -> float:
        work()
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        # Short kernels end before the host has launched the next one: let it launch them all.
        torch.cuda._sleep(_REPEATS * _AHEAD)
        begin.record()
        for _ in range(_REPEATS):
            work()
        end.record()
        end.synchronize()
        return begin.elapsed_time(end)

    def _empty(self, *shape: int, dtype: torch.dtype | None = None) -> torch.Tensor:
        return torch.zeros(*shape, device=self._device, dtype=dtype or torch.float32)

    def _products(self, plan: Plan) -> Callable[[], None]:
        from .loop import products  # which needs the plan that is sought here

        wide, inputs = plan.hidden, plan.inputs
        layer = Layer(self._empty(3 * wide, inputs), self._empty(3 * wide, wide), self._empty(0))
        half = halve(layer, 0, plan, self._dtype)
        read_NX = self._empty(self._rows, inputs + wide, dtype=self._dtype).normal_()
        gates_NG = self._empty(self._rows, 4 * wide, dtype=self._dtype)
        half.both_w.normal_()
        return lambda: products(half, read_NX, gates_NG, first=False)

    def _neuron(self, plan: Plan) -> Callable[[], None]:
        rows, count = self._rows, slots("neuron", self._rows, plan)
        q_4N, flat = self._empty(4, rows).normal_(), self._flat(plan)
        answer_w, answer_b = self._empty(plan.answer, plan.neuron), self._empty(plan.answer)
        out_NR = self._empty(rows, plan.row, dtype=self._dtype)
        given = (q_4N, self._alive(), self._stop(), flat, answer_w, answer_b, out_NR)
        most, guarded = self._empty(count), self._empty(count, dtype=torch.int32)
        return lambda: self._ops.neuron_forward(*given, most, guarded, plan)

    def _neuron_back(self, plan: Plan) -> Callable[[], None]:
        rows, flat = self._rows, self._flat(plan)
        sums = self._empty(slots("neuron_sums", rows, plan), len(flat))
        du_NU = self._empty(rows, plan.inputs, dtype=self._dtype).normal_()
        given = (self._empty(4, rows).normal_(), self._alive(), self._stop(), flat, du_NU)
        slopes_8N, d_4N = self._empty(8, rows), self._empty(4, rows)
        return lambda: self._ops.neuron_backward(*given, slopes_8N, d_4N, sums, plan)

    def _heads(self, plan: Plan) -> Callable[[], None]:
        rows, ends = self._rows, self._ends(plan)
        heads_NA = self._empty(rows, plan.heads, dtype=self._dtype)
        q_24N, scale = self._empty(2, 4, rows), self._empty(1)
        given = (heads_NA, ends, q_24N[0], self._alive(), self._stop(), q_24N[0, :3], scale)
        slopes_8N, counters_2N = self._empty(8, rows), self._empty(2, rows, dtype=torch.int32)
        left = self._empty(slots("heads", rows, plan), dtype=torch.int32)
        after = (q_24N[1], self._alive(), slopes_8N, *counters_2N, left)
        return lambda: self._ops.heads_forward(*given, *after, plan)

    def _heads_back(self, plan: Plan) -> Callable[[], None]:
        rows, ends = self._rows, self._ends(plan)
        sums = self._empty(slots("heads_sums", rows, plan), len(ends))
        heads_NA = self._empty(rows, plan.heads, dtype=self._dtype)
        slopes_8N, d_4N = self._empty(8, rows), self._empty(4, rows)
        return lambda: self._ops.heads_backward(heads_NA, ends, slopes_8N, d_4N, sums, plan)

    def _gates(self, plan: Plan) -> Callable[[], None]:
        rows, wide = self._rows, plan.hidden
        most = self._empty(slots("gates", rows, plan))
        gates_NG = self._empty(rows, 4 * wide, dtype=self._dtype)
        state_2NC = self._empty(2, rows, wide, dtype=self._dtype)
        alive_N, stop, bias = self._alive(), self._stop(), self._empty(4 * wide)
        return lambda: self._ops.gates_forward(
            gates_NG, state_2NC[0], bias, state_2NC[1], alive_N, stop, most, plan
        )

    def _gates_back(self, plan: Plan) -> Callable[[], None]:
        rows, wide = self._rows, plan.hidden
        sums = self._empty(slots("gates_sums", rows, plan), 4 * wide)
        gates_NG = self._empty(rows, 4 * wide, dtype=self._dtype)
        state_2NC = self._empty(2, rows, wide, dtype=self._dtype)
        bias = self._empty(4 * wide)
        return lambda: self._ops.gates_backward(
            gates_NG, state_2NC[0], bias, state_2NC[1], sums, plan
        )

    def _flat(self, plan: Plan) -> torch.Tensor:
        return self._empty(plan.neuron * plan.neuron + 10 * plan.neuron).normal_(0, 0.3)

    def _ends(self, plan: Plan) -> torch.Tensor:
        energy, move = plan.split
        return self._empty(plan.heads + energy + 3 * move + 4).normal_(0, 0.1)

    def _alive(self) -> torch.Tensor:
        return torch.ones(self._rows, device=self._device, dtype=torch.uint8)

    def _stop(self) -> torch.Tensor:
        return torch.zeros(1, device=self._device, dtype=torch.int32)


def _named(names: tuple[str, ...], values: list[tuple[int, ...]]) -> list[dict[str, int]]:
    return [dict(zip(names, one, strict=True)) for one in values]


def _changed(best: Blocks, others: list[dict[str, int]]) -> Iterator[Blocks]:
    return (best._replace(**other) for other in others)
