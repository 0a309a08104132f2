import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(3)

EPOCHS = 4
STEPS_PER_EPOCH = 50
BATCH = 8
SIZE = 64


def render_batch(n):
    ys, xs = torch.meshgrid(torch.linspace(-1, 1, SIZE), torch.linspace(-1, 1, SIZE), indexing="ij")
    cx, cy = torch.rand(2, n, 1, 1) * 1.2 - 0.6
    radius = 0.25 + 0.3 * torch.rand(n, 1, 1)
    inside = ((xs - cx) ** 2 + (ys - cy) ** 2 < radius**2).float()
    depth = 2.0 + 0.5 * ys.expand(n, -1, -1) - inside
    shade = 1.0 / depth
    image = torch.stack([shade, inside * 0.6 + 0.2, shade * (1 - inside)], dim=1)
    return image + 0.03 * torch.randn_like(image), depth.unsqueeze(1)


encoder = nn.Sequential(
    nn.Conv2d(3, 8, 3, stride=2, padding=1),
    nn.BatchNorm2d(8),
    nn.ReLU(),
    nn.Conv2d(8, 16, 3, padding=1),
    nn.BatchNorm2d(16),
    nn.ReLU(),
)
decoder = nn.Sequential(
    nn.Upsample(scale_factor=2, mode="bilinear", align_corners=False),
    nn.Conv2d(16, 8, 3, padding=1),
    nn.ReLU(),
    nn.Conv2d(8, 1, 3, padding=1),
)
net = nn.Sequential(encoder, decoder)
optimizer = torch.optim.AdamW(net.parameters(), lr=2e-3)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, EPOCHS * STEPS_PER_EPOCH)

report = {"train": {"abs_rel": 0.0, "rmse": 0.0, "seen": 0}, "lr": []}

for epoch in range(EPOCHS):
    net.train()
    epoch_loss = 0.0
    for it in range(STEPS_PER_EPOCH):
        image, depth = render_batch(BATCH)
        pred = net(image)
        loss = F.smooth_l1_loss(pred, depth)

        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()

        epoch_loss += loss.item()
        rel = (pred - depth).abs() / depth
        report["train"]["abs_rel"] += rel.mean()
        report["train"]["rmse"] += F.mse_loss(pred.detach(), depth).sqrt().item()
        report["train"]["seen"] += 1
    report["lr"].append(scheduler.get_last_lr()[0])
    seen = report["train"]["seen"]
    print(
        f"epoch {epoch}: loss {epoch_loss / STEPS_PER_EPOCH:.4f} "
        f"abs_rel {report['train']['abs_rel'].item() / seen:.4f} "
        f"rmse {report['train']['rmse'] / seen:.4f}"
    )
