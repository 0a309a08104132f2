"""How fast a run trains and writes: whole steps under the trainer and its guard, single tokens.

B batch, T tokens.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from holdfast.training import Place, Trainer

from ...step_times import StepTimes, StepWatch, step_times
from ..assembly import make_net
from ..data.opening import open_data
from ..generation import Sampling, generate
from ..kernels.choice import using
from ..model.liquid.cell import per_token
from ..model.liquid.cfc import CfC
from ..model.model import LiquidNet
from ..model.spiking.lif import LIF
from ..model.spiking.surrogates import spike
from ..recipe import build
from ..run_settings import LiquidSettings

__all__ = ["bare", "generating", "plain_reference", "reference_ratio", "token_by_token", "training"]


def training(settings: LiquidSettings, device: str, *, warm: int, steps: int) -> dict[str, Any]:
    """Tokens per second of whole training steps, and on a GPU what the device did meanwhile.

    What the guard costs, and the trainer with its loader, is the difference to bare steps.

    Args:
        settings: of a run; its trainer, guard and data are as in training, without validation.
        device: where.
        warm: steps before the first that is timed.
        steps: that are timed.
    """
    place = Place(torch.device(device))
    watch = StepWatch(place.device, warm=warm, steps=steps)
    train = dataclasses.replace(
        settings.train, steps=watch.last, device=device,
        holdfast=dataclasses.replace(
            settings.train.holdfast,
            run=dataclasses.replace(settings.train.holdfast.run, quiet=True),
        ),
    )  # fmt: skip
    settings = dataclasses.replace(settings, train=train, pictures=False, self_check=False)
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(sys.stderr):
        task = build(settings, place)
        task.stepped = watch.around(task.stepped)
        task.validation = task.opened = task.ended = None
        result = Trainer.of(task, train, run_dir=Path(folder) / "run", name="liquid").fit()
    tokens = train.data.batch * settings.data.sequence_length * train.accumulate
    without = None
    if train.accumulate == 1 and train.compile.name == "none":
        without = bare(settings, device, warm=warm, steps=max(2, steps // 4))
    found = watch.times.told(tokens, "tokens", without) | {"skipped": result.skipped}
    if place.device.type == "cuda":
        reason = task.model.graphs.reason  # type: ignore[union-attr]
        found["runs as it is, because"] = reason or "it does not: it is replayed"
    if result.compile_seconds:
        found["s to compile"] = result.compile_seconds
    return found


def bare(settings: LiquidSettings, device: str, *, warm: int, steps: int) -> StepTimes:
    """The same steps without trainer and guard."""
    settings = dataclasses.replace(settings, self_check=False)
    place, train = torch.device(device), settings.train
    with contextlib.redirect_stdout(sys.stderr):
        task = build(settings, Place(place))
    net = task.model.to(place).train()
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-6, fused=True)
    if task.prepared is not None:
        task.prepared(optimizer)
    rows = task.train.__getitems__(range(train.data.batch)).batch  # type: ignore[union-attr]
    batch = {name: value.to(place) for name, value in rows.items()}
    half = {"fp16": torch.float16, "bf16": torch.bfloat16}.get(train.precision)
    if train.precision == "auto" and place.type == "cuda":
        half = torch.bfloat16
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


@torch.no_grad()
def generating(
    settings: LiquidSettings, device: str, *, length: int, seconds: float = 5.0
) -> dict[str, Any]:
    """Tokens per second with the state, early and late, and with a full forward for each token.

    The full forward is one over all ``length`` tokens: what the last of them costs without a state.
    """
    net = _net(settings, device).eval()
    how = Sampling(temperature=0.0)
    list(generate(net, [[1, 2, 3]], 8, how))
    marks = [time.perf_counter()]
    for _ in generate(net, [[1, 2, 3]], length, how):
        marks.append(time.perf_counter())
    quarter = length // 4  # the first one pays for what is made once
    early = quarter / (marks[2 * quarter] - marks[quarter])
    late = quarter / (marks[-1] - marks[-1 - quarter])
    written = torch.randint(net.sizes.inputs, (1, length), device=device)

    def forward() -> None:
        int(net(written).y_BTV[0, -1].argmax())  # the host reads every token

    with using("off"):
        plain = 1 / _seconds(forward, seconds)
    full = 1 / _seconds(forward, seconds)
    return {
        "tokens/s, with state, last quarter": late, "tokens/s, second quarter": early,
        "tokens/s, full forward": full, "tokens/s, full forward, plain": plain,
        "times full forward": late / full, "times plain full forward": late / plain,
    }  # fmt: skip


def reference_ratio(settings: LiquidSettings, *, seconds: float = 5.0) -> dict[str, float]:
    """Forward and backward of a batch on one thread, beside the plain reference: a ratio."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    net = _net(settings, "cpu").train()
    shape = (settings.train.data.batch, settings.data.sequence_length)
    tokens_BT = torch.randint(net.sizes.inputs, shape)

    def passing(forward: Callable[[LiquidNet, Tensor], Tensor]) -> Callable[[], None]:
        def one() -> None:
            net.zero_grad()
            loss = torch.nn.functional.cross_entropy(
                forward(net, tokens_BT).flatten(0, 1), tokens_BT.flatten()
            )
            loss.backward()

        return one

    try:
        ours = _seconds(passing(lambda net, x_BT: net(x_BT).y_BTV), seconds)
        with plain_reference():
            plain = _seconds(passing(token_by_token), seconds)
    finally:
        torch.set_num_threads(threads)
    count = tokens_BT.numel()
    return {"tokens/s": count / ours, "tokens/s, reference": count / plain, "ratio": plain / ours}


