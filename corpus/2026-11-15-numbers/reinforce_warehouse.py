import torch
from torch import nn


class Warehouse:
    def __init__(self, size=5, seed=0):
        self.size = size
        self.g = torch.Generator().manual_seed(seed)

    def reset(self):
        self.pos = torch.randint(0, self.size, (2,), generator=self.g)
        self.goal = torch.randint(0, self.size, (2,), generator=self.g)
        return self.observe()

    def observe(self):
        return torch.cat([self.pos, self.goal]).float() / self.size

    def legal(self):
        r, c = self.pos.tolist()
        return torch.tensor([r > 0, r < self.size - 1, c > 0, c < self.size - 1]).float()

    def step(self, action):
        move = torch.tensor([[-1, 0], [1, 0], [0, -1], [0, 1]])[action]
        self.pos = (self.pos + move).clamp(0, self.size - 1)
        done = bool((self.pos == self.goal).all())
        return self.observe(), (1.0 if done else -0.05), done


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, 4))

    def forward(self, obs, legal):
        probs = torch.softmax(self.net(obs), dim=-1) * legal
        return probs / probs.sum()


def pick_action(probs, epsilon):
    if torch.rand(1).item() < epsilon:
        return int(torch.randint(0, len(probs), (1,)))
    return int((probs.cumsum(0) < torch.rand(1)).sum().clamp(max=len(probs) - 1))


def rollout(env, policy, epsilon, horizon=12):
    obs = env.reset()
    log_probs, rewards = [], []
    for _ in range(horizon):
        probs = policy(obs, env.legal())
        action = pick_action(probs.detach(), epsilon)
        log_probs.append(torch.log(probs[action]))
        obs, reward, done = env.step(action)
        rewards.append(reward)
        if done:
            break
    return log_probs, rewards


def discounted(rewards, gamma=0.95):
    total, out = 0.0, []
    for r in reversed(rewards):
        total = r + gamma * total
        out.append(total)
    return torch.tensor(out[::-1])


def train(episodes=50):
    env, policy = Warehouse(seed=2), Policy()
    optimizer = torch.optim.Adam(policy.parameters(), lr=1e-2)
    baseline = 0.0
    for episode in range(episodes):
        log_probs, rewards = rollout(env, policy, epsilon=0.02)
        returns = discounted(rewards)
        loss = -(torch.stack(log_probs) * (returns - baseline)).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        baseline = 0.9 * baseline + 0.1 * returns[0].item()
        if episode % 10 == 0:
            print(f"episode {episode} return {returns[0].item():.3f} loss {loss.item():.4f}")


if __name__ == "__main__":
    torch.manual_seed(35)
    train()
