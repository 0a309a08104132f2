"""The median of all losses so far is computed anew on every step.

Every loss of every sample is kept, and all of them are sorted each time. Users report this as
"the first epoch takes a minute, the tenth takes ten".
"""

import torch
from torch import nn

CODE = "TPT004"
FIRST_STEP = 60
LINE_OF = "median = sorted(history)[len(history) // 2]"


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    x = torch.randn(2048, 16)
    y = (x.sum(dim=1) > 0).long()
    model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    history: list[float] = []
    for step in range(300):
        chosen = torch.randint(0, len(x), (128,))
        losses = nn.functional.cross_entropy(model(x[chosen]), y[chosen], reduction="none")
        optimizer.zero_grad()
        losses.mean().backward()
        optimizer.step()
        history += losses.tolist()
        median = sorted(history)[len(history) // 2]
        if step % 100 == 99:
            print(f"step {step}: median loss {median:.3f}")


if __name__ == "__main__":
    main()
