import math
import random

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)
random.seed(19)
torch.manual_seed(19)

SIZE = 64
BATCH = 24
STEPS = 208


def sampling_grid(angle, scale, size, grids={}):
    """Affine sampling grid for one augmentation; building it is the costly part."""
    key = (angle, scale, size)
    if key not in grids:
        c, s = math.cos(angle) / scale, math.sin(angle) / scale
        theta = torch.tensor([[[c, -s, 0.0], [s, c, 0.0]]])
        grids[key] = F.affine_grid(theta, (1, 1, size, size), align_corners=False)
    return grids[key]


def augment(images):
    grids = []
    for _ in range(len(images)):
        angle = random.uniform(0, 2 * math.pi)
        scale = random.uniform(0.9, 1.1)
        grids.append(sampling_grid(angle, scale, images.shape[-1]))
    return F.grid_sample(images, torch.cat(grids), align_corners=False)


def galaxies(n):
    """Spirals (label 1) and ellipses (label 0), all drawn upright."""
    axis = torch.linspace(-1, 1, SIZE)
    y, x = torch.meshgrid(axis, axis, indexing="ij")
    r, phi = torch.sqrt(x**2 + y**2), torch.atan2(y, x)
    labels = torch.randint(0, 2, (n,))
    wind = torch.rand(n, 1, 1) * 3 + 4
    spiral = torch.exp(-2 * r) * (1 + torch.cos(2 * phi - wind * r))
    ratio = torch.rand(n, 1, 1) * 0.5 + 0.4
    ellipse = 1.3 * torch.exp(-4 * torch.sqrt(x**2 + (y / ratio) ** 2))
    sky = torch.where(labels.view(-1, 1, 1) == 1, spiral, ellipse)
    return (sky + 0.9 * torch.randn(n, SIZE, SIZE)).unsqueeze(1), labels


net = nn.Sequential(
    nn.Conv2d(1, 8, 5, stride=2, padding=2),
    nn.ReLU(),
    nn.Conv2d(8, 16, 3, stride=2, padding=1),
    nn.ReLU(),
    nn.Conv2d(16, 24, 3, stride=2, padding=1),
    nn.ReLU(),
    nn.AdaptiveAvgPool2d(2),
    nn.Flatten(),
    nn.Linear(96, 2),
)
optimizer = torch.optim.Adam(net.parameters(), lr=2e-3)
parts = [galaxies(20) for _ in range(40)]
images = torch.cat([image for image, _ in parts])
labels = torch.cat([label for _, label in parts])
correct = 0

for step in range(1, STEPS + 1):
    pick = torch.randint(0, len(images), (BATCH,))
    logits = net(augment(images[pick]))
    loss = F.cross_entropy(logits, labels[pick])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    correct += (logits.argmax(1) == labels[pick]).sum().item()
    if step % 26 == 0:
        print(f"step {step:4d} loss {loss.item():.3f} acc {correct / (26 * BATCH):.3f}")
        correct = 0
