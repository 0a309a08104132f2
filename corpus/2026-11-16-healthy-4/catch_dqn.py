import random
from collections import deque
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)
for seed in (random.seed, np.random.seed, torch.manual_seed):
    seed(5)

WIDTH, ROWS, CELL = 8, 8, 4


@dataclass
class Transition:
    obs: np.ndarray
    action: int
    reward: float
    next_obs: np.ndarray
    done: bool


class CatchEnvs:
    """Eight copies of the catch game; balls fall one or two rows per tick."""

    def __init__(self, n):
        self.n = n
        self.row, self.col, self.pad, self.speed = np.zeros((4, n), dtype=int)
        self._respawn(np.ones(n, dtype=bool))

    def _respawn(self, mask):
        k = int(mask.sum())
        self.row[mask] = 0
        self.col[mask] = np.random.randint(0, WIDTH, k)
        self.pad[mask] = np.random.randint(0, WIDTH, k)
        self.speed[mask] = np.random.randint(1, 3, k)

    def observe(self):
        grid = np.zeros((self.n, 2, ROWS, WIDTH), dtype=np.float32)
        who = np.arange(self.n)
        grid[who, 0, np.minimum(self.row, ROWS - 1), self.col] = 1.0
        grid[who, 1, ROWS - 1, self.pad] = 1.0
        return grid.repeat(CELL, axis=2).repeat(CELL, axis=3)

    def step(self, action):
        before = np.abs(self.pad - self.col)
        self.pad = np.clip(self.pad + action - 1, 0, WIDTH - 1)
        self.row += self.speed
        after = np.abs(self.pad - self.col)
        done = self.row >= ROWS - 1
        caught = np.where(after == 0, 1.0, -1.0)
        reward = np.where(done, caught, 0.1 * (before - after)).astype(np.float32)
        nxt = self.observe()
        self._respawn(done)
        return nxt, reward, done


def q_net():
    return nn.Sequential(
        nn.Conv2d(2, 16, 4, stride=4), nn.ReLU(), nn.Flatten(),
        nn.Linear(16 * ROWS * WIDTH, 256), nn.ReLU(), nn.Linear(256, 3),
    )  # fmt: skip


online, target = q_net(), q_net()
target.load_state_dict(online.state_dict())
target.requires_grad_(False)
optimizer = torch.optim.Adam(online.parameters(), lr=6e-4)
memory = deque(maxlen=3600)
returns = deque(maxlen=200)
td_errors = deque(maxlen=100)
envs = CatchEnvs(8)
obs = envs.observe()
updates = 0

while updates < 800:
    eps = max(0.05, 1.0 - updates / 350)
    with torch.inference_mode():
        greedy = online(torch.from_numpy(obs)).argmax(1).numpy()
    explore = np.random.rand(envs.n) < eps
    action = np.where(explore, np.random.randint(0, 3, envs.n), greedy)
    nxt, reward, done = envs.step(action)
    for i in range(envs.n):
        memory.append(
            Transition(
                obs[i].copy(), int(action[i]), float(reward[i]), nxt[i].copy(), bool(done[i])
            )
        )
    returns.extend(reward[done].tolist())
    obs = envs.observe()
    if len(memory) < 200:
        continue

    batch = random.sample(memory, 64)
    s = torch.from_numpy(np.stack([b.obs for b in batch]))
    s2 = torch.from_numpy(np.stack([b.next_obs for b in batch]))
    a = torch.tensor([b.action for b in batch])
    r = torch.tensor([b.reward for b in batch])
    alive = torch.tensor([not b.done for b in batch], dtype=torch.float32)
    with torch.no_grad():
        best = target(s2).max(1).values
    q = online(s).gather(1, a[:, None]).squeeze(1)
    loss = F.smooth_l1_loss(q, r + 0.95 * alive * best)
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(online.parameters(), 5.0)
    optimizer.step()
    td_errors.append(loss.item())
    updates += 1
    if updates % 50 == 0:
        target.load_state_dict(online.state_dict())
    if updates % 100 == 0:
        print(
            f"{updates:4d} buffer {len(memory):5d} return {np.mean(returns):+.2f} "
            f"td {np.mean(td_errors):.4f}"
        )
