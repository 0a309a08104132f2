"""REINFORCE on a small corridor with noisy rewards; the loss jumps and changes sign; healthy."""

import torch
from torch import nn
from torch.distributions import Categorical


class Corridor:
    """Walk to the right end; each step costs a little and the prize is noisy."""

    def __init__(self, length=7, limit=12):
        self.length = length
        self.limit = limit

    def reset(self):
        self.pos, self.t = 0, 0
        return self.observe()

    def observe(self):
        obs = torch.zeros(self.length + 1)
        obs[self.pos] = 1.0
        obs[-1] = self.t / self.limit
        return obs

    def step(self, action):
        self.pos = max(0, min(self.length - 1, self.pos + (1 if action == 1 else -1)))
        self.t += 1
        goal = self.pos == self.length - 1
        reward = (10 + 20 * torch.randn(()).item()) if goal else -0.1
        return self.observe(), reward, goal or self.t >= self.limit


def discounted(rewards, gamma=0.97):
    out, running = [], 0.0
    for r in reversed(rewards):
        running = r + gamma * running
        out.append(running)
    return torch.tensor(out[::-1])


torch.manual_seed(77)
torch.set_num_threads(1)
env = Corridor()
policy = nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 2))
optimizer = torch.optim.Adam(policy.parameters(), lr=5e-3)
baseline = 0.0

for episode in range(120):
    obs, done = env.reset(), False
    log_probs, rewards = [], []
    while not done:
        dist = Categorical(logits=policy(obs))
        action = dist.sample()
        log_probs.append(dist.log_prob(action))
        obs, reward, done = env.step(action.item())
        rewards.append(reward)
    returns = discounted(rewards)
    baseline = 0.9 * baseline + 0.1 * returns[0].item()
    loss = -(torch.stack(log_probs) * (returns - baseline)).sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if episode % 20 == 0:
        print(f"episode {episode} return {sum(rewards):.2f} loss {loss.item():.3f}")

print(f"final loss {loss.item():.4f}")
