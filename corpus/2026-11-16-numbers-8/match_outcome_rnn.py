"""Who wins a match of a card game: recurrent network over the turn log."""
import torch
import torch.nn as nn
import torch.nn.functional as F

EVENTS, DIM, HIDDEN, BATCH = 30, 16, 64, 32
STEPS = 500


class MatchLog:
    """Matches grouped by number of turns; most end early, some are control mirrors."""

    def __init__(self, seed):
        self.gen = torch.Generator().manual_seed(seed)
        self.value = torch.randn(EVENTS, generator=self.gen)

    def batch(self):
        u = torch.rand(1, generator=self.gen).item()
        turns = 6 + int(6 * u) if u < 0.985 else 75
        events = torch.randint(EVENTS, (BATCH, turns), generator=self.gen)
        # the closing turns decide the match
        score = self.value[events[:, -4:]].sum(dim=1)
        wins = (score + 0.3 * torch.randn(BATCH, generator=self.gen) > 0).float()
        return events, wins


class TurnCell(nn.Module):
    def __init__(self, inp, hidden):
        super().__init__()
        self.inp = nn.Linear(inp, hidden)
        self.rec = nn.Linear(hidden, hidden, bias=False)
        # keep early turns alive
        nn.init.orthogonal_(self.rec.weight, gain=2.0)

    def forward(self, x, h):
        return torch.tanh(self.inp(x) + self.rec(h))


class OutcomeNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(EVENTS, DIM)
        self.cell = TurnCell(DIM, HIDDEN)
        self.out = nn.Linear(HIDDEN, 1)
        nn.init.normal_(self.embed.weight, std=0.3)

    def forward(self, events):
        h = torch.zeros(events.shape[0], HIDDEN)
        x = self.embed(events)
        for t in range(events.shape[1]):
            h = self.cell(x[:, t], h)
        return self.out(h).squeeze(1)


def evaluate(model, log, batches=12):
    hits = total = 0
    with torch.no_grad():
        for _ in range(batches):
            events, wins = log.batch()
            hits += ((model(events) > 0).float() == wins).sum().item()
            total += len(wins)
    return hits / total


def main():
    torch.manual_seed(23)
    log, held_out = MatchLog(seed=31), MatchLog(seed=31)
    held_out.gen.manual_seed(77)
    model = OutcomeNet()
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    window = []
    for step in range(STEPS):
        events, wins = log.batch()
        loss = F.binary_cross_entropy_with_logits(model(events), wins)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        window.append(loss.item())
        if (step + 1) % 25 == 0:
            print(f"{step + 1:4d}  loss {sum(window) / len(window):.4f}  "
                  f"accuracy {evaluate(model, held_out):.3f}")
            window.clear()


if __name__ == "__main__":
    main()
