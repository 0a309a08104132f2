"""Per-tensor gradient norms and whether each gradient is finite.

The L2 norm decides: it is not finite when, and only when, a gradient is not, provided the squares
cannot overflow. On a device it is therefore summed in fp64, one pass over memory, and the row of
norms travels to the host without being waited for. On the host fp64 would be slow: there fp32
comes first and only a norm that is not finite gets a second look.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

COLUMNS = {
    "grad_norm": "L2 norm over all gradients of the optimizer",
    "grad_max": "NaN or infinity, whichever the blamed gradient holds; measured on bad steps",
    "grad_bad": "number of gradient tensors that are not finite",
    "grad_layer": "index of the layer to blame, -1 for none",
}

INF = float("inf")


@dataclass(slots=True)
class GradientReading:
    """What the gradients of one step looked like, once it is on the host."""

    norms: np.ndarray
    bad: list[int]
    largest: float = math.nan

    @property
    def total(self) -> float:
        """Global L2 norm; NaN or inf when a gradient is."""
        with np.errstate(over="ignore", invalid="ignore"):
            return float(np.sqrt(np.sum(np.square(self.norms, dtype=np.float64))))

    @property
    def blamed(self) -> int:
        """The bad gradient nearest to the loss.

        Backward runs from the loss to the first layer and a NaN spreads to everything below,
        so the last layer in forward order that is bad is the one where it began.
        """
        return self.bad[-1] if self.bad else -1


def plain(grads: list[Tensor]) -> list[Tensor]:
    """Gradients as dense real local tensors, which is all the foreach kernels accept."""
    if all(type(g) is Tensor and g.layout is torch.strided and not g.is_complex() for g in grads):
        return grads
    out: list[Tensor] = []
    for grad in grads:
        local = getattr(grad, "_local_tensor", grad)
        if local.is_sparse:
            local = local._values()
        if local.is_complex():
            local = torch.view_as_real(local)
        out.append(local)
    return out


def _accumulator(grads: Sequence[Tensor]) -> torch.dtype | None:
    """fp16 and bf16 norms must be summed in fp32: 300 squared already overflows fp16."""
    return None if all(g.dtype in (torch.float32, torch.float64) for g in grads) else torch.float32


def read_on_host(grads: list[Tensor]) -> GradientReading:
    """Measure gradients that live on the CPU."""
    norms = torch._foreach_norm(grads, 2, _accumulator(grads))
    values = np.array(torch.stack(_same_dtype(norms)).tolist(), dtype=np.float64)
    reading = GradientReading(norms=values, bad=[])
    suspects = np.flatnonzero(~np.isfinite(values))
    if suspects.size:
        for i in suspects.tolist():
            largest = float(torch.linalg.vector_norm(grads[i], INF)) if grads[i].numel() else 0.0
            if math.isfinite(largest):
                values[i] = float(torch.linalg.vector_norm(grads[i].double()))
            else:
                reading.bad.append(i)
                reading.largest = largest
    return reading


def _same_dtype(values: Sequence[Tensor]) -> list[Tensor]:
    first = values[0].dtype
    if all(v.dtype == first for v in values):
        return list(values)
    return [v.double() for v in values]


def norms_on_device(grads: list[Tensor], home: torch.device) -> Tensor:
    """L2 norm per tensor in fp64, as one vector on ``home``."""
    if all(g.device == home for g in grads):
        return _norms(grads)
    found: list[Tensor] = [torch.empty(0)] * len(grads)
    for device in {g.device for g in grads}:
        here = [i for i, g in enumerate(grads) if g.device == device]
        norms = _norms([grads[i] for i in here]).to(home, non_blocking=True)
        for n, i in enumerate(here):
            found[i] = norms[n]
    return torch.stack(found)


def _norms(grads: list[Tensor]) -> Tensor:
    norms = torch._foreach_norm(grads, 2, torch.float64)
    first, last = norms[0], norms[-1]
    # On CUDA the results are neighbours in one block of memory: no launch to collect them.
    if (
        last.data_ptr() - first.data_ptr() == 8 * (len(norms) - 1)
        and first.untyped_storage().data_ptr() == last.untyped_storage().data_ptr()
    ):
        return first.as_strided((len(norms),), (1,))
    return torch.stack(norms)


class EarlyNorms:
    """Norms taken before the user's clipping, valid while nobody touches the gradients after it.

    Clipping by a norm that is not finite turns every gradient into NaN, and with it the
    evidence which layer went first.
    """

    def __init__(self, grads: list[Tensor], *, on_device: bool) -> None:
        self._grads = grads
        self._seal: list[tuple[int, int]] = []
        dense = plain(grads)
        self.on_host: GradientReading | None = None
        self.on_device: Tensor | None = None
        if not on_device and all(g.device.type == "cpu" for g in dense):
            self.on_host = read_on_host(dense)
        else:
            self.on_device = norms_on_device(dense, dense[0].device)

    @classmethod
    def of(cls, grads: list[Tensor], *, on_device: bool) -> EarlyNorms | None:
        """Measure now; None when there is nothing to measure."""
        return cls(grads, on_device=on_device) if grads else None

    def seal(self) -> None:
        """Clipping is over."""
        self._seal = _state(self._grads)
        self._grads = []

    def fits(self, grads: Sequence[Tensor]) -> bool:
        """Whether these are the gradients that were measured, untouched since."""
        return bool(self._seal) and self._seal == _state(grads)


def _state(grads: Sequence[Tensor]) -> list[tuple[int, int]]:
    return [(id(g), g._version) for g in grads]


class DeviceRow:
    """One row of numbers computed on the device: norms, losses, extras, and the flag.

    Layout: ``[L2 norm per tensor | losses | extras]``, all fp64. Norms, and losses where they
    count, take part in the finite check. The flag is exactly 0.0 or 1.0, which is what the fused
    optimizer kernels compare with.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.flag = torch.zeros((), dtype=torch.float32, device=device)
        self._one = torch.ones((), dtype=torch.float32, device=device)
        self._flags: list[Tensor] = []

    def fill(
        self,
        norms: Tensor,
        losses: Sequence[Tensor],
        extras: Sequence[Tensor],
        *,
        losses_decide: bool,
    ) -> Tensor:
        """Lay out the row and leave the decision in ``flag``."""
        row = torch.cat([norms, *losses, *extras])
        decisive = norms.numel() + (len(losses) if losses_decide else 0)
        if not self._flags:
            # Cleared by the dozen: one launch for many steps.
            self._flags = list(torch.zeros(64, dtype=torch.float32, device=self.device).unbind())
        self.flag = self._flags.pop()
        self.raise_flag(row[:decisive])
        return row

    def raise_flag(self, values: Tensor) -> None:
        """Set the flag to 1.0 if ``values`` holds anything not finite (one launch)."""
        torch._amp_foreach_non_finite_check_and_unscale_([values], self.flag, self._one)


def read_row(
    row: np.ndarray, tensors: int, losses: int
) -> tuple[GradientReading, np.ndarray, np.ndarray]:
    """Split a device row that has arrived into gradient reading, losses and extras."""
    norms = row[:tensors]
    bad = np.flatnonzero(~np.isfinite(norms)).tolist()
    reading = GradientReading(norms=norms, bad=bad)
    if bad:
        reading.largest = float(norms[bad[-1]])
    return reading, row[tensors : tensors + losses], row[tensors + losses :]
