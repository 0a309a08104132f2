"""What the guard costs: guarded over plain, interleaved in one process, as a ratio.

    python benchmarks/overhead.py                    # every workload this machine can run
    python benchmarks/overhead.py --workload gpt124m --blocks 12 --steps 20
    python benchmarks/overhead.py --write            # also into benchmarks/results/

Runs itself under ``holdfast run``, so that the parent drains the ring as it does for a user.
Plain blocks have every patch and hook taken out. Blocks of plain and guarded steps alternate;
the ratio is that of the lower quartiles, the spread is the ratio of the quartiles within each.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import date
from pathlib import Path

import torch
from torch import Tensor, nn

Step = Callable[[], None]


class Block(nn.Module):
    """One transformer block of GPT-2's shape."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x_BLD: Tensor) -> Tensor:
        B, L, D = x_BLD.shape
        q, k, v = (
            t.view(B, L, self.heads, D // self.heads).transpose(1, 2)
            for t in self.qkv(self.norm1(x_BLD)).chunk(3, dim=-1)
        )
        mixed = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x_BLD = x_BLD + self.out(mixed.transpose(1, 2).reshape(B, L, D))
        return x_BLD + self.down(nn.functional.gelu(self.up(self.norm2(x_BLD))))


class GPT(nn.Module):
    """124 million parameters at the default size."""

    def __init__(
        self, width: int = 768, depth: int = 12, heads: int = 12, words: int = 50304
    ) -> None:
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.places = nn.Embedding(512, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(depth)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, words, bias=False)
        self.head.weight = self.words.weight

    def forward(self, tokens: Tensor) -> Tensor:
        places = torch.arange(tokens.shape[1], device=tokens.device)
        return self.head(self.norm(self.blocks(self.words(tokens) + self.places(places))))


def gpt(optimizer: str) -> Step:
    """GPT-124M, batch 16 x 512, bf16 autocast."""
    model = GPT().cuda()
    opt = {
        "adamw-fused": lambda: torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True),
        "adamw": lambda: torch.optim.AdamW(model.parameters(), lr=1e-4),
        "rmsprop": lambda: torch.optim.RMSprop(model.parameters(), lr=1e-5),
    }[optimizer]()
    tokens = torch.randint(0, 50304, (16, 513), device="cuda")

    def step() -> None:
        with torch.autocast("cuda", dtype=torch.bfloat16):
            logits = model(tokens[:, :-1])
            loss = nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        opt.step()
        opt.zero_grad(set_to_none=True)

    return step


def mlp(width: int, depth: int, batch: int, device: str) -> Step:
    """A plain stack of linear layers: launch-bound on a GPU when small."""
    model = nn.Sequential(*(m for _ in range(depth) for m in (nn.Linear(width, width), nn.GELU())))
    model = model.to(device)
    opt = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=device == "cuda")
    x = torch.randn(batch, width, device=device)

    def step() -> None:
        model(x).square().mean().backward()
        opt.step()
        opt.zero_grad(set_to_none=True)

    return step


@dataclass(frozen=True)
class Workload:
    """A step to be timed."""

    name: str
    make: Callable[[], Step]
    needs_cuda: bool


WORKLOADS = (
    Workload("gpt124m-adamw-fused", lambda: gpt("adamw-fused"), True),
    Workload("gpt124m-adamw", lambda: gpt("adamw"), True),
    Workload("gpt124m-rmsprop", lambda: gpt("rmsprop"), True),
    Workload("tiny-cuda", lambda: mlp(256, 12, 64, "cuda"), True),
    Workload("cpu-small", lambda: mlp(192, 4, 64, "cpu"), False),
    Workload("cpu-medium", lambda: mlp(384, 6, 128, "cpu"), False),
)


@dataclass(frozen=True)
class Result:
    """Milliseconds per step and what the guard adds."""

    workload: str
    plain_ms: float
    guarded_ms: float
    ratio: float
    plain_spread: float
    guarded_spread: float
    blocks: int
    steps: int


