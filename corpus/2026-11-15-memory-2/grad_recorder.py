import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F


class Callback:
    def on_backward_end(self, model, step): ...

    def on_epoch_end(self, epoch, mean_loss): ...


class ConsoleLog(Callback):
    def on_epoch_end(self, epoch, mean_loss):
        print(f"epoch {epoch}: loss {mean_loss:.4f}")


class GradientNoise(Callback):
    """Signal-to-noise of the gradient over the latest steps."""

    def __init__(self, window=10):
        self.window = window
        self.flat = {}

    def on_backward_end(self, model, step):
        for name, p in model.named_parameters():
            self.flat.setdefault(name, []).append(p.grad.numpy().copy())

    def on_epoch_end(self, epoch, mean_loss):
        ratios = []
        for grads in self.flat.values():
            recent = np.stack(grads[-self.window :])
            ratios.append(np.linalg.norm(recent.mean(0)) / (np.linalg.norm(recent.std(0)) + 1e-12))
        print(f"         gradient signal/noise {np.mean(ratios):.3f}")


class TabularNet(nn.Module):
    def __init__(self, n_num, cards, dim=8):
        super().__init__()
        self.embs = nn.ModuleList(nn.Embedding(c, dim) for c in cards)
        self.net = nn.Sequential(
            nn.Linear(n_num + dim * len(cards), 320),
            nn.ReLU(),
            nn.Linear(320, 320),
            nn.ReLU(),
            nn.Linear(320, 1),
        )

    def forward(self, num, cat):
        parts = [emb(cat[:, i]) for i, emb in enumerate(self.embs)]
        return self.net(torch.cat([num, *parts], dim=1)).squeeze(1)


def claims_table(n, n_num, cards, seed):
    rng = np.random.default_rng(seed)
    num = rng.normal(size=(n, n_num)).astype(np.float32)
    cat = np.stack([rng.integers(0, c, n) for c in cards], axis=1)
    effects = [rng.normal(size=c) for c in cards]
    y = num @ rng.normal(size=n_num) * 0.3 + sum(e[cat[:, i]] for i, e in enumerate(effects))
    y += 0.2 * np.sin(3 * num[:, 0]) + 0.1 * rng.normal(size=n)
    return torch.from_numpy(num), torch.from_numpy(cat), torch.from_numpy(y.astype(np.float32))


def fit(model, table, callbacks, epochs=9, batch=400, lr=2e-3):
    num, cat, y = table
    opt = torch.optim.Adam(model.parameters(), lr=lr)
    step = 0
    for epoch in range(epochs):
        running, batches = 0.0, 0
        for idx in torch.randperm(len(y)).split(batch):
            loss = F.mse_loss(model(num[idx], cat[idx]), y[idx])
            opt.zero_grad()
            loss.backward()
            for cb in callbacks:
                cb.on_backward_end(model, step)
            opt.step()
            running += loss.item()
            batches += 1
            step += 1
        for cb in callbacks:
            cb.on_epoch_end(epoch, running / batches)


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.manual_seed(17)
    cards = (40, 12, 7, 150)
    table = claims_table(15000, 20, cards, seed=17)
    fit(TabularNet(20, cards), table, [ConsoleLog(), GradientNoise()])
