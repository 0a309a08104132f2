"""Goal-conditioned value learning with hindsight relabelling on a point-reaching arm."""

import numpy as np
import torch
from torch import nn

HORIZON, STATE, GOAL, ACTION = 50, 48, 3, 4


class EpisodeBuffer:
    def __init__(self, capacity):
        self.capacity = capacity
        self.size = 0
        self.data = {
            "obs": np.ones((capacity, HORIZON + 1, STATE)),
            "achieved": np.ones((capacity, HORIZON + 1, GOAL)),
            "goal": np.ones((capacity, HORIZON, GOAL)),
            "action": np.ones((capacity, HORIZON, ACTION)),
        }

    def store(self, episodes):
        count = len(episodes["goal"])
        rows = np.arange(self.size, self.size + count) % self.capacity
        for key, value in episodes.items():
            self.data[key][rows] = value
        self.size = min(self.size + count, self.capacity)

    def sample(self, batch_size, rng, future_p=0.8):
        view = {key: self.data[key][: self.size].copy() for key in self.data}
        episode = rng.integers(0, self.size, batch_size)
        t = rng.integers(0, HORIZON, batch_size)
        goal = view["goal"][episode, t]
        relabel = rng.random(batch_size) < future_p
        later = t + 1 + (rng.random(batch_size) * (HORIZON - t)).astype(int)
        goal[relabel] = view["achieved"][episode, later.clip(max=HORIZON)][relabel]
        distance = np.linalg.norm(view["achieved"][episode, t + 1] - goal, axis=1)
        return (
            view["obs"][episode, t],
            view["action"][episode, t],
            goal,
            -(distance > 0.25).astype(np.float64),
            view["obs"][episode, t + 1],
        )


def rollout(policy, rng, count=10):
    obs = np.zeros((count, HORIZON + 1, STATE))
    achieved = np.zeros((count, HORIZON + 1, GOAL))
    goal = np.repeat(rng.uniform(-1, 1, (count, 1, GOAL)), HORIZON, axis=1)
    action = rng.normal(0, 0.3, (count, HORIZON, ACTION))
    mix = np.linspace(0.2, 1.0, GOAL * STATE).reshape(GOAL, STATE)
    with torch.no_grad():
        inputs = torch.as_tensor(np.concatenate([obs[:, 0], goal[:, 0]], 1)).float()
        action += policy(inputs).numpy()[:, None]
    achieved[:, 1:] = np.cumsum(0.2 * action[..., :GOAL], axis=1)
    obs[:] = np.sin(achieved @ mix)
    return {"obs": obs, "achieved": achieved, "goal": goal, "action": action}


def mlp(n_in, n_out):
    return nn.Sequential(
        nn.Linear(n_in, 96), nn.ReLU(), nn.Linear(96, 96), nn.ReLU(), nn.Linear(96, n_out)
    )


def main(updates=280, gamma=0.95):
    rng = np.random.default_rng(12)
    critic, target = mlp(STATE + GOAL + ACTION, 1), mlp(STATE + GOAL + ACTION, 1)
    actor = nn.Sequential(mlp(STATE + GOAL, ACTION), nn.Tanh())
    target.load_state_dict(critic.state_dict())
    critic_opt = torch.optim.Adam(critic.parameters(), lr=1e-3)
    actor_opt = torch.optim.Adam(actor.parameters(), lr=1e-3)
    buffer, recent = EpisodeBuffer(3000), []
    for update in range(updates):
        buffer.store(rollout(actor, rng))
        batch = (torch.as_tensor(part).float() for part in buffer.sample(256, rng))
        obs, action, goal, reward, following = batch
        with torch.no_grad():
            nxt = torch.cat([following, goal], 1)
            bootstrap = target(torch.cat([nxt, actor(nxt)], 1)).squeeze(1)
            wanted = (reward + gamma * bootstrap).clamp(-1 / (1 - gamma), 0)
        here = torch.cat([obs, goal], 1)
        critic_loss = (critic(torch.cat([here, action], 1)).squeeze(1) - wanted).pow(2).mean()
        critic_opt.zero_grad()
        critic_loss.backward()
        critic_opt.step()
        actor_loss = -critic(torch.cat([here, actor(here)], 1)).mean()
        actor_opt.zero_grad()
        actor_loss.backward()
        actor_opt.step()
        with torch.no_grad():
            for held, live in zip(target.parameters(), critic.parameters()):
                held.lerp_(live, 0.05)
        recent.append(critic_loss.item())
        if update % 40 == 39:
            print(f"update {update + 1}: critic {np.mean(recent[-20:]):.4f}")


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.manual_seed(12)
    main()
