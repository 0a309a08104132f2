import copy

import torch
import torch.nn as nn
import torch.nn.functional as F


class SensorAutoencoder(nn.Module):
    def __init__(self, n_in=160, hidden=320, code=12):
        super().__init__()
        self.enc = nn.Sequential(nn.Linear(n_in, hidden), nn.SiLU(), nn.Linear(hidden, code))
        self.dec = nn.Sequential(nn.Linear(code, hidden), nn.SiLU(), nn.Linear(hidden, n_in))

    def forward(self, x):
        return self.dec(self.enc(x))


class LateAverage:
    """Averages the weights of the final part of a run."""

    def __init__(self, model, keep=20):
        self.model = model
        self.keep = keep
        self.trail = []

    def after_step(self):
        self.trail.append(copy.deepcopy(self.model.state_dict()))

    def averaged(self):
        tail = self.trail[-self.keep :]
        model = copy.deepcopy(self.model)
        model.load_state_dict({k: torch.stack([s[k] for s in tail]).mean(0) for k in tail[0]})
        return model


class Progress:
    def __init__(self, every):
        self.every, self.count, self.total = every, 0, 0.0

    def after_step(self, loss):
        self.count += 1
        self.total += loss
        if self.count % self.every == 0:
            print(f"step {self.count} mse {self.total / self.every:.4f}")
            self.total = 0.0


def sensor_batches(n_batches, batch, n_in, rank, seed):
    gen = torch.Generator().manual_seed(seed)
    basis = torch.randn(rank, n_in, generator=gen) / rank**0.5
    for _ in range(n_batches):
        latent = torch.randn(batch, rank, generator=gen)
        yield torch.tanh(latent @ basis) + 0.05 * torch.randn(batch, n_in, generator=gen)


def main():
    torch.set_num_threads(1)
    torch.manual_seed(13)
    model = SensorAutoencoder()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    average, progress = LateAverage(model), Progress(every=50)
    for x in sensor_batches(350, 512, 160, rank=10, seed=13):
        loss = F.mse_loss(model(x), x)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        average.after_step()
        progress.after_step(loss.item())

    held_out = next(sensor_batches(1, 1024, 160, rank=10, seed=13))
    with torch.no_grad():
        for name, m in (("last", model), ("averaged", average.averaged())):
            print(f"{name}: held-out mse {F.mse_loss(m(held_out), held_out).item():.4f}")


if __name__ == "__main__":
    main()
