"""Fit an RGB picture with a growing set of 2-D Gaussians (a flat version of Gaussian splatting)."""
import math
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(11)


@dataclass
class SplatConfig:
    side: int = 48
    start_splats: int = 48
    max_splats: int = 300
    iterations: int = 300
    densify_every: int = 20
    densify_from: int = 20
    densify_until: int = 200
    opacity_reset_every: int = 80
    clone_fraction: float = 0.25


LRS = {"xy": 4e-3, "log_scale": 2e-2, "rgb": 2e-2, "opacity": 4e-2}


def make_picture(side):
    y, x = torch.meshgrid(torch.linspace(0, 1, side), torch.linspace(0, 1, side), indexing="ij")
    rings = torch.sin(26 * ((x - 0.4) ** 2 + (y - 0.55) ** 2).sqrt()) * 0.5 + 0.5
    stripes = (torch.sin(18 * x + 9 * y) > 0).float()
    disc = (((x - 0.7) ** 2 + (y - 0.3) ** 2) < 0.04).float()
    return torch.stack([rings, 0.6 * stripes + 0.4 * disc, disc * 0.8 + 0.2 * y], dim=-1)


class SplatField:
    def __init__(self, cfg):
        n = cfg.start_splats
        self.params = {
            "xy": nn.Parameter(torch.rand(n, 2)),
            "log_scale": nn.Parameter(torch.full((n, 2), math.log(0.06))),
            "rgb": nn.Parameter(torch.rand(n, 3) * 0.5),
            "opacity": nn.Parameter(torch.zeros(n, 1)),
        }
        groups = [{"params": [p], "lr": LRS[name], "name": name} for name, p in self.params.items()]
        self.opt = torch.optim.Adam(groups, eps=1e-12)
        self.grad_sum = torch.zeros(n)
        self.grad_cnt = 0

    def __len__(self):
        return self.params["xy"].shape[0]

    def render(self, grid):
        p = self.params
        delta = grid[:, None, :] - p["xy"][None]
        power = -0.5 * (delta / p["log_scale"].exp()[None]).pow(2).sum(-1)
        weight = power.exp() * torch.sigmoid(p["opacity"]).squeeze(-1)
        return weight @ p["rgb"]

    def note_gradients(self):
        self.grad_sum += self.params["xy"].grad.norm(dim=-1)
        self.grad_cnt += 1

    def _swap(self, group, new_value, edit_state):
        """Replace a parameter inside the optimizer and carry its moments over."""
        old = group["params"][0]
        state = self.opt.state.pop(old)
        new = nn.Parameter(new_value)
        for key in ("exp_avg", "exp_avg_sq"):
            state[key] = edit_state(state[key])
        self.opt.state[new] = state
        group["params"][0] = new
        self.params[group["name"]] = new

    @torch.no_grad()
    def densify(self, cfg):
        room = cfg.max_splats - len(self)
        k = min(room, int(len(self) * cfg.clone_fraction))
        if k > 0:
            picked = (self.grad_sum / self.grad_cnt).topk(k).indices
            for group in self.opt.param_groups:
                old = group["params"][0]
                extra = old[picked].clone()
                if group["name"] == "xy":
                    extra += 0.01 * torch.randn_like(extra)
                elif group["name"] == "log_scale":
                    extra -= math.log(1.6)
                self._swap(group, torch.cat([old, extra]),
                           lambda m: torch.cat([m, torch.zeros_like(m[picked])]))
        self.grad_sum = torch.zeros(len(self))
        self.grad_cnt = 0

    @torch.no_grad()
    def reset_opacity(self):
        group = next(g for g in self.opt.param_groups if g["name"] == "opacity")
        self._swap(group, group["params"][0].clamp(max=-2.0), torch.zeros_like)


def main():
    cfg = SplatConfig()
    picture = make_picture(cfg.side).reshape(-1, 3)
    axis = torch.linspace(0, 1, cfg.side)
    grid = torch.stack(torch.meshgrid(axis, axis, indexing="ij")[::-1], dim=-1).reshape(-1, 2)
    field = SplatField(cfg)
    for it in range(1, cfg.iterations + 1):
        image = field.render(grid)
        loss = 0.8 * F.l1_loss(image, picture) + 0.2 * F.mse_loss(image, picture)
        field.opt.zero_grad(set_to_none=True)
        loss.backward()
        field.note_gradients()
        field.opt.step()
        if cfg.densify_from <= it < cfg.densify_until and it % cfg.densify_every == 0:
            field.densify(cfg)
        if it < cfg.densify_until and it % cfg.opacity_reset_every == 0:
            field.reset_opacity()
        if it % 20 == 0:
            psnr = -10 * torch.log10(F.mse_loss(image.detach(), picture)).item()
            print(f"it {it:4d}  splats {len(field):4d}  loss {loss.item():.4f}  psnr {psnr:.2f}")


if __name__ == "__main__":
    main()
