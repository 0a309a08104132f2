# Goal-conditioned DDPG with hindsight relabelling ("future" strategy) for a 2-D point mass.
import copy
import itertools

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)

T = 50  # episode length
OBS, GOAL, ACT = 96, 2, 2
GAMMA, TAU = 0.95, 0.05
FUTURE_P = 0.8


class PointReach:
    """A batch of unit-mass points with drag; observations carry random features of the state."""

    def __init__(self, n, rng):
        self.n, self.rng = n, rng
        self.lift = rng.normal(0, 0.7, (4, OBS - 4)).astype(np.float32)

    def observe(self):
        raw = np.concatenate([self.x, self.v], 1).astype(np.float32)
        return np.concatenate([raw, np.tanh(raw @ self.lift)], 1)

    def reset(self):
        self.x, self.v = self.rng.uniform(-0.5, 0.5, (self.n, 2)), np.zeros((self.n, 2))
        self.goal = self.rng.uniform(-1, 1, (self.n, 2)).astype(np.float32)
        return self.observe()

    def step(self, action):
        self.v = 0.8 * self.v + 0.1 * action
        self.x = np.clip(self.x + self.v, -1.2, 1.2)
        return self.observe()


def reward_fn(achieved, goal):
    return -(np.linalg.norm(achieved - goal, axis=-1) > 0.15).astype(np.float32)


class EpisodeBuffer:
    def __init__(self, max_episodes, rng):
        self.rng, self.count, self.max_episodes = rng, 0, max_episodes
        shapes = {"obs": (T + 1, OBS), "ag": (T + 1, GOAL), "g": (T, GOAL), "act": (T, ACT)}
        # NaN marks slots that have not been written yet
        self.store = {k: np.full((max_episodes, *s), np.nan, np.float32) for k, s in shapes.items()}

    def add(self, episodes):
        n = len(episodes["obs"])
        for key, value in episodes.items():
            self.store[key][self.count:self.count + n] = value
        self.count += n

    def sample(self, batch):
        episodes = {k: v[:self.count].copy() for k, v in self.store.items()}
        ep = self.rng.integers(0, self.count, batch)
        t = self.rng.integers(0, T, batch)
        out = {k: v[ep, t] for k, v in episodes.items()}
        out["obs2"], out["ag2"] = episodes["obs"][ep, t + 1], episodes["ag"][ep, t + 1]
        # relabel most transitions with a goal reached later in the same episode
        later = t + 1 + (self.rng.random(batch) * (T - t)).astype(int)
        swap = self.rng.random(batch) < FUTURE_P
        out["g"] = np.where(swap[:, None], episodes["ag"][ep, later], out["g"])
        out["r"] = reward_fn(out["ag2"], out["g"])
        return {k: torch.from_numpy(v) for k, v in out.items()}


def mlp(inp, out, width=48):
    return nn.Sequential(nn.Linear(inp, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, out))


def rollouts(env, actor, noise, rng):
    """Advance all points forever; yields None per step and finished episodes every T steps."""
    while True:
        obs, goal = [env.reset()], env.goal
        acts = []
        for _ in range(T):
            with torch.no_grad():
                a = torch.tanh(actor(torch.from_numpy(np.concatenate([obs[-1], goal], 1)))).numpy()
            acts.append(np.clip(a + noise * rng.normal(size=a.shape), -1, 1))
            obs.append(env.step(acts[-1]))
            yield None
        obs = np.stack(obs, 1)
        yield {"obs": obs, "ag": obs[..., :2], "g": np.repeat(goal[:, None], T, 1), "act": np.stack(acts, 1)}


if __name__ == "__main__":
    torch.manual_seed(4)
    rng = np.random.default_rng(4)
    env, buffer = PointReach(700, rng), EpisodeBuffer(13000, rng)
    actor, critic = mlp(OBS + GOAL, ACT), mlp(OBS + GOAL + ACT, 1)
    critic_t = copy.deepcopy(critic)
    opt_a = torch.optim.Adam(actor.parameters(), 1e-3)
    opt_c = torch.optim.Adam(critic.parameters(), 1e-3)
    stream, losses = rollouts(env, actor, 0.3, rng), []
    while len(losses) < 225:
        for episodes in itertools.islice(stream, 4):
            if episodes is not None:
                buffer.add(episodes)
        if buffer.count == 0:
            continue
        b = buffer.sample(96)
        s, s2 = torch.cat([b["obs"], b["g"]], 1), torch.cat([b["obs2"], b["g"]], 1)
        with torch.no_grad():
            q2 = critic_t(torch.cat([s2, torch.tanh(actor(s2))], 1)).squeeze(1)
            y = (b["r"] + GAMMA * q2).clamp(-1 / (1 - GAMMA), 0)
        loss = F.mse_loss(critic(torch.cat([s, b["act"]], 1)).squeeze(1), y)
        opt_c.zero_grad()
        loss.backward()
        opt_c.step()
        pi = torch.tanh(actor(s))
        pi_loss = 0.1 * pi.pow(2).mean() - critic(torch.cat([s, pi], 1)).mean()
        opt_a.zero_grad()
        pi_loss.backward()
        opt_a.step()
        for p, q in zip(critic_t.parameters(), critic.parameters()):
            p.data.lerp_(q.data, TAU)
        losses.append(loss.item())
        if len(losses) % 25 == 0:
            print(f"update {len(losses):3d}  critic {np.mean(losses[-25:]):.4f}  episodes {buffer.count}")
