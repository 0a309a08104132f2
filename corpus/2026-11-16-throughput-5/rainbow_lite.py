# Double DQN with proportional prioritised replay on a windy grid world.
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)


class WindyGrid:
    MOVES = np.array([(0, 1), (1, 0), (0, -1), (-1, 0)])

    def __init__(self, side=9, seed=0):
        self.side, self.rng = side, np.random.default_rng(seed)

    def observe(self):
        obs = np.zeros((2, self.side, self.side), dtype=np.float32)
        obs[0][tuple(self.pos)] = obs[1][tuple(self.goal)] = 1.0
        return obs.ravel()

    def reset(self):
        self.pos, self.goal = self.rng.integers(0, self.side, (2, 2))
        self.t = 0
        return self.observe()

    def step(self, action):
        move = self.MOVES[action]
        if self.rng.random() < 0.1:
            move = move + (1, 0)
        self.pos, self.t = np.clip(self.pos + move, 0, self.side - 1), self.t + 1
        reached = bool((self.pos == self.goal).all())
        return self.observe(), (1.0 if reached else -0.02), reached, reached or self.t >= 40


class SegmentTree:
    """Binary tree whose parents hold the sum of their children."""

    def __init__(self, capacity):
        self.capacity = capacity
        self.nodes = np.zeros(2 * capacity, dtype=np.float32)

    def update(self, slot, value):
        i = slot + self.capacity
        change = value - self.nodes[i]
        while i >= 1:
            self.nodes[i] += change
            i //= 2

    def find(self, mass):
        i = 1
        while i < self.capacity:
            i *= 2
            if mass > self.nodes[i]:
                mass -= self.nodes[i]
                i += 1
        return i - self.capacity


class PrioritisedMemory:
    def __init__(self, capacity, obs_dim, alpha=0.6):
        self.tree, self.alpha = SegmentTree(capacity), alpha
        self.capacity, self.size, self.head, self.peak = capacity, 0, 0, 1.0
        self.obs, self.nxt = np.zeros((2, capacity, obs_dim), np.float32)
        self.rew, self.end = np.zeros((2, capacity), np.float32)
        self.act = np.zeros(capacity, np.int64)

    def add(self, o, a, r, o2, done):
        h = self.head
        self.obs[h], self.act[h], self.rew[h], self.nxt[h], self.end[h] = o, a, r, o2, done
        self.tree.update(h, self.peak)
        self.head = (h + 1) % self.capacity
        self.size = min(self.size + 1, self.capacity)

    def sample(self, n, rng, beta):
        total = float(self.tree.nodes[1])
        masses = (np.arange(n) + rng.random(n)) * total / n
        slots = np.array([min(self.tree.find(m), self.size - 1) for m in masses])
        p = self.tree.nodes[slots + self.capacity] / total
        weights = (self.size * np.maximum(p, 1e-8)) ** -beta
        batch = [torch.from_numpy(f[slots]) for f in (self.obs, self.act, self.rew, self.nxt, self.end)]
        return slots, batch, torch.from_numpy(weights / weights.max()).float()

    def reprioritise(self, slots, td):
        priorities = (td + 1e-3) ** self.alpha
        for slot, priority in zip(slots, priorities):
            self.tree.update(slot, priority)
        self.peak = max(self.peak, priorities.max().item())


def build(obs_dim, n_actions=4, width=256):
    return nn.Sequential(nn.Linear(obs_dim, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, n_actions))


torch.manual_seed(1)
rng = np.random.default_rng(1)
env = WindyGrid(seed=1)
obs = env.reset()
online, target = build(obs.size), build(obs.size)
target.load_state_dict(online.state_dict())
optimizer = torch.optim.Adam(online.parameters(), lr=5e-4)
memory = PrioritisedMemory(2 ** 14, obs.size)
updates, returns, ret = 0, [], 0.0
for frame in range(2600):
    eps = max(0.1, 1.0 - frame / 2000)
    if rng.random() < eps:
        action = int(rng.integers(4))
    else:
        with torch.no_grad():
            action = online(torch.from_numpy(obs)).argmax().item()
    nxt, reward, terminal, over = env.step(action)
    memory.add(obs, action, reward, nxt, terminal)
    obs, ret = nxt, ret + reward
    if over:
        returns.append(ret)
        obs, ret = env.reset(), 0.0
    if frame >= 800 and frame % 8 == 0:
        slots, (s, a, r, s2, end), w = memory.sample(64, rng, beta=0.5)
        with torch.no_grad():
            best = online(s2).argmax(1, keepdim=True)
            goal = r + 0.97 * (1 - end) * target(s2).gather(1, best).squeeze(1)
        q = online(s).gather(1, a.unsqueeze(1)).squeeze(1)
        loss = (w * F.smooth_l1_loss(q, goal, reduction="none")).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        memory.reprioritise(slots, (q - goal).detach().abs())
        updates += 1
        if updates % 50 == 0:
            target.load_state_dict(online.state_dict())
            print(f"update {updates} loss {loss.item():.4f} return {np.mean(returns[-20:]):.2f}")
