"""Forecasts ocean drift with a deep residual net trained with LayerDrop."""

import random
from dataclasses import dataclass

import torch
from torch import nn


@dataclass
class Options:
    depth: int = 6
    width: int = 96
    drop: float = 0.2
    steps: int = 100
    batch: int = 320
    lr: float = 2e-3


def count_nodes(graph_module, example_inputs):
    """Backend that runs the captured graph as it is and keeps track of its size."""
    sizes.append(len(graph_module.graph.nodes))
    return graph_module.forward


sizes = []


class Layer(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.inner = nn.Linear(width, 2 * width)
        self.outer = nn.Linear(2 * width, width)

    def forward(self, x):
        return x + self.outer(torch.tanh(self.inner(x)))


class DriftNet(nn.Module):
    def __init__(self, options):
        super().__init__()
        self.stem = nn.Linear(16, options.width)
        self.layers = nn.ModuleList(Layer(options.width) for _ in range(options.depth))
        self.head = nn.Linear(options.width, 2)

    def forward(self, x, keep):
        x = self.stem(x)
        for layer, used in zip(self.layers, keep):
            if used:
                x = layer(x)
        return self.head(x)


def buoy_batch(n, mixing):
    state = torch.randn(n, 16)
    drift = torch.tanh(state @ mixing)
    return state, drift[:, :2] * (1 + drift[:, 2:3])


def main(options):
    torch.set_num_threads(1)
    torch.manual_seed(17)
    random.seed(17)
    torch._dynamo.config.recompile_limit = 512
    mixing = torch.randn(16, 3) / 4
    net = DriftNet(options)
    compiled = torch.compile(net, backend=count_nodes)
    optimizer = torch.optim.AdamW(net.parameters(), lr=options.lr)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, total_steps=options.steps)
    for step in range(options.steps):
        state, drift = buoy_batch(options.batch, mixing)
        keep = [random.random() >= options.drop for _ in range(options.depth)]
        loss = nn.functional.mse_loss(compiled(state, keep), drift)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
        if step % 20 == 0 or step == options.steps - 1:
            print(f"step {step:3d} loss {loss.item():.4f}")
    print("largest graph:", max(sizes), "nodes")


if __name__ == "__main__":
    main(Options())
