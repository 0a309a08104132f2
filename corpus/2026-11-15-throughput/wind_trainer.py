"""Short-term wind power forecast; activation statistics go to the run summary."""

import torch
from torch import nn

torch.set_num_threads(1)


class ForecastNet(nn.Module):
    def __init__(self, history=48, width=96, layers=6):
        super().__init__()
        sizes = [history] + [width] * layers
        self.hidden = nn.ModuleList(nn.Linear(a, b) for a, b in zip(sizes, sizes[1:]))
        self.out = nn.Linear(width, 6)

    def forward(self, x):
        for layer in self.hidden:
            x = torch.nn.functional.gelu(layer(x))
        return self.out(x)


class WindTrainer:
    def __init__(self, steps=200, batch=192):
        torch.manual_seed(3)
        self.steps = steps
        self.batch = batch
        self.model = ForecastNet()
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-3)
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, 80, gamma=0.5)
        self.activations = {}
        self.series = self._simulate(6000)
        self.losses = []

    @staticmethod
    def _simulate(length):
        t = torch.arange(length).float()
        daily = torch.sin(t * 2 * torch.pi / 24) + 0.5 * torch.sin(t * 2 * torch.pi / 168)
        return daily + 0.2 * torch.randn(length)

    def _observe(self, name):
        def store(module, inputs, output):
            values = output.detach()
            self.activations[name] = (values.mean(), values.std())

        return store

    def _prepare(self):
        self.model.train()
        for name, module in self.model.named_modules():
            if isinstance(module, nn.Linear):
                module.register_forward_hook(self._observe(name))

    def _windows(self):
        starts = torch.randint(0, len(self.series) - 54, (self.batch,))
        rows = self.series[starts[:, None] + torch.arange(54)]
        return rows[:, :48], rows[:, 48:]

    def train_step(self):
        self._prepare()
        past, future = self._windows()
        loss = nn.functional.mse_loss(self.model(past), future)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.scheduler.step()
        return loss.item()

    def fit(self):
        for step in range(self.steps):
            self.losses.append(self.train_step())
            if step % 40 == 0:
                print(f"step {step} mse {self.losses[-1]:.4f}")
        for name, (mean, std) in self.activations.items():
            print(f"{name}: mean {mean:+.3f} std {std:.3f}")


if __name__ == "__main__":
    WindTrainer().fit()
