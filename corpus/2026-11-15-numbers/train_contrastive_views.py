import torch
from lib_contrastive_steps import backpropagate, compute_loss
from torch import nn
from torch.utils.data import DataLoader, Dataset


class TwoViews(Dataset):
    def __init__(self, n=512, dim=16):
        g = torch.Generator().manual_seed(23)
        latent = torch.randn(n, dim, generator=g)
        self.a = latent + 0.05 * torch.randn(n, dim, generator=g)
        self.b = latent + 0.05 * torch.randn(n, dim, generator=g)

    def __len__(self):
        return len(self.a)

    def __getitem__(self, i):
        return self.a[i], self.b[i]


class Projector(nn.Module):
    def __init__(self, dim=16, out=16, temperature=0.2):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(dim, 48), nn.ReLU(), nn.Linear(48, out))
        self.temperature = nn.Parameter(torch.tensor(temperature))

    def forward(self, x):
        return self.net(x)


def apply_update(model, optimizer, scheduler, max_norm=1.0):
    norm = nn.utils.clip_grad_norm_(model.net.parameters(), max_norm)
    optimizer.step()
    scheduler.step()
    return norm


def train_one(model, batch, optimizer, scheduler):
    loss = backpropagate(compute_loss(model, batch), optimizer)
    apply_update(model, optimizer, scheduler)
    return loss


def main():
    torch.manual_seed(5)
    loader = DataLoader(TwoViews(), batch_size=16, shuffle=True, drop_last=True)
    model = Projector()
    optimizer = torch.optim.Adam(
        [
            {"params": model.net.parameters(), "lr": 2e-3},
            {"params": [model.temperature], "lr": 1.7e-2},
        ]
    )
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=25, gamma=0.5)
    for step, batch in enumerate(loader):
        loss = train_one(model, batch, optimizer, scheduler)
        if step % 6 == 0:
            print(f"step {step} loss {loss.item():.4f} tau {model.temperature.item():.4f}")


if __name__ == "__main__":
    main()
