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
    similar_MK = (
        functional.normalize(y_hat_ME, dim=-1) @ functional.normalize(candidates_KE, dim=-1).mT
    )
    own_M1 = similar_MK.gather(1, right_M[:, None])
    # Ties count against the prediction: one that is equally near to everything knows nothing.
    rank_M = (similar_MK >= own_M1).sum(1)
    return Quality(
        cosine=float(cosine),
        fvu=float(left),
        r1=float((rank_M == 1).double().mean()),
        mrr=float((1.0 / rank_M.double()).mean()),
        candidates=len(candidates_KE),
    )
