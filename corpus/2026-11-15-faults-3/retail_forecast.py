"""Weekly demand forecast with an MLP; the run can be resumed from its latest state."""

import gzip
import os
import tempfile

import torch
from torch import nn

torch.set_num_threads(1)


class ForecastRun:
    def __init__(self, history=96, horizon=8, hidden=384, save_every=8):
        torch.manual_seed(55)
        self.history, self.horizon, self.save_every = history, horizon, save_every
        self.net = nn.Sequential(
            nn.Linear(history, hidden),
            nn.ReLU(),
            nn.Linear(hidden, hidden),
            nn.ReLU(),
            nn.Linear(hidden, horizon),
        )
        self.opt = torch.optim.Adam(self.net.parameters(), lr=1e-3)
        self.folder = tempfile.mkdtemp(prefix="forecast_")
        self.step = 0
        self.sales = self._make_sales()

    def _make_sales(self, shops=64, weeks=400):
        t = torch.arange(weeks).float()
        season = torch.sin(2 * torch.pi * t / 52 + torch.rand(shops, 1) * 6.28)
        promo = (torch.rand(shops, weeks) < 0.05).float()
        return season + 0.8 * promo + 0.1 * torch.randn(shops, weeks)

    def batch(self, size=512):
        shop = torch.randint(0, self.sales.shape[0], (size, 1))
        start = torch.randint(0, self.sales.shape[1] - self.history - self.horizon, (size, 1))
        span = self.sales[shop, start + torch.arange(self.history + self.horizon)]
        return span[:, : self.history], span[:, self.history :]

    def persist(self):
        state = {"net": self.net.state_dict(), "opt": self.opt.state_dict(), "step": self.step}
        target = os.path.join(self.folder, "latest.pt.gz")
        with gzip.open(target, "wb") as fh:
            torch.save(state, fh)
        return target

    def train(self, steps):
        while self.step < steps:
            x, y = self.batch()
            loss = nn.functional.l1_loss(self.net(x), y)
            self.opt.zero_grad()
            loss.backward()
            self.opt.step()
            self.step += 1
            if self.step % self.save_every == 0:
                self.persist()
            if self.step % 24 == 0:
                print(f"step {self.step}/{steps} mae {loss.item():.4f}")


if __name__ == "__main__":
    run = ForecastRun()
    run.train(152)
    print("saved", os.path.basename(run.persist()))
