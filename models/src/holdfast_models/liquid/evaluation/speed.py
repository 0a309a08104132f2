"""How fast a run trains and writes: whole steps under the trainer and its guard, single tokens.

B batch, T tokens.
"""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import itertools
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.autograd import DeviceType
from torch.utils.flop_counter import FlopCounterMode

from holdfast.training import Place, Trainer

from ...step_times import StepWatch, TimedSteps, roofline, step_times
from ..data.opening import open_data
from ..data.tensor_rows import first_batch
from ..generation import Sampling, generate
from ..kernels.choice import using
from ..model.model import LiquidNet
from ..recipe import build
from ..run_settings import LiquidSettings
from .ablation import changed

_BEFORE = 33  # tokens before the first that is timed: one, and a block with all that is made once
_LONGEST = 12  # kernels that are named
_COUNTED = 64  # tokens whose products are counted: a token has as many, attention apart


def training(
    settings: LiquidSettings,
    device: str,
    *,
    warm: int,
    steps: int,
    without: TimedSteps | None = None,
) -> dict[str, Any]:
    """Tokens per second of whole training steps, and on a GPU what the device did meanwhile.

    Args:
        settings: of a run; its trainer, guard and data are as in training, without validation.
        device: where.
        warm: steps before the first that is timed.
        steps: that are timed.
        without: the same steps without trainer and guard, to tell what those cost.
    """
    place = Place(torch.device(device))
    if place.device.type == "cuda":  # what an earlier run left is none of this one's memory
        gc.collect()
        torch.cuda.empty_cache()
    watch = StepWatch(place.device, warm=warm, steps=steps)
    reported = {"train.steps": watch.last, "train.device": device, "train.holdfast.run.quiet": True}
    settings = changed(settings, reported | {"pictures": False, "self_check": False})
    train = settings.train
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(sys.stderr):
        task = build(settings, place)
        task.stepped = watch.around(task.stepped)
        task.validation = task.opened = task.ended = None
        result = Trainer.of(task, train, run_dir=Path(folder) / "run", name="liquid").fit()
    tokens = train.data.batch * settings.data.sequence_length * train.accumulate
    found = watch.times.reported(tokens, "tokens", without) | {"skipped": result.skipped}
    half = _half(train.precision, place.device) or torch.float32
    found |= roofline(tokens * _flops(settings), watch.times.median, place.device, half)
    if place.device.type == "cuda":
        reason = task.model.graphs.reason  # type: ignore[union-attr]
        found["runs as it is, because"] = reason or "it does not: it is replayed"
    if result.compile_seconds:
        found["s to compile"] = result.compile_seconds
    return found


def bare(settings: LiquidSettings, device: str, *, warm: int, steps: int) -> TimedSteps:
    """The same steps without trainer and guard."""
    settings = dataclasses.replace(settings, self_check=False)
    place, train = torch.device(device), settings.train
    with contextlib.redirect_stdout(sys.stderr):
        task = build(settings, Place(place))
    net = task.model.to(place).train()
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-6, fused=True)
    if task.prepared is not None:
        task.prepared(optimizer)
    batch = first_batch(task.train, train.data.batch, place)
    half = _half(train.precision, place)
    numbers = itertools.count(1)

    def step() -> None:
        optimizer.zero_grad()
        with torch.autocast(device, half, enabled=half is not None):
            loss = task.loss(net, batch)
        (loss[0] if isinstance(loss, tuple) else loss).backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), train.clip or 1.0)
        optimizer.step()
        if task.stepped is not None:
            task.stepped(next(numbers))

    return step_times(step, place, steps=steps, warmup=warm)


def _half(precision: str, device: torch.device) -> torch.dtype | None:
    """What products are computed in; None: in full precision."""
    if precision == "auto" and device.type == "cuda":
        return torch.bfloat16
    return {"fp16": torch.float16, "bf16": torch.bfloat16}.get(precision)


