"""Policy/value network for a 6x7 drop-four game, trained by self-play."""
import random
from collections import deque

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(21)
np.random.seed(21)
random.seed(21)

ROWS, COLS = 6, 7
LINES = []
for r in range(ROWS):
    for c in range(COLS):
        for dr, dc in ((0, 1), (1, 0), (1, 1), (1, -1)):
            cells = [(r + k * dr, c + k * dc) for k in range(4)]
            if all(0 <= a < ROWS and 0 <= b < COLS for a, b in cells):
                LINES.append([a * COLS + b for a, b in cells])
LINES = np.array(LINES)


class Net(nn.Module):
    def __init__(self, ch=16):
        super().__init__()
        self.conv1 = nn.Conv2d(2, ch, 3, padding=1)
        self.conv2 = nn.Conv2d(ch, ch, 3, padding=1)
        self.policy = nn.Linear(ch * ROWS * COLS, COLS)
        self.value = nn.Linear(ch * ROWS * COLS, 1)

    def forward(self, x):
        h = F.relu(self.conv1(x))
        h = F.relu(self.conv2(h)).flatten(1)
        return self.policy(h), torch.tanh(self.value(h)).squeeze(1)


@torch.inference_mode()
def play_games(net, n_games, temperature):
    """Play a batch of games in lock-step and return the finished records."""
    net.eval()
    boards = np.zeros((n_games, ROWS * COLS), dtype=np.int8)
    heights = np.zeros((n_games, COLS), dtype=np.int64)
    alive = np.arange(n_games)
    records = [[] for _ in range(n_games)]
    winner = np.zeros(n_games)
    player = 1
    for _ in range(ROWS * COLS):
        own = boards[alive] * player
        planes = np.stack([own == 1, own == -1], 1).reshape(-1, 2, ROWS, COLS).astype(np.float32)
        logits, _ = net(torch.from_numpy(planes))
        logits = logits.numpy() / temperature
        logits[heights[alive] >= ROWS] = -1e9
        moves = (logits + np.random.gumbel(size=logits.shape)).argmax(1)
        for i, g in enumerate(alive):
            records[g].append((planes[i], moves[i], player))
            boards[g, heights[g, moves[i]] * COLS + moves[i]] = player
            heights[g, moves[i]] += 1
        won = (boards[alive][:, LINES].sum(2) == 4 * player).any(1)
        winner[alive[won]] = player
        alive = alive[~won & (heights[alive] < ROWS).any(1)]
        if len(alive) == 0:
            break
        player = -player
    return [[(s, m, winner[g] * p) for s, m, p in records[g]] for g in range(n_games)]


def sample(buffer, batch):
    positions = [random.choice(random.choice(buffer)) for _ in range(batch)]
    states, moves, results = zip(*positions)
    return (torch.from_numpy(np.stack(states)), torch.tensor(moves),
            torch.tensor(results, dtype=torch.float32))


def main():
    net = Net()
    optimizer = torch.optim.AdamW(net.parameters(), lr=2e-3, weight_decay=1e-4)
    buffer = deque(maxlen=480)
    for generation in range(24):
        games = play_games(net, 40, temperature=max(0.6, 1.2 - 0.04 * generation))
        buffer.extend(games)
        net.train()
        losses = []
        for _ in range(18):
            s, m, z = sample(buffer, 64)
            logits, v = net(s)
            pg = (F.cross_entropy(logits, m, reduction="none") * (z > 0)).mean()
            ent = torch.distributions.Categorical(logits=logits).entropy().mean()
            loss = pg + F.mse_loss(v, z) - 0.02 * ent
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
        if generation % 4 == 3:
            first = np.mean([g[0][2] for g in games])
            print(f"generation {generation + 1:2d}  games kept {len(buffer)}  loss {torch.stack(losses).mean():.3f}"
                  f"  first-player score {first:+.2f}  mean length {np.mean([len(g) for g in games]):.1f}")


if __name__ == "__main__":
    main()
