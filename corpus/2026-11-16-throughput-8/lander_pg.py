"""Policy gradient with a baseline for a one-dimensional landing task."""
from collections import deque

import torch
import torch.nn as nn
from torch.distributions import Categorical

PARALLEL, ITERATIONS, MAX_T = 24, 300, 22


class Landers:
    """Batched landers: height, speed, fuel; three thrust levels, gusts."""

    def __init__(self, n, seed):
        self.g = torch.Generator().manual_seed(seed)
        self.n = n

    def reset(self):
        self.h = 4 + 2 * torch.rand(self.n, generator=self.g)
        self.v = -torch.rand(self.n, generator=self.g)
        self.fuel = torch.ones(self.n)
        self.alive = torch.ones(self.n, dtype=torch.bool)
        return self.obs()

    def obs(self):
        return torch.stack([self.h / 5, self.v, self.fuel], dim=1)

    def step(self, action):
        thrust = action.float() * 0.15 * (self.fuel > 0)
        gust = 0.05 * torch.randn(self.n, generator=self.g)
        moving = self.alive.float()
        self.v = self.v + moving * (thrust - 0.12 + gust)
        self.h = self.h + moving * self.v * 0.6
        self.fuel = (self.fuel - moving * 0.04 * action).clamp_min(0)
        landed = self.alive & (self.h <= 0)
        reward = torch.where(landed, 1.5 - 2.5 * self.v.abs(), torch.zeros(self.n)) - 0.01 * moving
        self.alive = self.alive & ~landed
        return self.obs(), reward, moving


class Policy(nn.Module):
    def __init__(self, hidden=48):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(3, hidden), nn.Tanh(), nn.Linear(hidden, hidden), nn.Tanh())
        self.pi = nn.Linear(hidden, 3)
        self.value = nn.Linear(hidden, 1)

    def forward(self, obs):
        h = self.body(obs)
        return Categorical(logits=self.pi(h)), self.value(h).squeeze(-1)


def rollout(env, policy):
    obs = env.reset()
    trace = []
    with torch.no_grad():
        for _ in range(MAX_T):
            dist, _ = policy(obs)
            action = dist.sample()
            nxt, reward, moving = env.step(action)
            trace.append((obs, action, reward, moving))
            obs = nxt
            if not env.alive.any():
                break
    return [torch.stack(col) for col in zip(*trace)]


def returns_to_go(reward, gamma=0.98):
    out, acc = torch.zeros_like(reward), torch.zeros(reward.shape[1])
    for t in range(len(reward) - 1, -1, -1):
        acc = reward[t] + gamma * acc
        out[t] = acc
    return out


def main():
    torch.manual_seed(14)
    env, policy = Landers(PARALLEL, 14), Policy()
    opt = torch.optim.Adam(policy.parameters(), lr=3e-3)
    scores = deque(maxlen=50)
    history = []
    for it in range(1, ITERATIONS + 1):
        obs, action, reward, moving = rollout(env, policy)
        goal = returns_to_go(reward)
        dist, value = policy(obs)
        advantage = goal - value.detach()
        advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-6)
        weight = moving / moving.sum()
        loss = -(dist.log_prob(action) * advantage * weight).sum()
        loss = loss + 0.5 * ((value - goal).pow(2) * weight).sum() - 0.01 * (dist.entropy() * weight).sum()
        opt.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
        opt.step()
        scores.append(reward.sum(0).mean().item())
        history.append((it, loss.item(), scores[-1]))
        if it % 60 == 0:
            print(f"iteration {it:4d}  loss {loss.item():+.3f}  score {sum(scores) / len(scores):+.3f}")
    print("best iteration", max(history, key=lambda h: h[2])[0])


if __name__ == "__main__":
    main()
