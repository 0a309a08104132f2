"""Deep Q-learning for a tug that steers ships to their berth, prioritized replay."""

import numpy as np
import torch
from torch import nn

torch.set_num_threads(1)


class HarborEnv:
    """Many harbors side by side; state is position, velocity and berth."""

    def __init__(self, count, seed):
        self.rng = np.random.default_rng(seed)
        self.count = count
        self.state = self._fresh(count)

    def _fresh(self, n):
        s = np.zeros((n, 6), dtype=np.float32)
        s[:, 0:2] = self.rng.uniform(-1, 1, (n, 2))
        s[:, 4:6] = self.rng.uniform(-1, 1, (n, 2))
        return s

    def step(self, actions):
        push = np.array([[0, 0.1], [0, -0.1], [0.1, 0], [-0.1, 0]], dtype=np.float32)[actions]
        nxt = self.state.copy()
        nxt[:, 2:4] = 0.6 * nxt[:, 2:4] + push
        nxt[:, 0:2] += nxt[:, 2:4]
        gap = np.linalg.norm(nxt[:, 0:2] - nxt[:, 4:6], axis=1)
        done = (gap < 0.15) | (gap > 3)
        reward = (-gap + 2 * (gap < 0.15)).astype(np.float32)
        before, self.state = self.state, nxt.copy()
        self.state[done] = self._fresh(int(done.sum()))
        return before, reward, nxt, done


class PrioritizedMemory:
    def __init__(self, capacity):
        self.capacity = capacity
        self.rows = []
        self.priority = np.zeros(capacity)
        self.cursor = 0

    def add(self, before, actions, reward, after, done):
        for row in zip(before, actions, reward, after, done):
            if len(self.rows) < self.capacity:
                self.rows.append(row)
            else:
                self.rows[self.cursor] = row
            self.priority[self.cursor] = self.priority.max() or 1.0
            self.cursor = (self.cursor + 1) % self.capacity

    def sample(self, n, rng):
        weights = self.priority[: len(self.rows)]
        index = rng.choice(len(self.rows), n, p=weights / weights.sum())
        columns = zip(*[self.rows[i] for i in index])
        return torch.from_numpy(index), [torch.from_numpy(np.array(c)) for c in columns]

    def update(self, index, td_error):
        for i in range(len(index)):
            self.priority[index[i].item()] = (td_error[i].abs() + 1e-3).item() ** 0.6


def q_network():
    return nn.Sequential(
        nn.Linear(6, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 4)
    )


def main(updates=450, batch=512, gamma=0.95):
    torch.manual_seed(0)
    rng = np.random.default_rng(0)
    env, memory = HarborEnv(32, seed=1), PrioritizedMemory(4096)
    online, target = q_network(), q_network()
    target.load_state_dict(online.state_dict())
    optimizer = torch.optim.Adam(online.parameters(), lr=1e-3)
    recent = []
    while len(memory.rows) < memory.capacity:
        actions = rng.integers(0, 4, env.count)
        before, *outcome = env.step(actions)
        memory.add(before, actions, *outcome)
    for update in range(updates):
        with torch.no_grad():
            actions = online(torch.from_numpy(env.state)).argmax(1).numpy()
        explore = rng.random(env.count) < max(0.1, 1 - update / 200)
        actions[explore] = rng.integers(0, 4, int(explore.sum()))
        before, *outcome = env.step(actions)
        memory.add(before, actions, *outcome)
        index, (s, a, r, s2, done) = memory.sample(batch, rng)
        with torch.no_grad():
            goal = r + gamma * target(s2).max(1).values * (~done)
        td_error = goal - online(s).gather(1, a.unsqueeze(1)).squeeze(1)
        loss = nn.functional.smooth_l1_loss(td_error, torch.zeros_like(td_error))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        memory.update(index, td_error.detach())
        recent.append(outcome[0].mean())
        if update % 50 == 49:
            target.load_state_dict(online.state_dict())
            print(f"update {update + 1} reward {np.mean(recent[-50:]):.3f} loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
