from dataclasses import dataclass, field

import torch
import torch.nn as nn
from torch.distributions import Categorical


@dataclass
class Config:
    num_envs: int = 96
    horizon: int = 8
    updates: int = 260
    gamma: float = 0.97
    lr: float = 1.5e-3
    num_actions: int = 32
    obs_dim: int = 32
    seed: int = 11


@dataclass
class Rollout:
    log_probs: list = field(default_factory=list)
    values: list = field(default_factory=list)
    rewards: list = field(default_factory=list)


class RolloutLog:
    entropy = []
    returns = []

    @classmethod
    def exploration(cls, last=50):
        tail = cls.entropy[-last:]
        return sum(e.mean().item() for e in tail) / len(tail)


class TrackingEnv:
    """Agent picks one of many codes; the best code depends linearly on the observation."""

    def __init__(self, cfg):
        self.cfg = cfg
        gen = torch.Generator().manual_seed(cfg.seed)
        self.codes = torch.randn(cfg.obs_dim, cfg.num_actions, generator=gen)
        self.obs = torch.randn(cfg.num_envs, cfg.obs_dim)

    def step(self, action):
        scores = (self.obs @ self.codes).softmax(dim=-1)
        reward = scores.gather(1, action.unsqueeze(1)).squeeze(1)
        self.obs = 0.6 * self.obs + 0.8 * torch.randn_like(self.obs)
        return self.obs, reward


class ActorCritic(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.body = nn.Sequential(
            nn.Linear(cfg.obs_dim, 192), nn.Tanh(), nn.Linear(192, 192), nn.Tanh()
        )
        self.pi = nn.Linear(192, cfg.num_actions)
        self.v = nn.Linear(192, 1)

    def forward(self, obs):
        h = self.body(obs)
        return Categorical(logits=self.pi(h)), self.v(h).squeeze(-1)


def collect(model, env, obs, cfg):
    rollout = Rollout()
    for _ in range(cfg.horizon):
        dist, value = model(obs)
        action = dist.sample()
        obs, reward = env.step(action)
        rollout.log_probs.append(dist.log_prob(action))
        rollout.values.append(value)
        rollout.rewards.append(reward)
        RolloutLog.entropy.append(dist.entropy())
    return rollout, obs


def update(model, opt, rollout, bootstrap, cfg):
    ret, returns = bootstrap, []
    for reward in reversed(rollout.rewards):
        ret = reward + cfg.gamma * ret
        returns.append(ret)
    returns = torch.stack(returns[::-1])
    values = torch.stack(rollout.values)
    advantage = (returns - values).detach()
    policy_loss = -(torch.stack(rollout.log_probs) * advantage).mean()
    value_loss = (returns - values).pow(2).mean()
    opt.zero_grad()
    (policy_loss + 0.5 * value_loss).backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    opt.step()
    RolloutLog.returns.append(torch.stack(rollout.rewards).mean().item())


def run(cfg):
    torch.set_num_threads(1)
    torch.manual_seed(cfg.seed)
    env, model = TrackingEnv(cfg), ActorCritic(cfg)
    opt = torch.optim.Adam(model.parameters(), lr=cfg.lr)
    obs = env.obs
    for it in range(cfg.updates):
        rollout, obs = collect(model, env, obs, cfg)
        with torch.no_grad():
            bootstrap = model(obs)[1]
        update(model, opt, rollout, bootstrap, cfg)
        if (it + 1) % 26 == 0:
            reward = sum(RolloutLog.returns[-26:]) / 26
            print(f"update {it + 1} reward {reward:.3f} entropy {RolloutLog.exploration():.3f}")


if __name__ == "__main__":
    run(Config())
