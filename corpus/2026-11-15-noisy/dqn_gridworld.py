"""Deep Q-learning on a small slippery grid with pits: replay memory, hard target updates."""

import copy
import random
from collections import deque

import torch
import torch.nn.functional as F
from torch import nn

torch.set_num_threads(1)
random.seed(1)
torch.manual_seed(1)

SIZE = 5
GOAL = (4, 4)
PITS = {(1, 3), (3, 1), (3, 3)}
MOVES = [(0, 1), (1, 0), (0, -1), (-1, 0)]


class Grid:
    def reset(self):
        self.pos = (random.randrange(3), 0)
        self.t = 0
        return self.pos

    def step(self, a):
        if random.random() < 0.1:
            a = random.randrange(4)
        r = min(max(self.pos[0] + MOVES[a][0], 0), SIZE - 1)
        c = min(max(self.pos[1] + MOVES[a][1], 0), SIZE - 1)
        self.pos = (r, c)
        self.t += 1
        if self.pos == GOAL:
            return self.pos, 20.0, True
        if self.pos in PITS:
            return self.pos, -10.0, True
        return self.pos, -0.1, self.t >= 40


def encode(pos):
    v = [0.0] * (2 * SIZE)
    v[pos[0]] = 1.0
    v[SIZE + pos[1]] = 1.0
    return v


q_net = nn.Sequential(
    nn.Linear(2 * SIZE, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 4)
)
target_net = copy.deepcopy(q_net)
opt = torch.optim.RMSprop(q_net.parameters(), lr=1e-3, alpha=0.95)
memory = deque(maxlen=4000)
env = Grid()

s = env.reset()
frame, updates = 0, 0
losses = []
while updates < 1400:
    eps = max(0.05, 1.0 - frame / 2400)
    if random.random() < eps:
        a = random.randrange(4)
    else:
        with torch.no_grad():
            a = q_net(torch.tensor(encode(s))).argmax().item()
    s2, r, done = env.step(a)
    memory.append((encode(s), a, r, encode(s2), float(done and env.t < 40)))
    s = env.reset() if done else s2
    frame += 1
    if len(memory) < 200 or frame % 2:
        continue

    batch = random.sample(memory, 32)
    bs, ba, br, bs2, bd = (torch.tensor(col) for col in zip(*batch))
    with torch.no_grad():
        target = br + 0.97 * (1 - bd) * target_net(bs2).max(1).values
    q = q_net(bs).gather(1, ba[:, None]).squeeze(1)
    loss = F.mse_loss(q, target)
    opt.zero_grad()
    loss.backward()
    opt.step()
    losses.append(loss.item())
    updates += 1
    if updates % 100 == 0:
        target_net.load_state_dict(q_net.state_dict())
        print(f"update {updates} eps {eps:.2f} loss {sum(losses[-100:]) / 100:.4f}")

# share of 50 greedy episodes in which the goal is reached
wins = 0
with torch.no_grad():
    for _ in range(50):
        s, done, r = env.reset(), False, 0.0
        while not done:
            s, r, done = env.step(q_net(torch.tensor(encode(s))).argmax().item())
        wins += r > 10
print("final", wins / 50)
