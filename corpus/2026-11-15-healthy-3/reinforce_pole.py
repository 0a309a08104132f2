import math
import random

import torch
import torch.nn as nn
from torch.distributions import Categorical

torch.set_num_threads(1)
torch.manual_seed(2)
random.seed(2)


class Pole:
    """Cart with a pole, Euler integration."""

    limit = 120

    def reset(self):
        self.s = [random.uniform(-0.05, 0.05) for _ in range(4)]
        self.t = 0
        return self.s

    def step(self, action):
        x, v, a, w = self.s
        force = 10.0 if action else -10.0
        c, s = math.cos(a), math.sin(a)
        tmp = (force + 0.05 * w * w * s) / 1.1
        acc_a = (9.8 * s - c * tmp) / (0.5 * (4 / 3 - 0.1 * c * c / 1.1))
        acc_x = tmp - 0.05 * acc_a * c / 1.1
        self.s = [x + 0.02 * v, v + 0.02 * acc_x, a + 0.02 * w, w + 0.02 * acc_a]
        self.t += 1
        failed = abs(self.s[0]) > 2.4 or abs(self.s[2]) > 0.21
        return self.s, 1.0, failed or self.t >= self.limit


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 64), nn.Tanh())
        self.pi = nn.Linear(64, 2)
        self.v = nn.Linear(64, 1)
        self.log_probs, self.values, self.rewards = [], [], []

    def act(self, state):
        h = self.body(torch.tensor(state))
        dist = Categorical(logits=self.pi(h), validate_args=False)
        action = dist.sample()
        self.log_probs.append(dist.log_prob(action))
        self.values.append(self.v(h).squeeze(0))
        return action.item()


def discounted(rewards, gamma=0.98):
    out, acc = [], 0.0
    for r in reversed(rewards):
        acc = r + gamma * acc
        out.append(acc)
    return torch.tensor(out[::-1]) / 20


def finish_episode(policy, opt):
    returns = discounted(policy.rewards)
    values = torch.stack(policy.values)
    adv = returns - values.detach()
    if len(adv) > 1:
        adv = (adv - adv.mean()) / (adv.std() + 1e-6)
    loss = -(torch.stack(policy.log_probs) * adv).sum() / 20
    loss = loss + nn.functional.mse_loss(values, returns)
    opt.zero_grad()
    loss.backward()
    opt.step()
    for buf in (policy.log_probs, policy.values, policy.rewards):
        buf.clear()


env = Pole()
policy = Policy()
optimizer = torch.optim.Adam(policy.parameters(), lr=6e-3)
lengths = []
for episode in range(240):
    state, done = env.reset(), False
    while not done:
        state, reward, done = env.step(policy.act(state))
        policy.rewards.append(reward)
    lengths.append(len(policy.rewards))
    finish_episode(policy, optimizer)
    if (episode + 1) % 30 == 0:
        print(f"episode {episode + 1} mean length {sum(lengths[-30:]) / 30:.1f}")