@torch.no_grad()
def _flops(settings: LiquidSettings) -> float:
    """Of the products of a forward pass, for one token; counted in the plain form on the CPU."""
    net = fresh_net(settings, "cpu").eval()
    length = min(_COUNTED, settings.data.sequence_length)
    tokens = torch.zeros(1, length, dtype=torch.long)
    with using("off"), FlopCounterMode(display=False) as counted:
        net(tokens)
    return counted.get_total_flops() / length


@torch.no_grad()
def generating(
    settings: LiquidSettings, device: str, *, length: int, seconds: float = 5.0
) -> dict[str, Any]:
    """Tokens per second with the state, early and late, and with a full forward for each token.

    The full forward is one over all ``length`` tokens: what the last of them costs without a state.
    What is made once, with the first block of tokens, is told apart.
    """
    net = fresh_net(settings, device).eval()
    greedy = Sampling(temperature=0.0)
    list(generate(net, [[1, 2, 3]], _BEFORE, greedy))
    marks = _marks(net, length, greedy)
    quarter = length // 4
    early = quarter / (marks[_BEFORE + quarter] - marks[_BEFORE])
    late = quarter / (marks[-1] - marks[-1 - quarter])
    drawn = _marks(net, length, Sampling(seed=1))
    written = torch.randint(net.sizes.inputs, (1, length), device=device)

    def forward() -> None:
        int(net(written).y_BTV[0, -1].argmax())  # the host reads every token

    full = 1 / seconds_of(forward, seconds)
    with using("off"):
        plain = 1 / seconds_of(forward, seconds)
    found = {
        "tokens/s, with state": length / (marks[-1] - marks[_BEFORE]),
        "tokens/s, first quarter": early, "tokens/s, last quarter": late,
        "tokens/s, drawn at temperature 1": length / (drawn[-1] - drawn[_BEFORE]),
        "ms until the first block": 1000 * (marks[_BEFORE] - marks[0]),
        "tokens/s, full forward": full, "tokens/s, full forward, plain": plain,
        "times full forward": late / full, "times plain full forward": late / plain,
    }  # fmt: skip
    return found | (_kernels_of_a_token(net, greedy) if device == "cuda" else {})


def _marks(net: LiquidNet, length: int, how: Sampling) -> list[float]:
    """When writing began, and when each token came; those of a block come together."""
    marks = [time.perf_counter()]
    for _ in generate(net, [[1, 2, 3]], _BEFORE + length, how):
        marks.append(time.perf_counter())
    return marks


def _kernels_of_a_token(net: LiquidNet, how: Sampling) -> dict[str, Any]:
    """What the device does for a token: the difference of a long and a short text."""
    took: list[Counter[str]] = []
    counts: list[Counter[str]] = []
    for length in (_BEFORE, 2 * _BEFORE - 1):
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as found:
            list(generate(net, [[1, 2, 3]], length, how))
        kernels = [one for one in found.events() or () if one.device_type == DeviceType.CUDA]
        counts.append(Counter(one.name for one in kernels))
        took.append(Counter())
        for one in kernels:
            took[-1][one.name] += one.time_range.elapsed_us()
    count, time_of = counts[1] - counts[0], took[1] - took[0]
    tokens = _BEFORE - 1
    return {
        "kernels a token": count.total() / tokens,
        "us of them a token": time_of.total() / tokens,
        "longest of them, us": {
            f"{name[:60]} x {count[name] / tokens:.1f}": us / tokens
            for name, us in time_of.most_common(_LONGEST)
        },
    }


def fresh_net(settings: LiquidSettings, device: str) -> LiquidNet:
    """The network of a run as it is drawn."""
    torch.manual_seed(settings.train.seed.seed)
    sizes = open_data(settings).sizes
    return LiquidNet(settings.model, sizes, settings.plasticity).to(device)


def seconds_of(act: Callable[[], None], most: float) -> float:
    """Of one call: the median of those that fit into the time, three at least."""
    act()
    took, end = list[float](), time.perf_counter() + most
    while len(took) < 3 or (time.perf_counter() < end and len(took) < 50):
        began = time.perf_counter()
        act()
        took.append(time.perf_counter() - began)
    return statistics.median(took)
