"""How good predicted embeddings are, in the teacher's space.

Shapes: M predictions, K distinct candidates, E teacher width.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional


@dataclass(frozen=True)
class Quality:
    """Measures on held-out pairs.

    Args:
        cosine: mean cosine to the target.
        fvu: share of the variance that is left unexplained; 1: no better than the training mean.
        r1: how often the nearest of all distinct targets is the right one.
        mrr: mean reciprocal rank of the right one.
        candidates: how many distinct targets there are.
    """

    cosine: float
    fvu: float
    r1: float
    mrr: float
    candidates: int

    def numbers(self) -> dict[str, float]:
        """By name, for a validation."""
        return {"cosine": self.cosine, "fvu": self.fvu, "r1": self.r1, "mrr": self.mrr}


_TOGETHER = 1024  # predictions compared with all candidates at once


@torch.no_grad()
def quality(y_hat_ME: Tensor, y_ME: Tensor, mean_E: Tensor) -> Quality:
    """Compare predictions with targets.

    Args:
        y_hat_ME: predictions.
        y_ME: their targets; equal rows are one candidate.
        mean_E: the mean of the training targets, which FVU is measured against.
    """
    y_hat_ME, y_ME, mean_E = y_hat_ME.double(), y_ME.double(), mean_E.double()
    candidates_KE, right_M = torch.unique(y_ME, dim=0, return_inverse=True)
    cosine = functional.cosine_similarity(y_hat_ME, y_ME, dim=-1).mean()
    left = (y_hat_ME - y_ME).square().sum() / (y_ME - mean_E).square().sum().clamp_min(1e-12)
    unit_ME = functional.normalize(y_hat_ME, dim=-1)
    unit_KE = functional.normalize(candidates_KE, dim=-1)
    blocks = zip(unit_ME.split(_TOGETHER), right_M.split(_TOGETHER), strict=True)
    rank_M = torch.cat([_ranks(unit_BE, right_B, unit_KE) for unit_BE, right_B in blocks])
    return Quality(
        cosine=float(cosine),
        fvu=float(left),
        r1=float((rank_M == 1).double().mean()),
        mrr=float((1.0 / rank_M.double()).mean()),
        candidates=len(candidates_KE),
    )


def _ranks(unit_BE: Tensor, right_B: Tensor, unit_KE: Tensor) -> Tensor:
    similar_BK = unit_BE @ unit_KE.mT
    own_B1 = similar_BK.gather(1, right_B[:, None])
    # Ties count against the prediction: one that is equally near to everything knows nothing.
    return (similar_BK >= own_B1).sum(1)
