import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.set_num_threads(1)
torch.manual_seed(3)
rng = np.random.default_rng(3)

SIZE = 32
CLASSES = 6
EPOCHS = 4


def make_textures(count):
    grid = np.stack(np.meshgrid(np.arange(SIZE), np.arange(SIZE)), 0).astype(np.float32)
    labels = rng.integers(0, CLASSES, count)
    images = np.empty((count, 1, SIZE, SIZE), np.float32)
    for i, label in enumerate(labels):
        angle = np.pi * label / CLASSES + rng.normal(0, 0.08)
        freq = 0.5 + 0.1 * rng.random()
        wave = np.cos(freq * (np.cos(angle) * grid[0] + np.sin(angle) * grid[1]) + rng.random() * 6)
        images[i, 0] = wave + rng.normal(0, 0.6, (SIZE, SIZE))
    return torch.from_numpy(images), torch.from_numpy(labels)


class TextureNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(1, 16, 5, stride=2, padding=2), nn.BatchNorm2d(16), nn.ReLU())
        self.body = nn.Sequential(
            nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(),
            nn.Conv2d(32, 32, 3, stride=2, padding=1), nn.BatchNorm2d(32), nn.ReLU(),
        )
        self.pool = nn.AdaptiveAvgPool2d(2)
        self.head = nn.Linear(32 * 4, CLASSES)

    def forward(self, x):
        x = self.body(self.stem(x))
        return self.head(self.pool(x).flatten(1))


class LayerWatcher:
    """Looks at the inputs of chosen layers while the network trains."""

    def __init__(self, model, layer_types=(nn.Conv2d, nn.Linear)):
        self.activations = {}
        self.handles = []
        for name, module in model.named_modules():
            if isinstance(module, layer_types):
                self.activations[name] = []
                self.handles.append(module.register_forward_hook(self._make_hook(name)))

    def _make_hook(self, name):
        def hook(module, inputs, output):
            if module.training:
                self.activations[name].append(inputs[0].data.cpu())
        return hook

    def summary(self):
        rows = []
        for name, seen in self.activations.items():
            last = seen[-1]
            rows.append(f"{name}: std {last.std().item():.3f} zero {100 * (last == 0).float().mean().item():.0f}%")
        return " | ".join(rows)

    def close(self):
        for handle in self.handles:
            handle.remove()


images, labels = make_textures(3200)
test_images, test_labels = make_textures(600)
loader = DataLoader(TensorDataset(images, labels), batch_size=64, shuffle=True)

model = TextureNet()
watcher = LayerWatcher(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4)
criterion = nn.CrossEntropyLoss(label_smoothing=0.05)

for epoch in range(EPOCHS):
    model.train()
    running = 0.0
    for batch, target in loader:
        loss = criterion(model(batch), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        running += loss.item()

    model.eval()
    with torch.no_grad():
        accuracy = (model(test_images).argmax(1) == test_labels).float().mean().item()
    print(f"epoch {epoch + 1}: loss {running / len(loader):.3f} test acc {accuracy:.3f}")
    print("   " + watcher.summary())

watcher.close()
print("finished")
