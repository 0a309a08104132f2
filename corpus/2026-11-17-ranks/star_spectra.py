"""Denoising autoencoder for spectra of stars."""
import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

torch.set_num_threads(1)
BINS, CODE, EPOCHS = 128, 12, 6


def make_spectra(count):
    gen = torch.Generator().manual_seed(17)
    axis = torch.linspace(-3, 3, BINS)
    spectra = torch.ones(count, BINS)
    for _ in range(6):
        centre = 5 * torch.rand(count, 1, generator=gen) - 2.5
        depth = torch.rand(count, 1, generator=gen)
        spectra = spectra - 0.4 * depth * torch.exp(-((axis - centre) / 0.2) ** 2)
    return spectra


class SpectrumCoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(BINS, 160), nn.GELU(), nn.Linear(160, CODE))
        self.decoder = nn.Sequential(nn.Linear(CODE, 160), nn.GELU(), nn.Linear(160, BINS))

    def encode(self, x):
        return self.encoder(x)

    def decode(self, code):
        return self.decoder(code)

    def forward(self, x):
        return self.decode(self.encode(x))


def objective(model, spectra, noise):
    code = model.module.encode(spectra + noise)
    restored = model.module.decode(code)
    return (restored - spectra).pow(2).mean() + 1e-4 * code.pow(2).mean()


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(2)
    model = DDP(SpectrumCoder())
    data = TensorDataset(make_spectra(3200))
    sampler = DistributedSampler(data, seed=1)
    loader = DataLoader(data, batch_size=32, sampler=sampler)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
    noise_gen = torch.Generator().manual_seed(rank)
    for epoch in range(EPOCHS):
        sampler.set_epoch(epoch)
        total = 0.0
        for (spectra,) in loader:
            noise = 0.05 * torch.randn(spectra.shape, generator=noise_gen)
            loss = objective(model, spectra, noise)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item()
        schedule.step()
        if rank == 0:
            print(f"epoch {epoch} loss {total / len(loader):.5f}", flush=True)
    if rank == 0:
        torch.save(model.module.state_dict(), "/dev/null")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
