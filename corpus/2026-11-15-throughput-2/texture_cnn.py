import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def textures(count, classes=5, size=20):
    labels = torch.randint(0, classes, (count,))
    grid = torch.arange(size).float()
    angle = labels.float() * 0.6
    phase = torch.rand(count) * 6.28
    field = (
        angle.cos()[:, None, None] * grid[None, :, None]
        + angle.sin()[:, None, None] * grid[None, None, :]
    )
    images = torch.sin(0.9 * field + phase[:, None, None]).unsqueeze(1)
    return TensorDataset(images + 1.6 * torch.randn(count, 1, size, size), labels)


class TextureNet(nn.Module):
    def __init__(self, classes=5):
        super().__init__()
        widths = [1, 12, 16, 24, 24]
        self.convs = nn.ModuleList(
            [nn.Conv2d(a, b, 3, padding=1) for a, b in zip(widths, widths[1:])]
        )
        self.acts = nn.ModuleList([nn.ReLU() for _ in self.convs])
        self.fc = nn.Linear(24, classes)

    def forward(self, x):
        for i, (conv, act) in enumerate(zip(self.convs, self.acts)):
            x = act(conv(x))
            if i % 2:
                x = F.max_pool2d(x, 2)
        return self.fc(x.mean(dim=(2, 3)))


class ActivationMonitor:
    def __init__(self, model):
        self.model = model
        self.stats = {}

    def attach(self):
        for name, module in self.model.named_modules():
            if isinstance(module, nn.ReLU):
                module.register_forward_hook(self.make_hook(name))

    def make_hook(self, name):
        def hook(module, inputs, output):
            out = output.detach()
            dead = (out.amax(dim=(0, 2, 3)) <= 0).float().mean()
            spread = torch.histc(out, bins=32, min=0.0, max=8.0)
            self.stats[name] = (out.mean(), out.std(), dead, spread)

        return hook

    def summary(self):
        return {k: f"{m:.2f}/{s:.2f}/{d:.0%}" for k, (m, s, d, _) in self.stats.items()}


def train_epoch(model, loader, optimizer, monitor):
    monitor.attach()
    total, correct, seen = 0.0, 0, 0
    for images, labels in loader:
        logits = model(images)
        loss = F.cross_entropy(logits, labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.item() * len(labels)
        correct += (logits.argmax(1) == labels).sum().item()
        seen += len(labels)
    return total / seen, correct / seen


def main():
    torch.set_num_threads(1)
    torch.manual_seed(30)
    loader = DataLoader(textures(128), batch_size=16, shuffle=True)
    model = TextureNet()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    monitor = ActivationMonitor(model)
    for epoch in range(18):
        loss, accuracy = train_epoch(model, loader, optimizer, monitor)
        if epoch % 6 == 5:
            print(f"epoch {epoch + 1}: loss {loss:.3f} acc {accuracy:.2f}", monitor.summary())


if __name__ == "__main__":
    main()
