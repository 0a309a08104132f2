import torch
import torch.nn as nn
from torch.distributions import Normal


class VecDoubleIntegrator:
    """Push several masses to the origin; batched dynamics."""

    def __init__(self, n):
        self.n = n
        self.state = torch.randn(n, 4)

    def step(self, force):
        pos, vel = self.state[:, :2], self.state[:, 2:]
        vel = 0.95 * vel + 0.1 * force.clamp(-2, 2)
        pos = pos + 0.1 * vel
        self.state = torch.cat([pos, vel], dim=1)
        reward = -(pos.pow(2).sum(1) + 0.05 * force.pow(2).sum(1)).clamp(max=5)
        out = pos.norm(dim=1) > 4
        self.state[out] = torch.randn(int(out.sum()), 4)
        return self.state.clone(), reward, out.float()


class Policy(nn.Module):
    def __init__(self, hidden=192):
        super().__init__()
        self.actor = nn.Sequential(
            nn.Linear(4, hidden),
            nn.Tanh(),
            nn.Linear(hidden, hidden),
            nn.Tanh(),
            nn.Linear(hidden, 2),
        )
        self.critic = nn.Sequential(
            nn.Linear(4, hidden),
            nn.Tanh(),
            nn.Linear(hidden, hidden),
            nn.Tanh(),
            nn.Linear(hidden, 1),
        )
        self.log_std = nn.Parameter(torch.full((2,), -0.5))

    def dist(self, obs):
        return Normal(self.actor(obs), self.log_std.exp())

    def value(self, obs):
        return self.critic(obs).squeeze(-1)


@torch.no_grad()
def rollout(env, policy, obs, horizon):
    memory = {k: [] for k in ("obs", "act", "logp", "rew", "done", "val")}
    for _ in range(horizon):
        d = policy.dist(obs)
        act = d.sample()
        nxt, rew, done = env.step(act)
        for key, item in zip(
            memory, (obs, act, d.log_prob(act).sum(-1), rew, done, policy.value(obs))
        ):
            memory[key].append(item)
        obs = nxt
    return {k: torch.stack(v) for k, v in memory.items()}, obs, policy.value(obs)


def gae(mem, last_value, gamma=0.97, lam=0.95):
    adv, running, nxt = torch.zeros_like(mem["rew"]), 0.0, last_value
    for t in reversed(range(len(adv))):
        alive = 1 - mem["done"][t]
        delta = mem["rew"][t] + gamma * alive * nxt - mem["val"][t]
        running = delta + gamma * lam * alive * running
        adv[t], nxt = running, mem["val"][t]
    return adv, adv + mem["val"]


def train(iterations=25, horizon=32, n_envs=128, epochs=4, minibatches=4):
    torch.set_num_threads(1)
    torch.manual_seed(10)
    env, policy = VecDoubleIntegrator(n_envs), Policy()
    opt = torch.optim.Adam(policy.parameters(), lr=2e-3)
    obs = env.state.clone()
    for it in range(iterations):
        mem, obs, last = rollout(env, policy, obs, horizon)
        adv, ret = gae(mem, last)
        flat = {k: mem[k].flatten(0, 1) for k in ("obs", "act", "logp")}
        adv, ret = adv.flatten(), ret.flatten()
        adv = (adv - adv.mean()) / (adv.std() + 1e-6)
        for _ in range(epochs):
            for idx in torch.randperm(len(adv)).chunk(minibatches):
                d = policy.dist(flat["obs"][idx])
                ratio = (d.log_prob(flat["act"][idx]).sum(-1) - flat["logp"][idx]).exp()
                surrogate = torch.min(ratio * adv[idx], ratio.clamp(0.8, 1.2) * adv[idx]).mean()
                value_loss = (policy.value(flat["obs"][idx]) - ret[idx]).pow(2).mean()
                loss = -surrogate + 0.5 * value_loss - 0.001 * d.entropy().mean()
                opt.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(policy.parameters(), 0.5)
                opt.step()
        if it % 5 == 4:
            print(
                f"iteration {it + 1} reward {mem['rew'].mean().item():.3f} std {policy.log_std.exp().mean().item():.3f}"
            )


if __name__ == "__main__":
    train()
