"""How fast it is: events generated, training steps, loading."""

from __future__ import annotations

import argparse
import contextlib
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from xec_blocks import alone

from holdfast.training import MappedTensors, Place, Task, Trainer, write_tensors
from holdfast.training.data.loading import make_loader
from holdfast.training.data.transfer import Transfer
from holdfast_models.step_times import StepWatch, step_times
from holdfast_models.xec.data.batches import inputs_of
from holdfast_models.xec.data.caching import CachedEvents
from holdfast_models.xec.evaluation.benchmark import Steps
from holdfast_models.xec.model.blocks import ConvNeXtBlock

from .events import BLOCK, DEVICE, log, make_events, on_device, settings_of, task_of

_PATIENCE = 60.0  # seconds that one process waits for the others


def rates(args: argparse.Namespace) -> dict[str, Any]:
    """Generator, and training steps of the three models, compiled or not: rates, syncs, memory."""
    found: dict[str, Any] = {}
    normalization = settings_of("reg", args.size, []).normalization
    make_events(BLOCK, 0, normalization)
    events, found["generated events/s"] = make_events(args.events, 0, normalization)
    log(f"{found['generated events/s']:.0f} events/s generated")
    for kind in args.kinds.split(","):
        batch = args.batch if kind == "reg" else args.batch // 2
        rows = on_device({name: value[:batch] for name, value in events.items()})
        for mode in args.modes.split(",") if DEVICE.type == "cuda" else ("none",):
            torch.compiler.reset()
            settings = settings_of(kind, args.size, args.set)
            work = Steps(settings, task_of(settings, events), rows, mode)
            reported = step_times(work.step, DEVICE, steps=args.steps).reported(batch, "events")
            found[f"{kind}, compile {mode}"] = reported
            log(f"{kind} {mode}: {reported}")
            show_busiest(work.step, args.top)
    return found


