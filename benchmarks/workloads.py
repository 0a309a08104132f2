"""Training steps to be timed: three models, several optimizers, and what people do about NaN.

A ``Check`` runs between ``backward`` and ``step`` and says whether to step: nothing, clipping,
``loss.item()``, ``isfinite`` of every gradient. Anomaly mode wraps the whole step instead.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

Step = Callable[[], None]
Check = Callable[[Tensor, list[Tensor]], bool]


def nothing(loss: Tensor, parameters: list[Tensor]) -> bool:
    """Plain training."""
    return True


def clip(loss: Tensor, parameters: list[Tensor]) -> bool:
    """``clip_grad_norm_``, which many loops have anyway."""
    torch.nn.utils.clip_grad_norm_(parameters, 1.0)
    return True


def item(loss: Tensor, parameters: list[Tensor]) -> bool:
    """The pattern people paste: read the loss and the norm on the host."""
    norm = torch.nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None])
    return torch.isfinite(loss).item() is True and torch.isfinite(norm).item() is True


def isfinite(loss: Tensor, parameters: list[Tensor]) -> bool:
    """Every gradient asked on its own."""
    return all(torch.isfinite(p.grad).all().item() for p in parameters if p.grad is not None)


CHECKS: dict[str, Check] = {"clip": clip, "item": item, "isfinite": isfinite}


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
        self.places = nn.Embedding(1024, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(depth)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, words, bias=False)
        self.head.weight = self.words.weight

    def forward(self, tokens: Tensor) -> Tensor:
        places = torch.arange(tokens.shape[1], device=tokens.device)
        return self.head(self.norm(self.blocks(self.words(tokens) + self.places(places))))


OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "adamw-fused": lambda p: torch.optim.AdamW(p, lr=1e-4, fused=True),
    "adamw": lambda p: torch.optim.AdamW(p, lr=1e-4),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=1e-5),
    "sgd": lambda p: torch.optim.SGD(p, lr=1e-3, momentum=0.9),
}


def loop(
    model: nn.Module,
    optimizer: str,
    loss_of: Callable[[nn.Module], Tensor],
    check: Check,
    anomaly: bool,
) -> Step:
    """The ordinary training step around a model."""
    opt = OPTIMIZERS[optimizer](model.parameters())
    parameters: list[Tensor] = list(model.parameters())

    def step() -> None:
        guard = torch.autograd.detect_anomaly() if anomaly else contextlib.nullcontext()
        with guard:
            loss = loss_of(model)
            loss.backward()
        if check(loss, parameters):
            opt.step()
        opt.zero_grad(set_to_none=True)

    return step


def gpt(optimizer: str, compiled: bool, check: Check, anomaly: bool) -> Step:
    """GPT-124M, batch 16 x 1024, bf16 autocast."""
    model: Any = GPT().cuda()
    model = torch.compile(model) if compiled else model
    tokens = torch.randint(0, 50304, (16, 1025), device="cuda")

    def loss_of(net: nn.Module) -> Tensor:
        with torch.autocast("cuda", dtype=torch.bfloat16):
            logits = net(tokens[:, :-1])
            return nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())

    return loop(model, optimizer, loss_of, check, anomaly)


def conv(optimizer: str, check: Check, anomaly: bool) -> Step:
    """A residual network of convolutions with batch norm, 64 images of 64 x 64."""

    def stage(width: int, following: int) -> list[nn.Module]:
        return [
            nn.Conv2d(width, following, 3, stride=2, padding=1, bias=False),
            nn.BatchNorm2d(following),
            nn.ReLU(inplace=True),
            nn.Conv2d(following, following, 3, padding=1, bias=False),
            nn.BatchNorm2d(following),
            nn.ReLU(inplace=True),
        ]

    widths = [3, 64, 128, 256, 512]
    layers = [m for a, b in itertools.pairwise(widths) for m in stage(a, b)]
    model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 100))
    model = model.cuda()
    images = torch.randn(256, 3, 64, 64, device="cuda")
    labels = torch.randint(0, 100, (256,), device="cuda")

    def loss_of(net: nn.Module) -> Tensor:
        with torch.autocast("cuda", dtype=torch.bfloat16):
            return nn.functional.cross_entropy(net(images), labels)

    return loop(model, optimizer, loss_of, check, anomaly)


def mlp(
    width: int,
    depth: int,
    batch: int,
    device: str,
    optimizer: str = "adamw",
    check: Check = nothing,
    anomaly: bool = False,
) -> Step:
    """A plain stack of linear layers: launch-bound on a GPU when small."""
    model = nn.Sequential(*(m for _ in range(depth) for m in (nn.Linear(width, width), nn.GELU())))
    model = model.to(device)
    x = torch.randn(batch, width, device=device)
    return loop(model, optimizer, lambda net: net(x).square().mean(), check, anomaly)


def graphed() -> Step:
    """The tiny model with its whole step captured in a CUDA graph."""
    model = nn.Sequential(*(m for _ in range(12) for m in (nn.Linear(256, 256), nn.GELU()))).cuda()
    opt = torch.optim.AdamW(model.parameters(), lr=1e-4, capturable=True)
    x = torch.randn(64, 256, device="cuda")

    def step() -> None:
        opt.zero_grad(set_to_none=True)
        model(x).square().mean().backward()
        opt.step()

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()

    def replay() -> None:
        graph.replay()

    # The graph reads and writes the memory of these, without keeping them alive.
    replay.owners = (model, opt, x)  # type: ignore[attr-defined]
    return replay


@dataclass(frozen=True)
class Workload:
    """A step to be timed; ``rivals`` also times what people do today."""

    name: str
    make: Callable[[Check, bool], Step]
    needs_cuda: bool = True
    rivals: bool = False


WORKLOADS = (
    Workload("tiny-fused", lambda c, a: mlp(256, 12, 64, "cuda", "adamw-fused", c, a), rivals=True),
    Workload("tiny-adamw", lambda c, a: mlp(256, 12, 64, "cuda", "adamw", c, a)),
    Workload("tiny-graph", lambda c, a: graphed()),
    Workload("gpt124m-fused", lambda c, a: gpt("adamw-fused", False, c, a), rivals=True),
    Workload("gpt124m-adamw", lambda c, a: gpt("adamw", False, c, a)),
    Workload("gpt124m-rmsprop", lambda c, a: gpt("rmsprop", False, c, a)),
    Workload("gpt124m-compiled", lambda c, a: gpt("adamw-fused", True, c, a)),
    Workload("conv-fused", lambda c, a: conv("adamw-fused", c, a), rivals=True),
    Workload("conv-sgd", lambda c, a: conv("sgd", c, a)),
    Workload("cpu-small", lambda c, a: mlp(192, 4, 64, "cpu", "adamw", c, a), False, True),
    Workload("cpu-medium", lambda c, a: mlp(384, 6, 128, "cpu", "adamw", c, a), False),
)
