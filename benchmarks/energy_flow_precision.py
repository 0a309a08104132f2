"""Whether speed costs quality: the fused loop, bf16, no children, and early stop.

    python benchmarks/energy_flow_precision.py                  # on a GPU
    python benchmarks/energy_flow_precision.py --write          # also into benchmarks/results/

The tasks are those of ``energy_flow_quality.py``, three seeds each. Children: presets as they are
shipped against the same with the children of the specification. Early stop: a lattice of 50 x
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
    f"{precision}, {name}": [f"train.precision={precision}", f"model.flows.mode={mode}"]
    for name, mode in (("dense, eager", "dense"), ("fused", "auto"))
    for precision in ("fp32", "bf16")
}
# By preset, None for the default: the children of the specification, and steps.
CHILDREN: dict[str | None, tuple[list[str], int]] = {
    None: (["model.flows.spawn_most=3", "model.flows.spawn_threshold=0.1"], 300),
    # With its drift of 0.4 every flow would have a child in every step.
    "debug": (["model.flows.spawn_most=1", "model.carrier.z_drift=0.25"], 200),
    "experiment": (["model.flows.spawn_most=1"], 60),
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


def children(preset: str | None, place: Place) -> list[str]:
    """Two lines of the table on children."""
    more, steps = CHILDREN[preset]
    lines: list[str] = []
    for name, given in (("none, as shipped", []), ("as specified", more)):
        found: list[Quality] = []
        times: list[float] = []
        made = 0.0
        for seed in range(3):
            same = ["bridge.on=false", "train.epochs=null", f"train.steps={steps}"]
            same += [f"train.seed.seed={seed}", f"train.device={place.device.type}"]
            same += ["train.validation.epochs=0", f"train.validation.steps={steps}"]
            settings = resolve(
                RECIPE, None, preset, [*same, "train.data.workers=0", *given], "none"
            )
            done, seconds = train(settings, place)
            found.append(examine(done, settings, place, place.device.type == "cuda")[0])
            times.append(seconds)
            x_BE = load_pairs(settings.data).test.tensors()[0][:16].to(place.device)
            with torch.no_grad():
                made = float(done.model.train()(x_BE, step=steps).flows.stats.made) / len(x_BE)
        mean = statistics.mean(times)
        lines.append(
            f"| {preset or 'default'} | {name} | {shown(found)} | {made:.0f} | {mean:.0f} |"
        )
        print(lines[-1], flush=True)
    return lines


def early(args: argparse.Namespace, place: Place) -> list[str]:
    """Lines of the second table."""
    given = ["bridge.on=false", "train.data.batch=16"]
    given += [*TASKS["rewrite, compositional"], f"train.steps={args.early}", "train.epochs=null"]
    given += ["train.validation.epochs=0", f"train.validation.steps={args.early}"]
    given += ["train.data.workers=0", f"train.device={place.device.type}"]
    preset = "exp50" if place.device.type == "cuda" else "debug"
    settings = resolve(RECIPE, None, preset, given, "none")
    task, _ = train(settings, place)
    weights = task.model.state_dict()
    lines: list[str] = []
    for mode, stop in (("compact", False), ("compact", True), ("auto", False), ("auto", True)):
        reported = [f"model.convergence.on={str(stop).lower()}", f"model.flows.mode={mode}"]
        each_step = [
            _step_ms(weights, [*given, *reported], preset, batch, place) for batch in _BATCHES
        ]
        other = resolve(RECIPE, None, preset, [*given, *reported], "none")
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
    weights: dict[str, torch.Tensor],
    given: list[str],
    preset: str,
    batch: int,
    place: Place,
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
    """All tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--early", type=int, default=400)
    parser.add_argument("--only", choices=["quality", "children", "early"], action="append")
    parser.add_argument(
        "--write", metavar="DIR", nargs="?", const=str(Path(__file__).parent / "results")
    )
    args = parser.parse_args()
    tables = args.only or ["quality", "children", "early"]
    place = Place(torch.device("cuda" if torch.cuda.is_available() else "cpu"), rank=1)
    lines = [
        "# energy_flow: modes, bf16, children and early stop",
        "",
        f"Command: `python benchmarks/energy_flow_precision.py --steps {args.steps} "
        f"--early {args.early}`",
        f"Hardware: {hardware()}",
        f"Date: {date.today()}",
        "",
    ]
    if "quality" in tables:
        lines += [
            "| task, split | form | cosine | FVU | R@1 | seconds |",
            "|---|---|---|---|---|---|",
        ]
        for task in ("rewrite, compositional", "conditional, hard"):
            for form in FORMS:
                lines.append(compare(task, form, args, place))
                print(lines[-1], flush=True)
        lines.append("")
    if "children" in tables:
        lines += [
            "Flows: of a sample, children among them, in a training pass at the end.",
            "",
            "| preset | children | cosine | FVU | R@1 | flows | seconds |",
            "|---|---|---|---|---|---|---|",
            *(line for preset in CHILDREN for line in children(preset, place)),
            "",
        ]
    if "early" in tables:
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
