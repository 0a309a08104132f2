import copy

import torch
from torch import nn
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(4)


class SpectraNet(nn.Module):
    def __init__(self, bands=128, width=768, depth=4):
        super().__init__()
        sizes = [bands] + [width] * depth
        self.stages = nn.ModuleList(
            nn.Sequential(nn.Linear(a, b), nn.LayerNorm(b), nn.GELU())
            for a, b in zip(sizes, sizes[1:])
        )
        self.head = nn.Linear(width, 1)
        self.n_frozen = 0

    def forward(self, x):
        with torch.no_grad():
            for stage in self.stages[: self.n_frozen]:
                x = stage(x)
        for stage in self.stages[self.n_frozen :]:
            x = stage(x)
        return self.head(x).squeeze(-1)


def spectra(n, generator, shift=0.0):
    grid = torch.linspace(0, 1, 128)
    centre = torch.rand(n, 6, generator=generator)
    weight = torch.rand(n, 6, generator=generator)
    curve = (weight[..., None] * torch.exp(-((grid - centre[..., None]) ** 2) / 0.004)).sum(1)
    carbon = (weight * torch.sin(6.28 * centre + shift)).sum(1)
    return curve + 0.02 * torch.randn(n, 128, generator=generator), carbon


class FineTuner:
    def __init__(self, model, data, valid, lr=1e-4, batch=96):
        self.model, self.data, self.valid = model, data, valid
        self.lr, self.batch = lr, batch
        self.history = []
        model.requires_grad_(False)
        model.n_frozen = len(model.stages)
        model.head.requires_grad_(True)
        self.opt = torch.optim.AdamW(model.head.parameters(), lr=lr * 8)
        self.best, self.best_mse = None, float("inf")

    def thaw_next(self):
        if self.model.n_frozen == 0:
            return
        self.model.n_frozen -= 1
        stage = self.model.stages[self.model.n_frozen]
        stage.requires_grad_(True)
        self.opt.add_param_group({"params": list(stage.parameters()), "lr": self.lr})

    def epoch(self):
        x, y = self.data
        running = torch.zeros(())
        batches = torch.randperm(len(x)).split(self.batch)
        for index in batches:
            loss = F.mse_loss(self.model(x[index]), y[index])
            self.opt.zero_grad()
            loss.backward()
            self.opt.step()
            running += loss.detach()
        return (running / len(batches)).item()

    @torch.no_grad()
    def score(self):
        self.model.eval()
        x, y = self.valid
        mse = F.mse_loss(self.model(x), y).item()
        self.model.train()
        if mse < self.best_mse:
            self.best, self.best_mse = copy.deepcopy(self.model.state_dict()), mse
        return mse

    def run(self, epochs, thaw_at):
        for epoch in range(epochs):
            if epoch in thaw_at:
                self.thaw_next()
            self.history.append((self.epoch(), self.score()))
            train, valid = self.history[-1]
            print(f"epoch {epoch:2d} frozen {self.model.n_frozen} {train:.4f} / {valid:.4f}")


def pretrain(model, x, y, steps):
    opt = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    for _ in range(steps):
        index = torch.randint(0, len(x), (96,))
        loss = F.mse_loss(model(x[index]), y[index])
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
    print(f"source domain {loss.item():.4f}")


def main():
    gen = torch.Generator().manual_seed(9)
    model = SpectraNet()
    pretrain(model, *spectra(3000, gen), steps=60)
    tuner = FineTuner(model, spectra(2880, gen, shift=0.8), spectra(400, gen, shift=0.8))
    tuner.run(epochs=13, thaw_at={2, 4, 6, 8})
    model.load_state_dict(tuner.best)
    print(f"best validation mse {tuner.best_mse:.4f}")


if __name__ == "__main__":
    main()
