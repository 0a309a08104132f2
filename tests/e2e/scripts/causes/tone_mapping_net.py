"""Learn a tone mapping from linear sensor values to display values.

Exposure and colour mixing are learned, the display curve is the usual power law. The refinement
part is checkpointed because on the real 12 MP frames it does not fit in memory.
"""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, Dataset


class RawFrames(Dataset):
    """Small linear RGB crops with the matching display-referred crops."""

    def __init__(self, n=112, size=8, seed=3):
        g = torch.Generator().manual_seed(seed)
        self.raw = 0.02 + 0.6 * torch.rand(n, 3, size, size, generator=g)
        self.raw[52, :, :, 0] = 0.0  # crop touching the masked columns of the sensor
        mix = torch.tensor([[1.1, -0.05, -0.05], [-0.05, 1.1, -0.05], [-0.05, -0.05, 1.1]])
        lit = torch.einsum("oc,nchw->nohw", mix, self.raw).clamp(min=0) * 1.3
        self.display = lit.pow(1 / 2.2)

    def __len__(self):
        return self.raw.size(0)

    def __getitem__(self, i):
        return self.raw[i], self.display[i]


class ToneMapper(nn.Module):
    def __init__(self):
        super().__init__()
        self.log_gain = nn.Parameter(torch.zeros(3, 1, 1))
        self.refine = nn.Sequential(
            nn.Conv2d(3, 12, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(12, 3, 3, padding=1),
        )
        self.gamma = 1 / 2.2

    def develop(self, raw):
        lit = raw * self.log_gain.exp()
        out = lit**self.gamma
        return out + 0.1 * self.refine(out)

    def forward(self, raw):
        return checkpoint(self.develop, raw, use_reentrant=False)


class Trainer:
    def __init__(self, model, dataset, batch_size, seed):
        self.model = model
        self.loader = DataLoader(
            dataset,
            batch_size=batch_size,
            shuffle=True,
            generator=torch.Generator().manual_seed(seed),
        )
        self.optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
        self.step = 0

    def run_epoch(self):
        for raw, display in self.loader:
            loss = F.l1_loss(self.model(raw), display)
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            self.log(loss)
            self.step += 1

    def log(self, loss):
        if self.step % 5 == 0:
            gain = self.model.log_gain.detach().exp().flatten().tolist()
            print(f"step {self.step:3d} l1 {loss.item():.4f} gain {[round(v, 3) for v in gain]}")


def main():
    torch.manual_seed(0)
    trainer = Trainer(ToneMapper(), RawFrames(), batch_size=7, seed=1)
    for _ in range(3):
        trainer.run_epoch()


if __name__ == "__main__":
    main()