def token_by_token(net: LiquidNet, x_BT: Tensor) -> Tensor:
    """What one pass gives, by as many passes as there are tokens, the state handed on."""
    state, said = None, []
    for x_B1 in x_BT.split(1, 1):
        out = net(x_B1, state)
        state = out.state
        said.append(out.y_BTV)
    return torch.cat(said, 1)


@contextlib.contextmanager
def plain_reference() -> Iterator[None]:
    """Cells and spiking units as their formulas are written, by autograd alone."""

    def sequence(cell: CfC, x_BTF: Tensor, h: Tensor, elapsed: Any) -> Tensor:
        states = []
        for x, dt in zip(x_BTF.unbind(1), per_token(elapsed), strict=False):
            h = cell.step(x, h, dt)
            states.append(h)
        return torch.stack(states, 1)

    def run(units: LIF, current: Tensor, u: Tensor | None = None) -> tuple[Tensor, Tensor]:
        u = torch.zeros_like(current[0]) if u is None else u
        train, membranes = list[Tensor](), list[Tensor]()
        for i in current.unbind(0):
            fired = (u > units.threshold).to(i.dtype)
            if units.reset == "zero":
                u = units.beta * u * (1 - fired) + i
            else:
                u = units.beta * u + i - (fired * units.threshold if units.reset != "none" else 0)
            membranes.append(u)
            train.append(spike(u - units.threshold, units.surrogate, units.slope))
        return torch.stack(train), torch.stack(membranes)

    kept = CfC.sequence, LIF.run
    CfC.sequence, LIF.run = sequence, run  # type: ignore[method-assign, assignment]
    try:
        with using("off"):
            yield
    finally:
        CfC.sequence, LIF.run = kept  # type: ignore[method-assign]


def _net(settings: LiquidSettings, device: str) -> LiquidNet:
    torch.manual_seed(settings.train.seed.seed)
    return make_net(settings, open_data(settings).sizes).to(device)


def _seconds(act: Callable[[], None], most: float) -> float:
    """Of one call: the median of those that fit into the time, three at least."""
    act()
    took, end = list[float](), time.perf_counter() + most
    while len(took) < 3 or (time.perf_counter() < end and len(took) < 50):
        began = time.perf_counter()
        act()
        took.append(time.perf_counter() - began)
    return statistics.median(took)
