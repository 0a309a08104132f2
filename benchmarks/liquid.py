"""The liquid family: phases, what each feature is worth, forgetting, and the other tasks.

    python benchmarks/liquid.py --part phases --phases 1,2,3                       # a GPU
    python benchmarks/liquid.py --part phases --phases 1 --plain    # without kernels and graphs
    python benchmarks/liquid.py --part ablation --preset tiny --set train.steps=400
    python benchmarks/liquid.py --part forgetting --preset tiny --tasks 2
    python benchmarks/liquid.py --part tasks                        # vision and robotics
    python benchmarks/liquid.py --part infs --preset phase2         # three in a row, survived

Everything goes through the trainer with its guard. Tables go to ``--out``.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from overhead import hardware
from torch import Tensor

from holdfast.training import Place, Result, Task, Trainer, resolve
from holdfast_models.liquid.course import Course
from holdfast_models.liquid.data.opening import open_data
from holdfast_models.liquid.evaluation.ablation import FEATURES, Measured, ablate
from holdfast_models.liquid.kernels.choice import using
from holdfast_models.liquid.recipe import RECIPE, build
from holdfast_models.liquid.run_settings import LiquidSettings

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
BASE = ["train.holdfast.run.quiet=true", "pictures=false"]


def log(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def settings_of(preset: str | None, overrides: list[str]) -> LiquidSettings:
    return resolve(RECIPE, preset=preset, overrides=[*BASE, *overrides], platform="none")


class Fitted:
    """A run, its losses and what it told."""

    def __init__(self, settings: LiquidSettings) -> None:
        torch.manual_seed(settings.train.seed.seed)
        self.task: Task = build(settings, Place(DEVICE, rank=1))
        self.losses: list[Tensor] = []
        began = time.perf_counter()
        plain = self.task.loss

        def loss(net: Any, batch: Any) -> Any:
            found = plain(net, batch)
            if torch.is_grad_enabled():
                self.losses.append(found[0].detach())
            return found

        with tempfile.TemporaryDirectory() as folder:
            task = dataclasses.replace(self.task, loss=loss, ended=None)
            trainer = Trainer.of(task, settings.train, run_dir=Path(folder) / "run", name="liquid")
            self.result: Result = trainer.fit()
        self.seconds = time.perf_counter() - began
        course = self.task.state["course"]
        assert isinstance(course, Course)
        self.course = course

    def row(self, settings: LiquidSettings) -> dict[str, Any]:
        tokens = settings.data.sequence_length if settings.task == "llm" else 1
        first, last = self.losses[:20], self.losses[-20:]
        found = {
            "steps": self.result.step,
            "skipped": self.result.skipped,
            "seconds": round(self.seconds),
            "tokens/s": round(self.result.rate * tokens),
            "first loss": float(torch.stack(first).mean()),
            "last loss": float(torch.stack(last).mean()),
            "validation": dict(self.result.validation),
            "norms": self.result.norms,
        }
        if DEVICE.type == "cuda":
            found["peak GB"] = round(torch.cuda.max_memory_allocated() / 1e9, 2)
        return found | (
            {"continual": self.course.scores.plain()} if len(self.course.scores.names) > 1 else {}
        )


def phases(args: argparse.Namespace) -> dict[str, Any]:
    """The four acceptance runs, each with ln V and the unigram entropy beside it."""
    found: dict[str, Any] = {}
    for number in args.phases.split(","):
        settings = settings_of(f"phase{number}", args.set)
        baselines = open_data(settings).baselines()
        row = Fitted(settings).row(settings) | {"baselines": dict(baselines)}
        found[f"phase {number}"] = row
        log(f"phase {number}: {json.dumps(row, default=str)}")
    return found


def ablation(args: argparse.Namespace) -> dict[str, Any]:
    """Each feature on and off, over seeds."""

    def run(settings: LiquidSettings) -> Measured:
        fitted = Fitted(settings)
        row = fitted.row(settings)
        lost = row.get("continual", {}).get("forgetting")
        log(f"{settings.train.seed.seed} {row['validation']} {row['tokens/s']} tokens/s {lost}")
        return Measured(row["validation"]["loss"], row["tokens/s"], lost)

    table = ablate(
        settings_of(args.preset, args.set),
        run,
        features=[one for one in FEATURES if not args.features or one.name in args.features],
        seeds=args.seeds,
    )
    return {"lines": table.lines(), **table.plain()}


WAYS = {
    "naive": ["continual.consolidation=false"],
    "consolidation": [],
    "replay": ["continual.consolidation=false", "continual.replay=true"],
    "both": ["continual.replay=true"],
    "joint": ["continual.order=joint"],
}


def forgetting(args: argparse.Namespace) -> dict[str, Any]:
    """Permuted vocabularies: naive, consolidated, replayed, both, and joint training."""
    common = [
        "continual.on=true", f"continual.num_tasks={args.tasks}",
        "continual.tasks=permuted_vocabulary", "train.steps=null",
        f"train.epochs={args.tasks * args.epochs}",
    ]  # fmt: skip
    found: dict[str, Any] = {}
    for way in args.ways:
        for seed in args.seeds:
            settings = settings_of(
                args.preset, [*common, *WAYS[way], f"train.seed.seed={seed}", *args.set]
            )
            row = Fitted(settings).row(settings)
            found.setdefault(way, []).append(row)
            reported = {k: row.get("continual", {}).get(k) for k in ("accuracy", "forgetting")}
            log(f"{way} seed {seed}: {reported} validation {row['validation']}")
    return found


def tasks(args: argparse.Namespace) -> dict[str, Any]:
    """Vision and robotics beside their linear baselines."""
    found: dict[str, Any] = {}
    cases = {
        "shapes": ("vision", ["data.images=shapes"]),
        "digits": ("vision", ["data.images=digits"]),
        "pendulum": ("robotics", ["data.robot=pendulum"]),
        "arm": ("robotics", ["data.robot=arm"]),
        "navigation": ("robotics", ["data.robot=navigation"]),
    }
    for name in args.cases.split(","):
        preset, more = cases[name]
        for seed in args.seeds:
            settings = settings_of(preset, [*more, f"train.seed.seed={seed}", *args.set])
            row = Fitted(settings).row(settings) | {
                "baselines": dict(open_data(settings).baselines())
            }
            found.setdefault(name, []).append(row)
            log(f"{name} seed {seed}: {row['validation']} beside {row['baselines']}")
    return found


def infs(args: argparse.Namespace) -> dict[str, Any]:
    """Three losses in a row that are infinite, in the middle of a run."""
    settings = settings_of(args.preset, args.set)
    task = build(settings, Place(DEVICE, rank=1))
    count, plain = iter(range(1, 10**9)), task.loss

    def loss(net: Any, batch: Any) -> Any:
        found = plain(net, batch)
        bad = torch.is_grad_enabled() and next(count) in (20, 21, 22)
        return (found[0] * math.inf, found[1]) if bad else found

    with tempfile.TemporaryDirectory() as folder:
        trainer = Trainer.of(
            dataclasses.replace(task, loss=loss, ended=None),
            settings.train,
            run_dir=Path(folder) / "run",
            name="liquid",
        )
        result = trainer.fit()
    finite = all(bool(one.isfinite().all()) for one in task.model.parameters())
    return {"skipped": result.skipped, "steps": result.step, "weights finite": finite,
            "validation": dict(result.validation)}  # fmt: skip


PARTS = {
    "phases": phases,
    "ablation": ablation,
    "forgetting": forgetting,
    "tasks": tasks,
    "infs": infs,
}


def names(text: str) -> list[str]:
    return text.split(",")


def seeds(text: str) -> list[int]:
    return [int(one) for one in text.split(",")]


def main() -> int:
    parser = argparse.ArgumentParser(description="The liquid family on the trainer.")
    parser.add_argument("--part", choices=PARTS, required=True)
    parser.add_argument("--preset", help="of ablation, forgetting and infs")
    parser.add_argument("--phases", default="1,2,3,4")
    parser.add_argument("--cases", default="shapes,digits,pendulum,arm,navigation")
    parser.add_argument("--tasks", type=int, default=2, help="of forgetting")
    parser.add_argument("--epochs", type=int, default=1, help="of each task of forgetting")
    parser.add_argument("--features", type=names, default=[], help="of ablation; default: all")
    parser.add_argument("--ways", type=names, default=[*WAYS], help="of forgetting")
    parser.add_argument("--seeds", type=seeds, default=[0, 1, 2], metavar="N,N")
    parser.add_argument("--plain", action="store_true", help="without kernels and graphs")
    parser.add_argument("--set", action="append", default=[])
    parser.add_argument("--out", type=Path, help="a JSON file")
    args = parser.parse_args()
    began = time.perf_counter()
    found: dict[str, Any] = {
        "part": args.part, "hardware": hardware(), "command": " ".join(sys.argv[1:])
    }  # fmt: skip
    if args.plain:
        args.set = ["model.graph=false", *args.set]
    with using("off" if args.plain else "auto"):
        found |= PARTS[args.part](args)
    found["whole seconds"] = round(time.perf_counter() - began)
    text = json.dumps(found, indent=1, default=str)
    print(text)
    if args.out is not None:
        args.out.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
