"""Recurrent policy for hovering drones in gusty wind. The wind is hidden, so the policy has a GRU.

Rollouts are collected with a batch of simulated drones, then one clipped update is made on the stored
rollout, starting from the hidden state the rollout began with.
"""
import torch
import torch.nn as nn
from torch.distributions import Normal

DRONES = 32
HORIZON = 10
UPDATES = 150
HIDDEN = 64
GAMMA, LAMBDA, CLIP = 0.97, 0.9, 0.2


class WindField:
    def __init__(self, n, gen):
        self.n, self.gen = n, gen
        self.state = torch.zeros(n, 4)
        self.wind = torch.randn(n, 2, generator=gen) * 0.3

    def observe(self):
        return torch.cat([self.state, torch.randn(self.n, 2, generator=self.gen) * 0.05], 1)

    def step(self, thrust):
        pos, vel = self.state[:, :2], self.state[:, 2:]
        self.wind = 0.98 * self.wind + 0.05 * torch.randn(self.n, 2, generator=self.gen)
        vel = 0.95 * vel + 0.1 * (thrust.clamp(-2, 2) + self.wind)
        pos = pos + 0.1 * vel
        self.state = torch.cat([pos, vel], 1)
        reward = -0.1 * (pos.pow(2).sum(1) + 0.1 * vel.pow(2).sum(1)).clamp(max=5)
        done = (pos.abs() > 2).any(1)
        self.state[done] = 0.0
        return reward, done.float()


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.enc = nn.Sequential(nn.Linear(6, HIDDEN), nn.Tanh())
        self.gru = nn.GRUCell(HIDDEN, HIDDEN)
        self.mu = nn.Linear(HIDDEN, 2)
        self.v = nn.Linear(HIDDEN, 1)
        self.log_std = nn.Parameter(torch.full((2,), -0.5))

    def forward(self, obs, h):
        h = self.gru(self.enc(obs), h)
        return Normal(self.mu(h), self.log_std.exp()), self.v(h).squeeze(-1), h


class Collector:
    def __init__(self, policy, env):
        self.policy, self.env = policy, env
        self.h = torch.zeros(env.n, HIDDEN)

    def rollout(self):
        start = self.h.detach().clone()
        steps = {k: [] for k in ("obs", "act", "logp", "val", "rew", "done")}
        for _ in range(HORIZON):
            obs = self.env.observe()
            dist, value, h = self.policy(obs, self.h)
            act = dist.sample()
            rew, done = self.env.step(act)
            self.h = h * (1 - done)[:, None]
            for k, x in zip(steps, (obs, act, dist.log_prob(act).sum(-1), value, rew, done)):
                steps[k].append(x.detach())
        with torch.no_grad():
            last = self.policy(self.env.observe(), self.h)[1]
        return start, {k: torch.stack(v) for k, v in steps.items()}, last


def advantages(data, last):
    adv, out = torch.zeros(DRONES), []
    nxt = last
    for t in reversed(range(HORIZON)):
        alive = 1 - data["done"][t]
        delta = data["rew"][t] + GAMMA * alive * nxt - data["val"][t]
        adv = delta + GAMMA * LAMBDA * alive * adv
        out.append(adv)
        nxt = data["val"][t]
    return torch.stack(out[::-1])


def ppo_loss(policy, h, data, adv):
    logp, values = [], []
    for t in range(HORIZON):
        dist, value, h = policy(data["obs"][t], h)
        logp.append(dist.log_prob(data["act"][t]).sum(-1))
        values.append(value)
        h = h * (1 - data["done"][t])[:, None]
    ratio = (torch.stack(logp) - data["logp"]).exp()
    norm = (adv - adv.mean()) / (adv.std() + 1e-6)
    gain = torch.min(ratio * norm, ratio.clamp(1 - CLIP, 1 + CLIP) * norm).mean()
    target = adv + data["val"]
    return -gain + 0.5 * (torch.stack(values) - target).pow(2).mean()


def main():
    torch.manual_seed(2)
    policy = Policy()
    opt = torch.optim.Adam(policy.parameters(), lr=3e-3)
    collector = Collector(policy, WindField(DRONES, torch.Generator().manual_seed(3)))
    for update in range(UPDATES):
        start, data, last = collector.rollout()
        adv = advantages(data, last)
        loss = ppo_loss(policy, start, data, adv)
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(policy.parameters(), 0.5)
        opt.step()
        if update % 25 == 0:
            print(f"update {update:4d}  loss {loss.item():7.3f}  reward {data['rew'].mean().item():7.3f}")


if __name__ == "__main__":
    main()
