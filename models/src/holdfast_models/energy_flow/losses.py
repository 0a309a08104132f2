"""What the lattice is trained on, all in fp32.

Shapes: B batch, E teacher width, S cells of the surface.
"""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor
from torch.nn import functional

from holdfast import Section, bounded


@dataclasses.dataclass(frozen=True, kw_only=True)
class LossSettings(Section):
    """How much each part counts."""

    distance: float = bounded(0.1, 0.0)  # of the squared error, times the width
    surface: float = bounded(0.0, 0.0)  # both sides can shrink together: off by default
    spread: float = bounded(0.05, 0.0)  # least standard deviation of a surface, where that counts


def embedding_loss(y_hat_BE: Tensor, y_BE: Tensor, settings: LossSettings) -> Tensor:
    """One minus the cosine, plus the squared error; targets are fixed vectors of the teacher."""
    y_hat_BE, y_BE = y_hat_BE.float(), y_BE.float()
    apart = 1.0 - functional.cosine_similarity(y_hat_BE, y_BE, dim=-1, eps=1e-6).mean()
    # Times the width: the mean over a vector of length one is one over it.
    squared = (y_hat_BE - y_BE).square().sum(-1).mean()
    return apart + settings.distance * squared


def surface_loss(out_BS: Tensor, target_BS: Tensor, settings: LossSettings) -> Tensor:
    """Squared error to the surface of the target, which is not moved towards the output."""
    out_BS, target_BS = out_BS.float(), target_BS.float().detach()
    error = functional.mse_loss(out_BS, target_BS)
    # A trained mapper could make every surface zero and win: a floor under its spread.
    flat = functional.relu(settings.spread - out_BS.std(-1)).square().mean()
    return error + flat


def cosine(y_hat_BE: Tensor, y_BE: Tensor) -> Tensor:
    """Mean cosine; not part of the loss."""
    with torch.no_grad():
        return functional.cosine_similarity(y_hat_BE.float(), y_BE.float(), dim=-1).mean()
