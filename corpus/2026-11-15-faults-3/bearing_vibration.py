"""1-D residual network on vibration windows with a regular look at held-out machines."""

import torch
from torch import nn

torch.set_num_threads(1)
CFG = {"steps": 120, "batch": 72, "eval_every": 20, "lr": 2e-3, "window": 256, "classes": 5}


class ResBlock(nn.Module):
    def __init__(self, ch):
        super().__init__()
        self.a = nn.Conv1d(ch, ch, 5, padding=2)
        self.b = nn.Conv1d(ch, ch, 5, padding=2)
        self.norm = nn.BatchNorm1d(ch)

    def forward(self, x):
        return torch.relu(x + self.b(torch.relu(self.norm(self.a(x)))))


class VibrationNet(nn.Module):
    def __init__(self, classes, ch=20):
        super().__init__()
        self.inp = nn.Conv1d(1, ch, 9, padding=4)
        self.blocks = nn.Sequential(ResBlock(ch), ResBlock(ch))
        self.fc = nn.Linear(ch, classes)

    def forward(self, x):
        return self.fc(self.blocks(torch.relu(self.inp(x))).mean(-1))


def vibration(n, seed):
    g = torch.Generator().manual_seed(seed)
    y = torch.randint(0, CFG["classes"], (n,), generator=g)
    t = torch.arange(CFG["window"]).float() / CFG["window"]
    phase = torch.rand(n, 1, generator=g) * 6.28
    x = torch.sin(6.28 * (4 + 5 * y[:, None]) * t + phase)
    return (x + 0.5 * torch.randn(x.shape, generator=g)).unsqueeze(1), y


def evaluate(net, x, y):
    net.eval()
    scores = []
    for i in range(0, len(x), 80):
        scores.append(net(x[i : i + 80]))
    scores = torch.cat(scores)
    loss = nn.functional.cross_entropy(scores, y)
    acc = (scores.argmax(1) == y).float().mean()
    net.train()
    return loss.item(), acc.item()


def main():
    torch.manual_seed(3)
    train_x, train_y = vibration(1500, seed=1)
    held_x, held_y = vibration(480, seed=2)
    net = VibrationNet(CFG["classes"])
    opt = torch.optim.Adam(net.parameters(), lr=CFG["lr"])
    step = 0
    while step < CFG["steps"]:
        pick = torch.randint(0, len(train_x), (CFG["batch"],))
        loss = nn.functional.cross_entropy(net(train_x[pick]), train_y[pick])
        opt.zero_grad()
        loss.backward()
        opt.step()
        step += 1
        if step % CFG["eval_every"] == 0:
            val_loss, val_acc = evaluate(net, held_x, held_y)
            print(f"{step:4d} train {loss.item():.3f} held-out {val_loss:.3f} acc {val_acc:.3f}")


if __name__ == "__main__":
    main()
