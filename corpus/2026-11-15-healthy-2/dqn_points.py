import random
from collections import deque

import torch
import torch.nn as nn
import torch.nn.functional as F


class PointWorld:
    """Four moves on a grid, reward for approaching the target; observations are random features."""

    SIZE, FEATURES = 16, 1024
    MOVES = torch.tensor([[0, 1], [0, -1], [1, 0], [-1, 0]])

    def __init__(self, seed):
        gen = torch.Generator().manual_seed(seed)
        self.freq = 1.5 * torch.randn(2, self.FEATURES, generator=gen)
        self.phase = 6.28 * torch.rand(self.FEATURES, generator=gen)

    def reset(self):
        self.pos, self.goal = torch.randint(0, self.SIZE, (2, 2))
        self.t = 0
        return self.observe()

    def observe(self):
        offset = (self.goal - self.pos).float() / self.SIZE
        return torch.cos(offset @ self.freq + self.phase)

    def step(self, action):
        before = (self.pos - self.goal).abs().sum()
        self.pos = (self.pos + self.MOVES[action]).clamp(0, self.SIZE - 1)
        self.t += 1
        after = (self.pos - self.goal).abs().sum()
        done = bool(after == 0) or self.t >= 40
        return self.observe(), float(before - after), done


class ReplayBuffer:
    def __init__(self, capacity, dim):
        self.obs = torch.zeros(capacity, dim)
        self.next_obs = torch.zeros(capacity, dim)
        self.action = torch.zeros(capacity, dtype=torch.long)
        self.reward = torch.zeros(capacity)
        self.done = torch.zeros(capacity)
        self.capacity, self.count = capacity, 0

    def push(self, obs, action, reward, next_obs, done):
        i = self.count % self.capacity
        self.obs[i], self.next_obs[i] = obs, next_obs
        self.action[i], self.reward[i], self.done[i] = action, reward, float(done)
        self.count += 1

    def __len__(self):
        return min(self.count, self.capacity)

    def sample(self, n):
        i = torch.randint(0, len(self), (n,))
        return self.obs[i], self.action[i], self.reward[i], self.next_obs[i], self.done[i]


def q_network(dim):
    return nn.Sequential(
        nn.Linear(dim, 256), nn.ReLU(), nn.Linear(256, 128), nn.ReLU(), nn.Linear(128, 4)
    )


def main(env_steps=4400, learn_start=400, capacity=1500, batch=96, gamma=0.8):
    torch.set_num_threads(1)
    torch.manual_seed(1)
    random.seed(1)
    env = PointWorld(seed=1)
    online, target = q_network(env.FEATURES), q_network(env.FEATURES)
    target.load_state_dict(online.state_dict())
    opt = torch.optim.Adam(online.parameters(), lr=5e-4)
    buffer = ReplayBuffer(capacity, env.FEATURES)
    obs, updates, rewards = env.reset(), 0, deque(maxlen=500)
    for t in range(env_steps):
        epsilon = max(0.05, 1 - t / 2500)
        if random.random() < epsilon:
            action = random.randrange(4)
        else:
            with torch.no_grad():
                action = int(online(obs).argmax())
        nxt, reward, done = env.step(action)
        buffer.push(obs, action, reward, nxt, done)
        rewards.append(reward)
        obs = env.reset() if done else nxt
        if len(buffer) >= learn_start and t % 4 == 0:
            o, a, r, n, d = buffer.sample(batch)
            with torch.no_grad():
                goal = r + gamma * (1 - d) * target(n).amax(1)
            loss = F.smooth_l1_loss(online(o).gather(1, a[:, None]).squeeze(1), goal)
            opt.zero_grad()
            loss.backward()
            opt.step()
            updates += 1
            if updates % 50 == 0:
                target.load_state_dict(online.state_dict())
            if updates % 200 == 0:
                mean = sum(rewards) / len(rewards)
                print(f"update {updates} reward/step {mean:.3f} loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
