"""A memory of what was seen is carried from step to step with its graph.

Users report this as "each iteration is slower than the one before", mostly after writing
``retain_graph=True`` because of "Trying to backward through the graph a second time".
"""

import torch
from torch import nn

CODE = "MEM003"
FIRST_STEP = 1
LINE_OF = "memory = 0.9 * memory + 0.1 * features"


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    encoder = nn.Sequential(nn.Linear(64, 128), nn.Tanh())
    head = nn.Linear(128, 1)
    optimizer = torch.optim.Adam(head.parameters(), lr=1e-3)
    memory = torch.zeros(128)
    loss = torch.tensor(0.0)
    for _ in range(60):
        x = torch.randn(32, 64)
        features = encoder(x).mean(0)
        memory = 0.9 * memory + 0.1 * features
        loss = (memory - features).square().mean() + (head(features.detach()) - 1).square().mean()
        optimizer.zero_grad()
        loss.backward(retain_graph=True)
        optimizer.step()
    print(f"final loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
