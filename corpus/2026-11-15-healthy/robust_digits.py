import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.set_num_threads(1)
torch.manual_seed(61)

GLYPHS = [
    "111101101101111",
    "010110010010111",
    "111001111100111",
    "111001111001111",
    "101101111001001",
    "111100111001111",
    "111100111101111",
    "111001010010010",
    "111101111101111",
    "111101111001111",
]


def draw_digits(count, size=24):
    shapes = torch.tensor([[float(c) for c in glyph] for glyph in GLYPHS]).view(10, 1, 5, 3)
    shapes = F.interpolate(shapes, size=(15, 9))
    labels = torch.randint(0, 10, (count,))
    canvas = torch.zeros(count, 1, size, size)
    for i, label in enumerate(labels.tolist()):
        top, left = torch.randint(2, 7, (2,)).tolist()
        canvas[i, :, top : top + 15, left : left + 9] = shapes[label]
    return (canvas + 0.1 * torch.randn_like(canvas)).clamp(0, 1), labels


def build_model():
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, stride=2, padding=1),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, stride=2, padding=1),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.Flatten(),
        nn.Dropout(0.2),
        nn.Linear(32 * 6 * 6, 10),
    )


def perturb(model, images, labels, radius=0.1, stride=0.04, rounds=4):
    model.eval()
    delta = torch.empty_like(images).uniform_(-radius, radius)
    for _ in range(rounds):
        delta.requires_grad_(True)
        cost = F.cross_entropy(model(images + delta), labels)
        (slope,) = torch.autograd.grad(cost, delta)
        delta = (delta.detach() + stride * slope.sign()).clamp(-radius, radius)
    model.train()
    return (images + delta).clamp(0, 1)


def saliency(model, image):
    image = image.clone().requires_grad_(True)
    model.eval()
    model(image).amax().backward()
    model.train()
    return image.grad.abs().sum().item()


images, labels = draw_digits(1400)
train = DataLoader(TensorDataset(images[:1200], labels[:1200]), batch_size=50, shuffle=True)
model = build_model()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4)
confidence = torch.zeros(20)

for epoch in range(9):
    model.train()
    total = 0.0
    for x, y in train:
        attacked = perturb(model, x, y)
        logits = model(attacked)
        loss = F.cross_entropy(logits, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.item()
        with torch.no_grad():
            confidence += torch.histc(logits.softmax(1).amax(1), bins=20, min=0, max=1)

    attacked = perturb(model, images[1200:], labels[1200:])
    model.eval()
    with torch.no_grad():
        clean = (model(images[1200:]).argmax(1) == labels[1200:]).float().mean().item()
        robust = (model(attacked).argmax(1) == labels[1200:]).float().mean().item()
    pull = saliency(model, images[1200:1201])
    print(f"{epoch}: loss {total / len(train):.3f} {clean:.3f} {robust:.3f} pull {pull:.2f}")

sure = (confidence[-4:].sum() / confidence.sum()).item()
print(f"share of confident answers {sure:.3f}")