def measure(workload: Workload, blocks: int, steps: int) -> Result:
    """Alternate plain and guarded blocks and compare their lower quartiles."""
    from holdfast.boot import patches, session

    variants = {"plain": workload.make, "guarded": workload.make}
    step: dict[str, Step] = {}
    times: dict[str, list[float]] = {"plain": [], "guarded": []}
    for name, make in variants.items():
        patches.uninstall()
        if name == "guarded":
            patches.install(session.current)
        step[name] = make()
        for _ in range(max(5, steps // 2)):
            step[name]()
    for block in range(blocks):
        for name in ("plain", "guarded") if block % 2 else ("guarded", "plain"):
            patches.uninstall()
            if name == "guarded":
                patches.install(session.current)
            step[name]()
            _synchronize()
            began = time.perf_counter()
            for _ in range(steps):
                step[name]()
            _synchronize()
            times[name].append((time.perf_counter() - began) / steps * 1e3)
    patches.uninstall()
    patches.install(session.current)
    quartile = {k: statistics.quantiles(v, n=4) for k, v in times.items()}
    return Result(
        workload=workload.name,
        plain_ms=quartile["plain"][0],
        guarded_ms=quartile["guarded"][0],
        ratio=quartile["guarded"][0] / quartile["plain"][0],
        plain_spread=quartile["plain"][2] / quartile["plain"][0],
        guarded_spread=quartile["guarded"][2] / quartile["guarded"][0],
        blocks=blocks,
        steps=steps,
    )


def _synchronize() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def hardware() -> str:
    """The machine in a few words."""
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else platform.machine()
    versions = f"torch {torch.__version__}, Python {platform.python_version()}"
    return f"{device}, {os.cpu_count()} cores, {versions}"


def markdown(results: list[Result], command: str) -> str:
    """The table that is committed."""
    lines = [
        "# Guard overhead",
        "",
        f"Command: `{command}`",
        f"Hardware: {hardware()}",
        f"Date: {date.today()}",
        "",
        "| workload | plain ms | guarded ms | guarded / plain | spread plain, guarded | blocks |",
        "|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {r.workload} | {r.plain_ms:.3f} | {r.guarded_ms:.3f} | {r.ratio:.4f} "
        f"| {r.plain_spread:.3f}, {r.guarded_spread:.3f} | {r.blocks} x {r.steps} steps |"
        for r in results
    ]
    return "\n".join(lines) + "\n"


def parse() -> argparse.Namespace:
    """Options of the benchmark."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--workload", action="append", help="prefix of the workloads to run")
    parser.add_argument("--blocks", type=int, default=16)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument(
        "--write", metavar="DIR", nargs="?", const=str(Path(__file__).parent / "results")
    )
    return parser.parse_args()


def main() -> int:
    """Start over under holdfast, or measure when already there."""
    args = parse()
    if "HOLDFAST_RUN" not in os.environ:
        with tempfile.TemporaryDirectory() as folder:
            under = [
                sys.executable,
                "-m",
                "holdfast",
                "run",
                "--quiet",
                "--run-dir",
                f"{folder}/run",
            ]
            return subprocess.run([*under, *sys.argv], check=False).returncode
    results: list[Result] = []
    for workload in WORKLOADS:
        wanted = not args.workload or any(workload.name.startswith(w) for w in args.workload)
        if wanted and (torch.cuda.is_available() or not workload.needs_cuda):
            results.append(measure(workload, args.blocks, args.steps))
            print(json.dumps(asdict(results[-1])), flush=True)
    options = sys.argv[1 : sys.argv.index("--write")] if args.write else sys.argv[1:]
    table = markdown(results, " ".join(["python benchmarks/overhead.py", *options]))
    print(table)
    if args.write:
        place = "h200" if "H200" in hardware() else "cpu"
        Path(args.write).mkdir(parents=True, exist_ok=True)
        (Path(args.write) / f"overhead_{place}_{date.today()}.md").write_text(table)
    return 0


if __name__ == "__main__":
    sys.exit(main())
