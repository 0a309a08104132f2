"""The calorimeter family on generated events: rates, resolutions, pretraining, inpainting.

    python benchmarks/xec.py --part rates                       # a GPU: generator, steps, syncs
    python benchmarks/xec.py --part steps --batch 1024 --modes default --steps 200  # guarded
    python benchmarks/xec.py --part trained --batch 1024 --warm 20 --steps 200 \\
        --set train.compile.mode=default --set train.graph=true     # by the trainer
    python benchmarks/xec.py --part losses --batch 256 --events 8192 --steps 60    # kernels or not
    python benchmarks/xec.py --part data --batch 1024 --events 16384    # from the cache to the GPU
    python benchmarks/xec.py --part regressor --events 180000 --set train.steps=8000
    python benchmarks/xec.py --part inpainter --events 100000 --set train.steps=2000
    python benchmarks/xec.py --part pretrain --events 60000 --labels 500,2000,8000 --seeds 3
    python benchmarks/xec.py --part regressor --size small --events 4096   # two cores

Events are generated and kept in memory in the packed form of the cache, so neither ROOT nor a disk
is needed. Training goes through the trainer with guard and checkpoints. Tables go to ``--out``.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from overhead import hardware
from torch import Tensor, nn
from xec_blocks import alone

from holdfast.training import (
    MappedTensors,
    Place,
    Result,
    Task,
    Trainer,
    load_weights,
    resolve,
    write_tensors,
)
from holdfast.training.data.loading import make_loader
from holdfast.training.data.transfer import Transfer
from holdfast_models.step_times import StepWatch, step_times
from holdfast_models.xec.assembly import make_model
from holdfast_models.xec.data.batches import inputs_of, packed
from holdfast_models.xec.data.caching import CachedEvents
from holdfast_models.xec.data.normalization import normalise, npho_from_scale
from holdfast_models.xec.data.synthetic import generate
from holdfast_models.xec.evaluation.benchmark import Steps
from holdfast_models.xec.evaluation.bootstrap import bootstrap_error
from holdfast_models.xec.evaluation.fill_baselines import NeighbourMean, SolidAngleMean
from holdfast_models.xec.evaluation.regression_metrics import regression_metrics
from holdfast_models.xec.evaluation.ridge import Ridge, arrival_times
from holdfast_models.xec.evaluation.scoring import score
from holdfast_models.xec.kernels import check
from holdfast_models.xec.kinds import recipe_of
from holdfast_models.xec.model.blocks import ConvNeXtBlock
from holdfast_models.xec.objectives.reconstruction import reconstruction_objective
from holdfast_models.xec.objectives.regression import RegressionObjective
from holdfast_models.xec.recipes import reconstruction_task, regression_task
from holdfast_models.xec.settings import NormalizationSettings, SynthSettings

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
TRUTHS = ("energy", "timing", "uvwFI", "angle", "run", "event")
BLOCK = 2048
_PATIENCE = 60.0  # seconds that one process waits for the others


def log(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def make_events(
    count: int, first: int, normalization: NormalizationSettings
) -> tuple[dict[str, Tensor], float]:
    """Events of a set, packed, on the host; and how many a second were made."""
    held: dict[str, list[Tensor]] = {}
    seconds = 0.0
    for at in range(first, first + count, BLOCK):
        began = time.perf_counter()
        events = generate(SynthSettings(), min(BLOCK, first + count - at), first=at, device=DEVICE)
        if DEVICE.type == "cuda":
            torch.cuda.synchronize()
        seconds += time.perf_counter() - began
        inputs = normalise(events["npho"], events["time"], normalization)
        for name, value in (packed(inputs) | {n: events[n] for n in TRUTHS}).items():
            held.setdefault(name, []).append(value.cpu())
    return {name: torch.cat(parts) for name, parts in held.items()}, count / seconds


def settings_of(kind: str, size: str, overrides: list[str]) -> Any:
    preset = "small" if size == "small" else "synthetic"
    base = ["train.holdfast.run.quiet=true", "output.artifacts=false", "output.onnx=null"]
    if kind == "inp":
        base += ["model.freeze_encoder=false"]
    return resolve(recipe_of(kind), preset=preset, overrides=[*base, *overrides], platform="none")


def task_of(kind: str, settings: Any, train: Any, validation: Any) -> Task:
    place = Place(DEVICE)
    torch.manual_seed(settings.train.seed.seed)
    if kind == "reg":
        return regression_task(settings, place, train, validation)
    return reconstruction_task(settings, place, train, validation)


def fit(task: Task, settings: Any, run: Path) -> Result:
    """Train; the best weights are in the model afterwards."""
    task = dataclasses.replace(task, improved=None, ended=None)
    began = time.perf_counter()
    result = Trainer.of(task, settings.train, run_dir=run, name="xec").fit()
    load_weights(task.model, run)
    log(
        f"{result.why}; {result.rate:.0f} events/s, {time.perf_counter() - began:.0f} s, of which "
        f"{result.compile_seconds:.0f} compiling; best {result.best:.4g} at step "
        f"{result.best_step}; {result.norms}"
    )
    return result


@torch.no_grad()
def predictions(task: Task, events: CachedEvents, batch: int = 1024) -> dict[str, np.ndarray]:
    """What the model says about all events, as columns."""
    assert task.predict is not None
    model, found = task.model.to(DEVICE).eval(), dict[str, list[Tensor]]()
    for first in range(0, len(events), batch):
        rows = events.__getitems__(range(first, min(first + batch, len(events)))).batch
        rows = {name: value.to(DEVICE) for name, value in rows.items()}
        said = task.predict(model, rows)
        for name, value in said.items():
            found.setdefault(name, []).append(value.cpu())
    return {name: torch.cat(parts).numpy() for name, parts in found.items()}


# ---------------------------------------------------------------------- parts


def rates(args: argparse.Namespace) -> dict[str, Any]:
    """Generator, training steps of the three models, and ten steps in which nothing may sync."""
    found: dict[str, Any] = {}
    normalization = settings_of("reg", args.size, []).normalization
    make_events(BLOCK, 0, normalization)
    events, found["generated events/s"] = make_events(args.events, 0, normalization)
    log(f"{found['generated events/s']:.0f} events/s generated")
    for kind in args.kinds.split(","):
        batch = args.batch if kind == "reg" else args.batch // 2
        for mode in args.modes.split(",") if DEVICE.type == "cuda" else ("none",):
            torch.compiler.reset()
            found[f"{kind}, compile {mode}"] = step_rate(kind, args, events, batch, mode)
            log(f"{kind} {mode}: {found[f'{kind}, compile {mode}']}")
    return found


def step_rate(
    kind: str, args: argparse.Namespace, events: Mapping[str, Tensor], batch: int, mode: str
) -> dict[str, float]:
    settings = settings_of(kind, args.size, args.set)
    torch.manual_seed(0)
    model = make_model(kind, settings).to(DEVICE).train()
    if DEVICE.type == "cuda" and settings.model.blocks == "auto":
        log(f"blocks: {check.take(model, DEVICE) or 'by kernels'}")
    objective: Any = (
        RegressionObjective(model, settings)  # type: ignore[arg-type]
        if kind == "reg"
        else reconstruction_objective(model, settings)
    )
    if mode != "none":
        model.compile(mode=mode, fullgraph=True)
    fused = DEVICE.type == "cuda"
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=fused)
    rows = {name: value[:batch].to(DEVICE) for name, value in events.items()}

    def step() -> None:
        with torch.autocast(DEVICE.type, torch.bfloat16, enabled=fused):
            loss, _ = objective.loss(model, rows)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    began = time.perf_counter()
    for _ in range(3):
        step()
    if not fused:
        began = time.perf_counter()
        step()
        return {"batch": batch, "events/s": batch / (time.perf_counter() - began)}
    torch.cuda.synchronize()
    first = time.perf_counter() - began
    torch.cuda.reset_peak_memory_stats()
    torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(10):
            step()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    torch.cuda.synchronize()
    began = time.perf_counter()
    for _ in range(args.steps):
        step()
    torch.cuda.synchronize()
    seconds = time.perf_counter() - began
    if args.top:
        log(f"{args.steps * batch / seconds:.0f} events/s")
        log("\n".join(busiest(step, args.top)))
    return {
        "batch": batch,
        "events/s": round(args.steps * batch / seconds),
        "peak GB": round(torch.cuda.max_memory_allocated() / 1e9, 1),
        "first 3 steps s": round(first, 1),
        "host syncs in 10 steps": 0,
    }


def steps(args: argparse.Namespace) -> dict[str, Any]:
    """Whole steps with and without the guard: rate, steadiness, memory, launches, waits."""
    found: dict[str, Any] = {}
    for kind in args.kinds.split(","):
        unchecked = ["model.blocks=plain"] if args.unchecked else []
        settings = settings_of(kind, args.size, [*args.set, *unchecked])
        events, _ = make_events(args.batch, 0, settings.normalization)
        task = task_of(kind, settings, CachedEvents(events, None), None)
        for block in task.model.modules():
            if args.unchecked and isinstance(block, ConvNeXtBlock):
                block.fused = True
        rows = {name: value.to(DEVICE) for name, value in events.items()}
        task.model.to(DEVICE)
        work = Steps(settings, task, rows, args.modes, loss=args.loss)
        began = time.perf_counter()
        work.step()
        work.step()
        log(f"{kind}: first two steps {time.perf_counter() - began:.1f} s")
        all_warm(args.together)
        with alone():
            bare = step_times(work.step, DEVICE, steps=max(10, args.steps // 4))
            log(f"{kind} bare: {bare.told(args.batch, 'events')}")
            with work.guarded():
                whole = step_times(work.step, DEVICE, steps=args.steps, warmup=10)
            found[kind] = whole.told(args.batch, "events", bare)
            log(f"{kind}: {found[kind]}")
            if args.top and DEVICE.type == "cuda":
                log("\n".join(busiest(work.step, args.top)))
    return found


def trained(args: argparse.Namespace) -> dict[str, Any]:
    """Steps of a run of the trainer, guarded, on one batch that is on the device already."""
    found: dict[str, Any] = {}
    for kind in args.kinds.split(","):
        watch = StepWatch(DEVICE, warm=args.warm, steps=args.steps, profiles=bool(args.top))
        given = [f"train.steps={watch.last}", "train.epochs=null"]
        unchecked = ["model.blocks=plain"] if args.unchecked else []
        settings = settings_of(kind, args.size, [*given, *unchecked, *args.set])
        events, _ = make_events(args.batch, 0, settings.normalization)
        rows = {name: value.to(DEVICE) for name, value in events.items()}
        task = task_of(kind, settings, Repeated(rows, watch.last + 1), None)
        for block in task.model.modules():
            if args.unchecked and isinstance(block, ConvNeXtBlock):
                block.fused = True
        with contextlib.ExitStack() as stack, tempfile.TemporaryDirectory() as folder:
            task.stepped = Turn(kind, args, stack, watch).stepped
            result = Trainer.of(task, settings.train, run_dir=Path(folder) / "run", name="x").fit()
        found[kind] = told(watch, args)
        found[kind] |= {"skipped": result.skipped, "s to compile": result.compile_seconds}
        log(result.report[:1500])
    return found


def told(watch: StepWatch, args: argparse.Namespace) -> dict[str, Any]:
    return watch.times.told(args.batch, "events")


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
        self,
        kind: str,
        args: argparse.Namespace,
        stack: contextlib.ExitStack,
        watch: StepWatch,
    ) -> None:
        self._kind, self._args, self._stack, self._watch = kind, args, stack, watch

    def stepped(self, step: int) -> None:
        if step == 1:
            all_warm(self._args.together)
            self._stack.enter_context(alone())
        self._watch.look(step)
        if step == self._watch.last:  # before checkpoint and report, which take a while
            log(f"{self._kind}: {told(self._watch, self._args)}")
            self._stack.close()


def all_warm(count: int) -> None:
    """Wait until so many processes have compiled: that takes the cores which others launch from."""
    folder = Path(tempfile.gettempdir()) / "xec_warm"
    folder.mkdir(exist_ok=True)
    (folder / str(os.getpid())).touch()
    end = time.perf_counter() + _PATIENCE
    while len(list(folder.iterdir())) < count and time.perf_counter() < end:
        time.sleep(0.2)


def losses(args: argparse.Namespace) -> dict[str, Any]:
    """Loss after equal events with plain blocks and with kernels: the same weights, batches, RNG.

    Both without the compiler; the last column is the mean of the last ten steps.
    """
    found: dict[str, Any] = {}
    for kind in args.kinds.split(","):
        for blocks in ("plain", "auto"):
            settings = settings_of(kind, args.size, [*args.set, f"model.blocks={blocks}"])
            events, _ = make_events(args.events, 0, settings.normalization)
            rows = {name: value.to(DEVICE) for name, value in events.items()}
            task = task_of(kind, settings, CachedEvents(events, None), None)
            model = task.model.to(DEVICE).train()
            optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
            torch.manual_seed(1)
            seen = list[Tensor]()
            for _ in range(args.steps):
                some = torch.randint(args.events, (args.batch,), device=DEVICE)
                with torch.autocast(DEVICE.type, torch.bfloat16, enabled=DEVICE.type == "cuda"):
                    loss: Any = task.loss(model, {name: one[some] for name, one in rows.items()})
                loss = loss[0] if isinstance(loss, tuple) else loss
                loss.backward()
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()
                seen.append(loss.detach())
            series = torch.stack(seen).tolist()
            shown = [round(one, 4) for one in series[:: max(1, args.steps // 6)]]
            last = float(np.mean(series[-10:]))
            found[f"{kind}, blocks {blocks}"] = {"losses": shown, "last ten": last}
            log(f"{kind}, blocks {blocks}: {shown}, last ten {last:.4f}")
    return found


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


def regressor(args: argparse.Namespace) -> dict[str, Any]:
    """Resolutions beside the ridge on the same events."""
    settings = settings_of("reg", args.size, args.set)
    train, rate = make_events(args.events, 0, settings.normalization)
    test, _ = make_events(args.test, args.events + 64, settings.normalization)
    log(f"{args.events} events at {rate:.0f}/s")
    task = task_of("reg", settings, CachedEvents(train, None), CachedEvents(test, None))
    with tempfile.TemporaryDirectory() as folder:
        result = fit(task, settings, Path(folder) / "run")
    columns = predictions(task, CachedEvents(test, None))
    ridge = Ridge.fit(raw(train, settings.normalization, 20_000)).predict(
        raw(test, settings.normalization)
    )
    ridge["pred_timing"] = arrival_times(raw(test, settings.normalization))
    measured = {"network": regression_metrics(columns), "ridge": regression_metrics(ridge)}
    return {
        "trained on": args.events,
        "tested on": args.test,
        "parameters": sum(one.numel() for one in task.model.parameters()),
        "events/s": round(result.rate),
        "seconds": round(result.seconds),
        "steps": result.step,
        "skipped": result.skipped,
        "resolution": {
            name: {who: numbers(who, name, columns, ridge, measured) for who in measured}
            for name in RESOLUTIONS
        },
    }


RESOLUTIONS = {
    "energy_rel_res_68pct": ("energy", 100.0, "%"),
    "uvw_u_res_68pct": ("u", 1.0, "cm"),
    "uvw_v_res_68pct": ("v", 1.0, "cm"),
    "uvw_w_res_68pct": ("w", 1.0, "cm"),
    "angle_resolution_68pct": ("angle", 1.0, "deg"),
    "theta_res_68pct": ("theta", 1.0, "deg"),
    "timing_res_68pct": ("timing", 1.0, "ps"),
}


def numbers(
    who: str, name: str, columns: Any, ridge: Any, measured: Mapping[str, Mapping[str, float]]
) -> tuple[float, float]:
    """A resolution and its bootstrap error."""
    rows = columns if who == "network" else ridge
    quantity, unit, _ = RESOLUTIONS[name]
    off = np.abs(residuals(rows, quantity)) * unit
    (error,) = bootstrap_error(off[:, None], lambda some: np.quantile(some, 0.68, axis=1))
    return float(np.quantile(off, 0.68)), float(error)


def residuals(rows: Mapping[str, np.ndarray], quantity: str) -> np.ndarray:
    if quantity == "angle":
        from holdfast_models.xec.evaluation.regression_metrics import opening_angle

        return np.asarray(opening_angle({n: np.asarray(v, np.float64) for n, v in rows.items()}))
    off = np.asarray(rows[f"pred_{quantity}"], np.float64) - rows[f"true_{quantity}"]
    if quantity == "energy":
        off = off / rows["true_energy"]
    return off * 1e12 if quantity == "timing" else off


def raw(
    events: Mapping[str, Tensor], normalization: NormalizationSettings, most: int | None = None
) -> dict[str, Tensor]:
    """Packed events as files hold them: photons and seconds, 1e10 where there are none."""
    some = {name: value[:most] for name, value in events.items()}
    inputs = inputs_of(some, normalization)
    seconds = (inputs.x_BSC[..., 1] + normalization.time_shift) * normalization.time_scale
    return {
        **{name: some[name] for name in TRUTHS},
        "npho": torch.where(inputs.npho_valid_BS, inputs.npho_BS, 1e10),
        "time": torch.where(inputs.time_valid_BS, seconds, 1e10),
    }


def inpainter(args: argparse.Namespace) -> dict[str, Any]:
    """Filled-in sensors beside both baselines, by face and by photons."""
    settings = settings_of("inp", args.size, args.set)
    train, _ = make_events(args.events, 0, settings.normalization)
    test, _ = make_events(args.test, args.events + 64, settings.normalization)
    task = task_of("inp", settings, CachedEvents(train, None), CachedEvents(test, None))
    with tempfile.TemporaryDirectory() as folder:
        result = fit(task, settings, Path(folder) / "run")
    truth, said, face, event = filled(task, settings, test)
    scores = score(truth, said, face, event)
    return {
        "trained on": args.events,
        "tested on": args.test,
        "events/s": round(result.rate),
        "seconds": round(result.seconds),
        "lines": scores.lines(),
        "rows": scores.plain(),
    }


@torch.no_grad()
def filled(task: Task, settings: Any, events: Mapping[str, Tensor]) -> Any:
    """Truth and predictions of all hidden sensors, in photons."""
    from holdfast_models.xec.geometry.layout import face_of_sensor

    near, angles = NeighbourMean().to(DEVICE), SolidAngleMean().to(DEVICE)
    objective = reconstruction_objective(task.model, settings)
    model = task.model.to(DEVICE).eval()
    truth, faces, at = list[np.ndarray](), list[np.ndarray](), list[np.ndarray]()
    said: dict[str, list[np.ndarray]] = {"inpainter": [], "neighbours": [], "solid angle": []}
    cached, face_S = CachedEvents(events, None), face_of_sensor()
    for first in range(0, len(cached), 512):
        rows = cached.__getitems__(range(first, min(first + 512, len(cached)))).batch
        rows = {name: value.to(DEVICE) for name, value in rows.items()}
        with torch.autocast(DEVICE.type, torch.bfloat16, enabled=DEVICE.type == "cuda"):
            done = objective.hide_and_fill(model, rows)
        hidden_BS, inputs = done.hidden.hidden_BS, done.inputs
        usable_BS = done.shown.npho_valid_BS
        pred_BS = npho_from_scale(
            done.pred_BSC[..., 0].float().clamp(min=0), settings.normalization
        )
        values = {
            "inpainter": pred_BS,
            "neighbours": near(inputs.npho_BS, usable_BS),
            "solid angle": angles(inputs.npho_BS, usable_BS, rows["uvwFI"]),
        }
        event_R, sensor_R = (one.cpu().numpy() for one in hidden_BS.nonzero(as_tuple=True))
        at.append(event_R + first)
        faces.append(face_S[sensor_R])
        truth.append(inputs.npho_BS[hidden_BS].cpu().numpy())
        for name, value_BS in values.items():
            said[name].append(value_BS[hidden_BS].float().cpu().numpy())
    joined = {name: np.concatenate(parts) for name, parts in said.items()}
    return np.concatenate(truth), joined, np.concatenate(faces), np.concatenate(at)


def pretrain(args: argparse.Namespace) -> dict[str, Any]:
    """Few labels, with and without an encoder that has seen events without labels."""
    settings = settings_of("mae", args.size, args.set)
    train, _ = make_events(args.events, 0, settings.normalization)
    test, _ = make_events(args.test, args.events + 64, settings.normalization)
    found: dict[str, Any] = {"unlabelled": args.events, "tested on": args.test, "rows": []}
    with tempfile.TemporaryDirectory() as folder:
        mae = task_of("mae", settings, CachedEvents(train, None), CachedEvents(test, None))
        result = fit(mae, settings, Path(folder) / "mae")
        found["mae"] = {"events/s": round(result.rate), "seconds": round(result.seconds)}
        encoder = {n: v.detach().cpu() for n, v in mae.model.encoder.state_dict().items()}  # type: ignore[union-attr]
        for labels in map(int, args.labels.split(",")):
            some = {name: value[:labels] for name, value in train.items()}
            batch = min(256, max(16, labels // 16))
            steps = args.label_steps
            for seed in range(args.seeds):
                for begun in ("fresh", "pretrained"):
                    run = settings_of(
                        "reg",
                        args.size,
                        [
                            *args.set,
                            f"train.seed.seed={seed}",
                            f"train.data.batch={batch}",
                            "train.epochs=null",
                            f"train.steps={steps}",
                            f"train.validation.steps={steps // 5}",
                            "train.validation.epochs=0",
                        ],
                    )
                    task = task_of("reg", run, CachedEvents(some, None), CachedEvents(test, None))
                    if begun == "pretrained":
                        task.model.encoder.load_state_dict(encoder)  # type: ignore[union-attr]
                    fit(task, run, Path(folder) / f"{labels}_{seed}_{begun}")
                    columns = predictions(task, CachedEvents(test, None))
                    row = {
                        name: float(np.quantile(np.abs(residuals(columns, q)) * unit, 0.68))
                        for name, (q, unit, _) in RESOLUTIONS.items()
                    }
                    found["rows"].append({"labels": labels, "seed": seed, "begun": begun, **row})
                    log(json.dumps(found["rows"][-1]))
    return found


PARTS = {
    "rates": rates,
    "steps": steps,
    "trained": trained,
    "losses": losses,
    "data": data,
    "regressor": regressor,
    "inpainter": inpainter,
    "pretrain": pretrain,
}


def main() -> int:
    parser = argparse.ArgumentParser(description="The calorimeter family on generated events.")
    parser.add_argument("--part", choices=PARTS, required=True)
    parser.add_argument("--size", choices=("small", "full"), default="full")
    parser.add_argument("--events", type=int, default=20_000, help="to train on")
    parser.add_argument("--test", type=int, default=4096)
    parser.add_argument("--batch", type=int, default=2048)
    parser.add_argument("--steps", type=int, default=20, help="timed")
    parser.add_argument("--kinds", default="reg,mae,inp", help="of rates")
    parser.add_argument("--modes", default="none,default", help="of rates: how it is compiled")
    parser.add_argument("--top", type=int, default=0, help="of rates: that many busiest kernels")
    parser.add_argument(
        "--unchecked", action="store_true", help="of steps: kernels without a trial"
    )
    parser.add_argument("--warm", type=int, default=10, help="of trained: steps before")
    parser.add_argument("--loss", action="store_true", help="of steps: compile the loss, too")
    parser.add_argument("--together", type=int, default=1, help="of steps: processes to wait for")
    parser.add_argument("--workers", default="0,2", help="of data: processes that load")
    parser.add_argument("--epochs", type=int, default=6, help="of data: passes over the events")
    parser.add_argument("--labels", default="500,2000,8000")
    parser.add_argument("--label-steps", type=int, default=400)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--set", action="append", default=[])
    parser.add_argument("--out", type=Path, help="a JSON file")
    args = parser.parse_args()
    began = time.perf_counter()
    found = {"part": args.part, "hardware": hardware(), "command": " ".join(sys.argv[1:])}
    found |= PARTS[args.part](args)
    found["whole seconds"] = round(time.perf_counter() - began)
    text = json.dumps(found, indent=1, default=str)
    print(text)
    if args.out is not None:
        args.out.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
