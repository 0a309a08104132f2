"""Out of memory on batch 2: a sum of losses keeps the graph of every batch.

    python examples/oom_on_second_batch.py                   # grows by 36 MB with every batch
    python examples/oom_on_second_batch.py --limit 200       # MB, as on a small GPU: it dies
    holdfast run --look-out examples/oom_on_second_batch.py  # names variable, line and change

A network removes noise from pictures. Two losses share its activations, so backward keeps them
(``retain_graph=True``: needed once, written twice), and the loss is summed up for the epoch's
average, as a tensor. See docs/guides/oom_on_batch_2.md.
"""

import argparse
import resource

import torch
from torch import nn

BATCHES = 40


def main() -> None:
    """Train for an epoch of forty batches."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--limit", type=int, help="megabytes the process may grow by")
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = nn.Sequential(
        nn.Conv2d(1, 24, 3, padding=1), nn.GELU(), nn.Conv2d(24, 24, 3, padding=1), nn.GELU(),
        nn.Conv2d(24, 1, 3, padding=1),
    )  # fmt: skip
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    clean = torch.rand(64, 1, 40, 40).round()
    if args.limit:
        with open("/proc/self/statm") as file:
            mapped = int(file.read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (mapped + args.limit * 2**20,) * 2)
    epoch_loss = 0.0
    for batch in range(BATCHES):
        restored = model(clean + 0.3 * torch.randn_like(clean))
        loss = nn.functional.mse_loss(restored, clean)
        edges = nn.functional.l1_loss(restored.diff(dim=-1), clean.diff(dim=-1))
        optimizer.zero_grad()
        (0.1 * edges).backward(retain_graph=True)
        loss.backward(retain_graph=True)
        optimizer.step()
        epoch_loss += loss
        if batch < 3 or batch % 10 == 0:
            print(f"batch {batch} loss {loss.item():.4f}")
    print(f"average loss {float(epoch_loss) / BATCHES:.4f}")


if __name__ == "__main__":
    main()
