"""REINFORCE with a learned baseline on a hand-written cart-pole."""
import math
import random
from collections import deque

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(11)
random.seed(11)


class CartPole:
    gravity, masscart, masspole, length, force, tau = 9.8, 1.0, 0.1, 0.5, 10.0, 0.02
    max_steps = 200

    def reset(self):
        self.s = [random.uniform(-0.05, 0.05) for _ in range(4)]
        self.t = 0
        return self.s

    def step(self, action):
        x, v, th, om = self.s
        f = self.force if action == 1 else -self.force
        total = self.masscart + self.masspole
        pml = self.masspole * self.length
        cos, sin = math.cos(th), math.sin(th)
        tmp = (f + pml * om * om * sin) / total
        thacc = (self.gravity * sin - cos * tmp) / (
            self.length * (4.0 / 3.0 - self.masspole * cos * cos / total))
        xacc = tmp - pml * thacc * cos / total
        self.s = [x + self.tau * v, v + self.tau * xacc, th + self.tau * om, om + self.tau * thacc]
        self.t += 1
        done = abs(self.s[0]) > 2.4 or abs(self.s[2]) > 0.2095 or self.t >= self.max_steps
        return self.s, 1.0, done


class Policy(nn.Module):
    def __init__(self, hidden=48):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, hidden), nn.Tanh())
        self.pi = nn.Linear(hidden, 1)
        self.v = nn.Linear(hidden, 1)

    def forward(self, s):
        h = self.body(s)
        return self.pi(h).squeeze(-1), self.v(h).squeeze(-1)

    @torch.no_grad()
    def act(self, s):
        p_right = torch.sigmoid(self.pi(self.body(torch.tensor(s)))).item()
        return 1 if random.random() < p_right else 0


env = CartPole()
policy = Policy()
optimizer = torch.optim.Adam(policy.parameters(), lr=8e-3)
gamma = 0.99
recent = deque(maxlen=50)
history = []

for episode in range(1, 261):
    state, done = env.reset(), False
    states, actions, rewards = [], [], []
    while not done:
        action = policy.act(state)
        states.append(state)
        actions.append(float(action))
        state, reward, done = env.step(action)
        rewards.append(reward)

    ret, returns = 0.0, []
    for r in reversed(rewards):
        ret = r + gamma * ret
        returns.append(ret)
    returns = torch.tensor(returns[::-1]) / 20.0
    logits, values = policy(torch.tensor(states))
    logp = -F.binary_cross_entropy_with_logits(logits, torch.tensor(actions), reduction="none")
    p = torch.sigmoid(logits)
    entropy = F.binary_cross_entropy(p, p.detach())
    loss = -(logp * (returns - values.detach())).mean() + F.smooth_l1_loss(values, returns) - 0.01 * entropy

    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
    optimizer.step()

    recent.append(len(rewards))
    history.append((episode, len(rewards)))
    if episode % 20 == 0:
        print(f"episode {episode:4d}  mean length {sum(recent) / len(recent):6.1f}  loss {loss.item():.3f}")

best = max(history, key=lambda h: h[1])
print(f"best episode {best[0]} with {best[1]} steps")
