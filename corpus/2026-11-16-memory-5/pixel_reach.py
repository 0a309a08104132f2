"""Deterministic policy gradient on a tiny image-based reaching task."""
import copy
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(3)
np.random.seed(3)
SIZE, N_ENVS = 32, 16


class ReachEnv:
    """Vectorised point-mass; two-channel pictures of tip and goal."""

    def __init__(self, n):
        self.n = n
        axis = np.linspace(-1, 1, SIZE, dtype=np.float32)
        self.gx, self.gy = np.meshgrid(axis, axis)
        self.tip = np.zeros((n, 2), dtype=np.float32)
        self.goal = np.random.uniform(-0.8, 0.8, (n, 2)).astype(np.float32)
        self.t = 0

    def _blob(self, xy):
        dx = self.gx[None] - xy[:, 0, None, None]
        dy = self.gy[None] - xy[:, 1, None, None]
        return np.exp(-(dx ** 2 + dy ** 2) / 0.25)

    def observe(self):
        return torch.from_numpy(np.stack([self._blob(self.tip), self._blob(self.goal)], 1))

    def step(self, action):
        before = np.linalg.norm(self.tip - self.goal, axis=1)
        self.tip = np.clip(self.tip + 0.25 * action, -1, 1)
        reward = 4 * (before - np.linalg.norm(self.tip - self.goal, axis=1))
        self.t += 1
        if self.t % 5 == 0:
            self.tip = np.random.uniform(-0.9, 0.9, (self.n, 2)).astype(np.float32)
            self.goal = np.random.uniform(-0.8, 0.8, (self.n, 2)).astype(np.float32)
        return self.observe(), torch.from_numpy(reward.astype(np.float32))


class Ring:
    """Preallocated transition store, oldest entries are overwritten."""

    def __init__(self, capacity):
        self.capacity = capacity
        self.obs = torch.zeros(capacity, 2, SIZE, SIZE)
        self.nxt = torch.zeros(capacity, 2, SIZE, SIZE)
        self.act = torch.zeros(capacity, 2)
        self.rew = torch.zeros(capacity)
        self.ptr, self.full = 0, False

    def push(self, obs, act, rew, nxt):
        sl = slice(self.ptr, self.ptr + obs.shape[0])
        self.obs[sl] = obs
        self.act[sl] = act
        self.rew[sl] = rew
        self.nxt[sl] = nxt
        self.ptr += obs.shape[0]
        if self.ptr >= self.capacity:
            self.ptr, self.full = 0, True

    @torch.no_grad()
    def sample(self, k):
        top = self.capacity if self.full else self.ptr
        idx = torch.randint(0, top, (k,))
        return self.obs[idx], self.act[idx], self.rew[idx], self.nxt[idx]


def trunk():
    return nn.Sequential(
        nn.Conv2d(2, 12, 5, stride=2, padding=2), nn.ReLU(),
        nn.Conv2d(12, 16, 3, stride=2, padding=1), nn.ReLU(),
        nn.Flatten(), nn.Linear(16 * 8 * 8, 64), nn.ReLU())


class Actor(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = trunk(), nn.Linear(64, 2)

    def forward(self, obs):
        return torch.tanh(self.head(self.body(obs)))


class Critic(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = trunk()
        self.head = nn.Sequential(nn.Linear(66, 64), nn.ReLU(), nn.Linear(64, 1))

    def forward(self, obs, act):
        return self.head(torch.cat([self.body(obs), act], 1)).squeeze(1)


if __name__ == "__main__":
    env, ring = ReachEnv(N_ENVS), Ring(capacity=1600)
    actor, critic = Actor(), Critic()
    critic_target = copy.deepcopy(critic)
    opt_a = torch.optim.Adam(actor.parameters(), 5e-4)
    opt_c = torch.optim.Adam(critic.parameters(), 2e-3)
    gamma, tau = 0.2, 0.05
    obs, rewards = env.observe(), []
    for it in range(180):
        noise = 0.4 * torch.randn(N_ENVS, 2)
        action = (actor(obs) + noise).clamp(-1, 1)
        nxt, rew = env.step(action.detach().numpy())
        ring.push(obs, action, rew, nxt)
        obs = nxt
        rewards.append(rew.mean().item())
        if it < 10:  # fill the store a little first
            continue
        o, a, r, o2 = ring.sample(24)
        with torch.no_grad():
            target = r + gamma * critic_target(o2, actor(o2))
        loss_c = F.mse_loss(critic(o, a), target)
        opt_c.zero_grad()
        loss_c.backward()
        opt_c.step()
        loss_a = -critic(o, actor(o)).mean()
        opt_a.zero_grad()
        loss_a.backward()
        opt_a.step()
        with torch.no_grad():
            for p, q in zip(critic.parameters(), critic_target.parameters()):
                q.lerp_(p, tau)
        if it % 36 == 35:
            print(f"it {it + 1:4d}  critic {loss_c.item():.4f}  reward {np.mean(rewards[-36:]):.3f}")
