import copy
import math

import torch
import torch.nn as nn
from torch.utils.data import DataLoader, IterableDataset


class MeterStream(IterableDataset):
    """Consecutive windows of many meters, in time order, so the state can be carried along."""

    def __init__(self, meters, hours, window, seed):
        g = torch.Generator().manual_seed(seed)
        t = torch.arange(hours + 1).float()
        phase = torch.rand(meters, 1, generator=g) * 6.28
        daily = torch.sin(2 * math.pi * t / 24 + phase)
        self.series = daily + 0.1 * torch.randn(meters, hours + 1, generator=g)
        self.window = window

    def __len__(self):
        return (self.series.size(1) - 1) // self.window

    def __iter__(self):
        for k in range(len(self)):
            part = self.series[:, k * self.window :][:, : self.window + 1].unsqueeze(-1)
            yield part[:, :-1], part[:, 1:]


class Forecaster(nn.Module):
    def __init__(self, hidden=144):
        super().__init__()
        self.cell = nn.LSTM(1, hidden, batch_first=True)
        self.head = nn.Linear(hidden, 1)

    def forward(self, x, state=None):
        y, state = self.cell(x, state)
        return self.head(y), state


class BestKeeper:
    def __init__(self):
        self.score, self.weights, self.bad = float("inf"), None, 0

    def __call__(self, score, model):
        if score < self.score:
            self.score, self.weights, self.bad = score, copy.deepcopy(model.state_dict()), 0
        else:
            self.bad += 1
        return self.bad >= 4


def train_epoch(model, loader, opt, on_batch):
    state = None
    model.train()
    for x, y in loader:
        pred, state = model(x, state)
        loss = nn.functional.mse_loss(pred, y)
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        state = tuple(s.detach() for s in state)
        on_batch(loss.item())


@torch.no_grad()
def validate(model, loader):
    model.eval()
    state, errors = None, []
    for x, y in loader:
        pred, state = model(x, state)
        errors.append(nn.functional.mse_loss(pred, y))
    return torch.stack(errors).mean().item()


def run():
    torch.set_num_threads(1)
    torch.manual_seed(13)
    model = Forecaster()
    train = DataLoader(MeterStream(32, 24 * 28, 24, seed=1), batch_size=None)
    val = DataLoader(MeterStream(32, 24 * 8, 24, seed=2), batch_size=None)
    opt = torch.optim.RMSprop(model.parameters(), lr=1e-3)
    plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(opt, patience=1, factor=0.5)
    keeper, losses = BestKeeper(), []
    for epoch in range(9):
        train_epoch(model, train, opt, losses.append)
        score = validate(model, val)
        plateau.step(score)
        recent = sum(losses[-28:]) / 28
        print(
            f"epoch {epoch}: train {recent:.4f} val {score:.4f} lr {opt.param_groups[0]['lr']:.1e}"
        )
        if keeper(score, model):
            break
    model.load_state_dict(keeper.weights)
    print(f"best {keeper.score:.4f} after {len(losses)} updates")


if __name__ == "__main__":
    run()
