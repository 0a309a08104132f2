from collections import defaultdict

import torch
import torch.nn as nn
import torch.nn.functional as F

activity = defaultdict(list)


def watch_relus(model):
    handles = []
    for name, module in model.named_modules():
        if isinstance(module, nn.ReLU):

            def record(mod, inputs, output, key=name):
                activity[key].append(output.detach())

            handles.append(module.register_forward_hook(record))
    return handles


def silent_fraction(last=16):
    fractions = {}
    for name, outputs in activity.items():
        recent = torch.cat(outputs[-last:])
        dims = [d for d in range(recent.dim()) if d != 1]
        fractions[name] = (recent.amax(dim=dims) == 0).float().mean().item()
    return fractions


def make_net(classes):
    return nn.Sequential(
        nn.Conv2d(1, 16, 5, stride=2, padding=2),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(32 * 8 * 8, 128),
        nn.ReLU(),
        nn.Linear(128, classes),
    )


def glyphs(count, classes, seed):
    gen = torch.Generator().manual_seed(seed)
    prototypes = (torch.rand(classes, 1, 32, 32, generator=gen) > 0.7).float()
    labels = torch.randint(0, classes, (count,), generator=gen)
    images = prototypes[labels] + 0.5 * torch.randn(count, 1, 32, 32, generator=gen)
    return images, labels


def fit(model, images, labels, epochs, batch_size):
    opt = torch.optim.SGD(model.parameters(), lr=0.03, momentum=0.9)
    for epoch in range(epochs):
        order = torch.randperm(len(images))
        total = correct = 0
        for start in range(0, len(images), batch_size):
            idx = order[start : start + batch_size]
            logits = model(images[idx])
            loss = F.cross_entropy(logits, labels[idx])
            opt.zero_grad()
            loss.backward()
            opt.step()
            correct += (logits.argmax(1) == labels[idx]).sum().item()
            total += len(idx)
        silent = ", ".join(f"{k}:{v:.2f}" for k, v in silent_fraction().items())
        print(f"epoch {epoch} accuracy {correct / total:.3f} silent units {silent}")


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.manual_seed(2)
    images, labels = glyphs(2400, classes=30, seed=2)
    net = make_net(30)
    watch_relus(net)
    fit(net, images, labels, epochs=6, batch_size=48)
