import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Tiles(Dataset):
    def __init__(self, n=256, size=12, classes=4):
        g = torch.Generator().manual_seed(13)
        self.labels = torch.randint(0, classes, (n,), generator=g)
        base = torch.rand(classes, 1, size, size, generator=g)
        self.images = base[self.labels] + 0.3 * torch.rand(n, 1, size, size, generator=g)
        coverage = torch.rand(n, generator=g)
        self.images[coverage < 0.004] = 0.0

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, i):
        return {"pixels": self.images[i], "label": self.labels[i], "index": i}


class GeM(nn.Module):
    def __init__(self, p=3.0):
        super().__init__()
        self.p = nn.Parameter(torch.tensor(p))

    def forward(self, x):
        pooled = x.pow(self.p).mean(dim=(-2, -1))
        return pooled.pow(1.0 / self.p)


class RetrievalNet(nn.Module):
    def __init__(self, classes=4, width=8):
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(1, width, 3, padding=1, bias=False),
            nn.ReLU(),
            nn.Conv2d(width, width, 3, padding=1, bias=False),
            nn.Softplus(beta=4.0),
        )
        self.squeeze = nn.Sequential(nn.Conv2d(1, 2 * width, 3, bias=False), nn.ReLU())
        self.pool = nn.ModuleDict({"texture": nn.AdaptiveAvgPool2d(1), "global": GeM()})
        self.fc = nn.Linear(3 * width, classes)

    def forward(self, x):
        texture = self.pool["texture"](self.stem(x)).flatten(1)
        shape = self.pool["global"](self.squeeze(x - x.amin(dim=(1, 2, 3), keepdim=True)))
        return self.fc(torch.cat([texture, shape], dim=1))


def evaluate(model, loader):
    model.eval()
    correct = total = 0
    with torch.no_grad():
        for batch in loader:
            pred = model(batch["pixels"]).argmax(dim=1)
            correct += (pred == batch["label"]).sum().item()
            total += len(pred)
    model.train()
    return correct / total


def main():
    set_seed(4)
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=1)
    model = RetrievalNet()
    with torch.no_grad():
        model.squeeze[0].weight.abs_()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=1e-4)
    loader = DataLoader(Tiles(), batch_size=16, shuffle=True)
    scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 0.3, 1.0, total_iters=10)
    model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)
    criterion = nn.CrossEntropyLoss(label_smoothing=0.05)

    for epoch in range(3):
        running = 0.0
        for batch in loader:
            with accelerator.accumulate(model):
                loss = criterion(model(batch["pixels"]), batch["label"])
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 5.0)
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
            running += loss.detach().item()
        acc = evaluate(model, loader)
        accelerator.print(f"epoch {epoch} loss {running / len(loader):.4f} acc {acc:.3f}")


if __name__ == "__main__":
    main()
