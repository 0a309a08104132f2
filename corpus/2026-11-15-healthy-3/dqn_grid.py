import copy
import random
from collections import deque, namedtuple

import numpy as np
import torch
from torch import nn

Transition = namedtuple("Transition", "obs action reward next_obs done")
SIZE = 8


class GridWorld:
    moves = ((0, 1), (0, -1), (1, 0), (-1, 0))

    def __init__(self, seed):
        self.rng = np.random.default_rng(seed)

    def observe(self):
        board = np.zeros((2, SIZE, SIZE), dtype=np.float32)
        board[0][self.agent] = board[1][self.goal] = 1
        return board.ravel()

    def reset(self):
        self.agent = tuple(self.rng.integers(0, SIZE, 2))
        self.goal = tuple(self.rng.integers(0, SIZE, 2))
        self.t = 0
        return self.observe()

    def step(self, a):
        (dy, dx), (y, x) = self.moves[a], self.agent
        before = abs(y - self.goal[0]) + abs(x - self.goal[1])
        self.agent = (min(max(y + dy, 0), SIZE - 1), min(max(x + dx, 0), SIZE - 1))
        self.t += 1
        gap = abs(self.agent[0] - self.goal[0]) + abs(self.agent[1] - self.goal[1])
        won = gap == 0
        reward = 1.0 if won else 0.2 * (before - gap) - 0.05
        return self.observe(), reward, won, won or self.t >= 30


class ReplayMemory:
    def __init__(self, capacity):
        self.items = deque(maxlen=capacity)

    def push(self, *args):
        self.items.append(Transition(*args))

    def sample(self, n):
        cols = Transition(*zip(*random.sample(self.items, n)))
        obs, nxt = (torch.from_numpy(np.stack(c)) for c in (cols.obs, cols.next_obs))
        reward, done = torch.tensor([cols.reward, cols.done], dtype=torch.float32)
        return obs, torch.tensor(cols.action), reward, nxt, done


def build_net(n, h=320):
    return nn.Sequential(nn.Linear(n, h), nn.ReLU(), nn.Linear(h, h), nn.ReLU(), nn.Linear(h, 4))


def main(updates=500, batch=320, gamma=0.9):
    torch.set_num_threads(1)
    torch.manual_seed(4), random.seed(4)
    env, memory = GridWorld(4), ReplayMemory(1500)
    q = build_net(2 * SIZE * SIZE)
    target = copy.deepcopy(q)
    opt = torch.optim.Adam(q.parameters(), lr=1e-3)
    obs, done_updates, ticks = env.reset(), 0, 0
    losses, wins = deque(maxlen=50), deque(maxlen=50)
    while done_updates < updates:
        eps = max(0.05, 1.0 - done_updates / 200)
        if random.random() < eps:
            action = random.randrange(4)
        else:
            with torch.no_grad():
                action = q(torch.from_numpy(obs)).argmax().item()
        nxt, reward, won, over = env.step(action)
        memory.push(obs, action, reward, nxt, won)
        obs = nxt
        if over:
            wins.append(won)
            obs = env.reset()
        ticks += 1
        if len(memory.items) < batch or ticks % 8:
            continue
        o, a, r, n, d = memory.sample(batch)
        with torch.no_grad():
            y = r + gamma * (1 - d) * target(n).amax(1)
        loss = nn.functional.smooth_l1_loss(q(o).gather(1, a[:, None]).squeeze(1), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        losses.append(loss.item())
        done_updates += 1
        if done_updates % 40 == 0:
            target.load_state_dict(q.state_dict())
        if done_updates % 100 == 0:
            print(done_updates, f"td {np.mean(losses):.4f} wins {np.mean(wins):.2f}")


if __name__ == "__main__":
    main()
