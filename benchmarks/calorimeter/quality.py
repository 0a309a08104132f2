"""How good it is: resolutions, filled sensors, pretraining, and losses with and without kernels."""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import math
import os
import signal
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from holdfast.training import Result, Task, Trainer, load_weights
from holdfast_models.xec.assembly import make_objective
from holdfast_models.xec.data import synthetic
from holdfast_models.xec.evaluation.regression_metrics import opening_angle
from holdfast_models.xec.evaluation.resolution import bootstrap_error
from holdfast_models.xec.evaluation.ridge import Ridge, arrival_times
from holdfast_models.xec.evaluation.scoring import PredictorScores, score_hidden
from holdfast_models.xec.model.fillings import baselines
from holdfast_models.xec.objectives.reconstruction import ReconstructionObjective
from holdfast_models.xec.predictions.columns import physical
from holdfast_models.xec.settings import SynthSettings

from .events import DEVICE, log, make_events, on_device, raw, settings_of, task_of

WARM_UP = 200
"""Steps of a run by the clock before it counts: compiling, and the rate's own warm-up."""
RESOLUTIONS = {
    "energy_rel_res_68pct": ("energy", 100.0, "%"),
    "uvw_u_res_68pct": ("u", 1.0, "cm"),
    "uvw_v_res_68pct": ("v", 1.0, "cm"),
    "uvw_w_res_68pct": ("w", 1.0, "cm"),
    "angle_resolution_68pct": ("angle", 1.0, "deg"),
    "theta_res_68pct": ("theta", 1.0, "deg"),
    "timing_res_68pct": ("timing", 1.0, "ps"),
}


def fit(task: Task, settings: Any, run: Path, seconds: float = 0.0) -> Result:
    """Train; the best weights are in the model afterwards, or the last ones of a run by the clock.

    ``seconds``: train for so long once everything is compiled, the rate a cosine of the time.
    """
    task = dataclasses.replace(task, improved=None, ended=None)
    if seconds:
        clock = Clock(seconds, settings.train.optimizer.lr)
        task = dataclasses.replace(task, prepared=clock.prepared, stepped=clock.stepped)
    began = time.perf_counter()
    result = Trainer.of(task, settings.train, run_dir=run, name="xec").fit()
    if not seconds:
        load_weights(task.model, run)
    log(
        f"{result.why}; {result.rate:.0f} events/s, {time.perf_counter() - began:.0f} s, of which "
        f"{result.compile_seconds:.0f} compiling; step {result.step}; best {result.best:.4g} at "
        f"step {result.best_step}; {result.norms}"
    )
    return result


class Clock:
    """Lowers the rate as a cosine of the time, and ends the run as a cluster would."""

    def __init__(self, seconds: float, rate: float) -> None:
        self._seconds, self._rate = seconds, rate
        self._began: float | None = None
        self._groups: list[dict[str, Any]] = []

    def prepared(self, optimizer: Optimizer) -> None:
        self._groups = optimizer.param_groups

    def stepped(self, step: int) -> None:
        if step == WARM_UP:
            self._began = time.perf_counter()
        if self._began is None or step % 10:
            return
        share = (time.perf_counter() - self._began) / self._seconds
        rate = max(0.5 * self._rate * (1 + math.cos(math.pi * min(share, 1.0))), 1e-8)
        for group in self._groups:
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(rate)
            else:
                group["lr"] = rate
        if share >= 1.0:
            self._began = None
            os.kill(os.getpid(), signal.SIGTERM)


@torch.no_grad()
def predictions(task: Task, events: Mapping[str, Tensor]) -> dict[str, np.ndarray]:
    """What the model says about all events, as columns."""
    assert task.predict is not None
    model, found = task.model.to(DEVICE).eval(), dict[str, list[Tensor]]()
    for first in range(0, len(events["run"]), 1024):
        rows = on_device({name: value[first : first + 1024] for name, value in events.items()})
        for name, value in task.predict(model, rows).items():
            found.setdefault(name, []).append(value.cpu())
    return {name: torch.cat(parts).numpy() for name, parts in found.items()}


