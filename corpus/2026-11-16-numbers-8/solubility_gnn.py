"""Message passing network, written by hand, for the solubility of small molecules."""
import torch
import torch.nn as nn

ATOMS, KINDS, HIDDEN = 14, 6, 48
BATCH, EPOCHS, MOLECULES = 32, 9, 2048
WARMUP = 25


def make_molecules(n, seed):
    """Random trees with a few ring closures; the target mixes atom kinds and branching."""
    gen = torch.Generator().manual_seed(seed)
    kind = torch.randint(KINDS, (n, ATOMS), generator=gen)
    adj = torch.zeros(n, ATOMS, ATOMS)
    for a in range(1, ATOMS):
        parent = (torch.rand(n, generator=gen) * a).long()
        adj[torch.arange(n), a, parent] = 1.0
    ring = torch.rand(n, ATOMS, ATOMS, generator=gen) < 0.02
    adj = ((adj + ring.float()) > 0).float()
    adj = ((adj + adj.transpose(1, 2)) > 0).float()
    adj = adj * (1 - torch.eye(ATOMS))
    polarity = torch.linspace(-1.0, 1.0, KINDS)[kind]
    neighbour = (adj @ polarity.unsqueeze(-1)).squeeze(-1)
    y = (polarity + 0.5 * polarity * neighbour).sum(dim=1)
    y = y + 0.1 * torch.randn(n, generator=gen)
    return kind, adj, (y - y.mean()) / y.std()


class MessageLayer(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.own = nn.Linear(dim, dim)
        self.other = nn.Linear(dim, dim, bias=False)

    def forward(self, h, adj):
        return h + torch.relu(self.own(h) + adj @ self.other(h))


class SolubilityNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(KINDS, HIDDEN)
        self.layers = nn.ModuleList([MessageLayer(HIDDEN) for _ in range(3)])
        self.readout = nn.Sequential(nn.Linear(HIDDEN, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, 1))

    def forward(self, kind, adj):
        h = self.embed(kind)
        for layer in self.layers:
            h = layer(h, adj)
        return self.readout(h.mean(dim=1)).squeeze(-1)


def warmup_factor(step):
    """Linear warm up of the learning rate, as in the transformer recipes."""
    return (step + 1) / WARMUP


def batches(data, gen):
    order = torch.randperm(len(data[0]), generator=gen)
    for start in range(0, len(order), BATCH):
        pick = order[start:start + BATCH]
        yield tuple(part[pick] for part in data)


def main():
    torch.manual_seed(41)
    train = make_molecules(MOLECULES, seed=1)
    test = make_molecules(256, seed=2)
    gen = torch.Generator().manual_seed(3)
    model = SolubilityNet()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, warmup_factor)
    for epoch in range(EPOCHS):
        model.train()
        losses = []
        for kind, adj, y in batches(train, gen):
            loss = nn.functional.mse_loss(model(kind, adj), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            scheduler.step()
            losses.append(loss.item())
        model.eval()
        with torch.no_grad():
            error = (model(test[0], test[1]) - test[2]).abs().mean().item()
        print(f"epoch {epoch:2d}  mse {sum(losses) / len(losses):10.4f}  test mae {error:8.4f}")


if __name__ == "__main__":
    main()
