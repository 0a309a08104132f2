"""How fast a model of some settings is: forward pass, training step, memory.

Random embeddings through an untrained model without text bridge: the arithmetic does not depend
on what is learned, but for flows that leave early. Shapes: B batch, E teacher width.
"""

from __future__ import annotations

import contextlib
import resource
import statistics
import time
from collections.abc import Callable
from itertools import pairwise
from typing import Any, Literal

import torch
from torch.nn import functional
from torch.nn.utils import clip_grad_norm_

from .losses import embedding_loss
from .model import EnergyFlow, Output
from .recipe import EnergyFlowSettings

__all__ = ["Precision", "bench", "bench_lines"]

Precision = Literal["auto", "fp32", "bf16"]


def bench(
    settings: EnergyFlowSettings,
    device: torch.device,
    *,
    steps: int = 50,
    warmup: int = 3,
    precision: Precision = "auto",
) -> dict[str, Any]:
    """Time forward passes and training steps; plain data.

    Args:
        settings: of the model, the batch and the optimizer.
        device: where.
        steps: how many of each are timed.
        warmup: how many before that are not.
        precision: auto: bf16 on a GPU, fp32 elsewhere.
    """
    batch = settings.train.data.batch
    half = precision == "bf16" or (precision == "auto" and device.type == "cuda")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(settings.train.seed.seed)
        model = EnergyFlow(settings.model, core=settings.core).to(device)
        x_BE, y_BE = functional.normalize(torch.randn(2, batch, settings.model.width), dim=-1)
    x_BE, y_BE = x_BE.to(device), y_BE.to(device)
    lr = settings.train.optimizer.lr
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr, fused=device.type == "cuda")

    def autocast() -> contextlib.AbstractContextManager[Any]:
        return torch.autocast(device.type, torch.bfloat16, enabled=half)

    def forward(step: int) -> Output:
        with torch.no_grad(), autocast():
            return model(x_BE, step=step)

    def train(step: int) -> None:
        with autocast():
            out = model(x_BE, step=step)
        embedding_loss(out.y_BE, y_BE, settings.loss).backward()
        if settings.train.clip is not None:
            clip_grad_norm_(model.parameters(), settings.train.clip)
        optimizer.step()
        optimizer.zero_grad()

    model.eval()
    ended = forward(0).flows
    forward_part = _measured(forward, device, batch, steps, warmup)
    model.train()
    train_part = _measured(train, device, batch, steps, warmup)
    lattice = settings.model.lattice
    return {
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "precision": "bf16" if half else "fp32",
        "mode": settings.model.flows.mode if settings.core else "no core",
        "lattice": [lattice.width, lattice.height, lattice.depth],
        "hidden": settings.model.carrier.hidden,
        "layers": settings.model.carrier.layers,
        "batch": batch,
        "lattice_steps": settings.model.steps,
        "flows": 0 if ended is None else int(ended.stats.made),
        "rows": 0 if ended is None else len(ended.e_N1),
        "parameters": sum(one.numel() for one in model.parameters()),
        "forward": forward_part,
        "train": train_part,
    }


def bench_lines(found: dict[str, Any]) -> list[str]:
    """What ``bench`` found, for people."""
    sides = " x ".join(map(str, found["lattice"]))
    lines = [
        f"lattice {sides}, {found['hidden']} wide, {found['layers']} layers, batch "
        f"{found['batch']}: {found['flows']} flows in {found['rows']} rows, "
        f"{found['lattice_steps']} steps",
        f"{found['parameters']:,} parameters, {found['mode']}, {found['precision']}, "
        f"{found['device']}, torch {found['torch']}",
        "",
        f"{'':<10}{'samples/s':>11}{'median ms':>11}{'fastest':>11}{'slowest':>11}{'peak GB':>11}",
    ]
    for name in ("forward", "train"):
        part = found[name]
        series = part["milliseconds"]
        lines.append(
            f"{name:<10}{part['samples_per_second']:11.1f}{statistics.median(series):11.2f}"
            f"{min(series):11.2f}{max(series):11.2f}{part['peak_gb']:11.2f}"
        )
    return lines


def _measured(
    work: Callable[[int], object], device: torch.device, batch: int, steps: int, warmup: int
) -> dict[str, Any]:
    for step in range(warmup):
        work(step)
    series = (_gpu_times if device.type == "cuda" else _cpu_times)(work, device, warmup, steps)
    return {
        "samples_per_second": 1000 * batch * steps / sum(series),
        "median_ms": statistics.median(series),
        "milliseconds": [round(one, 4) for one in series],
        "peak_gb": _peak_gb(device),
    }


def _cpu_times(
    work: Callable[[int], object], device: torch.device, first: int, steps: int
) -> list[float]:
    series: list[float] = []
    for step in range(first, first + steps):
        began = time.perf_counter()
        work(step)
        series.append(1000 * (time.perf_counter() - began))
    return series


def _gpu_times(
    work: Callable[[int], object], device: torch.device, first: int, steps: int
) -> list[float]:
    """Read after the last step: waiting for each would hide how the host keeps up."""
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(steps + 1)]
    torch.cuda.synchronize(device)
    torch.cuda.reset_peak_memory_stats(device)
    with torch.cuda.device(device):
        marks[0].record()
        for number in range(steps):
            work(first + number)
            marks[number + 1].record()
        torch.cuda.synchronize(device)
    return [a.elapsed_time(b) for a, b in pairwise(marks)]


def _peak_gb(device: torch.device) -> float:
    """Of the GPU since the warm-up; of the whole process, since its start, on a CPU."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 1e9
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9
