"""Deep Q-learning in a small maze with moving guards."""
import os
import random
import tempfile
from collections import deque

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

SIZE = 7
MOVES = ((0, 1), (1, 0), (0, -1), (-1, 0))


class Maze:
    def __init__(self, seed):
        self.rng = random.Random(seed)

    def reset(self):
        self.me = [0, 0]
        self.guards = [[self.rng.randrange(2, SIZE), self.rng.randrange(2, SIZE)] for _ in range(2)]
        self.t = 0
        return self.view()

    def view(self):
        board = np.zeros((3, SIZE, SIZE), dtype=np.float32)
        board[0, self.me[0], self.me[1]] = 1
        for g in self.guards:
            board[1, g[0], g[1]] = 1
        board[2, SIZE - 1, SIZE - 1] = 1
        return board.ravel()

    def _go(self, who, move):
        who[0] = min(SIZE - 1, max(0, who[0] + move[0]))
        who[1] = min(SIZE - 1, max(0, who[1] + move[1]))

    def step(self, action):
        before = sum(self.me)
        self._go(self.me, MOVES[action])
        for g in self.guards:
            self._go(g, self.rng.choice(MOVES))
        self.t += 1
        if self.me in self.guards:
            return self.view(), -1.0, True
        if self.me == [SIZE - 1, SIZE - 1]:
            return self.view(), 2.0, True
        return self.view(), 0.05 * (sum(self.me) - before) - 0.02, self.t >= 40


class Agent:
    def __init__(self, capacity=12000, seed=0):
        self.net = nn.Sequential(nn.Linear(3 * SIZE * SIZE, 96), nn.ReLU(), nn.Linear(96, 96), nn.ReLU(), nn.Linear(96, 4))
        self.target = nn.Sequential(nn.Linear(3 * SIZE * SIZE, 96), nn.ReLU(), nn.Linear(96, 96), nn.ReLU(), nn.Linear(96, 4))
        self.target.load_state_dict(self.net.state_dict())
        self.opt = torch.optim.Adam(self.net.parameters(), lr=7e-4)
        self.memory = deque(maxlen=capacity)
        self.rng = random.Random(seed)
        self.updates = 0

    @torch.no_grad()
    def act(self, obs, eps):
        if self.rng.random() < eps:
            return self.rng.randrange(4)
        return int(self.net(torch.from_numpy(obs)).argmax())

    def learn(self, batch=64, gamma=0.95):
        rows = self.rng.choices(self.memory, k=batch)
        s, a, r, s2, done = (torch.from_numpy(np.asarray(col)) for col in zip(*rows))
        q = self.net(s).gather(1, a[:, None]).squeeze(1)
        with torch.no_grad():
            goal = r.float() + gamma * (~done).float() * self.target(s2).amax(1)
        loss = F.smooth_l1_loss(q, goal)
        self.opt.zero_grad(set_to_none=True)
        loss.backward()
        self.opt.step()
        self.updates += 1
        if self.updates % 50 == 0:
            self.target.load_state_dict(self.net.state_dict())
        return loss.detach()

    def save(self, path):
        state = {"net": self.net.state_dict(), "opt": self.opt.state_dict(), "memory": self.memory, "updates": self.updates}
        torch.save(state, path)


def main():
    torch.manual_seed(8)
    env, agent = Maze(8), Agent()
    obs = env.reset()

    def interact(eps, n):
        nonlocal obs
        gained = 0.0
        for _ in range(n):
            action = agent.act(obs, eps)
            nxt, reward, done = env.step(action)
            agent.memory.append((obs, action, reward, nxt, done))
            gained += reward
            obs = env.reset() if done else nxt
        return gained

    interact(1.0, 6000)
    window = deque(maxlen=60)
    with tempfile.TemporaryDirectory() as folder:
        for it in range(480):
            window.append(interact(max(0.1, 1 - it / 260), 4))
            loss = agent.learn()
            if (it + 1) % 30 == 0:
                agent.save(os.path.join(folder, "agent.pt"))
            if (it + 1) % 120 == 0:
                print(f"iteration {it + 1}  loss {loss.item():.4f}  reward/step {sum(window) / (4 * len(window)):.3f}")


if __name__ == "__main__":
    main()