def regressor(args: argparse.Namespace) -> dict[str, Any]:
    """Resolutions beside the ridge on the same events."""
    settings = settings_of("reg", args.size, args.set)
    train, test, task, result = fitted(settings, args, args.seconds)
    some, others = (raw(train, settings.normalization, 20_000), raw(test, settings.normalization))
    ridge = Ridge.fit(some).predict(others) | {"pred_timing": arrival_times(others)}
    said = {"network": predictions(task, test), "ridge": ridge}
    return {
        "trained on": args.events,
        "tested on": args.test,
        "parameters": sum(one.numel() for one in task.model.parameters()),
        "events/s": round(result.rate),
        "seconds": round(result.seconds),
        "steps": result.step,
        "skipped": result.skipped,
        "resolution": {
            name: {who: resolution(rows, *how[:2]) for who, rows in said.items()}
            for name, how in RESOLUTIONS.items()
        },
    }


def fitted(
    settings: Any, args: argparse.Namespace, seconds: float = 0.0
) -> tuple[Any, Any, Task, Result]:
    """Events to train and to test on, the task, and how its training went."""
    train, rate = make_events(args.events, 0, settings.normalization)
    test, _ = make_events(args.test, args.events + 64, settings.normalization)
    log(f"{args.events} events at {rate:.0f}/s")
    task = task_of(settings, train, test)
    with tempfile.TemporaryDirectory() as folder:
        return train, test, task, fit(task, settings, Path(folder) / "run", seconds)


def resolution(rows: Mapping[str, np.ndarray], quantity: str, unit: float) -> tuple[float, float]:
    """68 % of the absolute residuals, and the bootstrap error of that."""
    off = np.abs(residuals(rows, quantity)) * unit
    (error,) = bootstrap_error(off[:, None], lambda some: np.quantile(some, 0.68, axis=1))
    return float(np.quantile(off, 0.68)), float(error)


def residuals(rows: Mapping[str, np.ndarray], quantity: str) -> np.ndarray:
    columns = {name: np.asarray(value, np.float64) for name, value in rows.items()}
    if quantity == "angle":
        return opening_angle(columns)
    off = columns[f"pred_{quantity}"] - columns[f"true_{quantity}"]
    if quantity == "energy":
        off = off / columns["true_energy"]
    return off * 1e12 if quantity == "timing" else off


def inpainter(args: argparse.Namespace) -> dict[str, Any]:
    """Filled-in sensors beside both baselines, by face and by photons."""
    settings = settings_of("inp", args.size, args.set)
    _, test, task, result = fitted(settings, args, args.seconds)
    scores = filled(task, settings, test)
    return {
        "trained on": args.events,
        "tested on": args.test,
        "events/s": round(result.rate),
        "seconds": round(result.seconds),
        "lines": scores.lines(),
        "rows": scores.plain(),
    }


@torch.no_grad()
def filled(task: Task, settings: Any, events: Mapping[str, Tensor]) -> PredictorScores:
    """All hidden sensors: what they measured and what was made of it."""
    objective = cast(ReconstructionObjective, make_objective(task.model, settings))
    model = task.model.to(DEVICE).eval()
    held: dict[str, list[Tensor]] = {}
    for first in range(0, len(events["run"]), 512):
        rows = on_device({name: value[first : first + 512] for name, value in events.items()})
        with torch.autocast(DEVICE.type, torch.bfloat16, enabled=DEVICE.type == "cuda"):
            done = objective.hide_and_fill(model, rows)
        said = {"truth": done.inputs.npho_BS, "hidden": done.hidden.hidden_BS}
        said["inpainter"] = physical(done.pred_BSC[..., 0], settings.normalization, "npho")
        said |= baselines(done.inputs.npho_BS, done.shown.npho_valid_BS, rows["uvwFI"])
        for name, value_BS in said.items():
            held.setdefault(name, []).append(value_BS.cpu())
    found = {name: torch.cat(parts) for name, parts in held.items()}
    return score_hidden(found.pop("truth"), found.pop("hidden"), found)


