"""How well the lattice learns its tasks, and whether its core helps: three seeds of every row.

    python benchmarks/energy_flow_quality.py --quick          # one seed, fewer steps
    python benchmarks/energy_flow_quality.py --write          # also into benchmarks/results/

Every row is trained for the same number of steps on the same pairs and measured on the test part of
the split, noise off, with the weights that were best in validation. "mappers only" leaves the core
out: the honest baseline for any claim about it.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from datetime import date
from pathlib import Path
from typing import Any

import torch
from overhead import hardware

from holdfast.training import Place, Trainer, load_weights, resolve
from holdfast.training.progress import Progress
from holdfast_models.energy_flow.metrics import Quality, quality
from holdfast_models.energy_flow.pairs import load_pairs
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
    "core at rest (no movement)": ["model.carrier.scale=1e-9", "model.carrier.scale_min=0",
                                   "model.carrier.z_drift=0", "model.flows.noise_cells=0"],
    "mappers only": ["core=false"],
}  # fmt: skip
TASKS = {
    "rewrite, compositional": ["data.task=rewrite", "data.split=compositional"],
    "rewrite, hard": ["data.task=rewrite", "data.split=hard"],
    "conditional, hard": ["data.task=conditional", "data.split=hard"],
}
ALONE = Place(torch.device("cpu"), rank=1)


def train(settings: Any) -> tuple[Quality, float, int]:
    """One run; its quality on the test part, seconds, skipped steps."""
    torch.manual_seed(settings.train.seed.seed)
    task = build(settings, ALONE)
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
    return quality(y_hat_NE, y_NE, sets.train.tensors()[1].mean(0)), seconds, result.skipped


def row(task: str, variant: str, seeds: list[int], steps: int) -> str:
    """One line of the table."""
    found: list[Quality] = []
    times: list[float] = []
    skipped = 0
    for seed in seeds:
        more = [
            f"train.seed.seed={seed}",
            f"train.steps={steps}",
            f"train.validation.steps={steps}",
        ]
        settings = resolve(
            RECIPE, None, None, [*SMALL, *TASKS[task], *VARIANTS[variant], *more], "none"
        )
        one, seconds, left_out = train(settings)
        found.append(one)
        times.append(seconds)
        skipped += left_out
    shown = [
        f"{statistics.mean(v):.4f} ± {statistics.stdev(v) if len(v) > 1 else 0:.4f}"
        for v in ([q.cosine for q in found], [q.fvu for q in found], [q.r1 for q in found])
    ]
    return (
        f"| {task} | {variant} | {' | '.join(shown)} | {found[0].candidates} "
        f"| {statistics.mean(times):.0f} | {skipped} |"
    )


def main() -> None:
    """Train everything and show the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="one seed, 100 steps")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--task", action="append", help="beginning of the tasks to run")
    parser.add_argument("--variant", action="append", help="beginning of the variants to run")
    parser.add_argument(
        "--write", metavar="DIR", nargs="?", const=str(Path(__file__).parent / "results")
    )
    args = parser.parse_args()
    seeds, steps = ([0], 100) if args.quick else (list(range(args.seeds)), args.steps)
    rows: list[str] = []
    for task in TASKS:
        for variant in VARIANTS:
            wanted = (args.task or [task])[0], (args.variant or [variant])[0]
            if task.startswith(wanted[0]) and variant.startswith(wanted[1]):
                rows.append(row(task, variant, seeds, steps))
                print(rows[-1], flush=True)
    table = "\n".join(
        [
            "# What the lattice learns",
            "",
            f"Command: `python benchmarks/energy_flow_quality.py --seeds {len(seeds)} "
            f"--steps {steps}`",
            f"Hardware: {hardware()}",
            f"Date: {date.today()}",
            "",
            "12×12×6 cells, carrier 48×2, hash teacher of width 384, 5000 pairs of the grammar, "
            f"{steps} steps of 32; mean and standard deviation over {len(seeds)} seeds of the run "
            "(the data are the same), on the test part.",
            "",
            "| task, split | variant | cosine | FVU | R@1 | candidates | seconds | skipped |",
            "|---|---|---|---|---|---|---|---|",
            *rows,
        ]
    )
    print(f"\n{table}")
    if args.write:
        path = Path(args.write) / f"energy_flow_quality_cpu_{date.today()}.md"
        path.write_text(f"{table}\n")


if __name__ == "__main__":
    main()
