import tempfile

import numpy as np
import torch
from torch import nn
from torch.distributions import Categorical

from paddle_env import ClipWriter, Paddle

torch.set_num_threads(1)


def rollout(env, policy, episodes):
    log_probs, entropies, returns = [], [], []
    for _ in range(episodes):
        obs, done, rewards = env.reset(), False, []
        while not done:
            dist = Categorical(logits=policy(torch.as_tensor(obs, dtype=torch.float32)))
            action = dist.sample()
            log_probs.append(dist.log_prob(action))
            entropies.append(dist.entropy())
            obs, reward, done = env.step(int(action))
            rewards.append(reward)
        tail = np.cumsum(rewards[::-1])[::-1].copy()
        returns.extend(tail.tolist())
    return torch.stack(log_probs), torch.stack(entropies), torch.tensor(returns)


def main():
    torch.manual_seed(1)
    env = ClipWriter(Paddle(), tempfile.mkdtemp())
    policy = nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 3))
    opt = torch.optim.Adam(policy.parameters(), lr=1e-2)
    for it in range(100):
        logp, ent, ret = rollout(env, policy, episodes=4)
        adv = (ret - ret.mean()) / (ret.std() + 1e-6)
        loss = -(logp * adv).mean() - 0.01 * ent.mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        if it % 20 == 19:
            print(f"iteration {it + 1} mean return {ret.mean().item():.3f}")


if __name__ == "__main__":
    main()
