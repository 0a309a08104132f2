"""Fit a signed distance function to a point cloud of an ellipsoid.

The shape is modelled as a learned linear warp of a ball plus a small correction network, and
trained with a surface term and an eikonal term (unit gradient norm everywhere).
"""

from dataclasses import dataclass

import torch
from torch import nn


@dataclass
class Config:
    grid: int = 9
    chunk: int = 27
    surface_points: int = 32
    hidden: int = 24
    lr: float = 5e-3
    epochs: int = 2
    eikonal_weight: float = 0.1
    seed: int = 5


class WarpedBall(nn.Module):
    def __init__(self, hidden: int):
        super().__init__()
        self.warp = nn.Parameter(torch.eye(3) + 0.05 * torch.randn(3, 3))
        self.radius = nn.Sequential(nn.Linear(3, hidden), nn.Softplus(), nn.Linear(hidden, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        r = torch.norm(x @ self.warp, dim=-1)
        return r - self.radius(x).squeeze(-1)

    def with_gradient(self, x: torch.Tensor):
        x = x.clone().requires_grad_(True)
        sdf = self(x)
        (grad,) = torch.autograd.grad(sdf.sum(), x, create_graph=True)
        return sdf, grad


def ellipsoid_surface(n: int) -> torch.Tensor:
    v = torch.randn(n, 3)
    v = v / v.pow(2).sum(-1, keepdim=True).sqrt()
    return v * torch.tensor([0.8, 0.5, 0.3])


def regular_grid(n: int) -> torch.Tensor:
    axis = torch.linspace(-1, 1, n)
    return torch.stack(torch.meshgrid(axis, axis, axis, indexing="ij"), dim=-1).reshape(-1, 3)


def main():
    cfg = Config()
    torch.manual_seed(cfg.seed)
    model = WarpedBall(cfg.hidden)
    opt = torch.optim.Adam(model.parameters(), lr=cfg.lr)
    space = regular_grid(cfg.grid)

    step = 0
    for epoch in range(cfg.epochs):
        for points in space.split(cfg.chunk):
            surface = model(ellipsoid_surface(cfg.surface_points)).abs().mean()
            _, grad = model.with_gradient(points)
            eikonal = (grad.pow(2).sum(-1) - 1).pow(2).mean()
            loss = surface + cfg.eikonal_weight * eikonal
            opt.zero_grad(set_to_none=True)
            loss.backward()
            opt.step()
            if step % 6 == 0:
                print(
                    f"epoch {epoch} step {step:3d}  surface {surface.item():.4f}"
                    f"  eikonal {eikonal.item():.4f}"
                )
            step += 1
    print("warp:", model.warp.data.tolist())


if __name__ == "__main__":
    main()
