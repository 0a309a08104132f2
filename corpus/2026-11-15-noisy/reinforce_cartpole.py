"""REINFORCE on a hand-written cart-pole, one episode per update, as in the usual tutorials."""

import math
import random

import torch
import torch.nn as nn
import torch.optim as optim

torch.set_num_threads(1)
torch.manual_seed(543)
random.seed(543)

GAMMA = 0.99
EPISODES = 420
MAX_STEPS = 150


class CartPole:
    def __init__(self):
        self.state = None
        self.t = 0

    def reset(self):
        self.state = [random.uniform(-0.05, 0.05) for _ in range(4)]
        self.t = 0
        return self.state

    def step(self, action):
        x, x_dot, theta, theta_dot = self.state
        force = 10.0 if action == 1 else -10.0
        cos, sin = math.cos(theta), math.sin(theta)
        temp = (force + 0.05 * theta_dot**2 * sin) / 1.1
        theta_acc = (9.8 * sin - cos * temp) / (0.5 * (4.0 / 3.0 - 0.1 * cos**2 / 1.1))
        x_acc = temp - 0.05 * theta_acc * cos / 1.1
        tau = 0.02
        self.state = [
            x + tau * x_dot,
            x_dot + tau * x_acc,
            theta + tau * theta_dot,
            theta_dot + tau * theta_acc,
        ]
        self.t += 1
        fell = abs(self.state[0]) > 2.4 or abs(self.state[2]) > 12 * math.pi / 180
        return self.state, 1.0, fell or self.t >= MAX_STEPS


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.affine1 = nn.Linear(4, 64)
        self.affine2 = nn.Linear(64, 2)

    def forward(self, x):
        return self.affine2(torch.relu(self.affine1(x)))


env = CartPole()
policy = Policy()
optimizer = optim.Adam(policy.parameters(), lr=3e-3)
running, baseline = 10.0, 0.0

for episode in range(EPISODES):
    state, states, actions, rewards = env.reset(), [], [], []
    done = False
    while not done:
        with torch.no_grad():
            logits = policy(torch.tensor(state)).tolist()
        p_right = 1 / (1 + math.exp(logits[0] - logits[1]))
        action = int(random.random() < p_right)
        states.append(state)
        actions.append(action)
        state, reward, done = env.step(action)
        rewards.append(reward)

    returns, R = [], 0.0
    for r in reversed(rewards):
        R = r + GAMMA * R
        returns.insert(0, R)
    returns = torch.tensor(returns)
    baseline = 0.9 * baseline + 0.1 * returns.mean().item()

    optimizer.zero_grad()
    log_probs = torch.log_softmax(policy(torch.tensor(states)), dim=1)
    chosen = log_probs[torch.arange(len(actions)), torch.tensor(actions)]
    loss = -(chosen * (returns - baseline)).sum()
    loss.backward()
    optimizer.step()

    running = 0.05 * len(rewards) + 0.95 * running
    if episode % 60 == 0:
        print(f"episode {episode} length {len(rewards)} running {running:.1f}")

# greedy evaluation: mean number of steps the pole stays up, 150 is the most
total = 0
with torch.no_grad():
    for _ in range(10):
        state, done = env.reset(), False
        while not done:
            state, reward, done = env.step(policy(torch.tensor(state)).argmax().item())
            total += reward
print("final", total / 10)
