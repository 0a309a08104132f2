import torch
import torch.nn as nn
import torch.nn.functional as F

CLASSES, CHANNELS, LENGTH = 6, 4, 96


def ecg_like(n, seed):
    gen = torch.Generator().manual_seed(seed)
    y = torch.randint(0, CLASSES, (n,), generator=gen)
    t = torch.linspace(0, 1, LENGTH)
    freq = (3 + 2 * y.float())[:, None, None] + 0.5 * torch.randn(n, CHANNELS, 1, generator=gen)
    x = torch.sin(6.283 * freq * t) + 1.2 * torch.randn(n, CHANNELS, LENGTH, generator=gen)
    return x, y


def conv_net(width, depth):
    layers, c = [], CHANNELS
    for _ in range(depth):
        layers += [nn.Conv1d(c, width, 7, padding=3), nn.BatchNorm1d(width), nn.ReLU()]
        c = width
    return nn.Sequential(
        *layers, nn.AdaptiveAvgPool1d(8), nn.Flatten(), nn.Linear(width * 8, CLASSES)
    )


def batches(x, y, size):
    for idx in torch.randperm(len(x)).split(size):
        yield x[idx], y[idx]


def fit(name, model, objective, x, y, epochs, lr):
    opt = torch.optim.Adam(model.parameters(), lr=lr)
    model.train()
    for epoch in range(epochs):
        total = torch.zeros(())
        for n, (xb, yb) in enumerate(batches(x, y, 32), start=1):
            loss = objective(model(xb), xb, yb)
            opt.zero_grad()
            loss.backward()
            opt.step()
            total += loss.detach()
        print(f"{name} epoch {epoch} loss {total.item() / n:.4f}")
    return model.eval()


def soft_targets(teacher, temperature=3.0, alpha=0.7):
    def objective(logits, xb, yb):
        with torch.no_grad():
            target = (teacher(xb) / temperature).softmax(dim=1)
        soft = F.kl_div((logits / temperature).log_softmax(1), target, reduction="batchmean")
        return alpha * temperature**2 * soft + (1 - alpha) * F.cross_entropy(logits, yb)

    return objective


@torch.no_grad()
def accuracy(model, x, y):
    return (model(x).argmax(1) == y).float().mean().item()


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.manual_seed(50)
    x, y = ecg_like(1600, seed=1)
    x_test, y_test = ecg_like(400, seed=2)
    teacher = fit(
        "teacher", conv_net(40, 4), lambda out, xb, yb: F.cross_entropy(out, yb), x, y, 3, 2e-3
    )
    print(f"teacher accuracy {accuracy(teacher, x_test, y_test):.3f}")
    student = fit("student", conv_net(12, 2), soft_targets(teacher), x, y, 4, 3e-3)
    print(f"student accuracy {accuracy(student, x_test, y_test):.3f}")