def steps(args: argparse.Namespace) -> dict[str, Any]:
    """Whole steps with and without the guard: rate, steadiness, memory, launches, waits."""
    found: dict[str, Any] = {}
    for kind in args.kinds.split(","):
        settings = settings_of(kind, args.size, [*args.set, *plain(args)])
        events, _ = make_events(args.batch, 0, settings.normalization)
        task = task_of(settings, events)
        fuse(task, args)
        work = Steps(settings, task, on_device(events), args.modes, loss=args.loss)
        began = time.perf_counter()
        work.step()
        work.step()
        log(f"{kind}: first two steps {time.perf_counter() - began:.1f} s")
        all_warm(args.together)
        with alone():
            bare = step_times(work.step, DEVICE, steps=max(10, args.steps // 4))
            log(f"{kind} bare: {bare.reported(args.batch, 'events')}")
            with work.guarded():
                whole = step_times(work.step, DEVICE, steps=args.steps, warmup=10)
            found[kind] = whole.reported(args.batch, "events", bare)
            log(f"{kind}: {found[kind]}")
            show_busiest(work.step, args.top)
    return found


def plain(args: argparse.Namespace) -> list[str]:
    """Without the trial of the kernels; ``fuse`` then has them used."""
    return ["model.blocks=plain"] if args.unchecked else []


def fuse(task: Task, args: argparse.Namespace) -> None:
    for block in task.model.modules():
        if args.unchecked and isinstance(block, ConvNeXtBlock):
            block.fused = True


def trained(args: argparse.Namespace) -> dict[str, Any]:
    """Steps of a run of the trainer, guarded, on one batch that is on the device already."""
    found: dict[str, Any] = {}
    for kind in args.kinds.split(","):
        watch = StepWatch(DEVICE, warm=args.warm, steps=args.steps, profiles=bool(args.top))
        given = [f"train.steps={watch.last}", "train.epochs=null"]
        settings = settings_of(kind, args.size, [*given, *plain(args), *args.set])
        events, _ = make_events(args.batch, 0, settings.normalization)
        task = task_of(settings, Repeated(on_device(events), watch.last + 1))
        fuse(task, args)
        with contextlib.ExitStack() as stack, tempfile.TemporaryDirectory() as folder:
            task.stepped = Turn(kind, args, stack, watch).stepped
            result = Trainer.of(task, settings.train, run_dir=Path(folder) / "run", name="x").fit()
        found[kind] = reported(watch, args)
        found[kind] |= {"skipped": result.skipped, "s to compile": result.compile_seconds}
        log(result.report[:1500])
    return found


def reported(watch: StepWatch, args: argparse.Namespace) -> dict[str, Any]:
    return watch.times.reported(args.batch, "events")


class Repeated:
    """A loader of one batch, over and over."""

    def __init__(self, batch: Any, length: int) -> None:
        self._batch, self._length = batch, length

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[Any]:
        for _ in range(self._length):
            yield self._batch


class Turn:
    """Has the device alone after its first step, once others have compiled, until the last."""

    def __init__(
        self, kind: str, args: argparse.Namespace, stack: contextlib.ExitStack, watch: StepWatch
    ) -> None:
        self._kind, self._args, self._stack, self._watch = kind, args, stack, watch

    def stepped(self, step: int) -> None:
        if step == 1:
            all_warm(self._args.together)
            self._stack.enter_context(alone())
        self._watch.look(step)
        if step == self._watch.last:  # before checkpoint and report, which take a while
            log(f"{self._kind}: {reported(self._watch, self._args)}")
            self._stack.close()


def all_warm(count: int) -> None:
    """Wait until so many processes have compiled: that takes the cores which others launch from."""
    folder = Path(tempfile.gettempdir()) / "xec_warm"
    folder.mkdir(exist_ok=True)
    (folder / str(os.getpid())).touch()
    end = time.perf_counter() + _PATIENCE
    while len(list(folder.iterdir())) < count and time.perf_counter() < end:
        time.sleep(0.2)


def data(args: argparse.Namespace) -> dict[str, Any]:
    """Events a second from the cache to the model's inputs on the device, as the trainer loads."""
    settings = settings_of("reg", args.size, [*args.set, f"train.data.batch={args.batch}"])
    events, _ = make_events(args.events, 0, settings.normalization)
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        cache = Path(folder) / "cache"
        write_tensors(cache, events)
        sources = {"ram": events, "memmap": MappedTensors(cache, form="dict")}
        for name, held in sources.items():
            for workers in map(int, args.workers.split(",")):
                with alone():
                    rate = loading_rate(CachedEvents(held, None), settings, workers, args.epochs)
                found[f"{name}, {workers} workers, events/s"] = round(rate)
                log(f"{name}, {workers} workers: {rate:.0f} events/s")
    return found


def loading_rate(dataset: CachedEvents, settings: Any, workers: int, epochs: int) -> float:
    """Random batches through pinned memory and a stream of their own; unpacked on the device."""
    loader = make_loader(
        dataset, settings.train.data, Place(DEVICE), train=True, seed=0, workers=workers
    )
    transfer, count, began = Transfer(DEVICE), 0, 0.0
    for epoch in range(epochs + 1):
        if epoch == 1:  # the first one starts workers
            if DEVICE.type == "cuda":
                torch.cuda.synchronize()
            began = time.perf_counter()
        loader.set_epoch(epoch)
        for batch in loader:
            inputs = inputs_of(transfer(batch), settings.normalization)
            count += len(inputs.npho_BS) if epoch else 0
    if DEVICE.type == "cuda":
        torch.cuda.synchronize()
    took = time.perf_counter() - began
    loader.close()
    return count / took


def show_busiest(step: Callable[[], None], most: int) -> None:
    if most and DEVICE.type == "cuda":
        log("\n".join(busiest(step, most)))


def busiest(step: Callable[[], None], most: int) -> list[str]:
    """The kernels that a step spends most time in."""
    steps = 3
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        for _ in range(steps):
            step()
        torch.cuda.synchronize()
    rows = [one for one in profile.key_averages() if one.self_device_time_total]
    rows.sort(key=lambda one: -one.self_device_time_total)
    whole = sum(one.self_device_time_total for one in rows)
    lines = [
        f"{sum(one.count for one in rows) / steps:.0f} kernels, {whole / steps / 1e3:.2f} ms a step"
    ]
    for one in rows[:most]:
        taken = one.self_device_time_total / steps / 1e3
        lines.append(f"{taken:9.3f} ms {one.count / steps:6.0f} x {one.key[:150]}")
    return lines
