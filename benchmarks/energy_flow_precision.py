"""Whether speed costs quality: fp32 step by step against the fused loop in bf16, and early stop.

    python benchmarks/energy_flow_precision.py                  # on a GPU
    python benchmarks/energy_flow_precision.py --write          # also into benchmarks/results/

The tasks are those of ``energy_flow_quality.py``, three seeds each. Early stop: a lattice of 50 x
50 x 20 is trained for ``--early`` steps, then the same weights answer the test part in compact
mode, where stopping saves work, with the stop on and off.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import sys
import tempfile
import time
from datetime import date
from pathlib import Path
from typing import Any

import torch
from energy_flow_quality import SMALL, TASKS
from overhead import hardware

from holdfast.training import (
    Place,
    Trainer,
    load_weights,
    resolve,
)
from holdfast.training.loop.progress import Progress
from holdfast_models.energy_flow.data.pairs import load_pairs
from holdfast_models.energy_flow.evaluation.benchmark import Work, measured
from holdfast_models.energy_flow.evaluation.metrics import Quality, quality
from holdfast_models.energy_flow.recipe import RECIPE, build

FORMS = {
    "fp32, dense, eager": ["train.precision=fp32", "model.flows.mode=dense"],
    "bf16, fused": ["train.precision=bf16", "model.flows.mode=auto"],
}
_REPEATS = 5
_BATCHES = (16, 64)
_STEPS = 15


def train(settings: Any, place: Place) -> tuple[Any, float]:
    """A trained task, and the seconds it took."""
    torch.manual_seed(settings.train.seed.seed)
    task = build(settings, place)
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        trainer = Trainer.of(task, settings.train, run_dir=f"{folder}/run", progress=Progress())
        result = trainer.fit()
        assert result.run is not None
        load_weights(task.model, result.run)
    return task, time.perf_counter() - began


def examine(task: Any, settings: Any, place: Place, half: bool) -> tuple[Quality, float]:
    """Quality on the test part in the precision of training, and milliseconds of a batch of 16."""
    sets = load_pairs(settings.data)
    x_NE, y_NE = (part.to(place.device) for part in sets.test.tensors())
    model = task.model.to(place.device).eval()
    with contextlib.ExitStack() as stack:
        stack.enter_context(torch.no_grad())
        stack.enter_context(torch.autocast(place.device.type, torch.bfloat16, enabled=half))
        times: list[float] = []
        answers: list[torch.Tensor] = []
        for number in range(_REPEATS):
            _wait()
            began = time.perf_counter()
            answers = [model(part).y_BE.float() for part in x_NE.split(16)]
            _wait()
            if number:
                times.append(1e3 * (time.perf_counter() - began) / len(answers))
    mean_E = sets.train.tensors()[1].mean(0).to(place.device)
    found = quality(torch.cat(answers), y_NE, mean_E)
    return found, statistics.median(times)


def _wait() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def shown(found: list[Quality]) -> str:
    """Mean and standard deviation of what is compared."""
    parts = ([q.cosine for q in found], [q.fvu for q in found], [q.r1 for q in found])
    return " | ".join(f"{statistics.mean(v):.4f} ± {statistics.stdev(v):.4f}" for v in parts)


def compare(task: str, form: str, args: argparse.Namespace, place: Place) -> str:
    """A line of the first table."""
    found: list[Quality] = []
    times: list[float] = []
    for seed in range(3):
        more = [f"train.seed.seed={seed}", f"train.steps={args.steps}"]
        given = [*SMALL, f"train.device={place.device.type}", *TASKS[task], *FORMS[form], *more]
        given.append(f"train.validation.steps={args.steps}")
        settings = resolve(RECIPE, None, None, given, "none")
        done, seconds = train(settings, place)
        found.append(examine(done, settings, place, form.startswith("bf16"))[0])
        times.append(seconds)
    return f"| {task} | {form} | {shown(found)} | {statistics.mean(times):.0f} |"


def early(args: argparse.Namespace, place: Place) -> list[str]:
    """Lines of the second table."""
    given = ["bridge.on=false", "model.flows.spawn_most=0", "train.data.batch=16"]
    given += [*TASKS["rewrite, compositional"], f"train.steps={args.early}", "train.epochs=null"]
    given += ["train.validation.epochs=0", f"train.validation.steps={args.early}"]
    given += ["train.data.workers=0", f"train.device={place.device.type}"]
    preset = "exp50" if place.device.type == "cuda" else "debug"
    settings = resolve(RECIPE, None, preset, given, "none")
    task, _ = train(settings, place)
    weights = task.model.state_dict()
    lines: list[str] = []
    for mode, stop in (("compact", False), ("compact", True), ("auto", False), ("auto", True)):
        told = [f"model.convergence.on={str(stop).lower()}", f"model.flows.mode={mode}"]
        each_step = [_step_ms(weights, [*given, *told], preset, batch, place) for batch in _BATCHES]
        other = resolve(RECIPE, None, preset, [*given, *told], "none")
        again = build(other, place)
        again.model.load_state_dict(weights)
        found, each = examine(again, other, place, place.device.type == "cuda")
        with torch.no_grad():
            x_BE = load_pairs(other.data).test.tensors()[0][:16].to(place.device)
            stats = again.model(x_BE).flows.stats
        lines.append(
            f"| {mode} | {'on' if stop else 'off'} | {found.cosine:.4f} | {found.fvu:.4f} | "
            f"{found.r1:.4f} | {int(stats.steps)} of {other.model.steps} | {each:.2f} | "
            + " | ".join(f"{one:.1f}" for one in each_step)
            + " |"
        )
        print(lines[-1], flush=True)
    return lines


def _step_ms(
    weights: dict[str, torch.Tensor], given: list[str], preset: str, batch: int, place: Place
) -> float:
    """Milliseconds of a whole training step from these weights, which hardly move."""
    more = [f"train.data.batch={batch}", "train.optimizer.lr=1e-9"]
    settings = resolve(RECIPE, None, preset, [*given, *more], "none")
    capacity = settings.model.lattice.cells * batch
    more.append(f"model.flows.capacity={capacity}")
    work = Work(resolve(RECIPE, None, preset, [*given, *more], "none"), place.device)
    work.model.load_state_dict(weights)
    work.model.train()
    with work.guarded():
        found = measured(work.train, place.device, batch, steps=_STEPS, warmup=6)
    return found["median_ms"]


def main() -> int:
    """Both tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--early", type=int, default=400)
    parser.add_argument("--only", choices=["quality", "early"])
    parser.add_argument(
        "--write", metavar="DIR", nargs="?", const=str(Path(__file__).parent / "results")
    )
    args = parser.parse_args()
    place = Place(torch.device("cuda" if torch.cuda.is_available() else "cpu"), rank=1)
    lines = [
        "# energy_flow: bf16 and early stop",
        "",
        f"Command: `python benchmarks/energy_flow_precision.py --steps {args.steps} "
        f"--early {args.early}`",
        f"Hardware: {hardware()}",
        f"Date: {date.today()}",
        "",
    ]
    if args.only != "early":
        lines += [
            "| task, split | form | cosine | FVU | R@1 | seconds |",
            "|---|---|---|---|---|---|",
        ]
        for task in ("rewrite, compositional", "conditional, hard"):
            for form in FORMS:
                lines.append(compare(task, form, args, place))
                print(lines[-1], flush=True)
        lines.append("")
    if args.only != "quality":
        lines += [
            "One training of 50 x 50 x 20, then the same weights: milliseconds of 16 answers and",
            "of whole training steps under the guard.",
            "",
            "| mode | early stop | cosine | FVU | R@1 | lattice steps | ms "
            + "".join(f"| training, {batch} " for batch in _BATCHES)
            + "|",
            "|---" * (7 + len(_BATCHES)) + "|",
            *early(args, place),
        ]
    if args.write:
        Path(args.write).mkdir(parents=True, exist_ok=True)
        where = "h200" if "H200" in hardware() else "cpu"
        path = Path(args.write) / f"energy_flow_precision_{where}_{date.today()}.md"
        path.write_text("\n".join(lines) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
