import torch
import torch.nn as nn
import torch.nn.functional as F


class GrowingNet(nn.Module):
    def __init__(self, n_in, width, n_out):
        super().__init__()
        self.stem = nn.Linear(n_in, width)
        self.blocks = nn.ModuleList()
        self.head = nn.Linear(width, n_out)
        self.width = width

    def grow(self):
        block = nn.Sequential(
            nn.LayerNorm(self.width),
            nn.Linear(self.width, self.width),
            nn.GELU(),
            nn.Linear(self.width, self.width),
        )
        nn.init.zeros_(block[-1].weight)
        nn.init.zeros_(block[-1].bias)
        self.blocks.append(block)
        return block

    def forward(self, x):
        h = F.gelu(self.stem(x))
        for block in self.blocks:
            h = h + block(h)
        return self.head(h)


def target_fn(x):
    return torch.stack(
        [torch.sin(2 * x[:, 0]) * x[:, 1], (x[:, 2] * x[:, 3]).tanh(), x[:, 4:8].norm(dim=1)], dim=1
    )


def run(stages=5, steps_per_stage=80, batch=256, n_in=16, width=256):
    torch.set_num_threads(1)
    torch.manual_seed(12)
    net = GrowingNet(n_in, width, 3)
    net.grow()
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    for stage in range(stages):
        if stage > 0:
            opt.add_param_group({"params": list(net.grow().parameters()), "lr": 5e-4})
        total = 0.0
        for step in range(steps_per_stage):
            x = torch.randn(batch, n_in)
            loss = F.mse_loss(net(x), target_fn(x))
            opt.zero_grad()
            loss.backward()
            opt.step()
            total += loss.item()
        n_params = sum(p.numel() for p in net.parameters())
        print(
            f"stage {stage}: {len(net.blocks)} blocks, {n_params} weights, mse {total / steps_per_stage:.4f}"
        )


if __name__ == "__main__":
    run()
