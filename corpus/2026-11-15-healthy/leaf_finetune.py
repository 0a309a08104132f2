import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.set_num_threads(1)
torch.manual_seed(41)

KINDS = 6


def make_leaves(count, classes, tilt):
    axis = torch.linspace(-1, 1, 40)
    yy, xx = torch.meshgrid(axis, axis, indexing="ij")
    labels = torch.randint(0, classes, (count,))
    lobes = (labels + 2).float().view(-1, 1, 1)
    angle = torch.atan2(yy, xx) + 6.28 * torch.rand(count, 1, 1)
    edge = 0.6 + 0.25 * torch.cos(lobes * angle + tilt)
    inside = ((yy**2 + xx**2).sqrt() < edge).float()
    images = inside[:, None] * (0.4 + 0.6 * torch.rand(count, 3, 1, 1))
    return TensorDataset(images + 0.1 * torch.randn(count, 3, 40, 40), labels)


def stage(inputs, outputs):
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, padding=1, bias=False),
        nn.BatchNorm2d(outputs),
        nn.ReLU(),
        nn.MaxPool2d(2),
    )


def build(classes):
    backbone = nn.Sequential(stage(3, 24), stage(24, 40), stage(40, 64))
    head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, classes))
    return backbone, head


def pretrain(backbone, head):
    model = nn.Sequential(backbone, head).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for images, labels in DataLoader(make_leaves(960, 4, 0.0), batch_size=32, shuffle=True):
        loss = nn.functional.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"source task done, loss {loss.item():.3f}")


def finetune(backbone, epochs=6):
    head = build(KINDS)[1]
    model = nn.Sequential(backbone, head)
    backbone.requires_grad_(False)
    loader = DataLoader(make_leaves(800, KINDS, 0.7), batch_size=32, shuffle=True)
    optimizer = torch.optim.AdamW(head.parameters(), lr=5e-3)
    thaw_at = {1: 2, 3: 1, 4: 0}

    # statistics of the source data are kept: batches here are small and one-sided
    model.eval()
    for epoch in range(epochs):
        if epoch in thaw_at:
            part = backbone[thaw_at[epoch]].requires_grad_(True)
            optimizer.add_param_group({"params": list(part.parameters()), "lr": 5e-4})
        hits, running = 0, 0.0
        for images, labels in loader:
            optimizer.zero_grad()
            logits = model(images)
            loss = nn.functional.cross_entropy(logits, labels)
            loss.backward()
            optimizer.step()
            running += loss.item()
            hits += int((logits.argmax(1) == labels).sum())
        tuned = sum(p.numel() for p in model.parameters() if p.requires_grad)
        accuracy = hits / len(loader.dataset)
        print(f"epoch {epoch} loss {running / len(loader):.3f} acc {accuracy:.3f} tuned {tuned}")


if __name__ == "__main__":
    backbone, head = build(4)
    pretrain(backbone, head)
    finetune(backbone)
