"""What a model has to beat: counting tokens, and linear models of images and trajectories.

Shapes: N samples, F features, T time steps.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from .tensor_rows import TensorRows
from .token_files import TokenFile

_BLOCK = 1 << 20  # tokens that are counted at once


class Unigram(NamedTuple):
    """Nats per token and accuracy that a model without context reaches at best."""

    entropy: float
    most_frequent: float


def unigram(file: TokenFile) -> Unigram:
    """Of all tokens of a file, read in blocks."""
    counts = np.zeros(file.vocabulary, np.int64)
    for first in range(0, len(file), _BLOCK):
        counts += np.bincount(file.tokens[first : first + _BLOCK], minlength=file.vocabulary)
    shares = counts[counts > 0] / counts.sum()
    return Unigram(float(-(shares * np.log(shares)).sum()), float(shares.max()))


def linear_accuracy(train: TensorRows, validation: TensorRows, *, decay: float = 1e-3) -> float:
    """Accuracy of softmax regression on pixels, fitted to the end by L-BFGS."""
    x_NF, label_N = train.tensors["image"].flatten(1), train.tensors["label"]
    weight_FC = torch.zeros(x_NF.shape[1] + 1, int(label_N.max()) + 1, requires_grad=True)
    solver = torch.optim.LBFGS([weight_FC], max_iter=100, line_search_fn="strong_wolfe")

    def logits(x_NF: Tensor) -> Tensor:
        return functional.pad(x_NF, (0, 1), value=1.0) @ weight_FC

    def closure() -> Tensor:
        solver.zero_grad()
        loss = functional.cross_entropy(logits(x_NF), label_N)
        (loss + decay / 2 * weight_FC.square().sum()).backward()
        return loss.detach() + decay / 2 * weight_FC.detach().square().sum()

    solver.step(closure)
    with torch.no_grad():
        guess_N = logits(validation.tensors["image"].flatten(1)).argmax(1)
    return float((guess_N == validation.tensors["label"]).float().mean())


class Fit(NamedTuple):
    """How well actions are predicted: smooth L1 loss, and R^2 (1 is perfect, 0 is the mean)."""

    loss: float
    r2: float


def linear_control(train: TensorRows, validation: TensorRows, *, lags: int = 4) -> Fit:
    """Ridge regression from the last ``lags`` observations and times to the action."""
    x_NF, y_NM = _lagged(train, lags), train.tensors["y"].flatten(0, 1).double()
    gram_FF = x_NF.mT @ x_NF + 1e-3 * torch.eye(x_NF.shape[1], dtype=x_NF.dtype)
    weight_FM = torch.linalg.solve(gram_FF, x_NF.mT @ y_NM)
    guess_NM, true_NM = _lagged(validation, lags) @ weight_FM, validation.tensors["y"].flatten(0, 1)
    return fit(guess_NM, true_NM.double())


def fit(guess_NM: Tensor, true_NM: Tensor) -> Fit:
    """The two scores of predicted actions."""
    spread = (true_NM - true_NM.mean(0)).square().sum()
    r2 = 1 - float((guess_NM - true_NM).square().sum() / spread)
    return Fit(float(functional.smooth_l1_loss(guess_NM, true_NM)), r2)


def _lagged(rows: TensorRows, lags: int) -> Tensor:
    """Features of each time step: observations and times of it and of the steps before, and 1."""
    seen_NTF = torch.cat((rows.tensors["x"], rows.tensors["dt"][..., None]), -1).double()
    steps = seen_NTF.shape[1]
    # Before the first observation it is taken to have been the same.
    early_NTF = torch.cat((seen_NTF[:, :1].expand(-1, lags - 1, -1), seen_NTF), 1)
    lagged = torch.cat([early_NTF[:, lag : lag + steps] for lag in range(lags)], -1)
    return functional.pad(lagged, (0, 1), value=1.0).flatten(0, 1)
