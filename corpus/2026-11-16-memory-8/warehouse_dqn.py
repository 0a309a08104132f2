"""Double DQN with prioritised replay for a picker robot in a small warehouse grid."""
import random

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

SEED = 11
GRID = 8
N_ACTIONS = 4
CAPACITY = 2500
BATCH = 192
GAMMA = 0.97
UPDATES = 300


class Warehouse:
    """One robot, one shelf to reach, a few blocked cells."""

    def __init__(self, rng):
        self.rng = rng
        self.blocked = {(3, 4), (3, 5), (7, 7), (8, 2), (5, 6)}
        self.reset()

    def reset(self):
        self.pos = tuple(self.rng.integers(0, GRID, 2))
        self.goal = tuple(self.rng.integers(0, GRID, 2))
        self.t = 0
        self.dist = abs(self.pos[0] - self.goal[0]) + abs(self.pos[1] - self.goal[1])
        return self.observe()

    def observe(self):
        obs = np.zeros((2, GRID, GRID), dtype=np.float32)
        obs[0][self.pos] = 1.0
        obs[1][self.goal] = 1.0
        return obs.reshape(-1)

    def step(self, action):
        dy, dx = [(-1, 0), (1, 0), (0, -1), (0, 1)][action]
        y = min(max(self.pos[0] + dy, 0), GRID - 1)
        x = min(max(self.pos[1] + dx, 0), GRID - 1)
        if (y, x) not in self.blocked:
            self.pos = (y, x)
        self.t += 1
        dist = abs(self.pos[0] - self.goal[0]) + abs(self.pos[1] - self.goal[1])
        closer, self.dist = self.dist - dist, dist
        reached = self.pos == self.goal
        reward = 1.0 if reached else 0.1 * closer - 0.02
        return self.observe(), reward, reached or self.t > 40


class PrioritisedReplay:
    def __init__(self, capacity, obs_dim):
        self.obs = torch.zeros(capacity, obs_dim)
        self.nxt = torch.zeros(capacity, obs_dim)
        self.act = torch.zeros(capacity, dtype=torch.long)
        self.rew = torch.zeros(capacity)
        self.done = torch.zeros(capacity)
        self.prio = torch.zeros(capacity)
        self.capacity, self.size, self.head = capacity, 0, 0

    def push(self, o, a, r, o2, d):
        i = self.head
        self.obs[i] = torch.from_numpy(o)
        self.nxt[i] = torch.from_numpy(o2)
        self.act[i], self.rew[i], self.done[i] = a, r, float(d)
        self.head = (i + 1) % self.capacity
        self.size = min(self.size + 1, self.capacity)

    def sample(self, n):
        with torch.no_grad():
            p = self.prio[: self.size].clamp(min=0.05) ** 0.6
            idx = torch.multinomial(p, n, replacement=True)
            w = (p[idx] / p.sum() * self.size) ** -0.4
        batch = (self.obs[idx], self.act[idx], self.rew[idx], self.nxt[idx], self.done[idx])
        return idx, w / w.max(), batch

    def update(self, idx, err):
        self.prio[idx] = err.abs() + 1e-3


def make_net(obs_dim):
    return nn.Sequential(nn.Linear(obs_dim, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(),
                         nn.Linear(256, N_ACTIONS))


def td_error(net, target, batch):
    o, a, r, o2, d = batch
    with torch.no_grad():
        best = net(o2).argmax(1, keepdim=True)
        boot = target(o2).gather(1, best).squeeze(1)
        y = r + GAMMA * (1 - d) * boot
    return y - net(o).gather(1, a[:, None]).squeeze(1)


def main():
    random.seed(SEED)
    torch.manual_seed(SEED)
    env = Warehouse(np.random.default_rng(SEED))
    obs = env.reset()
    net, target = make_net(obs.size), make_net(obs.size)
    target.load_state_dict(net.state_dict())
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    mem = PrioritisedReplay(CAPACITY, obs.size)

    def act(eps):
        nonlocal obs
        if random.random() < eps:
            a = random.randrange(N_ACTIONS)
        else:
            with torch.no_grad():
                a = int(net(torch.from_numpy(obs)[None]).argmax())
        nxt, r, done = env.step(a)
        mem.push(obs, a, r, nxt, done)
        obs = env.reset() if done else nxt
        return r

    for _ in range(CAPACITY):
        act(1.0)

    running = 0.0
    for update in range(UPDATES):
        reward = sum(act(max(0.1, 1 - update / 120)) for _ in range(4))
        idx, w, batch = mem.sample(BATCH)
        loss = (w * F.smooth_l1_loss(td_error(net, target, batch), torch.zeros(BATCH),
                                     reduction="none")).mean()
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 5.0)
        opt.step()

        # priorities from the network as it is after the update
        mem.update(idx, td_error(net, target, batch))
        running = 0.95 * running + 0.05 * reward
        if update % 30 == 0:
            target.load_state_dict(net.state_dict())
            print(f"update {update:4d}  loss {loss.item():.4f}  reward/4 steps {running:.3f}")


if __name__ == "__main__":
    main()
