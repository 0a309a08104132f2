"""Kernels of xec's blocks on a GPU, one by one: milliseconds, gigabytes a second, and who is right.

    python benchmarks/xec_blocks.py --check 32      # compiles them for a width, compares, no timing
    python benchmarks/xec_blocks.py                 # times at the real sizes

Sizes are those of D = 1024 at ``--batch`` events: images after the stem and after downsampling.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from holdfast_models.xec.kernels import check
from holdfast_models.xec.model.blocks import ConvNeXtBlock

SIZES = {
    "inner early": (1, (92, 43), 32),
    "outer early": (1, (44, 71), 32),
    "sides early": (2, (23, 5), 32),
    "inner late": (1, (46, 21), 64),
    "outer late": (1, (22, 35), 64),
    "sides late": (2, (11, 2), 64),
}


@contextlib.contextmanager
def alone() -> Iterator[None]:
    """One process measures at a time; the others may compile."""
    with open(tempfile.gettempdir() + "/xec_blocks.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def milliseconds(act: Callable[[], Any], repeats: int = 10) -> float:
    act()
    torch.cuda.synchronize()
    with alone():
        return _milliseconds(act, repeats)


def _milliseconds(act: Callable[[], Any], repeats: int) -> float:
    act()
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    begin.record()
    for _ in range(repeats):
        act()
    end.record()
    torch.cuda.synchronize()
    return begin.elapsed_time(end) / repeats


def weights_of(block: ConvNeXtBlock) -> tuple[Tensor, ...]:
    """In the order of the operators."""
    norm, response = block.norm, block.response
    wide, narrow = block.widen, block.narrow
    return (norm.weight, norm.bias, wide.weight, wide.bias, response.gamma, response.beta,
            narrow.weight, narrow.bias)  # fmt: skip


def timed(name: str, batch: int, stream: torch.dtype) -> dict[str, float]:
    """Of one block at one size: its kernels, and the block as a whole, plain and fused."""
    from holdfast_models.xec.kernels import depthwise, ops, response

    many, places, channels = SIZES[name]
    block = ConvNeXtBlock(channels).cuda()
    x = torch.randn(batch * many, *places, channels, device="cuda", dtype=stream)
    found: dict[str, float] = {}
    weights = weights_of(block)
    with torch.no_grad():
        d = x.bfloat16()
        conv = block.depthwise
        assert conv.bias is not None
        bias = conv.bias
        for depthwise.REGISTERS in (96, 128, 160):
            found[f"conv, {depthwise.REGISTERS} registers"] = milliseconds(
                lambda: depthwise.convolved(x, conv.weight, bias, torch.bfloat16)
            )
        found["conv back"] = milliseconds(lambda: depthwise.convolved_back(d, conv.weight, x))
        found["filter"] = milliseconds(lambda: depthwise.filter_gradient(x, d, conv.weight))
        half = ops._half(*weights)
        flat, x_flat = d.flatten(1, -2), x.flatten(1, -2)
        seen = torch.ones(1, device="cuda").expand(flat.shape[:2])
        squares = response.squares(flat, seen, half, 1e-6)
        scale = 1 + squares
        found["squares"] = milliseconds(lambda: response.squares(flat, seen, half, 1e-6))
        found["applied"] = milliseconds(
            lambda: response.applied(flat, x_flat, seen, half, scale, 1e-6)
        )
        found["toward share"] = milliseconds(
            lambda: response.toward_share(flat, x_flat, seen, half, scale, 1e-6)
        )
        about = (flat, x_flat, seen, half, scale, scale, 1e-6)
        found["back"] = milliseconds(lambda: response.gradients(*about))
        found["weights"] = milliseconds(lambda: response.weight_gradients(*about))
    toward = torch.randn_like(x)
    leaf = x.requires_grad_()
    for fused in (False, True):
        block.fused = fused

        def whole() -> None:
            with torch.autocast("cuda", torch.bfloat16):
                out = block(leaf)
            torch.autograd.grad(out, [leaf, *block.parameters()], toward.to(out.dtype))

        found["block, fused" if fused else "block, plain"] = milliseconds(whole, 4)
    return found


def stems(batch: int) -> dict[str, float]:
    """The first convolution of the inner face by the library and as one product."""
    conv = torch.nn.Conv2d(2, 32, 4, padding=1).cuda()
    x = torch.randn(batch, 93, 44, 2, device="cuda")

    def convolved() -> Tensor:
        return conv(x.permute(0, 3, 1, 2)).permute(0, 2, 3, 1)

    def product() -> Tensor:
        padded = torch.nn.functional.pad(x.to(torch.bfloat16), (0, 0, 1, 1, 1, 1))
        patches = padded.unfold(1, 4, 1).unfold(2, 4, 1).flatten(3)
        return torch.nn.functional.linear(patches, conv.weight.flatten(1), conv.bias)

    found: dict[str, float] = {}
    for act in (convolved, product):

        def whole(act: Callable[[], Tensor] = act) -> None:
            with torch.autocast("cuda", torch.bfloat16):
                out = act()
            torch.autograd.grad(out, list(conv.parameters()), torch.ones_like(out))

        found[act.__name__] = milliseconds(whole, 4)
    return found


def swept(width: int, batch: int, kernel: str) -> None:
    """One kernel of a width with other tiles, warps and numbers of programs."""
    from holdfast_models.xec.kernels import ops, response

    name = "inner early" if width == 32 else "inner late"
    _, places, channels = SIZES[name]
    block = ConvNeXtBlock(channels).cuda()
    d = torch.randn(batch, places[0] * places[1], channels, device="cuda", dtype=torch.bfloat16)
    half = ops._half(*weights_of(block))
    seen = torch.ones(1, device="cuda").expand(d.shape[:2])
    scale = torch.rand(batch, 4 * channels, device="cuda")
    call: dict[str, Callable[[], Any]] = {
        "squares": lambda: response.squares(d, seen, half, 1e-6),
        "applied": lambda: response.applied(d, d, seen, half, scale, 1e-6),
        "share": lambda: response.toward_share(d, d, seen, half, scale, 1e-6),
        "back": lambda: response.gradients(d, d, seen, half, scale, scale, 1e-6),
        "weights": lambda: response.weight_gradients(d, d, seen, half, scale, scale, 1e-6),
    }
    best = response.CUTS[kernel][width > 32]
    tries = [(best[0], best[1], best[2], programs) for programs in (1024, 4096, 16384)]
    tries += [(32, best[1], 4, 4096), (64, 64, 4, 4096), (64, 64, 8, 4096), (64, 32, 4, 4096)]
    tries += [(64, 128, 8, 4096), (128, 64, 8, 4096), (128, 128, 8, 4096), (32, 64, 4, 4096)]
    with torch.no_grad():
        for one in dict.fromkeys(tries):
            response.CUTS[kernel] = (one, one)
            try:
                took = f"{milliseconds(call[kernel]):.3f} ms"
            except Exception as error:  # too many registers or too much memory
                took = f"{type(error).__name__}"
            print(name, kernel, one, took, flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description="Kernels of xec's blocks, one by one.")
    parser.add_argument("--check", type=int, nargs="*", help="widths to compile and compare")
    parser.add_argument("--batch", type=int, default=1024)
    parser.add_argument("--sweep", metavar="KERNEL", help="other tiles of one kernel")
    parser.add_argument("--sizes", default=",".join([*SIZES, "stems"]))
    parser.add_argument("--stream", default="bfloat16")
    args = parser.parse_args()
    for width in args.check or ():
        began = time.perf_counter()
        if not args.sweep:
            found = check.fault(width, torch.device("cuda", 0))
            took = time.perf_counter() - began
            print(f"check {width}: {found or 'right'}, {took:.1f} s", flush=True)
        if args.sweep:
            swept(width, args.batch, args.sweep)
    if args.check:
        return 0
    for name in args.sizes.split(","):
        if name == "stems":
            found = stems(args.batch)
        else:
            found = timed(name, args.batch, getattr(torch, args.stream))
        print(name, {key: round(value, 3) for key, value in found.items()}, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
