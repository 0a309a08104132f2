"""DDPG keeping the levels of three coupled water tanks at a set point; uses Accelerate for the plumbing."""
from collections import OrderedDict
from copy import deepcopy

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from accelerate import Accelerator

OBS, ACT = 6, 2
CAPACITY = 2000
UPDATES = 260
BATCH = 64


class Tanks:
    def __init__(self, seed):
        self.rng = np.random.default_rng(seed)
        self.reset()

    def reset(self):
        self.level = self.rng.uniform(0.2, 0.8, 3).astype(np.float32)
        self.goal = self.rng.uniform(0.3, 0.7, 3).astype(np.float32)
        self.t = 0
        return np.concatenate([self.level, self.goal])

    def step(self, act):
        flow = 0.08 * np.sqrt(np.maximum(self.level, 0))
        inflow = np.array([act[0], flow[0], act[1]], dtype=np.float32) * [0.08, 1.0, 0.08]
        self.level = np.clip(self.level + inflow - flow, 0, 1).astype(np.float32)
        self.t += 1
        reward = -float(np.abs(self.level - self.goal).sum())
        return np.concatenate([self.level, self.goal]), reward, self.t >= 60


class Ring:
    """Fixed-size ring buffer; rows are overwritten once it is full."""

    def __init__(self, n):
        self.data = np.zeros((n, 2 * OBS + ACT + 2), dtype=np.float32)
        self.n, self.i, self.full = n, 0, False

    def add(self, *parts):
        self.data[self.i] = np.concatenate([np.atleast_1d(p) for p in parts])
        self.i = (self.i + 1) % self.n
        self.full = self.full or self.i == 0

    def sample(self, k, rng):
        rows = self.data[rng.integers(self.n if self.full else self.i, size=k)]
        return torch.from_numpy(rows).split([OBS, ACT, 1, OBS, 1], dim=1)


class EvalCache:
    """Keeps the latest few evaluation traces, oldest out first."""

    def __init__(self, keep=4):
        self.keep, self.traces = keep, OrderedDict()

    def put(self, update, trace):
        self.traces[update] = trace
        while len(self.traces) > self.keep:
            self.traces.popitem(last=False)


def net(cin, cout, last):
    return nn.Sequential(nn.Linear(cin, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, cout), last)


@torch.no_grad()
def evaluate(actor, seed, episodes=2):
    env, trace = Tanks(seed), []
    for _ in range(episodes):
        obs, done = env.reset(), False
        while not done:
            obs, reward, done = env.step(actor(torch.from_numpy(obs)).numpy())
            trace.append(reward)
    return np.array(trace)


def main():
    accelerator = Accelerator(cpu=True)
    torch.manual_seed(6)
    rng = np.random.default_rng(6)
    actor, critic = net(OBS, ACT, nn.Sigmoid()), net(OBS + ACT, 1, nn.Identity())
    actor_t, critic_t = deepcopy(actor), deepcopy(critic)
    opt_a, opt_c = torch.optim.Adam(actor.parameters(), 1e-3), torch.optim.Adam(critic.parameters(), 2e-3)
    actor, critic, opt_a, opt_c = accelerator.prepare(actor, critic, opt_a, opt_c)
    env, ring, cache = Tanks(7), Ring(CAPACITY), EvalCache()
    obs = env.reset()
    for update in range(UPDATES):
        for _ in range(10):
            with torch.no_grad():
                a = actor(torch.from_numpy(obs)).numpy()
            a = np.clip(a + rng.normal(0, 0.2, ACT), 0, 1).astype(np.float32)
            nxt, r, done = env.step(a)
            ring.add(obs, a, r, nxt, 0.0)
            obs = env.reset() if done else nxt
        o, a, r, o2, d = ring.sample(BATCH, rng)
        with torch.no_grad():
            y = r + 0.95 * (1 - d) * critic_t(torch.cat([o2, actor_t(o2)], 1))
        q_loss = F.smooth_l1_loss(critic(torch.cat([o, a], 1)), y)
        opt_c.zero_grad()
        accelerator.backward(q_loss)
        opt_c.step()
        pi_loss = -critic(torch.cat([o, actor(o)], 1)).mean()
        opt_a.zero_grad()
        accelerator.backward(pi_loss)
        opt_a.step()
        with torch.no_grad():
            for t, s in ((actor_t, actor), (critic_t, critic)):
                for pt, ps in zip(t.parameters(), s.parameters()):
                    pt.lerp_(ps, 0.02)
        if (update + 1) % 40 == 0:
            cache.put(update, evaluate(actor, seed=99))
            means = [f"{v.mean():.3f}" for v in cache.traces.values()]
            accelerator.print(f"update {update + 1}: q loss {q_loss.item():.4f}, latest returns {means}")


if __name__ == "__main__":
    main()
