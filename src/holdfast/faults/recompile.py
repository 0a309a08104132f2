"""A step counter is an argument of a compiled function: every new value compiles it anew.

The loss is weighted by a Python number that changes with the step, and ``dynamic=False`` makes
each value a guard. Users report this as "torch.compile hit config.recompile_limit".
"""

import torch
from torch import nn

CODE = "TPT003"
FIRST_STEP = 1
LINE_OF = "loss = weighted(model(x[chosen]), y[chosen], 1 + step // 4)"


@torch.compile(backend="eager", dynamic=False)
def weighted(logits: torch.Tensor, target: torch.Tensor, weight: int) -> torch.Tensor:
    return nn.functional.cross_entropy(logits, target) * weight / (1 + weight)


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    x = torch.randn(2048, 16)
    y = (x.sum(dim=1) > 0).long()
    model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loss = torch.zeros(())
    for step in range(60):
        chosen = torch.randint(0, len(x), (32,))
        loss = weighted(model(x[chosen]), y[chosen], 1 + step // 4)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"loss {loss.item():.3f}")


if __name__ == "__main__":
    main()
