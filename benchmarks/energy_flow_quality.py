"""How well the lattice learns its tasks, and whether its core helps: three seeds of every row.

    python benchmarks/energy_flow_quality.py --quick          # one seed, fewer steps
    python benchmarks/energy_flow_quality.py --write          # also into benchmarks/results/
    python benchmarks/energy_flow_quality.py --task transport --variant core --write

Every row is trained for the same number of steps on the same pairs, unless its name says otherwise,
and measured on the test part of the split, noise off, with the weights best in validation. "mappers
only" leaves the core out: the honest baseline for any claim about it. On fields it is tried in all
forms, larger than the model with the core, and for longer. Rows of an earlier call of the same day
stay in the file.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Iterable
from datetime import date
from pathlib import Path
from typing import Any

import torch
from overhead import hardware

from holdfast.training import (
    Place,
    Trainer,
    load_weights,
    resolve,
)
from holdfast.training.loop.progress import Progress
from holdfast_models.energy_flow.data.pairs import load_pairs
from holdfast_models.energy_flow.evaluation.baselines import build_convolutions
from holdfast_models.energy_flow.evaluation.metrics import Quality, quality
from holdfast_models.energy_flow.recipe import RECIPE, build

SMALL = [
    "model.lattice.width=12", "model.lattice.height=12", "model.lattice.depth=6",
    "model.carrier.hidden=48", "model.flows.spawn_most=0", "bridge.on=false", "train.device=cpu",
    "train.data.workers=0", "train.epochs=null", "train.validation.epochs=0",
]  # fmt: skip
VARIANTS = {
    "core": [],
    "core, field coupling": ["model.flows.coupling=true"],
    "core, no noise": ["model.flows.noise_cells=0"],
    "core, nearest splat": ["model.flows.splat=nearest"],
    "core at rest (no movement)": ["model.carrier.scale=1e-5", "model.carrier.scale_min=1e-5",
                                   "model.carrier.z_drift=0", "model.flows.noise_cells=0"],
    "mappers only": ["core=false"],
}  # fmt: skip
CONVOLUTIONS = "five convolutions (reference)"
LONGER = 5  # times the steps
LINEAR, SKIP = "model.mapper.form=linear", "model.mapper.form=skip"
FIELD_VARIANTS = {
    **{name: [LINEAR, *given] for name, given in VARIANTS.items() if name != "mappers only"},
    # Usually a drift of 2/T lets flows arrive after T/2 steps, which is one here.
    "core, four steps": [LINEAR, "model.flows.steps=8"],
    "core, deep mappers": [],
    "mappers only": ["core=false"],
    "mappers only, linear": ["core=false", LINEAR],
    "mappers only, skip": ["core=false", SKIP],
    "mappers only, rank 1152": ["core=false", "model.mapper.rank=1152"],
    f"mappers only, {LONGER} x steps": ["core=false"],
    f"mappers only, skip, {LONGER} x steps": ["core=false", SKIP],
    f"mappers only, skip, dropout 0.3, {LONGER} x steps": [
        "core=false", SKIP, "model.mapper.dropout1=0.3", "model.mapper.dropout2=0.3"],
    CONVOLUTIONS: ["core=false"],
}  # fmt: skip
TASKS = {
    "rewrite, compositional": ["data.task=rewrite", "data.split=compositional"],
    "rewrite, hard": ["data.task=rewrite", "data.split=hard"],
    "conditional, hard": ["data.task=conditional", "data.split=hard"],
}
FIELDS = [
    "data.source=fields", "data.split=pair", "data.count=500", "data.width=144",
    "model.width=144", "model.lattice.depth=4", "model.carrier.hidden=32", "model.carrier.layers=1",
    "train.validation.steps=100",
]  # fmt: skip
FIELD_TASKS = {
    "transport, 500 fields": [*FIELDS, "data.task=transport"],
    "maps, 500 fields": [*FIELDS, "data.task=maps"],
}
# 6 x 6 cells and batches of 16, so that three seeds take minutes. Every flow takes all steps:
# without drift none reaches a face before the loop ends.
ROUNDS = "rounds, 1400 fields"
ROUND_TASK = [
    *FIELDS, LINEAR, "data.task=rounds", "data.count=1400", "data.width=36", "model.width=36",
    "model.lattice.width=6", "model.lattice.height=6", "model.flows.coupling=true",
    "model.flows.noise_cells=0", "model.carrier.z_drift=0", "train.data.batch=16",
    "train.optimizer.lr=5e-3",
]  # fmt: skip
REST = ["model.carrier.scale=1e-5", "model.carrier.scale_min=1e-5"]
ROUND_VARIANTS = {
    **{f"core at rest, {name}": [*REST, f"model.flows.steps={steps}"]
       for name, steps in (("one step", 1), ("two steps", 2), ("four steps", 4))},
    "core, one step": ["model.flows.steps=1"],
    "core, four steps": ["model.flows.steps=4"],
    "mappers only, linear": ["core=false"],
    CONVOLUTIONS: ["core=false"],
}  # fmt: skip
HEAD = (
    "| task, split | variant | cosine | FVU | R@1 | candidates | parameters | seconds | skipped |"
)
LAST_WORDS = "What it says"
"""Begins what a person wrote below the table."""
ALONE = Place(torch.device("cpu"), rank=1)


def train(settings: Any, variant: str) -> tuple[Quality, float, int, int]:
    """One run; its quality on the test part, seconds, skipped steps, parameters."""
    torch.manual_seed(settings.train.seed.seed)
    task = (build_convolutions if variant == CONVOLUTIONS else build)(settings, ALONE)
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        trainer = Trainer.of(task, settings.train, run_dir=f"{folder}/run", progress=Progress())
        result = trainer.fit()
        assert result.run is not None
        load_weights(task.model, result.run)
    seconds = time.perf_counter() - began
    sets = load_pairs(settings.data)
    x_NE, y_NE = sets.test.tensors()
    task.model.eval()
    with torch.no_grad():
        y_hat_NE = torch.cat([task.model(part).y_BE for part in x_NE.split(64)])
    found = quality(y_hat_NE, y_NE, sets.train.tensors()[1].mean(0))
    return found, seconds, result.skipped, sum(w.numel() for w in task.model.parameters())


def row(task: str, variant: str, seeds: list[int], steps: int) -> str:
    """One line of the table."""
    found: list[Quality] = []
    times: list[float] = []
    skipped = parameters = 0
    if variant.endswith(f"{LONGER} x steps"):
        steps *= LONGER
    given = {
        **{name: [*more, f"train.validation.steps={steps}"] for name, more in TASKS.items()},
        **FIELD_TASKS,
        ROUNDS: ROUND_TASK,
    }[task] + variants(task)[variant]
    for seed in seeds:
        more = [f"train.seed.seed={seed}", f"train.steps={steps}"]
        if task == ROUNDS:
            more.append(f"data.seed={seed}")
        settings = resolve(RECIPE, None, None, [*SMALL, *given, *more], "none")
        one, seconds, left_out, parameters = train(settings, variant)
        found.append(one)
        times.append(seconds)
        skipped += left_out
    print(f"{variant}: FVU of seeds {seeds}: {', '.join(f'{q.fvu:.4f}' for q in found)}")
    shown = [
        f"{statistics.mean(v):.4f} ± {statistics.stdev(v) if len(v) > 1 else 0:.4f}"
        for v in ([q.cosine for q in found], [q.fvu for q in found], [q.r1 for q in found])
    ]
    return (
        f"| {task} | {variant} | {' | '.join(shown)} | {found[0].candidates} "
        f"| {parameters} | {statistics.mean(times):.0f} | {skipped} |"
    )


def variants(task: str) -> dict[str, list[str]]:
    """The rows of a task."""
    if task == ROUNDS:
        return ROUND_VARIANTS
    return FIELD_VARIANTS if task in FIELD_TASKS else VARIANTS


def asked(name: str, wanted: str | None, all_names: Iterable[str]) -> bool:
    """Whether a name is meant: a whole one by itself, otherwise all that begin like this."""
    return wanted is None or (name == wanted if wanted in all_names else name.startswith(wanted))


def merged(rows: list[str], path: Path) -> tuple[list[str], str]:
    """These rows with those of an earlier call, in the order of the tasks, and its last words."""
    before = path.read_text() if path.exists() else ""
    table, mark, rest = before.partition(LAST_WORDS)
    by_name = {
        tuple(part.strip() for part in line.split("|")[1:3]): line
        for line in [*table.splitlines(), *rows]
        if line.startswith("| ") and line.count("|") == HEAD.count("|") and line != HEAD
    }
    order = [(task, name) for task in [*TASKS, *FIELD_TASKS, ROUNDS] for name in variants(task)]
    return [by_name[key] for key in order if key in by_name], mark + rest


def main() -> None:
    """Train everything and show the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="one seed, 100 steps")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--first", type=int, default=0, help="the first of the seeds")
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--task", help="a task, or how those to run begin")
    parser.add_argument("--variant", help="a variant, or how those to run begin")
    parser.add_argument(
        "--write", metavar="DIR", nargs="?", const=str(Path(__file__).parent / "results")
    )
    args = parser.parse_args()
    seeds, steps = ([0], 100) if args.quick else (list(range(args.seeds)), args.steps)
    seeds = [args.first + seed for seed in seeds]
    rows: list[str] = []
    path = Path(args.write or ".") / f"energy_flow_quality_cpu_{date.today()}.md"
    tasks = [*TASKS, *FIELD_TASKS, ROUNDS]
    for task in tasks:
        for variant in variants(task):
            if asked(task, args.task, tasks) and asked(variant, args.variant, variants(task)):
                rows.append(row(task, variant, seeds, steps))
                print(rows[-1], flush=True)
                if args.write:
                    path.write_text(page(*merged(rows, path), len(seeds), steps))


def page(rows: list[str], rest: str, seeds: int, steps: int) -> str:
    """The file of results."""
    lines = [
        "# What the lattice learns",
        "",
        f"Command: `python benchmarks/energy_flow_quality.py --seeds {seeds} --steps {steps}`",
        f"Hardware: {hardware()}",
        f"Date: {date.today()}",
        "",
        f"{steps} steps of 32 (rounds: of 16); mean and standard deviation over {seeds} seeds of "
        "the run (the data are the same, but for rounds, where their seed is that of the run), on "
        "the test part. Rewrite and conditional: 12×12×6 cells, carrier 48×2, hash teacher of "
        "width 384, 5000 pairs of the grammar. Transport and maps: 500 fields of 12×12, about 400 "
        "of them to train on, 12×12×4 cells, carrier 32×1, linear mappers around the core unless "
        "the row says otherwise. Rounds: 6×6×4 cells, carrier 32×1, linear mappers, field "
        "coupling, no drift, no noise, about 1100 fields to train on.",
        "",
        HEAD,
        "|---|---|---|---|---|---|---|---|---|",
        *rows,
        "",
        rest,
    ]
    return "\n".join(lines).rstrip() + "\n"


if __name__ == "__main__":
    main()
