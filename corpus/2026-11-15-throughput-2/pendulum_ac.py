"""Advantage actor-critic on a vectorised torque pendulum."""

from dataclasses import dataclass, field

import torch
from torch import nn
from torch.distributions import Normal


@dataclass
class Settings:
    envs: int = 20
    horizon: int = 40
    updates: int = 110
    gamma: float = 0.97
    lam: float = 0.95
    lr: float = 4e-3


@dataclass
class Rollout:
    obs: list = field(default_factory=list)
    actions: list = field(default_factory=list)
    rewards: list = field(default_factory=list)
    dones: list = field(default_factory=list)


class Pendulum:
    def __init__(self, count):
        self.count = count
        self.theta = torch.rand(count) * 2 - 1
        self.omega = torch.zeros(count)
        self.age = torch.randint(0, 60, (count,))

    def observe(self):
        return torch.stack([self.theta.cos(), self.theta.sin(), self.omega], dim=1)

    def step(self, torque):
        torque = torque.clamp(-2, 2)
        self.omega = (self.omega + 0.05 * (6 * self.theta.sin() + 3 * torque)).clamp(-6, 6)
        self.theta = self.theta + 0.05 * self.omega
        cost = self.theta**2 + 0.1 * self.omega**2 + 0.001 * torque**2
        self.age += 1
        done = (self.age >= 60) | (self.theta.abs() > 3.0)
        self.theta = torch.where(done, torch.rand(self.count) * 2 - 1, self.theta)
        self.omega = torch.where(done, torch.zeros_like(self.omega), self.omega)
        self.age = torch.where(done, torch.zeros_like(self.age), self.age)
        return self.observe(), -0.1 * cost.clamp(max=10.0), done


class ActorCritic(nn.Module):
    def __init__(self, hidden=64):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(3, hidden), nn.Tanh(), nn.Linear(hidden, hidden))
        self.mu = nn.Linear(hidden, 1)
        self.value = nn.Linear(hidden, 1)
        self.log_std = nn.Parameter(torch.tensor(-0.3))

    def forward(self, obs):
        h = torch.tanh(self.body(obs))
        return Normal(self.mu(h).squeeze(-1), self.log_std.exp()), self.value(h).squeeze(-1)


def advantages(rewards, values, dones, cfg):
    adv = torch.zeros_like(rewards)
    for env in range(cfg.envs):
        running = 0.0
        for t in reversed(range(cfg.horizon)):
            alive = 0.0 if dones[t, env] else 1.0
            delta = float(rewards[t, env]) + cfg.gamma * alive * float(values[t + 1, env])
            running = delta - float(values[t, env]) + cfg.gamma * cfg.lam * alive * running
            adv[t, env] = running
    return adv


def main(cfg):
    env, policy = Pendulum(cfg.envs), ActorCritic()
    optimizer = torch.optim.Adam(policy.parameters(), lr=cfg.lr)
    obs = env.observe()
    for update in range(cfg.updates):
        roll = Rollout()
        with torch.no_grad():
            for _ in range(cfg.horizon):
                action = policy(obs)[0].sample()
                roll.obs.append(obs)
                roll.actions.append(action)
                obs, reward, done = env.step(action)
                roll.rewards.append(reward)
                roll.dones.append(done)
        rewards, dones = torch.stack(roll.rewards), torch.stack(roll.dones)
        dist, values = policy(torch.stack([*roll.obs, obs]))
        adv = advantages(rewards, values.detach(), dones, cfg)
        critic = 0.5 * (adv + values[:-1].detach() - values[:-1]).pow(2).mean()
        dist = Normal(dist.loc[:-1], policy.log_std.exp())
        norm_adv = (adv - adv.mean()) / (adv.std() + 1e-6)
        loss = -(dist.log_prob(torch.stack(roll.actions)) * norm_adv).mean() + critic
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
        optimizer.step()
        if update % 20 == 0:
            print(f"update {update}: reward {rewards.mean():.3f} critic {critic:.3f}")


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.manual_seed(4)
    main(Settings())
