"""How many pairs a second come from a mapped set, and what memory that takes.

    python benchmarks/energy_flow_data.py --folder set --gigabytes 2 --form memory
    python benchmarks/energy_flow_data.py --folder set --gigabytes 2 --form mapped --workers 2
    python benchmarks/energy_flow_data.py --folder set --gigabytes 2 --form run

Forms: ``memory`` copies the set first, ``mapped`` is how a run reads it, ``unadvised`` is that
without telling the system that reads are shuffled, ``run`` trains a small lattice for 20 steps. A
set that fits into memory is in the cache after its check; to measure one that does not, call this
where memory is limited: in a container (``docker run --memory``) or a group of your own below
``/sys/fs/cgroup``, on a set that was not read before. One line per call.
"""

from __future__ import annotations

import argparse
import itertools
import tempfile
import threading
import time
from pathlib import Path

import torch

from holdfast.training import DataSettings as Loading
from holdfast.training import Place, TensorWriter, resolve, run_recipe
from holdfast.training.data.loading import make_loader
from holdfast_models.energy_flow.data.pairs import DataSettings, Pairs, load_pairs
from holdfast_models.energy_flow.data.tables import Embedded, Tables
from holdfast_models.energy_flow.recipe import RECIPE

_ROWS = 16_384  # written together
_BATCH = 32
_FORMS = ("memory", "mapped", "unadvised", "run")
_SMALL = [
    "model.lattice.width=6", "model.lattice.height=6", "model.lattice.depth=4",
    "model.carrier.hidden=16", "model.flows.spawn_most=0", "data.source=precomputed",
    "data.split=pair", "train.device=cpu", "train.epochs=null", "train.steps=20",
    "train.data.workers=0", "train.validation.batches=8", "pictures=false",
]  # fmt: skip


def write(folder: Path, size: float, width: int) -> None:
    """Make the set where it is not there."""
    if folder.exists():
        return
    block_NE = torch.randn(_ROWS, width, generator=torch.Generator().manual_seed(0))
    with TensorWriter(folder) as writer:
        for number in range(max(1, round(size / (2 * block_NE.nbytes)))):
            block_NE[:, 0] = number
            writer.append({"x": block_NE, "y": block_NE.flip(1)})


def anonymous() -> float:
    """Megabytes of this process that are not pages of a file."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("RssAnon"))


def rate(pairs: Pairs, workers: int, seconds: float) -> float:
    """Pairs a second of a shuffled loader, after its first batches."""
    loading = Loading(batch=_BATCH, workers=workers)
    place = Place(torch.device("cpu"))
    loader = make_loader(pairs, loading, place, train=True, seed=0, workers=workers)
    batches = iter(loader)
    for _ in itertools.islice(batches, 8):
        pass
    count, began = 0, time.perf_counter()
    while time.perf_counter() - began < seconds and next(batches, None) is not None:
        count += _BATCH
    found = count / (time.perf_counter() - began)
    loader.close()
    return found


def most_of_run(folder: Path, width: int) -> float:
    """Megabytes that a short run takes at most, all but the pages of files."""
    settings = resolve(
        RECIPE,
        overrides=[*_SMALL, f"data.path={folder}", f"data.width={width}", f"model.width={width}"],
        platform="none",
    )
    most, done = [anonymous()], threading.Event()

    def watch() -> None:
        while not done.wait(0.002):
            most[0] = max(most[0], anonymous())

    watching = threading.Thread(target=watch)
    watching.start()
    with tempfile.TemporaryDirectory() as run:
        run_recipe(RECIPE, settings, run_dir=f"{run}/run", quiet=True)
    done.set()
    watching.join()
    return most[0]


def main() -> None:
    """Measure one form."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument(
        "--form", choices=("memory", "mapped", "unadvised", "run"), default="mapped"
    )
    parser.add_argument("--gigabytes", type=float, default=2.0)
    parser.add_argument("--width", type=int, default=384)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=10.0)
    args = parser.parse_args()
    write(args.folder, args.gigabytes * 1e9, args.width)
    before, began = anonymous(), time.perf_counter()
    if args.form == "run":
        most = most_of_run(args.folder, args.width)
        took = time.perf_counter() - began
        print(f"run: at most {most:.0f} MB, {before:.0f} before it began; {took:.0f} s")
        return
    settings = DataSettings(
        source="precomputed", path=str(args.folder), split="pair", width=args.width
    )
    sets = load_pairs(settings)
    train = sets.train
    if args.form == "memory":
        train = Pairs(Tables([Embedded(*train.tensors())]))
    elif args.form == "mapped":
        sets.expect_shuffled_reads()
    ready = time.perf_counter() - began
    found = rate(train, args.workers, args.seconds)
    print(
        f"{args.form}, {args.workers} workers: {found:.0f} pairs/s, checked and split in "
        f"{ready:.1f} s, {anonymous() - before:.0f} MB of memory for {args.gigabytes:g} GB"
    )


if __name__ == "__main__":
    main()
