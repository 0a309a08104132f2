"""Validation over the whole set every ten steps."""
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


@torch.no_grad()
def validate(model, loader):
    model.eval()
    losses = [nn.functional.mse_loss(model(x), y) for x, y in loader]
    model.train()
    return torch.stack(losses).mean().item()


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    x = torch.randn(8000, 16)
    y = x[:, :1] * x[:, 1:2]
    training = DataLoader(TensorDataset(x[:6000], y[:6000]), batch_size=32, shuffle=True)
    held_out = DataLoader(TensorDataset(x[6000:], y[6000:]), batch_size=100)
    model = nn.Sequential(nn.Linear(16, 128), nn.ReLU(), nn.Linear(128, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for step, (a, b) in enumerate(training):
        loss = nn.functional.mse_loss(model(a), b)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 10 == 0:
            score = validate(model, held_out)
    print(score)


main()
