"""Pursuit on a ring: an actor-critic learner trained against earlier versions of itself."""
import copy
import random

import torch
import torch.nn as nn
from torch.distributions import Categorical

RING = 24
HORIZON = 8
ENVS = 48


class ActorCritic(nn.Module):
    def __init__(self, obs_dim=RING + 3, hidden=288, actions=5):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(obs_dim, hidden), nn.Tanh(), nn.Linear(hidden, hidden), nn.Tanh())
        self.pi = nn.Linear(hidden, actions)
        self.v = nn.Linear(hidden, 1)

    def forward(self, obs):
        h = self.trunk(obs)
        return Categorical(logits=self.pi(h)), self.v(h).squeeze(-1)


class RingGame:
    """Two players move -2..2 cells per turn; the chaser wants to close the gap."""

    def __init__(self, n):
        self.n = n
        self.reset()

    def reset(self):
        self.chaser = torch.randint(0, RING, (self.n,))
        self.runner = torch.randint(0, RING, (self.n,))
        self.t = 0

    def observe(self, me, other, role):
        gap = (other - me) % RING
        onehot = torch.nn.functional.one_hot(gap, RING).float()
        extra = torch.tensor([float(role), 1.0 - role, self.t / HORIZON]).expand(self.n, 3)
        return torch.cat([onehot, extra], dim=1)

    def step(self, chaser_move, runner_move):
        self.chaser = (self.chaser + chaser_move - 2) % RING
        self.runner = (self.runner + (runner_move - 2).clamp(-1, 1)) % RING
        self.t += 1
        gap = (self.runner - self.chaser) % RING
        dist = torch.minimum(gap, RING - gap).float()
        return 1.0 - dist / (RING / 4)


class League:
    def __init__(self, learner):
        self.opponent = copy.deepcopy(learner).requires_grad_(False)
        self.past = []
        self.add(learner)

    def add(self, learner):
        self.past.append(copy.deepcopy(learner.state_dict()))

    def sample(self):
        self.opponent.load_state_dict(random.choice(self.past[-20:]))
        return self.opponent


def play(game, learner, opponent, role):
    game.reset()
    logps, values, rewards, entropies = [], [], [], []
    for _ in range(HORIZON):
        chaser_obs = game.observe(game.chaser, game.runner, 1)
        runner_obs = game.observe(game.runner, game.chaser, 0)
        mine, theirs = (chaser_obs, runner_obs) if role == 1 else (runner_obs, chaser_obs)
        dist, value = learner(mine)
        action = dist.sample()
        with torch.no_grad():
            other_action = opponent(theirs)[0].sample()
        moves = (action, other_action) if role == 1 else (other_action, action)
        reward = game.step(*moves)
        rewards.append(reward if role == 1 else -reward)
        logps.append(dist.log_prob(action))
        values.append(value)
        entropies.append(dist.entropy())
    return torch.stack(logps), torch.stack(values), torch.stack(rewards), torch.stack(entropies)


def main(updates=160, gamma=0.95):
    torch.manual_seed(5)
    random.seed(5)
    torch.set_num_threads(1)
    learner = ActorCritic()
    optimizer = torch.optim.Adam(learner.parameters(), lr=7e-4)
    league, game = League(learner), RingGame(ENVS)
    score = {0: 0.0, 1: 0.0}
    for update in range(1, updates + 1):
        role = update % 2
        logp, value, reward, entropy = play(game, learner, league.sample(), role)
        ret = torch.zeros_like(reward)
        running = torch.zeros(ENVS)
        for t in reversed(range(HORIZON)):
            running = reward[t] + gamma * running
            ret[t] = running
        adv = ret - value.detach()
        loss = -(logp * adv).mean() + 0.5 * (ret - value).pow(2).mean() - 0.01 * entropy.mean()
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(learner.parameters(), 1.0)
        optimizer.step()
        league.add(learner)
        score[role] = 0.9 * score[role] + 0.1 * reward.mean().item()
        if update % 40 == 0:
            print(f"update {update:4d}  as chaser {score[1]:+.3f}  as runner {score[0]:+.3f}")


if __name__ == "__main__":
    main()
