"""Double DQN on a small top-down camera task: push the gripper onto the target tile."""
import copy
import random
from collections import deque, namedtuple

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

Transition = namedtuple("Transition", "frame action reward next_frame done")
SIZE = 28
MOVES = np.array([[0, 1], [0, -1], [1, 0], [-1, 0], [0, 0]])


class GripperEnv:
    """n independent tables, each seen from above as a 2-channel image (gripper, target)."""

    def __init__(self, n, rng, horizon=40):
        self.n, self.rng, self.horizon = n, rng, horizon
        self.pos = rng.integers(2, SIZE - 2, size=(n, 2))
        self.goal = rng.integers(2, SIZE - 2, size=(n, 2))
        self.t = rng.integers(0, horizon, size=n)

    def render(self):
        img = np.zeros((self.n, 2, SIZE, SIZE), dtype=np.float32)
        k = np.arange(self.n)
        for dy in (-1, 0, 1):
            for dx in (-1, 0, 1):
                img[k, 0, self.pos[:, 0] + dy, self.pos[:, 1] + dx] = 1.0
                img[k, 1, self.goal[:, 0] + dy, self.goal[:, 1] + dx] = 1.0
        return img

    def step(self, actions):
        before = np.abs(self.pos - self.goal).sum(1)
        self.pos = np.clip(self.pos + MOVES[actions], 1, SIZE - 2)
        after = np.abs(self.pos - self.goal).sum(1)
        self.t += 1
        reached = after == 0
        reward = 0.1 * (before - after) + 1.0 * reached
        done = reached | (self.t >= self.horizon)
        m = int(done.sum())
        if m:
            self.pos[done] = self.rng.integers(2, SIZE - 2, size=(m, 2))
            self.goal[done] = self.rng.integers(2, SIZE - 2, size=(m, 2))
            self.t[done] = 0
        return reward.astype(np.float32), done, reached


class QNet(nn.Module):
    def __init__(self, n_actions=5):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(2, 16, 4, stride=2), nn.ReLU(),
            nn.Conv2d(16, 32, 3, stride=2), nn.ReLU(),
            nn.Flatten(), nn.Linear(32 * 6 * 6, 128), nn.ReLU(),
        )
        self.value = nn.Linear(128, 1)
        self.adv = nn.Linear(128, n_actions)

    def forward(self, x):
        h = self.body(x)
        a = self.adv(h)
        return self.value(h) + a - a.mean(1, keepdim=True)


class ReplayMemory:
    def __init__(self, capacity):
        self.data = deque(maxlen=capacity)

    def push(self, *args):
        self.data.append(Transition(*args))

    def sample(self, k):
        batch = Transition(*zip(*random.sample(self.data, k)))
        return (torch.from_numpy(np.stack(batch.frame)), torch.tensor(batch.action),
                torch.tensor(batch.reward), torch.from_numpy(np.stack(batch.next_frame)),
                torch.tensor(batch.done, dtype=torch.float32))


def main():
    torch.set_num_threads(1)
    torch.manual_seed(3)
    random.seed(3)
    rng = np.random.default_rng(3)
    env = GripperEnv(8, rng)
    online = QNet()
    target = copy.deepcopy(online).requires_grad_(False)
    opt = torch.optim.Adam(online.parameters(), lr=5e-4)
    memory = ReplayMemory(4000)
    gamma, batch_size, total = 0.95, 32, 900
    recent = deque(maxlen=200)
    frames = env.render()
    for it in range(1, total + 1):
        eps = max(0.05, 1.0 - it / 500)
        with torch.no_grad():
            actions = online(torch.from_numpy(frames)).argmax(1).numpy()
        explore = rng.random(env.n) < eps
        actions = np.where(explore, rng.integers(0, 5, env.n), actions)
        reward, done, reached = env.step(actions)
        nxt = env.render()
        for k in range(env.n):
            memory.push(frames[k], actions[k], reward[k], nxt[k], done[k])
        recent.extend(reached[done].tolist())
        frames = nxt
        if len(memory.data) < 400:
            continue
        s, a, r, s2, d = memory.sample(batch_size)
        with torch.no_grad():
            best = online(s2).argmax(1, keepdim=True)
            y = r + gamma * (1 - d) * target(s2).gather(1, best).squeeze(1)
        q = online(s).gather(1, a.unsqueeze(1)).squeeze(1)
        loss = F.smooth_l1_loss(q, y)
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(online.parameters(), 10.0)
        opt.step()
        if it % 50 == 0:
            target.load_state_dict(online.state_dict())
        if it % 200 == 0:
            rate = sum(recent) / max(1, len(recent))
            print(f"iter {it:5d}  eps {eps:.2f}  loss {loss.item():.4f}  success {rate:.2f}  memory {len(memory.data)}")


if __name__ == "__main__":
    main()
