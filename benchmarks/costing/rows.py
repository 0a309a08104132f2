"""Training loops whose steps are bound by the host, each with something that costs the guard time.

A row either makes a step to be called many times, or has a trainer that owns the loop and
calls ``tick`` after every step.
"""

from __future__ import annotations

import functools
import importlib.util
import itertools
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset
from workloads import Step, graphed

Tick = Callable[[], None]

CUDA = torch.cuda.is_available()
DEVICE = "cuda" if CUDA else "cpu"


@dataclass(frozen=True, kw_only=True)
class Row:
    """One loop: ``make`` its step, or ``train`` it for a number of steps."""

    name: str
    what: str
    make: Callable[[], Step] | None = None
    train: Callable[[int, Tick], None] | None = None
    needs: str = ""
    """A library, or ``cuda``."""
    steady: int = 300
    """Steps after which nothing of the start is left."""

    @property
    def missing(self) -> str:
        """Why it cannot run here; empty where it can."""
        if self.needs == "cuda":
            return "" if CUDA else "no GPU"
        there = not self.needs or importlib.util.find_spec(self.needs) is not None
        return "" if there else f"{self.needs} is not installed"


class _Same(Dataset[Tensor]):
    """The same batch every time: a loader that costs next to nothing."""

    def __init__(self, batch: Tensor) -> None:
        self._batch = batch

    def __len__(self) -> int:
        return 100_000

    def __getitem__(self, index: int) -> Tensor:
        return self._batch


def _batches(batch: Tensor) -> Iterator[Tensor]:
    loader = DataLoader(_Same(batch), batch_size=None)
    return itertools.chain.from_iterable(itertools.repeat(loader))


def _mlp(width: int, depth: int) -> nn.Sequential:
    layers = (m for _ in range(depth) for m in (nn.Linear(width, width), nn.GELU()))
    return nn.Sequential(*layers).to(DEVICE)


def _small() -> tuple[nn.Sequential, Tensor]:
    """A model that is bound by the host: kernels on a GPU, Python and dispatch on a CPU."""
    width, depth, batch = (256, 12, 64) if CUDA else (64, 4, 32)
    return _mlp(width, depth), torch.randn(batch, width, device=DEVICE)


def _adamw(parameters: Any, *, fused: bool = True) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=1e-4, fused=fused or None)


def loop(
    *, accumulate: int = 1, fused: bool = True, clip: bool = False, frozen: bool = False
) -> Step:
    """Forward, backward, step, zero_grad; ``frozen``: of the first half of the layers."""
    model, x = _small()
    model[: len(model) // 2 if frozen else 0].requires_grad_(False)
    opt, data = _adamw(model.parameters(), fused=fused), _batches(x)

    def step() -> None:
        for _ in range(accumulate):
            (model(next(data)).square().mean() / accumulate).backward()
        if clip:
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        opt.zero_grad()

    return step


def scaled(*, clip: bool, compiled: bool = False) -> Step:
    """fp16 autocast with a GradScaler; on a CPU the scaler alone: half precision is slow there."""
    model, x = _small()
    opt, data, scaler = _adamw(model.parameters()), _batches(x), torch.amp.GradScaler(DEVICE)
    forward: Any = torch.compile(model) if compiled else model

    def step() -> None:
        with torch.autocast("cuda", dtype=torch.float16, enabled=CUDA):
            loss = forward(next(data)).float().square().mean()
        scaler.scale(loss).backward()
        if clip:
            scaler.unscale_(opt)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(opt)
        scaler.update()
        opt.zero_grad()

    return step


def two_optimizers(*, sizes: int = 1) -> Step:
    """Two models of one or two sizes with a loss and an optimizer each, as adversaries have."""
    (one, x), (other, _) = _small(), _small()
    if sizes > 1:
        other = _mlp(x.shape[1], 3)
    first, second = _adamw(one.parameters()), _adamw(other.parameters())
    data = _batches(x)

    def step() -> None:
        batch = next(data)
        first.zero_grad()
        one(batch).square().mean().backward()
        first.step()
        second.zero_grad()
        other(batch).square().mean().backward()
        second.step()

    return step


def many_tensors(count: int) -> Step:
    """Many small parameters."""
    parameters = [nn.Parameter(torch.randn(16, device=DEVICE)) for _ in range(count)]
    opt, data = _adamw(parameters), _batches(torch.randn(16, device=DEVICE))

    def step() -> None:
        (torch.stack(list(parameters)) * next(data)).square().mean().backward()
        opt.step()
        opt.zero_grad()

    return step


def compiled() -> Step:
    """The plain loop around a compiled model."""
    model, x = _small()
    opt, data = _adamw(model.parameters()), _batches(x)
    forward: Any = torch.compile(model)

    def step() -> None:
        forward(next(data)).square().mean().backward()
        opt.step()
        opt.zero_grad()

    return step


def of_milliseconds(target: float) -> Step:
    """A step on the CPU that takes about this long on this machine."""
    return _with_products(_products(target))


@functools.cache
def _products(target: float) -> int:
    """How many products of matrices fill a step up: asked once, so that copies of it are alike."""
    few, many = 0, 50
    base, more = (min(_took(_with_products(n)) for _ in range(3)) for n in (few, many))
    return max(0, round((target - base) / (more - base) * (many - few)))


def _took(step: Step, count: int = 20) -> float:
    for _ in range(count):
        step()
    began = time.perf_counter()
    for _ in range(count):
        step()
    return (time.perf_counter() - began) / count * 1e3


def _with_products(count: int) -> Step:
    model = nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 4))
    opt, data = torch.optim.SGD(model.parameters(), lr=1e-3), _batches(torch.randn(16, 32))
    square = torch.randn(96, 96)

    def step() -> None:
        x = next(data)
        for _ in range(count):
            torch.mm(square, square)
        model(x).square().mean().backward()
        opt.step()
        opt.zero_grad()

    return step


