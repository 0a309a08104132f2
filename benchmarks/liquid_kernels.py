"""The kernels of the liquid family: how far from plain torch, and how long each takes.

    python benchmarks/liquid_kernels.py --seconds 60

Needs a GPU. The most important lines come first; the rest is not measured when the time is over.
"""

from __future__ import annotations

import argparse
import sys
import time
import traceback
from typing import Any

import torch
from overhead import hardware

from holdfast_models.liquid.kernels import check
from holdfast_models.liquid.kernels.choice import using

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
# As in phases 1, 2 and 3, 4; then other forms of the same.
CASES: list[tuple[str, tuple[Any, ...], int]] = [
    ("cfc", (64, 128), 64),
    ("lif", ("subtract", "fast_sigmoid"), 64),
    ("cfc", (128, 128), 256),
    ("selective", (1024, 16), 256),
    ("scan", (), 256),
    ("cfc", (256, 128), 256),
    ("selective", (1024, 32), 256),
    ("cfc", (48, 0), 70),
    ("lif", ("zero", "atan"), 70),
    ("lif", ("none", "sigmoid"), 70),
    ("lif", ("subtract", "triangle"), 70),
]


def milliseconds(kind: str, sizes: tuple[Any, ...], tokens: int, how: Any) -> float:
    """Forward and backward of what the check runs."""
    torch.manual_seed(0)
    with torch.device(DEVICE), using(how):
        function, leaves = check.CASES[kind](tokens, *sizes)

        def once() -> None:
            values = function(*leaves)
            torch.autograd.grad(values, leaves, [torch.ones_like(one) for one in values])

        once()
        torch.cuda.synchronize()
        began = time.perf_counter()
        for _ in range(3):
            once()
        torch.cuda.synchronize()
    return (time.perf_counter() - began) / 3 * 1000


def main() -> int:
    parser = argparse.ArgumentParser(description="Kernels of the liquid family.")
    parser.add_argument("--seconds", type=float, default=60.0)
    args = parser.parse_args()
    print(hardware(), flush=True)
    end = time.perf_counter() + args.seconds
    for kind, sizes, tokens in CASES:
        if time.perf_counter() > end:
            break
        began = time.perf_counter()
        try:
            torch.manual_seed(0)
            apart = check.compared(kind, DEVICE, sizes, tokens)
            took = time.perf_counter() - began
            fused, plain = (milliseconds(kind, sizes, tokens, how) for how in ("always", "off"))
            print(
                f"{kind} {sizes} T={tokens}: values {apart[0]:.1e} gradients {apart[1]:.1e} apart; "
                f"{fused:.2f} ms with the kernel, {plain:.2f} ms without ({took:.0f} s to try)",
                flush=True,
            )
        except Exception:
            print(f"{kind} {sizes}: {traceback.format_exc(limit=-2)[-1500:]}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
