"""Facial landmark regression with visibility flags."""

from dataclasses import dataclass
from functools import wraps

import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset


@dataclass(frozen=True)
class Settings:
    n_landmarks: int = 5
    n_faces: int = 144
    features: int = 30
    batch_size: int = 12
    epochs: int = 4
    lr: float = 4e-3
    shape_weight: float = 0.2


def every(n):
    """Print what the wrapped step returns, but only on every n-th call."""

    def decorate(step):
        calls = 0

        @wraps(step)
        def wrapper(*args, **kwargs):
            nonlocal calls
            result = step(*args, **kwargs)
            if calls % n == 0:
                print(f"call {calls}: " + ", ".join(f"{k} {v:.4f}" for k, v in result.items()))
            calls += 1
            return result

        return wrapper

    return decorate


def length(v):
    """Euclidean length along the last axis, 0 for null vectors."""
    sq = v.pow(2).sum(dim=-1)
    return torch.where(sq > 0, torch.sqrt(sq), torch.zeros_like(sq))


def point_error(pred, gt, visible):
    return length((pred - gt) * visible.unsqueeze(-1))


def shape_error(pred, gt):
    """Compare the edges between consecutive landmarks (a closed contour)."""
    edges_pred = pred - pred.roll(1, dims=1)
    edges_gt = gt - gt.roll(1, dims=1)
    return (length(edges_pred) - length(edges_gt)).abs()


def make_faces(cfg):
    template = torch.tensor([[-1.0, 1.0], [1.0, 1.0], [0.0, 0.0], [-0.7, -1.0], [0.7, -1.0]])
    shift = 0.5 * torch.randn(cfg.n_faces, 1, 2)
    scale = 1 + 0.2 * torch.randn(cfg.n_faces, 1, 1)
    gt = template * scale + shift
    features = gt.flatten(1) @ torch.randn(10, cfg.features) / 3
    visible = torch.ones(cfg.n_faces, cfg.n_landmarks)
    visible[88, 3] = 0.0
    return TensorDataset(features, gt, visible)


@every(4)
def train_step(model, opt, cfg, features, gt, visible):
    pred = model(features).view(-1, cfg.n_landmarks, 2)
    points = point_error(pred, gt, visible).mean()
    shape = shape_error(pred, gt).mean()
    loss = points + cfg.shape_weight * shape
    opt.zero_grad()
    loss.backward()
    opt.step()
    return {"loss": loss.item(), "points": points.item(), "shape": shape.item()}


def main():
    cfg = Settings()
    torch.manual_seed(77)
    loader = DataLoader(make_faces(cfg), batch_size=cfg.batch_size, shuffle=True)
    model = nn.Sequential(
        nn.Linear(cfg.features, 48), nn.ReLU(), nn.Linear(48, cfg.n_landmarks * 2)
    )
    opt = torch.optim.Adam(model.parameters(), lr=cfg.lr)
    for _ in range(cfg.epochs):
        for batch in loader:
            train_step(model, opt, cfg, *batch)


if __name__ == "__main__":
    main()
