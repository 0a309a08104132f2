import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(17)
rng = np.random.default_rng(17)
SIDE, BATCH, EPOCHS = 40, 10, 4


def draw_cells(n):
    yy, xx = np.mgrid[:SIDE, :SIDE]
    masks = np.zeros((n, SIDE, SIDE), dtype=np.float32)
    for m in masks:
        for _ in range(rng.integers(2, 6)):
            cy, cx = rng.uniform(6, SIDE - 6, 2)
            ry, rx = rng.uniform(3, 8, 2)
            m[((yy - cy) / ry) ** 2 + ((xx - cx) / rx) ** 2 < 1] = 1.0
    images = 0.8 * masks + 0.4 * rng.standard_normal(masks.shape)
    return images.astype(np.float32), masks


def augment(images, masks):
    out_i, out_m = np.empty_like(images), np.empty_like(masks)
    for j, (im, ma) in enumerate(zip(images, masks)):
        k = rng.integers(4)
        im, ma = np.rot90(im, k), np.rot90(ma, k)
        if rng.random() < 0.5:
            im, ma = im[:, ::-1], ma[:, ::-1]
        im = np.sign(im) * np.abs(im) ** rng.uniform(0.8, 1.2)
        blur = sum(np.roll(im, (p - 1, q - 1), (0, 1)) for p, q in np.ndindex(3, 3)) / 9
        im = im + rng.uniform(0, 0.5) * (blur - im)
        out_i[j] = im * rng.uniform(0.8, 1.2) + 0.05 * rng.standard_normal(im.shape)
        out_m[j] = ma
    return torch.from_numpy(out_i)[:, None], torch.from_numpy(out_m)[:, None]


def double(i, o):
    return nn.Sequential(
        nn.Conv2d(i, o, 3, padding=1), nn.ReLU(), nn.Conv2d(o, o, 3, padding=1), nn.ReLU()
    )


class TinyUNet(nn.Module):
    def __init__(self, c=8):
        super().__init__()
        self.d1, self.d2, self.mid = double(1, c), double(c, 2 * c), double(2 * c, 4 * c)
        self.u2, self.u1 = double(6 * c, 2 * c), double(3 * c, c)
        self.out = nn.Conv2d(c, 1, 1)

    def forward(self, x):
        a = self.d1(x)
        b = self.d2(F.max_pool2d(a, 2))
        m = self.mid(F.max_pool2d(b, 2))
        y = self.u2(torch.cat([F.interpolate(m, scale_factor=2.0), b], 1))
        return self.out(self.u1(torch.cat([F.interpolate(y, scale_factor=2.0), a], 1)))


def dice(logits, target):
    p = torch.sigmoid(logits)
    return 1 - (2 * (p * target).sum() + 1) / (p.sum() + target.sum() + 1)


train_x, train_y = draw_cells(240)
val_x, val_y = draw_cells(40)
net = TinyUNet()
model = torch.compile(net, backend="aot_eager")
opt = torch.optim.Adam(net.parameters(), lr=3e-3)
history = {"train": [], "val": []}

for epoch in range(EPOCHS):
    perm = rng.permutation(len(train_x))
    running = 0.0
    for b in range(0, len(perm), BATCH):
        x, y = augment(train_x[perm[b : b + BATCH]], train_y[perm[b : b + BATCH]])
        logits = model(x)
        loss = F.binary_cross_entropy_with_logits(logits, y) + dice(logits, y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        running += loss.item()
    with torch.no_grad():
        scores = []
        for b in range(0, len(val_x), BATCH):
            x = torch.from_numpy(val_x[b : b + BATCH])[:, None]
            y = torch.from_numpy(val_y[b : b + BATCH])[:, None]
            scores.append(1 - dice(model(x), y).item())
    history["train"].append(running * BATCH / len(perm))
    history["val"].append(float(np.mean(scores)))
    print(f"epoch {epoch + 1} loss {history['train'][-1]:.4f} dice {history['val'][-1]:.3f}")
