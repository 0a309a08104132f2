"""REINFORCE with a baseline on a home-made pole balancing task."""
import math
import random

import torch
from torch import nn


class Pole:
    """Inverted pendulum on a cart, Euler integration, two actions."""

    limit = 120

    def reset(self):
        self.state = [random.uniform(-0.05, 0.05) for _ in range(4)]
        self.age = 0
        return list(self.state)

    def step(self, action):
        x, v, angle, spin = self.state
        force = 10.0 if action else -10.0
        cos, sin = math.cos(angle), math.sin(angle)
        temp = (force + 0.05 * spin**2 * sin) / 1.1
        spin_acc = (9.8 * sin - cos * temp) / (0.5 * (4 / 3 - 0.1 * cos**2 / 1.1))
        acc = temp - 0.05 * spin_acc * cos / 1.1
        self.state = [x + 0.02 * v, v + 0.02 * acc, angle + 0.02 * spin, spin + 0.02 * spin_acc]
        self.age += 1
        failed = abs(self.state[0]) > 2.4 or abs(self.state[2]) > 0.21
        return list(self.state), 1.0, failed or self.age >= self.limit


class Agent(nn.Module):
    def __init__(self, hidden=32):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, hidden), nn.Tanh())
        self.policy = nn.Linear(hidden, 2)
        self.value = nn.Linear(hidden, 1)

    def forward(self, observation):
        h = self.body(observation)
        return torch.distributions.Categorical(logits=self.policy(h)), self.value(h).squeeze(-1)


def describe(parameters):
    total = sum(p.numel() for p in parameters)
    print(f"optimising {total} values")
    return total


def play(env, agent):
    observation, done = env.reset(), False
    log_probs, values, rewards = [], [], []
    while not done:
        dist, value = agent(torch.tensor(observation))
        action = dist.sample()
        observation, reward, done = env.step(action.item())
        log_probs.append(dist.log_prob(action))
        values.append(value)
        rewards.append(reward)
    return torch.stack(log_probs), torch.stack(values), rewards


def discounted(rewards, gamma=0.99):
    out, running = [], 0.0
    for reward in reversed(rewards):
        running = reward + gamma * running
        out.append(running)
    return torch.tensor(out[::-1])


def main():
    torch.manual_seed(0)
    random.seed(0)
    env, agent = Pole(), Agent()
    trainable = filter(lambda p: p.requires_grad, agent.parameters())
    describe(trainable)
    optimizer = torch.optim.Adam(trainable, lr=5e-3)
    for episode in range(150):
        log_probs, values, rewards = play(env, agent)
        returns = discounted(rewards)
        advantage = returns - values.detach()
        loss = -(log_probs * advantage).mean() + 0.5 * (returns - values).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if episode % 25 == 0:
            print(f"episode {episode}: lasted {len(rewards)} steps")


if __name__ == "__main__":
    main()
