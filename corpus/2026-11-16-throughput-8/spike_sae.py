"""Sparse autoencoder on binned spike counts of a simulated neural population."""
import torch
import torch.nn as nn
import torch.nn.functional as F

NEURONS, HIDDEN, BATCH, STEPS = 80, 96, 32, 180
L1 = 2e-3


def population(n_bins, seed=0):
    """Spike counts driven by a few latent assemblies."""
    g = torch.Generator().manual_seed(seed)
    assemblies = (torch.rand(10, NEURONS, generator=g) < 0.15).float() * 3.0
    active = (torch.rand(n_bins, 10, generator=g) < 0.2).float()
    gain = 0.5 + torch.rand(n_bins, 1, generator=g)
    rate = 0.3 + gain * (active @ assemblies)
    return torch.poisson(rate, generator=g)


class SparseAutoencoder(nn.Module):
    def __init__(self, n_in, n_hidden):
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(n_in))
        self.encoder = nn.Linear(n_in, n_hidden)
        self.decoder = nn.Linear(n_hidden, n_in, bias=False)
        with torch.no_grad():
            self.decoder.weight.copy_(self.encoder.weight.t())

    def forward(self, x):
        code = F.relu(self.encoder(x - self.bias))
        return self.decoder(code) + self.bias, code

    @torch.no_grad()
    def normalise_decoder(self):
        self.decoder.weight.div_(self.decoder.weight.norm(dim=0, keepdim=True).clamp_min(1e-6))


class Meter:
    """Exponential averages for the progress line."""

    def __init__(self, decay=0.97):
        self.decay = decay
        self.values = {}

    def update(self, **kwargs):
        for key, value in kwargs.items():
            old = self.values.get(key, value)
            self.values[key] = self.decay * old + (1 - self.decay) * value

    def line(self):
        return "  ".join(f"{k} {float(v):.4f}" for k, v in self.values.items())


def occupancy(code, threshold=0.02):
    """Share of hidden units that take part in the code of this batch."""
    used = sum(1 for unit in code.flatten() if unit > threshold)
    return used / code.numel()


def main():
    torch.manual_seed(7)
    counts = population(20000)
    counts = (counts - counts.mean(0)) / counts.std(0).clamp_min(1e-3)
    held_out, counts = counts[:512], counts[512:]

    model = SparseAutoencoder(NEURONS, HIDDEN)
    opt = torch.optim.Adam(model.parameters(), lr=2e-3)
    meter = Meter()
    order = torch.randperm(len(counts))
    for step in range(STEPS):
        lo = (step * BATCH) % (len(order) - BATCH)
        x = counts[order[lo:lo + BATCH]]
        recon, code = model(x)
        mse = F.mse_loss(recon, x)
        loss = mse + L1 * code.abs().sum(dim=1).mean()
        opt.zero_grad(set_to_none=True)
        loss.backward()
        opt.step()
        model.normalise_decoder()
        meter.update(mse=mse.detach(), used=occupancy(code.detach()))
        if step % 45 == 44:
            print(f"step {step + 1:4d}  {meter.line()}")

    with torch.no_grad():
        recon, _ = model(held_out)
        print(f"held-out mse {F.mse_loss(recon, held_out).item():.4f}")


if __name__ == "__main__":
    main()
