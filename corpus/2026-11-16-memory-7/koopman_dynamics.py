"""Learns a Koopman-style linear latent model of a damped double pendulum-like oscillator chain."""
import math
from collections import defaultdict

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(11)
torch.set_num_threads(1)


def simulate(n_traj, length, n_mass=6, dt=0.05):
    pos = torch.randn(n_traj, n_mass) * 0.7
    vel = torch.randn(n_traj, n_mass) * 0.4
    frames = []
    for _ in range(length):
        left = F.pad(pos[:, :-1], (1, 0))
        right = F.pad(pos[:, 1:], (0, 1))
        acc = (left - pos) + (right - pos) - 0.3 * torch.sin(pos) - 0.05 * vel
        vel = vel + dt * acc
        pos = pos + dt * vel
        frames.append(torch.cat([pos, vel], dim=1))
    return torch.stack(frames, dim=1)


class Koopman(nn.Module):
    def __init__(self, state_dim, latent=48, width=160):
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Linear(state_dim, width), nn.SiLU(), nn.Linear(width, width), nn.SiLU(), nn.Linear(width, latent)
        )
        self.decoder = nn.Sequential(
            nn.Linear(latent, width), nn.SiLU(), nn.Linear(width, width), nn.SiLU(), nn.Linear(width, state_dim)
        )
        self.transition = nn.Linear(latent, latent, bias=False)
        with torch.no_grad():
            self.transition.weight.copy_(torch.eye(latent) + 0.01 * torch.randn(latent, latent))

    def rollout(self, x0, steps):
        z = self.encoder(x0)
        out = []
        for _ in range(steps):
            z = self.transition(z)
            out.append(self.decoder(z))
        return torch.stack(out, dim=1)


class Problem(nn.Module):
    """Bundles the network with its objectives; returns everything that is worth plotting."""

    def __init__(self, net, horizon=4):
        super().__init__()
        self.net = net
        self.horizon = horizon

    def forward(self, traj):
        x0 = traj[:, 0]
        recon = F.mse_loss(self.net.decoder(self.net.encoder(x0)), x0)
        pred = self.net.rollout(x0, self.horizon)
        rollout = F.mse_loss(pred, traj[:, 1:self.horizon + 1])
        far = self.net.rollout(x0[:48], 8)
        far_rmse = F.mse_loss(far, traj[:48, 1:9]).sqrt()
        return {"loss": rollout + 0.5 * recon, "recon": recon, "rollout": rollout, "far_rmse": far_rmse}


class Trainer:
    def __init__(self, problem, data, lr=2e-3, batch=256, epochs=10):
        self.problem, self.data = problem, data
        self.batch, self.epochs = batch, epochs
        self.optimizer = torch.optim.AdamW(problem.parameters(), lr=lr)
        self.steps_per_epoch = math.ceil(len(data) / batch)
        self.scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, epochs * self.steps_per_epoch)
        self.curves = {}

    def train_epoch(self, epoch):
        curve = self.curves.setdefault(epoch, defaultdict(list))
        order = torch.randperm(len(self.data))
        for idx in order.split(self.batch):
            output = self.problem(self.data[idx])
            self.optimizer.zero_grad(set_to_none=True)
            output["loss"].backward()
            nn.utils.clip_grad_norm_(self.problem.parameters(), 1.0)
            self.optimizer.step()
            self.scheduler.step()
            for name, value in output.items():
                curve[name].append(value)
        return {name: (sum(values) / len(values)).item() for name, values in curve.items()}

    def fit(self):
        for epoch in range(self.epochs):
            means = self.train_epoch(epoch)
            if epoch % 4 == 0 or epoch == self.epochs - 1:
                print(f"epoch {epoch:2d} " + " ".join(f"{k}={v:.4f}" for k, v in means.items()))


if __name__ == "__main__":
    trajectories = simulate(n_traj=5120, length=10)
    trainer = Trainer(Problem(Koopman(trajectories.shape[-1])), trajectories)
    trainer.fit()
    start = sum(v.item() for v in trainer.curves[0]["loss"]) / trainer.steps_per_epoch
    end = sum(v.item() for v in trainer.curves[trainer.epochs - 1]["loss"]) / trainer.steps_per_epoch
    print(f"loss {start:.4f} -> {end:.4f}")
