"""Discrete soft actor-critic on a vectorised pixel version of "catch"."""
import copy
from collections import deque

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(5)
rng = np.random.default_rng(5)

GRID, ZOOM, STACK, ACTIONS = 9, 7, 3, 3
N_ENVS, CAPACITY, BATCH = 16, 3000, 40
ITERATIONS, WARMUP = 350, 10
GAMMA, TAU = 0.9, 0.05


class CatchVec:
    def __init__(self, n):
        self.n = n
        self.ball = np.stack([np.zeros(n, int), rng.integers(0, GRID, n)], 1)
        self.paddle = np.full(n, GRID // 2)
        self.ball[:, 0] = rng.integers(0, GRID - 1, n)
        self.frames = deque([self.draw()] * STACK, maxlen=STACK)

    def draw(self):
        img = np.zeros((self.n, GRID, GRID), np.uint8)
        idx = np.arange(self.n)
        img[idx, self.ball[:, 0], self.ball[:, 1]] = 255
        img[idx, GRID - 1, self.paddle] = 160
        return img.repeat(ZOOM, 1).repeat(ZOOM, 2)

    def observe(self):
        return np.stack(self.frames, axis=1)

    def step(self, action):
        self.paddle = np.clip(self.paddle + action - 1, 0, GRID - 1)
        self.ball[:, 0] += 1
        landed = self.ball[:, 0] == GRID - 1
        reward = np.where(landed, np.where(np.abs(self.ball[:, 1] - self.paddle) <= 1, 1.0, -1.0), 0.0)
        self.frames.append(self.draw())
        nxt = self.observe()
        self.ball[landed, 0] = 0
        self.ball[landed, 1] = rng.integers(0, GRID, landed.sum())
        return nxt, reward.astype(np.float32), landed


class Replay:
    """Keeps the newest `capacity` transitions as uint8 frames."""

    def __init__(self, capacity):
        self.items = deque(maxlen=capacity)

    def push(self, obs, act, rew, nxt, done):
        for i in range(len(act)):
            self.items.append((obs[i].copy(), act[i], rew[i], nxt[i].copy(), done[i]))

    def sample(self, k):
        rows = [self.items[i] for i in rng.integers(0, len(self.items), k)]
        obs, act, rew, nxt, done = map(np.stack, zip(*rows))
        return (to_input(obs), torch.from_numpy(act), torch.from_numpy(rew),
                to_input(nxt), torch.from_numpy(done.astype(np.float32)))


def to_input(frames):
    return torch.from_numpy(frames).float().div_(255)


def net():
    return nn.Sequential(nn.AvgPool2d(ZOOM), nn.Flatten(), nn.Linear(STACK * GRID * GRID, 256), nn.ReLU(),
                         nn.Linear(256, 128), nn.ReLU(), nn.Linear(128, ACTIONS))


actor, q1, q2 = net(), net(), net()
q1_t, q2_t = copy.deepcopy(q1).requires_grad_(False), copy.deepcopy(q2).requires_grad_(False)
log_alpha = torch.tensor(-3.0, requires_grad=True)
target_entropy = 0.3 * float(np.log(ACTIONS))
opt_actor = torch.optim.Adam(actor.parameters(), lr=1e-3)
opt_critic = torch.optim.Adam([*q1.parameters(), *q2.parameters()], lr=2e-3)
opt_alpha = torch.optim.Adam([log_alpha], lr=3e-3)

env, memory = CatchVec(N_ENVS), Replay(CAPACITY)
obs = env.observe()
recent = deque(maxlen=400)
for it in range(ITERATIONS):
    with torch.no_grad():
        action = torch.distributions.Categorical(logits=actor(to_input(obs))).sample().numpy()
    nxt, reward, done = env.step(action)
    memory.push(obs, action, reward, nxt, done)
    recent.extend(reward[done].tolist())
    obs = env.observe()
    if it < WARMUP:
        continue

    s, a, r, s2, d = memory.sample(BATCH)
    alpha = log_alpha.exp().detach()
    with torch.no_grad():
        logp2 = actor(s2).log_softmax(-1)
        v2 = (logp2.exp() * (torch.min(q1_t(s2), q2_t(s2)) - alpha * logp2)).sum(-1)
        target = r + GAMMA * (1 - d) * v2
    qa, qb = q1(s), q2(s)
    pick = a.long().unsqueeze(1)
    critic_loss = F.mse_loss(qa.gather(1, pick).squeeze(1), target) + F.mse_loss(qb.gather(1, pick).squeeze(1), target)
    opt_critic.zero_grad()
    critic_loss.backward()
    opt_critic.step()

    logp = actor(s).log_softmax(-1)
    actor_loss = (logp.exp() * (alpha * logp - torch.min(qa, qb).detach())).sum(-1).mean()
    opt_actor.zero_grad()
    actor_loss.backward()
    opt_actor.step()

    entropy = -(logp.exp() * logp).sum(-1).detach()
    alpha_loss = (log_alpha * (entropy - target_entropy)).mean()
    opt_alpha.zero_grad()
    alpha_loss.backward()
    opt_alpha.step()

    with torch.no_grad():
        for live, frozen in ((q1, q1_t), (q2, q2_t)):
            for p, pt in zip(live.parameters(), frozen.parameters()):
                pt.lerp_(p, TAU)
    if it % 40 == 0:
        print(f"it {it:4d} memory {len(memory.items):5d} critic {critic_loss.item():.3f} "
              f"actor {actor_loss.item():+.3f} alpha {alpha.item():.3f} return {np.mean(recent):+.2f}")
