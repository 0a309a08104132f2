"""Gradient norms where the host decides: CPU training.

fp64 would be slow here: fp32 comes first, and only a non-finite norm is computed again.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from ..shards import local

INF = float("inf")

# Up to here reading one number after the other is quicker than collecting them first.
_FEW = 24
# Elements from which a dot product, which runs on all cores, beats the foreach kernel on one.
_LARGE = 1 << 16
# Elements up to which, on average, many tensors are copied together: measuring one takes longer.
_TINY = 512
_WIDE = {torch.float32, torch.float64}
_ORDINARY = {(Tensor, torch.strided, dtype) for dtype in _WIDE}


class SupportsArray(Protocol):
    """An array, or what becomes one when it is needed."""

    def __array__(self) -> np.ndarray:
        """The numbers."""
        ...


@dataclass(slots=True)
class GradientReading:
    """What the gradients of one step looked like, once it is on the host."""

    norms: Sequence[float] | SupportsArray
    total: float
    bad: Sequence[int] = ()
    largest: float = math.nan

    @property
    def blamed(self) -> int:
        """The bad gradient nearest to the loss.

        Backward runs from the loss to the first layer and a NaN spreads to everything below,
        so the last layer in forward order that is bad is the one where it began.
        """
        return self.bad[-1] if self.bad else -1

    def unscaled(self, scale: float) -> GradientReading:
        """The same without the scale that a GradScaler has put on the gradients."""
        if not 0.0 < scale < math.inf:
            return self
        norms = np.asarray(self.norms) / scale
        return GradientReading(norms, self.total / scale, self.bad, self.largest / scale)


def plain(grads: list[Tensor]) -> list[Tensor]:
    """Gradients as dense real local tensors, which is all the foreach kernels accept."""
    simple = {*map(type, grads)} == {Tensor} and {g.layout for g in grads} == {torch.strided}
    if simple and not any(map(Tensor.is_complex, grads)) and not grads[0].requires_grad:
        return grads
    out: list[Tensor] = []
    for grad in grads:
        # Gradients of a graph that will be differentiated again must not carry us along.
        part = local(grad).detach()
        if part.is_sparse:
            part = part._values()
        if part.is_complex():
            part = torch.view_as_real(part)
        out.append(part)
    return out


def read_on_host(grads: list[Tensor]) -> GradientReading:
    """Measure gradients that live on the CPU."""
    return measure_on_host(grads)[0]


def measure_on_host(grads: list[Tensor]) -> tuple[GradientReading, list[Tensor]]:
    """The same, and the norms as tensors."""
    if not grads:
        return GradientReading([], 0.0), []
    dtypes = {g.dtype for g in grads}
    # fp16 and bf16 norms must be summed in fp32: 300 squared already overflows fp16. Beside
    # fp64 they are summed in that, because it cannot be narrowed.
    wider = torch.float64 if torch.float64 in dtypes else torch.float32
    norms = list(torch._foreach_norm(grads, 2, None if dtypes <= _WIDE else wider))
    if len(dtypes) > 1:
        norms = [n.double() for n in norms]
    return _read(grads, torch.stack(norms).tolist()), norms


def _read(grads: list[Tensor], values: list[float]) -> GradientReading:
    total = _total(values)
    if total < INF:
        return GradientReading(values, total)
    bad: list[int] = []
    largest = math.nan
    for i, value in enumerate(values):
        if math.isfinite(value):
            continue
        peak = float(torch.linalg.vector_norm(grads[i], INF))
        if math.isfinite(peak):
            # Finite values whose squares overflow fp32.
            values[i] = float(torch.linalg.vector_norm(grads[i].double()))
        else:
            bad.append(i)
            largest = peak
    return GradientReading(values, _total(values), bad, largest)


def _total(norms: Sequence[float]) -> float:
    return math.sqrt(sum(map(operator.mul, norms, norms)))


class HostNorms:
    """Reads the gradients of one optimizer step after step, asking about their kind once."""

    def __init__(self) -> None:
        self._uniform = False
        self._large: dict[int, int] = {}
        self._small: list[int] = []
        # Where each tensor begins if all are laid in a row; None where that does not pay.
        self._starts: np.ndarray | None = None
        self._elements = 0

    def learn(self, grads: list[Tensor]) -> None:
        """Other parameters have gradients than before."""
        # Ordinary dense tensors of one wide dtype, as they are in most models.
        kinds = {(type(g), g.layout, g.dtype) for g in grads}
        self._uniform = len(kinds) == 1 and kinds <= _ORDINARY
        several = torch.get_num_threads() > 1
        large = [i for i, g in enumerate(grads) if several and g.numel() >= _LARGE]
        self._large = {at: n for n, at in enumerate(large)}
        self._small = [i for i in range(len(grads)) if i not in self._large]
        sizes = [g.numel() for g in grads]
        self._elements = sum(sizes)
        tiny = len(sizes) > _FEW and self._elements <= _TINY * len(sizes) and min(sizes) > 0
        self._starts = np.cumsum([0, *sizes[:-1]]) if tiny and self._uniform else None

    def easy(self, grads: list[Tensor]) -> bool:
        """Whether they can be measured as they are."""
        return self._uniform and not grads[0].requires_grad

    def read(self, grads: list[Tensor], easy: bool) -> GradientReading:
        """Parameters keep their kind of gradient; should one change, ask again from now on."""
        if easy:
            try:
                norms = self._norms(grads)
                total = _total(norms)
                return GradientReading(norms, total) if total < INF else _read(grads, norms)
            except (RuntimeError, NotImplementedError):
                self._uniform = False
        return read_on_host(plain(grads))

    def _norms(self, grads: list[Tensor]) -> list[float]:
        if self._starts is not None:
            row = torch._C._nn.flatten_dense_tensors(grads)  # type: ignore[attr-defined]
            if row.numel() == self._elements:
                squares = np.square(row.numpy(), dtype=np.float64)
                return np.sqrt(np.add.reduceat(squares, self._starts)).tolist()
        if not self._large:
            return _numbers(torch._foreach_norm(grads))
        squares = [torch.dot(flat := grads[i].reshape(-1), flat) for i in self._large]
        small = torch._foreach_norm([grads[i] for i in self._small]) if self._small else []
        values = _numbers([*squares, *small])
        norms = [0.0] * len(grads)
        for at, n in self._large.items():
            norms[at] = math.sqrt(values[n])
        for at, value in zip(self._small, values[len(squares) :], strict=True):
            norms[at] = value
        return norms


def _numbers(tensors: Sequence[Tensor]) -> list[float]:
    if len(tensors) <= _FEW:
        return list(map(Tensor.item, tensors))
    return torch.stack(list(tensors)).tolist()
