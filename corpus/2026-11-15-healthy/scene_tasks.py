import torch
import torch.nn.functional as F
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(13)


def make_scenes(count, size=32):
    """Images with a depth map (sensor holes are NaN), a mask and an edge map."""
    axis = torch.linspace(-1, 1, size)
    yy, xx = torch.meshgrid(axis, axis, indexing="ij")
    centre = torch.rand(count, 2, 1, 1) - 0.5
    radius = 0.25 + 0.3 * torch.rand(count, 1, 1)
    distance = ((yy - centre[:, 0]) ** 2 + (xx - centre[:, 1]) ** 2).sqrt()
    mask = (distance < radius).float()
    depth = 2.0 - mask * (radius**2 - distance**2).clamp(min=0).sqrt()
    edge = ((distance - radius).abs() < 0.08).float()
    image = torch.stack([2.5 - depth, mask * 0.5, 0.2 * yy.expand_as(mask)], dim=1)
    depth = depth.masked_fill(torch.rand_like(depth) < 0.15, float("nan"))
    return image + 0.1 * torch.randn_like(image), depth, mask, edge


class SceneNet(nn.Module):
    def __init__(self, width=18):
        super().__init__()
        self.trunk = nn.Sequential(
            nn.Conv2d(3, width, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(width, width, 3, padding=2, dilation=2),
            nn.ReLU(),
            nn.Conv2d(width, width, 3, padding=4, dilation=4),
            nn.ReLU(),
        )
        self.heads = nn.ModuleDict({k: nn.Conv2d(width, 1, 1) for k in ("depth", "mask", "edge")})

    def forward(self, x):
        shared = self.trunk(x)
        return {name: head(shared).squeeze(1) for name, head in self.heads.items()}


def task_losses(out, depth, mask, edge):
    known = ~depth.isnan()
    return {
        "depth": F.l1_loss(out["depth"][known], depth[known]),
        "mask": F.binary_cross_entropy_with_logits(out["mask"], mask),
        "edge": F.binary_cross_entropy_with_logits(out["edge"], edge),
    }


def project_conflicts(rows):
    result = rows.clone()
    for i in range(len(rows)):
        for j in torch.randperm(len(rows)).tolist():
            overlap = result[i] @ rows[j]
            if j != i and overlap < 0:
                result[i] -= overlap / rows[j].square().sum().clamp(min=1e-12) * rows[j]
    return result.sum(0)


net = SceneNet()
trunk_parameters = list(net.trunk.parameters())
optimizer = torch.optim.Adam(net.parameters(), lr=2e-3)
scenes = make_scenes(400)
history = {"depth": [], "mask": [], "edge": []}

for epoch in range(6):
    for rows in torch.randperm(400).split(20):
        batch = [part[rows] for part in scenes]
        losses = task_losses(net(batch[0]), *batch[1:])

        optimizer.zero_grad()
        per_task = []
        for number, (name, loss) in enumerate(losses.items()):
            loss.backward(retain_graph=number < len(losses) - 1)
            per_task.append(torch.cat([p.grad.flatten() for p in trunk_parameters]))
            for p in trunk_parameters:
                p.grad = None
            history[name].append(loss.item())

        merged = project_conflicts(torch.stack(per_task))
        sizes = [p.numel() for p in trunk_parameters]
        for p, piece in zip(trunk_parameters, merged.split(sizes)):
            p.grad = piece.view_as(p)
        optimizer.step()

    summary = "  ".join(f"{k} {sum(v[-20:]) / 20:.4f}" for k, v in history.items())
    print(f"epoch {epoch}: {summary}")
