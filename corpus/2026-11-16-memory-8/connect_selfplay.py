"""Self-play with a small policy/value net and tree search on a 5x6 four-in-a-row board."""
import math

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

ROWS, COLS = 5, 6
SIMS = 32
MOVES_PER_UPDATE = 3
UPDATES = 160


def drop(board, col, player):
    row = int((board[:, col] == 0).sum()) - 1
    nxt = board.copy()
    nxt[row, col] = player
    return nxt, row


def wins(board, row, col):
    p = board[row, col]
    for dr, dc in ((0, 1), (1, 0), (1, 1), (1, -1)):
        run = 1
        for s in (1, -1):
            r, c = row + s * dr, col + s * dc
            while 0 <= r < ROWS and 0 <= c < COLS and board[r, c] == p:
                run, r, c = run + 1, r + s * dr, c + s * dc
        if run >= 4:
            return True
    return False


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Flatten(), nn.Linear(2 * ROWS * COLS, 96), nn.ReLU(),
                                  nn.Linear(96, 96), nn.ReLU())
        self.policy, self.value = nn.Linear(96, COLS), nn.Linear(96, 1)

    def forward(self, x):
        z = self.body(x)
        return self.policy(z), torch.tanh(self.value(z)).squeeze(-1)


def planes(board, player):
    return np.stack([board == player, board == -player]).astype(np.float32)


class Search:
    """PUCT over a table of positions. Positions are stored with everything needed to explain a move later."""

    def __init__(self, net):
        self.net = net
        self.table = {}
        self.game = 0

    def new_game(self):
        self.game += 1

    def expand(self, key, board, player):
        with torch.no_grad():
            logits, value = self.net(torch.from_numpy(planes(board, player))[None])
        legal = [c for c in range(COLS) if board[0, c] == 0]
        prior = logits[0, legal].softmax(-1).tolist()
        self.table[key] = {c: {"p": p, "n": 0, "w": 0.0, "line": board.tolist(), "reply": {}}
                           for c, p in zip(legal, prior)}
        return value.item()

    def simulate(self, board, player):
        key = (self.game, player, board.tobytes())
        if key not in self.table:
            return self.expand(key, board, player)
        edges = self.table[key]
        if not edges:
            return 0.0
        total = math.sqrt(1 + sum(e["n"] for e in edges.values()))
        col, e = max(edges.items(), key=lambda it: (it[1]["w"] / it[1]["n"] if it[1]["n"] else 0.0)
                     + 1.5 * it[1]["p"] * total / (1 + it[1]["n"]))
        nxt, row = drop(board, col, player)
        value = 1.0 if wins(nxt, row, col) else -self.simulate(nxt, -player)
        e["n"] += 1
        e["w"] += value
        return value

    def visit_policy(self, board, player):
        for _ in range(SIMS):
            self.simulate(board, player)
        pi = np.zeros(COLS, dtype=np.float32)
        for c, e in self.table[(self.game, player, board.tobytes())].items():
            pi[c] = e["n"]
        return pi / pi.sum()


def main():
    torch.manual_seed(7)
    rng = np.random.default_rng(7)
    net = Net()
    opt = torch.optim.Adam(net.parameters(), lr=1e-3, weight_decay=1e-4)
    search = Search(net)
    samples, episode = [], []
    board, player = np.zeros((ROWS, COLS), dtype=np.int8), 1
    games = 0
    for update in range(UPDATES):
        for _ in range(MOVES_PER_UPDATE):
            pi = search.visit_policy(board, player)
            episode.append((planes(board, player), pi, player))
            col = int(rng.choice(COLS, p=pi / pi.sum(dtype=np.float64)))
            board, row = drop(board, col, player)
            won = wins(board, row, col)
            if won or (board[0] != 0).all():
                samples += [(s, p, float(won) * (1 if pl == player else -1)) for s, p, pl in episode]
                samples, episode = samples[-600:], []
                board, player, games = np.zeros_like(board), 1, games + 1
                search.new_game()
            else:
                player = -player
        pool = samples or [(s, p, 0.0) for s, p, _ in episode]
        pick = [pool[i] for i in rng.integers(len(pool), size=64)]
        x, pi, z = (torch.from_numpy(np.array(a, dtype=np.float32)) for a in zip(*pick))
        logits, value = net(x)
        loss = -(pi * F.log_softmax(logits, -1)).sum(-1).mean() + F.mse_loss(value, z)
        opt.zero_grad()
        loss.backward()
        opt.step()
        if update % 30 == 29:
            print(f"update {update + 1}: loss {loss.item():.3f}, games {games}, buffer {len(samples)}")


if __name__ == "__main__":
    main()
