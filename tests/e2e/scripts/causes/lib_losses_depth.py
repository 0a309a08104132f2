"""Losses used by the depth completion experiments."""

import torch


def masked_l1(pred, depth, valid):
    n = valid.sum(dim=(1, 2, 3)).clamp(min=1)
    return ((pred - depth).abs() * valid).sum(dim=(1, 2, 3)).div(n).mean()


def masked_rmse(pred, depth, valid):
    """Root mean square error per image over the valid pixels, averaged over the batch."""
    n = valid.sum(dim=(1, 2, 3)).clamp(min=1)
    err = (pred - depth) * valid
    mse = err.pow(2).sum(dim=(1, 2, 3)) / n
    rmse = torch.sqrt(mse)
    return rmse.mean()


def gradient_loss(pred, depth, valid):
    """First differences of the error, only where both neighbours are valid."""
    err = (pred - depth) * valid
    dx = (err[..., 1:] - err[..., :-1]) * valid[..., 1:] * valid[..., :-1]
    dy = (err[..., 1:, :] - err[..., :-1, :]) * valid[..., 1:, :] * valid[..., :-1, :]
    return dx.abs().mean() + dy.abs().mean()


LOSSES = {"l1": masked_l1, "rmse": masked_rmse}
