import torch
import torch.nn.functional as F
from lightning.fabric import Fabric, seed_everything
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Tracks(Dataset):
    def __init__(self, n=360, steps=9):
        g = torch.Generator().manual_seed(2)
        turn = 0.25 * torch.randn(n, steps, generator=g)
        moving = torch.rand(n, steps, generator=g) > 0.004
        heading = torch.cumsum(turn * moving, dim=1) + 0.4
        self.velocity = torch.stack([heading.cos(), heading.sin()], dim=-1)
        speed = 1.0 + torch.rand(n, steps, 1, generator=g)
        self.velocity = self.velocity * speed
        self.target = turn.abs().sum(dim=1, keepdim=True)

    def __len__(self):
        return len(self.target)

    def __getitem__(self, i):
        return self.velocity[i], self.target[i]


def turning_angles(velocity):
    unit = F.normalize(velocity, dim=-1)
    cosine = (unit[:, 1:] * unit[:, :-1]).sum(dim=-1)
    return torch.acos(cosine)


class TurnNet(nn.Module):
    def __init__(self, steps=9):
        super().__init__()
        self.gru = nn.GRU(2, 12, batch_first=True)
        self.angle_mlp = nn.Sequential(nn.Linear(steps - 1, 16), nn.SiLU(), nn.Linear(16, 12))
        self.out = nn.Linear(24, 1)

    def forward(self, velocity):
        _, h = self.gru(velocity)
        feats = self.angle_mlp(turning_angles(velocity))
        return self.out(torch.cat([h[-1], feats], dim=1))


class Trainer:
    def __init__(self, fabric, model, optimizer):
        self.fabric = fabric
        self.model = model
        self.optimizer = optimizer
        self.global_step = 0

    def step(self, velocity, target):
        self.optimizer.zero_grad()
        loss = F.smooth_l1_loss(self.model(velocity), target)
        self.fabric.backward(loss)
        self.fabric.clip_gradients(
            self.model, self.optimizer, max_norm=2.0, error_if_nonfinite=False
        )
        self.optimizer.step()
        self.global_step += 1
        return loss.detach()

    def fit(self, loader, epochs):
        for epoch in range(epochs):
            for velocity, target in loader:
                loss = self.step(velocity, target)
                if self.global_step % 15 == 0:
                    self.fabric.print(f"step {self.global_step} loss {loss.item():.4f}")


def main():
    fabric = Fabric(accelerator="cpu", devices=1)
    fabric.launch()
    seed_everything(11, verbose=False)
    model = TurnNet()
    optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-3)
    model, optimizer = fabric.setup(model, optimizer)
    loader = fabric.setup_dataloaders(DataLoader(Tracks(), batch_size=12, shuffle=True))
    Trainer(fabric, model, optimizer).fit(loader, epochs=2)


if __name__ == "__main__":
    main()
