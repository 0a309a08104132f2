import torch
import torch.nn.functional as F
from torch import nn
from torch.distributions import Categorical

torch.set_num_threads(1)
torch.manual_seed(5)


class RoverFleet:
    """Rovers that have to stay on the line between two tree rows."""

    def __init__(self, n, max_offset=1.5, max_heading=0.6, horizon=120):
        self.n = n
        self.max_offset, self.max_heading, self.horizon = max_offset, max_heading, horizon
        self.offset = torch.zeros(n)
        self.heading = torch.zeros(n)
        self.drift = torch.zeros(n)
        self.age = torch.zeros(n)
        for i in range(n):
            self.respawn(i)

    def respawn(self, i):
        self.offset[i] = torch.empty(()).uniform_(-0.6, 0.6)
        self.heading[i] = torch.empty(()).uniform_(-0.2, 0.2)
        self.drift[i] = torch.empty(()).uniform_(-0.03, 0.03)
        self.age[i] = 0

    def observe(self):
        return torch.stack([self.offset, self.heading, self.drift * 20], dim=1)

    def step(self, action):
        steer = (action.float() - 1.0) * 0.08
        self.heading = self.heading + steer + self.drift
        self.offset = self.offset + 0.25 * torch.sin(self.heading)
        self.age = self.age + 1
        reward = 1.0 - self.offset.abs() - 0.5 * self.heading.abs()
        done = torch.zeros(self.n)
        for i in range(self.n):
            lost = abs(self.offset[i].item()) > self.max_offset
            spun = abs(self.heading[i].item()) > self.max_heading
            finished = self.age[i].item() >= self.horizon
            if lost or spun:
                reward[i] -= 5.0
            if lost or spun or finished:
                done[i] = 1.0
                self.respawn(i)
        return self.observe(), reward, done


class ActorCritic(nn.Module):
    def __init__(self, hidden=64):
        super().__init__()
        self.body = nn.Sequential(
            nn.Linear(3, hidden), nn.Tanh(), nn.Linear(hidden, hidden), nn.Tanh()
        )
        self.pi = nn.Linear(hidden, 3)
        self.v = nn.Linear(hidden, 1)

    def forward(self, obs):
        h = self.body(obs)
        return Categorical(logits=self.pi(h)), self.v(h).squeeze(-1)


class A2C:
    def __init__(self, n_envs=256, rollout=10, gamma=0.97):
        self.fleet = RoverFleet(n_envs)
        self.net = ActorCritic()
        self.opt = torch.optim.Adam(self.net.parameters(), lr=2e-3)
        self.rollout, self.gamma = rollout, gamma
        self.obs = self.fleet.observe()

    def update(self):
        logps, values, rewards, dones, entropies = [], [], [], [], []
        for _ in range(self.rollout):
            dist, value = self.net(self.obs)
            action = dist.sample()
            self.obs, reward, done = self.fleet.step(action)
            logps.append(dist.log_prob(action))
            entropies.append(dist.entropy())
            values.append(value)
            rewards.append(reward)
            dones.append(done)
        with torch.no_grad():
            target = self.net(self.obs)[1]
        returns = []
        for reward, done in zip(reversed(rewards), reversed(dones)):
            target = reward + self.gamma * target * (1 - done)
            returns.insert(0, target)
        returns, values = torch.stack(returns), torch.stack(values)
        advantage = (returns - values).detach()
        actor = -(torch.stack(logps) * advantage).mean()
        critic = F.mse_loss(values, returns)
        loss = actor + 0.5 * critic - 0.01 * torch.stack(entropies).mean()
        self.opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.net.parameters(), 1.0)
        self.opt.step()
        return torch.stack(rewards).mean().item(), critic.item()


agent = A2C()
update = 0
mean_reward = 0.0
while update < 250:
    reward, critic = agent.update()
    mean_reward = reward if update == 0 else 0.95 * mean_reward + 0.05 * reward
    if update % 50 == 0:
        print(f"update {update:4d} reward {mean_reward:+.3f} critic {critic:.3f}")
    update += 1
print(f"reward at the end {mean_reward:+.3f}")
