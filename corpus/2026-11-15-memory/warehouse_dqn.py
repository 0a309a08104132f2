"""Double-DQN-style control of a fleet of pickers on a line of shelves."""

import random
from collections import deque, namedtuple

import torch
import torch.nn as nn
import torch.nn.functional as F

Transition = namedtuple("Transition", "obs action q_taken reward next_obs")


class FleetEnv:
    """96 pickers in parallel; each sees its own position and a goal, one-hot."""

    def __init__(self, n=96, cells=24):
        self.n, self.cells = n, cells
        self.pos = torch.randint(0, cells, (n,))
        self.goal = torch.randint(0, cells, (n,))

    def observe(self):
        return torch.cat(
            [F.one_hot(self.pos, self.cells), F.one_hot(self.goal, self.cells)], dim=1
        ).float()

    def step(self, action):
        before = (self.pos - self.goal).abs()
        self.pos = (self.pos + action - 1).clamp(0, self.cells - 1)
        after = (self.pos - self.goal).abs()
        reward = (before - after).float() - 0.1
        reached = after == 0
        reward[reached] += 1.0
        self.goal[reached] = torch.randint(0, self.cells, (int(reached.sum()),))
        return reward


class QNet(nn.Sequential):
    def __init__(self, inputs, actions=3, width=256):
        super().__init__(
            nn.Linear(inputs, width),
            nn.ReLU(),
            nn.Linear(width, width),
            nn.ReLU(),
            nn.Linear(width, actions),
        )


class Agent:
    def __init__(self, obs_dim, gamma=0.9):
        self.online, self.target = QNet(obs_dim), QNet(obs_dim)
        self.target.load_state_dict(self.online.state_dict())
        self.optimizer = torch.optim.Adam(self.online.parameters(), lr=1e-3)
        self.replay = deque(maxlen=2000)
        self.gamma = gamma

    def act(self, obs, epsilon):
        q = self.online(obs)
        action = q.argmax(dim=1)
        explore = torch.rand(len(obs)) < epsilon
        action[explore] = torch.randint(0, 3, (int(explore.sum()),))
        return action, q.gather(1, action.unsqueeze(1)).squeeze(1)

    def remember(self, *fields):
        self.replay.append(Transition(*fields))

    def learn(self, batches=2):
        picked = Transition(*zip(*random.sample(self.replay, batches)))
        obs, action, reward = map(torch.cat, (picked.obs, picked.action, picked.reward))
        with torch.no_grad():
            nxt = self.target(torch.cat(picked.next_obs)).max(dim=1).values
            td_target = reward + self.gamma * nxt
            drift = torch.cat(picked.q_taken) - td_target
        q = self.online(obs).gather(1, action.unsqueeze(1)).squeeze(1)
        loss = F.smooth_l1_loss(q, td_target)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.item(), drift.abs().mean().item()


def run(updates=390, env_steps=3):
    torch.manual_seed(9)
    random.seed(9)
    env = FleetEnv()
    agent = Agent(obs_dim=48)
    obs, gained = env.observe(), 0.0
    for update in range(updates):
        for _ in range(env_steps):
            action, q_taken = agent.act(obs, epsilon=max(0.05, 1 - update / 200))
            reward = env.step(action)
            nxt = env.observe()
            agent.remember(obs, action, q_taken, reward, nxt)
            obs, gained = nxt, gained + reward.mean().item()
        loss, drift = agent.learn()
        if update % 65 == 64:
            agent.target.load_state_dict(agent.online.state_dict())
            print(f"{update + 1}: loss {loss:.4f} drift {drift:.3f} reward/65 {gained:.2f}")
            gained = 0.0


if __name__ == "__main__":
    torch.set_num_threads(1)
    run()
