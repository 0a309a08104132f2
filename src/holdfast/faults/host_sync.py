"""A metric reads predictions and labels one by one.

The accuracy of every batch is counted in a Python loop with ``.item()`` on each prediction and
each label. Users report this as "computing accuracy doubles my step time".
"""

import torch
from torch import nn

CODE = "TPT002"
FIRST_STEP = 0
LINE_OF = "if predicted[i].item() == target[i].item():"


def accuracy(logits: torch.Tensor, target: torch.Tensor) -> float:
    predicted = logits.argmax(dim=1)
    correct = 0
    for i in range(len(target)):
        if predicted[i].item() == target[i].item():
            correct += 1
    return correct / len(target)


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    x = torch.randn(4096, 24)
    y = (x[:, 0] + x[:, 1] * x[:, 2] > 0).long()
    model = nn.Sequential(nn.Linear(24, 96), nn.ReLU(), nn.Linear(96, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    score = 0.0
    for step in range(300):
        chosen = torch.randint(0, len(x), (512,))
        logits = model(x[chosen])
        loss = nn.functional.cross_entropy(logits, y[chosen])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        score = 0.95 * score + 0.05 * accuracy(logits.detach(), y[chosen])
        if step % 100 == 99:
            print(f"step {step}: loss {loss.item():.3f}, accuracy {score:.2f}")


if __name__ == "__main__":
    main()
