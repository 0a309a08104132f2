"""Estimate surface normals from shading features, angular error as the training loss."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

N_LIGHTS = 12


class NormalNet(nn.Module):
    """Predicts the two slopes; the normal of z = ax + by is (-a, -b, 1) normalised.

    No biases: without shading contrast the surface is flat.
    """

    def __init__(self, hidden=32):
        super().__init__()
        self.fc1 = nn.Linear(N_LIGHTS, hidden, bias=False)
        self.fc2 = nn.Linear(hidden, 2, bias=False)

    def forward(self, contrast):
        slope = self.fc2(torch.tanh(self.fc1(contrast)))
        return self.to_normal(slope)

    @staticmethod
    def to_normal(slope):
        one = torch.ones_like(slope[:, :1])
        return F.normalize(torch.cat([-slope, one], dim=1), dim=1)

    def angular_error(self, pred, target):
        cosine = (pred * target).sum(dim=1).clamp(-1.0, 1.0)
        return torch.acos(cosine)

    def compute_loss(self, batch):
        contrast, target = batch
        return self.angular_error(self(contrast), target).mean()


def render(n, gen):
    slope = 1.2 * torch.randn(n, 2, generator=gen)
    slope[23] = 0.0
    lights = torch.randn(2, N_LIGHTS, generator=gen)
    # the sensor gain differs per patch, the sign of the contrast does not
    gain = 0.5 + torch.rand(n, 1, generator=gen)
    contrast = gain * (slope @ lights)
    return contrast, NormalNet.to_normal(slope)


def main():
    torch.manual_seed(4)
    gen = torch.Generator().manual_seed(40)
    data = TensorDataset(*render(150, gen))
    loader = DataLoader(data, batch_size=10, shuffle=True, generator=gen)
    net = NormalNet()
    opt = torch.optim.Adam(net.parameters(), lr=2e-3)
    sched = torch.optim.lr_scheduler.StepLR(opt, step_size=20, gamma=0.5)
    it = 0
    for epoch in range(3):
        for batch in loader:
            loss = net.compute_loss(batch)
            opt.zero_grad()
            loss.backward()
            opt.step()
            sched.step()
            if it % 5 == 0:
                degrees = loss.item() * 57.2958
                print(f"epoch {epoch} it {it:3d} mean angular error {degrees:.2f} deg")
            it += 1


if __name__ == "__main__":
    main()
