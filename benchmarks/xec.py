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
import json
import sys
import time
from pathlib import Path

from calorimeter.quality import floor, inpainter, losses, pretrain, regressor
from calorimeter.speed import data, rates, steps, trained
from overhead import hardware

PARTS = {
    one.__name__: one
    for one in (floor, rates, steps, trained, losses, data, regressor, inpainter, pretrain)
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
    parser.add_argument(
        "--seconds", type=float, default=0.0, help="of training, instead of train.steps"
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