def pretrain(args: argparse.Namespace) -> dict[str, Any]:
    """Few labels, with and without an encoder that has seen events without labels."""
    settings = settings_of("mae", args.size, args.set)
    train, test, mae, result = fitted(settings, args)
    found: dict[str, Any] = {"unlabelled": args.events, "tested on": args.test, "rows": []}
    found["mae"] = {"events/s": round(result.rate), "seconds": round(result.seconds)}
    encoder = {n: v.detach().cpu() for n, v in mae.model.encoder.state_dict().items()}  # type: ignore[union-attr]
    tries = itertools.product(
        map(int, args.labels.split(",")), range(args.seeds), ("fresh", "pretrained")
    )
    for labels, seed, started in tries:
        some = {name: value[:labels] for name, value in train.items()}
        given = [
            *args.set, f"train.seed.seed={seed}",
            f"train.data.batch={min(256, max(16, labels // 16))}",
            "train.epochs=null", f"train.steps={args.label_steps}",
            f"train.validation.steps={args.label_steps // 5}", "train.validation.epochs=0",
        ]  # fmt: skip
        run = settings_of("reg", args.size, given)
        task = task_of(run, some, test)
        if started == "pretrained":
            task.model.encoder.load_state_dict(encoder)  # type: ignore[union-attr]
        with tempfile.TemporaryDirectory() as folder:
            fit(task, run, Path(folder) / "run")
        columns = predictions(task, test)
        row = {
            name: resolution(columns, quantity, unit)[0]
            for name, (quantity, unit, _) in RESOLUTIONS.items()
        }
        found["rows"].append({"labels": labels, "seed": seed, "begun": started, **row})
        log(json.dumps(found["rows"][-1]))
    return found


def losses(args: argparse.Namespace) -> dict[str, Any]:
    """Loss after equal events with plain blocks and with kernels: the same weights, batches, RNG.

    Both without the compiler; the last column is the mean of the last ten steps.
    """
    found: dict[str, Any] = {}
    for kind in args.kinds.split(","):
        for blocks in ("plain", "auto"):
            settings = settings_of(kind, args.size, [*args.set, f"model.blocks={blocks}"])
            events, _ = make_events(args.events, 0, settings.normalization)
            rows = on_device(events)
            task = task_of(settings, events)
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


def floor(args: argparse.Namespace) -> dict[str, Any]:
    """Fillings by one who knows how much light every sensor is to expect: what noise leaves.

    One gives that number, the other the mean of what a sensor then measures, counts below 0
    taken as 0, as networks see them with a root.
    """
    expected, measured = list[Tensor](), synthetic._measured

    def noted(sensors: Any, random: Any, mean_BS: Tensor, arrival_BS: Tensor) -> Any:
        expected.append(mean_BS.clone())
        return measured(sensors, random, mean_BS, arrival_BS)

    synthetic._measured = noted
    truth_BS = synthetic.generate(SynthSettings(dead_share=0.0), args.events, device=DEVICE)["npho"]
    mean_BS = torch.cat(expected)[: args.events]
    noise_S = synthetic.sensors_of(SynthSettings(), DEVICE).noise_S
    # Counts of photoelectrons are steps of some photons, wide beside noise: nearly normal.
    sigma_BS = (mean_BS / 0.1 + noise_S**2).sqrt()
    z_BS = mean_BS / sigma_BS
    normal = torch.distributions.Normal(0.0, 1.0)
    above_BS = mean_BS * normal.cdf(z_BS) + sigma_BS * normal.log_prob(z_BS).exp()
    said = {"expected": mean_BS, "mean above 0": above_BS}
    every_BS = torch.ones_like(truth_BS, dtype=torch.bool)
    scores = score_hidden(truth_BS.clamp(min=0), every_BS, said)
    return {"events": args.events, "lines": scores.lines()}
