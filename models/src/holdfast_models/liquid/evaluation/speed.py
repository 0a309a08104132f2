"""How fast a run trains and writes: whole steps under the trainer and its guard, single tokens.

B batch, T tokens.
"""

from __future__ import annotations

import contextlib
import dataclasses
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.autograd import DeviceType

from holdfast.training import Place, Trainer

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

_PROFILED = 5  # steps in which launches are counted
_LONGEST = 8  # kernels that are named
_WAITS = ("cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaEventSynchronize")


def training(settings: LiquidSettings, device: str, *, warm: int, steps: int) -> dict[str, Any]:
    """Tokens per second of whole training steps, and on a GPU what the device did meanwhile.

    Args:
        settings: of a run; its trainer, guard and data are as in training, without validation.
        device: where.
        warm: steps before the first that is timed.
        steps: that are timed.
    """
    place = Place(torch.device(device))
    watch = _Watch(place.device, warm, steps)
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
    found = {"tokens/s": tokens / watch.seconds, **watch.found, "skipped": result.skipped}
    if place.device.type == "cuda":
        reason = task.model.graphs.reason  # type: ignore[union-attr]
        found["runs as it is, because"] = reason or "it does not: it is replayed"
    if result.compile_seconds:
        found["s to compile"] = result.compile_seconds
    return found


def bare(settings: LiquidSettings, device: str, *, warm: int, steps: int) -> dict[str, Any]:
    """The same steps without trainer and guard: what those cost is the difference."""
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
    watch = _Watch(place, warm, steps)
    for step in range(1, watch.last + 1):
        optimizer.zero_grad()
        with torch.autocast(device, half, enabled=half is not None):
            loss = task.loss(net, batch)
        (loss[0] if isinstance(loss, tuple) else loss).backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), train.clip or 1.0)
        optimizer.step()
        watch.around(task.stepped)(step)
    return {
        "tokens/s": train.data.batch * settings.data.sequence_length / watch.seconds
    } | watch.found


class _Watch:
    """Times some of the steps, and profiles a few behind them."""

    def __init__(self, device: torch.device, warm: int, steps: int) -> None:
        self._device, self._warm, self._steps = device, warm, steps
        self.last = warm + steps + (_PROFILED if device.type == "cuda" else 0)
        self.seconds = 0.0
        self.found: dict[str, Any] = {}
        self._ends: list[Any] = []
        self._began = 0.0
        self._held = 0
        self._profile: Any = None

    def around(self, stepped: Callable[[int], bool | None] | None) -> Callable[[int], bool | None]:
        """``stepped`` of the task, and a look at the clock behind it."""

        def both(step: int) -> bool | None:
            again = stepped(step) if stepped is not None else None
            self._look(step)
            return again

        return both

    def _look(self, step: int) -> None:
        on_gpu = self._device.type == "cuda"
        first, last = self._warm, self._warm + self._steps
        if first <= step <= last:
            self._ends.append(_mark(on_gpu))
        if step in (first, last) and on_gpu:
            torch.cuda.synchronize(self._device)
        if step == first:
            self._began = time.perf_counter()
            if on_gpu:
                torch.cuda.reset_peak_memory_stats(self._device)
                self._held = torch.cuda.memory_reserved(self._device)
        if step == last:
            self._timed()
            if on_gpu:
                self._profile = torch.profiler.profile()
                self._profile.__enter__()
        if step == self.last and self._profile is not None:
            torch.cuda.synchronize(self._device)
            self._profile.__exit__(None, None, None)
            self._profiled(self._profile.events())

    def _timed(self) -> None:
        self.seconds = (time.perf_counter() - self._began) / self._steps
        each = sorted(_apart(a, b) for a, b in pairwise(self._ends))
        self.found |= {
            "ms a step": 1000 * self.seconds,
            "ms a step, median": statistics.median(each),
            "within 10 % of it": sum(abs(x / statistics.median(each) - 1) < 0.1 for x in each)
            / len(each),
            "ms, longest": each[-1],
        }
        if self._device.type == "cuda":
            # Reserved: what a graph works in is not allocated in the eyes of torch.
            reserved = torch.cuda.max_memory_reserved(self._device)
            self.found["GB reserved"] = reserved / 1e9
            self.found["MB grown"] = (torch.cuda.memory_reserved(self._device) - self._held) / 1e6

    def _profiled(self, events: Any) -> None:
        names = Counter(one.name for one in events if one.device_type == DeviceType.CPU)
        # Named ranges of the host lie on the line of the device, too.
        kernels = [
            one for one in events
            if one.device_type == DeviceType.CUDA and not getattr(one, "is_user_annotation", False)
        ]  # fmt: skip
        took = Counter[str]()
        for one in kernels:
            took[one.name] += one.time_range.elapsed_us()
        busy = took.total()
        launches = sum(count for name, count in names.items() if _launches(name))
        self.found |= {
            "busy share": busy / 1e6 / _PROFILED / self.seconds,
            "launches a step": launches / _PROFILED,
            "kernels a step": len(kernels) / _PROFILED,
            # One of cudaDeviceSynchronize is ours, behind the last step.
            "waits in all profiled steps": {name: names[name] for name in _WAITS if names[name]},
            "longest kernels, ms": {
                name[:60]: us / 1000 / _PROFILED for name, us in took.most_common(_LONGEST)
            },
        }


def _mark(on_gpu: bool) -> Any:
    """Now, on the clock of the device where there is one: the host runs ahead of it."""
    if not on_gpu:
        return time.perf_counter()
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


def _apart(begin: Any, end: Any) -> float:
    """Milliseconds between two marks."""
    return 1000 * (end - begin) if isinstance(begin, float) else begin.elapsed_time(end)


def _launches(name: str) -> bool:
    of_cuda = name.startswith(("cuda", "cu"))
    return of_cuda and ("Launch" in name or name.startswith(("cudaMemcpyAsync", "cudaMemsetAsync")))


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
