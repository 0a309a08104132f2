"""REINFORCE with a moving baseline: a picker finds the exit of a warehouse grid."""
import torch
import torch.nn as nn
from torch.distributions import Categorical

SIZE, EPISODES, HORIZON, UPDATES = 6, 24, 18, 260
MOVES = torch.tensor([[0, 1], [0, -1], [1, 0], [-1, 0]])


class Warehouse:
    """Many grids at once; slippery floor, so returns are noisy."""

    def __init__(self, n, gen):
        self.n, self.gen = n, gen
        self.goal = torch.tensor([SIZE - 1, SIZE - 1])

    def reset(self):
        self.pos = torch.randint(0, SIZE - 1, (self.n, 2), generator=self.gen)
        self.done = torch.zeros(self.n, dtype=torch.bool)
        return self._observe()

    def _observe(self):
        cell = self.pos[:, 0] * SIZE + self.pos[:, 1]
        return nn.functional.one_hot(cell, SIZE * SIZE).float()

    def step(self, action):
        slip = torch.rand(self.n, generator=self.gen) < 0.15
        other = torch.randint(4, (self.n,), generator=self.gen)
        move = MOVES[torch.where(slip, other, action)]
        new = (self.pos + move).clamp(0, SIZE - 1)
        self.pos = torch.where(self.done.unsqueeze(1), self.pos, new)
        arrived = (self.pos == self.goal).all(dim=1) & ~self.done
        reward = torch.where(self.done, 0.0, -0.1) + arrived.float() * 3.0
        active = ~self.done
        self.done = self.done | arrived
        return self._observe(), reward, active


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(SIZE * SIZE, 64), nn.Tanh(), nn.Linear(64, 4))
        self.register_buffer("baseline", torch.zeros(HORIZON))

    def forward(self, obs):
        return Categorical(logits=self.body(obs))


def rollout(policy, env):
    obs = env.reset()
    log_p, entropy, rewards, active = [], [], [], []
    for _ in range(HORIZON):
        dist = policy(obs)
        action = dist.sample()
        log_p.append(dist.log_prob(action))
        entropy.append(dist.entropy())
        obs, reward, alive = env.step(action)
        rewards.append(reward)
        active.append(alive)
    return (torch.stack(log_p), torch.stack(entropy), torch.stack(rewards),
            torch.stack(active).float())


def returns_to_go(rewards, gamma=0.97):
    out = torch.zeros_like(rewards)
    acc = torch.zeros(rewards.shape[1])
    for t in reversed(range(len(rewards))):
        acc = rewards[t] + gamma * acc
        out[t] = acc
    return out


def main():
    torch.manual_seed(51)
    env = Warehouse(EPISODES, torch.Generator().manual_seed(52))
    policy = Policy()
    optimizer = torch.optim.Adam(policy.parameters(), lr=4e-3)
    score = []
    for update in range(UPDATES):
        log_p, entropy, rewards, active = rollout(policy, env)
        ret = returns_to_go(rewards)
        advantage = ret - policy.baseline.unsqueeze(1)
        policy.baseline.lerp_(ret.mean(dim=1), 0.1)
        weight = active / active.sum()
        loss = -(weight * (advantage * log_p + 0.02 * entropy)).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        score.append(rewards.sum(dim=0).mean().item())
        if (update + 1) % 40 == 0:
            print(f"{update + 1:4d}  loss {loss.item():+.4f}  return {sum(score[-40:]) / 40:.3f}")


if __name__ == "__main__":
    main()
