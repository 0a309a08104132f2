import os
import tempfile

import torch
import torch.nn.functional as F
from torch import nn

SIZE, LATENT = 20, 24


class Callback:
    def on_step_end(self, trainer):
        pass


class LossPrinter(Callback):
    def __init__(self, every=30):
        self.every = every

    def on_step_end(self, trainer):
        if trainer.step % self.every == 0:
            d, g = trainer.last
            print(f"step {trainer.step}: d {d:.3f} g {g:.3f}")


class SampleSheet(Callback):
    def __init__(self, directory, every=7, rows=10, zoom=2):
        self.directory = directory
        self.every = every
        self.rows = rows
        self.zoom = zoom
        self.noise = torch.randn(rows * rows, LATENT)

    def on_step_end(self, trainer):
        if trainer.step % self.every:
            return
        with torch.no_grad():
            images = trainer.generator(self.noise).view(self.rows, self.rows, SIZE, SIZE)
        sheet = images.permute(0, 2, 1, 3).reshape(self.rows * SIZE, self.rows * SIZE).tolist()
        side = self.rows * SIZE * self.zoom
        path = os.path.join(self.directory, f"sheet_{trainer.step:04d}.pgm")
        with open(path, "w") as handle:
            handle.write(f"P2\n{side} {side}\n255\n")
            for y in range(side):
                row = sheet[y // self.zoom]
                values = [str(int(255 * row[x // self.zoom])) for x in range(side)]
                handle.write(" ".join(values) + "\n")


def real_shapes(count):
    grid = torch.arange(SIZE).float()
    centre = torch.rand(count, 2, 1, 1) * 8 + 6
    radius = torch.rand(count, 1, 1) * 3 + 2.5
    dist = (grid[None, :, None] - centre[:, 0]) ** 2 + (grid[None, None, :] - centre[:, 1]) ** 2
    return torch.sigmoid(2 * (radius - dist.sqrt())).flatten(1)


class GanTrainer:
    def __init__(self, callbacks):
        self.generator = nn.Sequential(
            nn.Linear(LATENT, 128), nn.ReLU(), nn.Linear(128, SIZE * SIZE), nn.Sigmoid()
        )
        self.critic = nn.Sequential(nn.Linear(SIZE * SIZE, 128), nn.ELU(), nn.Linear(128, 1))
        self.g_opt = torch.optim.Adam(self.generator.parameters(), lr=1e-3, betas=(0.5, 0.99))
        self.d_opt = torch.optim.Adam(self.critic.parameters(), lr=5e-4, betas=(0.5, 0.99))
        self.callbacks = callbacks
        self.step = 0
        self.last = (0.0, 0.0)

    def run(self, steps, batch_size=256):
        for _ in range(steps):
            real = real_shapes(batch_size)
            fake = self.generator(torch.randn(batch_size, LATENT))
            d_loss = (
                F.softplus(-self.critic(real)).mean()
                + F.softplus(self.critic(fake.detach())).mean()
            )
            self.d_opt.zero_grad()
            d_loss.backward()
            self.d_opt.step()
            g_loss = F.softplus(-self.critic(fake)).mean()
            self.g_opt.zero_grad()
            g_loss.backward()
            self.g_opt.step()
            self.step += 1
            self.last = (d_loss.item(), g_loss.item())
            for callback in self.callbacks:
                callback.on_step_end(self)


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.manual_seed(70)
    folder = tempfile.mkdtemp(prefix="shapes_")
    GanTrainer([LossPrinter(), SampleSheet(folder)]).run(224)