def accelerated() -> Step:
    """The loop as Accelerate wants it."""
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=not CUDA)
    model, x = _small()
    loader = DataLoader(_Same(x), batch_size=None)
    prepared: Any = accelerator.prepare(model, _adamw(model.parameters()), loader)
    net, opt, ready = prepared
    data = itertools.chain.from_iterable(itertools.repeat(ready))

    def step() -> None:
        accelerator.backward(net(next(data)).square().mean())
        accelerator.clip_grad_norm_(net.parameters(), 1.0)
        opt.step()
        opt.zero_grad()

    return step


def lightning(steps: int, tick: Tick) -> None:
    """Lightning's Trainer, 16-bit on a GPU."""
    import logging
    import warnings

    import lightning.pytorch as pl

    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    warnings.simplefilter("ignore")
    net, x = _small()

    class Task(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = net

        def training_step(self, batch: Tensor, index: int) -> Tensor:
            return self.net(batch).square().mean()

        def configure_optimizers(self) -> Any:
            return _adamw(self.parameters())

        def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
            tick()

    trainer = pl.Trainer(
        max_steps=steps,
        accelerator="gpu" if CUDA else "cpu",
        devices=1,
        precision="16-mixed" if CUDA else "32-true",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Task(), DataLoader(_Same(x.cpu()), batch_size=None))


def transformers(steps: int, tick: Tick) -> None:
    """Transformers' Trainer, bf16 on a GPU."""
    import tempfile

    # Each from where it is: what the package itself exports is all models, to pyright a long read.
    from transformers.trainer import Trainer
    from transformers.trainer_callback import TrainerCallback
    from transformers.trainer_pt_utils import LabelSmoother  # noqa: F401 # slow part of the import
    from transformers.training_args import TrainingArguments

    net, x = _small()

    class Task(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = net

        def forward(self, x: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
            out = self.net(x)
            return {"loss": out.square().mean(), "logits": out}

    class Ticking(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            tick()

    row = x[0].cpu()
    examples: Any = [{"x": row, "labels": row}] * 4096
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder,
            max_steps=steps,
            per_device_train_batch_size=16,
            report_to=[],
            save_strategy="no",
            logging_strategy="no",
            disable_tqdm=True,
            use_cpu=not CUDA,
            bf16=CUDA,
        )
        Trainer(Task(), arguments, train_dataset=examples, callbacks=[Ticking()]).train()


ROWS = (
    Row(name="loop", what="plain loop, fused AdamW", make=loop),
    Row(name="loop-adamw", what="the same, AdamW by default", make=lambda: loop(fused=False)),
    Row(name="clip", what="with clip_grad_norm_", make=lambda: loop(clip=True)),
    Row(name="frozen", what="half of the layers frozen", make=lambda: loop(frozen=True)),
    Row(name="accumulate", what="4 batches to a step", make=lambda: loop(accumulate=4)),
    Row(name="scaler", what="GradScaler", make=lambda: scaled(clip=False)),
    Row(name="scaler-clip", what="GradScaler, unscale_, clip", make=lambda: scaled(clip=True)),
    Row(name="two", what="two optimizers", make=two_optimizers),
    Row(
        name="two-sizes",
        what="two optimizers, models of two sizes",
        make=lambda: two_optimizers(sizes=2),
    ),
    Row(name="tensors-500", what="500 small tensors", make=lambda: many_tensors(500)),
    Row(name="tensors-2000", what="2,000 small tensors", make=lambda: many_tensors(2000)),
    Row(name="accelerate", what="Accelerate with clipping", make=accelerated, needs="accelerate"),
    Row(name="lightning", what="its Trainer", train=lightning, needs="lightning"),
    Row(
        name="transformers", what="Transformers' Trainer", train=transformers, needs="transformers"
    ),
    Row(name="compiled", what="compiled model", make=compiled, needs="cuda"),
    Row(
        name="compiled-amp",
        what="compiled, GradScaler, clip",
        make=lambda: scaled(clip=True, compiled=True),
        needs="cuda",
    ),
    Row(name="graph", what="step in a CUDA graph", make=graphed, needs="cuda"),
    Row(name="cpu-0.3ms", what="CPU step of 0.3 ms", make=lambda: of_milliseconds(0.3)),
    Row(name="cpu-1ms", what="CPU step of 1 ms", make=lambda: of_milliseconds(1.0)),
    Row(name="cpu-5ms", what="CPU step of 5 ms", make=lambda: of_milliseconds(5.0)),
)


def find(name: str) -> Row:
    """The row of this name."""
    return next(row for row in ROWS if row.name == name)
