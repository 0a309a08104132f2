"""Energy of toy molecules from pairwise distances, with a reusable trainer class."""
import copy

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def molecules(count, atoms=5):
    positions = torch.randn(count, atoms, 3)
    distance = torch.cdist(positions, positions) + 0.5
    pairs = torch.triu_indices(atoms, atoms, offset=1)
    d = distance[:, pairs[0], pairs[1]]
    energy = (1.0 / d**4 - 1.0 / d**2).sum(1)
    return TensorDataset(d, energy)


class PairNet(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.pair = nn.Sequential(nn.Linear(1, width), nn.SiLU(), nn.Linear(width, width))
        self.out = nn.Sequential(nn.SiLU(), nn.Linear(width, 1))

    def forward(self, d):
        return self.out(self.pair(d.unsqueeze(-1)).sum(1)).squeeze(1)


class Trainer:
    def __init__(self, model, lr=2e-3, patience=3):
        self.model = model
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=lr)
        self.scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(self.optimizer, patience=1)
        self.patience = patience
        self.best_loss = float("inf")
        self.best_weights = copy.deepcopy(model.state_dict())
        self.bad_epochs = 0

    def train_epoch(self, loader):
        self.model.train()
        for d, energy in loader:
            loss = nn.functional.mse_loss(self.model(d), energy)
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()

    @torch.no_grad()
    def validate(self, loader):
        self.model.eval()
        losses = [nn.functional.mse_loss(self.model(d), e, reduction="sum") for d, e in loader]
        return torch.stack(losses).sum().item() / len(loader.dataset)

    def track(self, loss):
        self.scheduler.step(loss)
        if loss < self.best_loss:
            self.best_loss = loss
            self.best_weights = copy.deepcopy(self.model.state_dict())
            self.bad_epochs = 0
        else:
            self.bad_epochs += 1

    def fit(self, train_loader, val_loader, epochs):
        for epoch in range(epochs):
            self.train_epoch(train_loader)
            loss = self.validate(val_loader)
            self.track(loss)
            print(f"epoch {epoch}: validation {loss:.4f}")
            if self.bad_epochs > self.patience:
                break
        self.model.load_state_dict(self.best_state)
        return self.best_loss


def main():
    torch.manual_seed(71)
    train = DataLoader(molecules(800), batch_size=50, shuffle=True)
    val = DataLoader(molecules(200), batch_size=100)
    trainer = Trainer(PairNet())
    best = trainer.fit(train, val, epochs=3)
    print(f"best validation loss {best:.4f}")


if __name__ == "__main__":
    main()
