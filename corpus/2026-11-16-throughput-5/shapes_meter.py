"""Classify rendered shapes (disc, square, cross, ring, stripes) with a compiled train step."""
import torch
import torch.nn as nn
import torch.nn.functional as F
from torchmetrics.classification import MulticlassAccuracy

torch.set_num_threads(1)

N_CLASSES, SIDE = 5, 28


def render(n, generator):
    """Draw n noisy SIDE x SIDE images, all on the fly from the generator."""
    label = torch.randint(N_CLASSES, (n,), generator=generator)
    grid = torch.linspace(-1, 1, SIDE)
    y, x = torch.meshgrid(grid, grid, indexing="ij")
    centre = torch.rand(n, 2, 1, 1, generator=generator) * 0.6 - 0.3
    radius = torch.rand(n, 1, 1, generator=generator) * 0.3 + 0.35
    dx, dy = x - centre[:, 0], y - centre[:, 1]
    rr = (dx ** 2 + dy ** 2).sqrt()
    masks = torch.stack(
        [
            rr < radius,
            torch.maximum(dx.abs(), dy.abs()) < 0.8 * radius,
            (torch.minimum(dx.abs(), dy.abs()) < 0.12) & (rr < radius),
            (rr < radius) & (rr > 0.65 * radius),
            (torch.sin(14 * dx) > 0.2) & (rr < radius),
        ],
        dim=1,
    )
    image = masks[torch.arange(n), label].float().unsqueeze(1)
    noise = torch.randn(image.shape, generator=generator)
    return image + 0.6 * noise, label


class ConvUnit(nn.Module):
    def __init__(self, cin, cout, stride):
        super().__init__()
        self.conv = nn.Conv2d(cin, cout, 3, stride=stride, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(cout)
        self.skip = nn.Conv2d(cin, cout, 1, stride=stride, bias=False)

    def forward(self, x):
        return F.relu(self.norm(self.conv(x)) + self.skip(x))


class ShapeNet(nn.Module):
    def __init__(self, width=8):
        super().__init__()
        self.units = nn.Sequential(
            ConvUnit(1, width, 2),
            ConvUnit(width, 2 * width, 2),
            ConvUnit(2 * width, 4 * width, 2),
        )
        self.head = nn.Linear(4 * width, N_CLASSES)

    def forward(self, x):
        return self.head(self.units(x).mean(dim=(2, 3)))


net = ShapeNet()
accuracy = MulticlassAccuracy(N_CLASSES, average="micro", validate_args=False)


@torch.compile(backend="eager")
def forward_loss(images, labels):
    logits = net(images)
    loss = F.cross_entropy(logits, labels, label_smoothing=0.05)
    accuracy.update(logits.detach(), labels)
    return loss


def fit(steps=160, batch=32, report_every=40):
    gen = torch.Generator().manual_seed(5)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.08, momentum=0.9, weight_decay=1e-4)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for step in range(1, steps + 1):
        images, labels = render(batch, gen)
        loss = forward_loss(images, labels)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        schedule.step()
        if step % report_every == 0:
            acc = accuracy.compute()
            print(f"step {step:4d}  loss {loss.item():.3f}  running acc {acc.item():.3f}")


if __name__ == "__main__":
    torch.manual_seed(5)
    fit()
