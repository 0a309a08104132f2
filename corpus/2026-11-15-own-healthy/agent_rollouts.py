"""An agent reads one action out of its policy for each move of a simulation in Python."""
import random

import torch
from torch import nn


class Corridor:
    def reset(self):
        self.place, self.moves = 5.0, 0
        return [self.place, 0.0]

    def move(self, action):
        for _ in range(30):
            self.place += (action - 0.5) * 0.02 + random.gauss(0, 0.01)
        self.moves += 1
        return [self.place, self.moves / 30], -abs(self.place - 6), self.moves >= 30


random.seed(0)
torch.manual_seed(0)
torch.set_num_threads(1)
policy = nn.Sequential(nn.Linear(2, 32), nn.Tanh(), nn.Linear(32, 2))
optimizer = torch.optim.Adam(policy.parameters(), lr=1e-2)
world = Corridor()
for episode in range(80):
    state, done, logs, rewards = world.reset(), False, [], []
    while not done:
        choice = torch.distributions.Categorical(logits=policy(torch.tensor(state)))
        action = choice.sample()
        logs.append(choice.log_prob(action))
        state, reward, done = world.move(action.item())
        rewards.append(reward)
    returns = torch.tensor(rewards).flip(0).cumsum(0).flip(0)
    loss = -(torch.stack(logs) * (returns - returns.mean())).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(sum(rewards))
