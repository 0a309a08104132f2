import copy
import random

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(0)
np.random.seed(0)
random.seed(0)

SIDE = 64
CELL = 8
GRID = SIDE // CELL


class CatchEnvs:
    """Several copies of the falling ball game, drawn as small grey images."""

    def __init__(self, count):
        self.count = count
        self.row = np.random.randint(0, GRID - 1, count)
        self.ball = np.random.randint(0, GRID, count)
        self.paddle = np.random.randint(0, GRID, count)

    def frames(self):
        images = np.zeros((self.count, GRID, GRID), dtype=np.uint8)
        index = np.arange(self.count)
        images[index, self.row, self.ball] = 255
        images[index, GRID - 1, self.paddle] = 128
        return images.repeat(CELL, axis=1).repeat(CELL, axis=2)

    def step(self, actions):
        self.paddle = np.clip(self.paddle + actions - 1, 0, GRID - 1)
        self.row = self.row + 1
        done = self.row == GRID - 1
        gap = np.abs(self.paddle - self.ball)
        reward = np.where(done, np.where(gap == 0, 1.0, -1.0), -0.02 * np.minimum(gap, 5))
        after = self.frames()
        self.row = np.where(done, 0, self.row)
        self.ball = np.where(done, np.random.randint(0, GRID, self.count), self.ball)
        return after, reward.astype(np.float32), done


class Replay:
    def __init__(self, capacity):
        self.capacity = capacity
        self.items = []
        self.cursor = 0

    def push(self, item):
        if len(self.items) < self.capacity:
            self.items.append(item)
        else:
            self.items[self.cursor] = item
        self.cursor = (self.cursor + 1) % self.capacity

    def sample(self, count):
        before, actions, rewards, after, done = zip(*random.sample(self.items, count))
        to_image = lambda rows: torch.from_numpy(np.stack(rows))[:, None].float().div_(255)
        return (
            to_image(before),
            torch.tensor(actions),
            torch.tensor(rewards),
            to_image(after),
            torch.tensor(done).float(),
        )


def build_network():
    return nn.Sequential(
        nn.Conv2d(1, 32, 8, stride=8),
        nn.ReLU(),
        nn.Conv2d(32, 32, 3, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(32 * 8 * 8, 128),
        nn.ReLU(),
        nn.Linear(128, 3),
    )


envs = CatchEnvs(16)
online = build_network()
target = copy.deepcopy(online).requires_grad_(False)
optimizer = torch.optim.Adam(online.parameters(), lr=1e-3)
replay = Replay(capacity=4500)
frames = envs.frames()
caught, finished = 0, 0

for step in range(560):
    epsilon = max(0.05, 1.0 - step / 250)
    with torch.no_grad():
        greedy = online(torch.from_numpy(frames)[:, None].float() / 255).argmax(1).numpy()
    explore = np.random.rand(envs.count) < epsilon
    actions = np.where(explore, np.random.randint(0, 3, envs.count), greedy)
    following, rewards, done = envs.step(actions)
    for i in range(envs.count):
        replay.push((frames[i].copy(), int(actions[i]), rewards[i], following[i].copy(), done[i]))
    caught += int((rewards == 1.0).sum())
    finished += int(done.sum())
    frames = envs.frames()

    before, acts, gains, after, ended = replay.sample(16 if step < 4 else 64)
    with torch.no_grad():
        goal = gains + 0.9 * (1 - ended) * target(after).amax(1)
    value = online(before).gather(1, acts[:, None]).squeeze(1)
    loss = F.smooth_l1_loss(value, goal)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 25 == 0:
        target.load_state_dict(online.state_dict())
    if (step + 1) % 80 == 0:
        print(f"step {step + 1} td {loss.item():.4f} caught {caught / max(finished, 1):.2f}")
        caught, finished = 0, 0
