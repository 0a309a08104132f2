"""Double DQN on rendered frames of a one-dimensional lander."""
import random
from collections import deque

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

SIDE = 40


class Lander:
    """A craft falls towards a pad; thrust left, right, up or coast."""

    def __init__(self, rng):
        self.rng = rng
        self.reset()

    def reset(self):
        self.x, self.y = self.rng.uniform(6, SIDE - 6), 3.0
        self.vx, self.vy = self.rng.uniform(-0.5, 0.5), 0.0
        self.pad = self.rng.uniform(8, SIDE - 8)
        self.frames = np.stack([self.render()] * 4)
        return self.frames

    def render(self):
        img = np.zeros((SIDE, SIDE), dtype=np.float32)
        px = int(self.pad)
        img[SIDE - 2:, max(px - 4, 0):px + 4] = 0.5
        cx, cy = int(np.clip(self.x, 1, SIDE - 2)), int(np.clip(self.y, 1, SIDE - 2))
        img[cy - 1:cy + 2, cx - 1:cx + 2] = 1.0
        return img

    def step(self, action):
        self.vx += {1: -0.25, 2: 0.25}.get(action, 0.0)
        self.vy += 0.06 - (0.15 if action == 3 else 0.0)
        self.x = float(np.clip(self.x + self.vx, 1, SIDE - 2))
        self.y = max(self.y + self.vy, 1.0)
        self.frames = np.concatenate([self.frames[1:], self.render()[None]])
        reward, done = -0.01 * abs(self.x - self.pad) / SIDE, self.y >= SIDE - 3
        if done:
            reward += 1.0 - abs(self.x - self.pad) / 8 - max(self.vy - 0.5, 0.0)
        return self.frames, reward, done


class QNetwork(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Sequential(nn.Conv2d(4, 16, 8, stride=4), nn.ReLU(), nn.Conv2d(16, 24, 4, stride=2), nn.ReLU())
        self.head = nn.Sequential(nn.Flatten(), nn.Linear(24 * 3 * 3, 96), nn.ReLU(), nn.Linear(96, 4))

    def forward(self, x):
        return self.head(self.conv(x))


class ReplayMemory:
    def __init__(self, capacity):
        self.capacity = capacity
        self.transitions = deque()

    def push(self, *transition):
        self.transitions.append(transition)

    def sample(self, n):
        recent = min(len(self.transitions), self.capacity)
        picks = [self.transitions[-1 - random.randrange(recent)] for _ in range(n)]
        s, a, r, s2, d = zip(*picks)
        to = lambda v: torch.as_tensor(np.asarray(v, dtype=np.float32))
        return to(s), torch.tensor(a), to(r), to(s2), to(d)


class Agent:
    def __init__(self, lr=5e-4, gamma=0.98):
        self.online, self.target = QNetwork(), QNetwork()
        self.target.load_state_dict(self.online.state_dict())
        self.optimizer = torch.optim.Adam(self.online.parameters(), lr=lr)
        self.gamma = gamma

    @torch.no_grad()
    def act(self, states, eps):
        greedy = self.online(torch.from_numpy(np.stack(states))).argmax(1).tolist()
        return [random.randrange(4) if random.random() < eps else g for g in greedy]

    def learn(self, batch):
        s, a, r, s2, d = batch
        with torch.no_grad():
            best = self.online(s2).argmax(1, keepdim=True)
            goal = r + self.gamma * (1 - d) * self.target(s2).gather(1, best).squeeze(1)
        q = self.online(s).gather(1, a.unsqueeze(1)).squeeze(1)
        loss = F.smooth_l1_loss(q, goal)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss


def main(updates=260, n_envs=16):
    random.seed(2), torch.manual_seed(2), torch.set_num_threads(1)
    envs = [Lander(np.random.default_rng(i)) for i in range(n_envs)]
    agent, memory = Agent(), ReplayMemory(capacity=1000)
    states, returns, score = [e.reset() for e in envs], [0.0] * n_envs, deque(maxlen=40)
    for update in range(-8, updates):
        eps = max(0.05, 1.0 - update / 150)
        for i, action in enumerate(agent.act(states, eps)):
            nxt, reward, done = envs[i].step(action)
            memory.push(states[i], action, reward, nxt, float(done))
            returns[i] += reward
            if done:
                score.append(returns[i])
                returns[i], nxt = 0.0, envs[i].reset()
            states[i] = nxt
        if update < 0:
            continue
        loss = agent.learn(memory.sample(32))
        if update % 25 == 0:
            agent.target.load_state_dict(agent.online.state_dict())
        if (update + 1) % 52 == 0:
            print(f"update {update + 1:4d}  loss {loss.item():.4f}  return {np.mean(score) if score else 0:+.3f}  eps {eps:.2f}")


if __name__ == "__main__":
    main()
