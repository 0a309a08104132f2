import numpy as np
import torch
import torch.nn as nn
from torch.distributions import Categorical


class CatchEnv:
    """A paddle at the bottom catches falling fruit; vectorised over several boards."""

    def __init__(self, boards=16, size=12, seed=0):
        self.rng = np.random.default_rng(seed)
        self.boards, self.size = boards, size

    def reset(self):
        self.fruit_x = self.rng.integers(0, self.size, self.boards)
        self.paddle = np.full(self.boards, self.size // 2)
        self.row = 0
        return self._obs()

    def _obs(self):
        obs = np.zeros((self.boards, 2 * self.size + 1), np.float32)
        rows = np.arange(self.boards)
        obs[rows, self.fruit_x] = 1.0
        obs[rows, self.size + self.paddle] = 1.0
        obs[:, -1] = self.row / self.size
        return obs

    def step(self, action):
        self.paddle = np.clip(self.paddle + action - 1, 0, self.size - 1)
        self.row += 1
        done = self.row == self.size - 1
        reward = np.zeros(self.boards, np.float32)
        if done:
            reward = 1.0 - 2.0 * np.minimum(np.abs(self.paddle - self.fruit_x) / 3, 1).astype(np.float32)
        return self._obs(), reward, done

    def render(self, board=0, scale=10):
        canvas = np.full((self.size, self.size, 3), 24, np.uint8)
        canvas[min(self.row, self.size - 1), self.fruit_x[board]] = (220, 60, 40)
        canvas[-1, self.paddle[board]] = (60, 200, 90)
        return canvas.repeat(scale, axis=0).repeat(scale, axis=1)


class ClipRecorder:
    """Wrapper that keeps the frames of the first board, for a short clip of the agent at the end."""

    def __init__(self, env):
        self.env = env
        self.frames = []
        self.episode = 0

    def reset(self):
        obs = self.env.reset()
        self.episode += 1
        self.frames.append(self.env.render())
        return obs

    def step(self, action):
        result = self.env.step(action)
        self.frames.append(self.env.render())
        return result

    def last_clip(self, length):
        return np.stack(self.frames[-length:])


def run_episode(env, policy):
    obs, done = env.reset(), False
    log_probs, entropies, rewards = [], [], []
    while not done:
        dist = Categorical(logits=policy(torch.from_numpy(obs)))
        action = dist.sample()
        obs, reward, done = env.step(action.numpy())
        log_probs.append(dist.log_prob(action))
        entropies.append(dist.entropy())
        rewards.append(torch.from_numpy(reward))
    return torch.stack(log_probs), torch.stack(entropies), torch.stack(rewards)


def main():
    torch.set_num_threads(1)
    torch.manual_seed(8)
    env = ClipRecorder(CatchEnv(boards=64, seed=8))
    policy = nn.Sequential(nn.Linear(25, 128), nn.Tanh(), nn.Linear(128, 128), nn.Tanh(), nn.Linear(128, 3))
    optimizer = torch.optim.Adam(policy.parameters(), lr=3e-3)
    average = 0.0
    for update in range(300):
        log_probs, entropies, rewards = run_episode(env, policy)
        returns = rewards.flip(0).cumsum(0).flip(0)
        advantage = (returns - returns.mean()) / (returns.std() + 1e-6)
        loss = -(log_probs * advantage).mean() - 0.01 * entropies.mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        average = 0.97 * average + 0.03 * rewards[-1].mean().item()
        if (update + 1) % 100 == 0:
            print(f"update {update + 1} reward {average:+.3f} episodes {env.episode}")
    clip = env.last_clip(12)
    print("clip", clip.shape, clip.dtype, f"mean brightness {clip.mean():.1f}")


if __name__ == "__main__":
    main()
