"""Slow after the first batch: every step works on everything that came before it.

    python examples/slow_after_first_batch.py                   # steps take ever longer
    holdfast run --look-out examples/slow_after_first_batch.py  # names the line that grows

A ranking model is trained, and its area under the curve is shown "over the epoch so far". See
docs/guides/slow_after_the_first_batch.md.
"""

import time

import torch
from torch import nn

STEPS, BATCH = 250, 256


def area_under_curve(scores: torch.Tensor, labels: torch.Tensor) -> float:
    """The share of pairs of a click and no click that are ranked right."""
    order = scores.argsort()
    ranks = torch.empty_like(order)
    ranks[order] = torch.arange(1, len(order) + 1)
    clicks = labels.bool()
    above = ranks[clicks].sum() - clicks.sum() * (clicks.sum() + 1) / 2
    return float(above / (clicks.sum() * (~clicks).sum()).clamp(min=1))


def main() -> None:
    """Train for one epoch."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Linear(32, 128), nn.ReLU(), nn.Linear(128, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    taste = torch.randn(32)
    scores: list[torch.Tensor] = []
    labels: list[torch.Tensor] = []
    began = time.perf_counter()
    for step in range(STEPS):
        features = torch.randn(BATCH, 32)
        clicked = (features @ taste + torch.randn(BATCH) > 0).float()
        logits = model(features)[:, 0]
        loss = nn.functional.binary_cross_entropy_with_logits(logits, clicked)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scores.append(logits.detach())
        labels.append(clicked)
        area = area_under_curve(torch.cat(scores), torch.cat(labels))
        if step % 50 == 0:
            spent, began = time.perf_counter() - began, time.perf_counter()
            print(f"step {step} loss {loss.item():.4f} area {area:.3f} ({spent:.2f} s)")


if __name__ == "__main__":
    main()
