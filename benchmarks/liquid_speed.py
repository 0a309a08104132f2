"""The liquid family: tokens per second of training and generation.

    python benchmarks/liquid_speed.py --phases 1,2,3 --compile none,reduce-overhead     # a GPU
    python benchmarks/liquid_speed.py --part bare --phases 1            # without trainer and guard
    python benchmarks/liquid_speed.py --part generation --phases 1
    python benchmarks/liquid_speed.py --part reference --phases 1                       # one thread
    python benchmarks/liquid_speed.py --part long                                       # T = 8192

Whole steps under the trainer with its guard. ``--kernels off`` is plain torch.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import traceback
from typing import Any

import torch
from overhead import hardware

from holdfast.training import resolve
from holdfast_models.liquid.evaluation.speed import bare, generating, reference_ratio, training
from holdfast_models.liquid.kernels.choice import faults, using
from holdfast_models.liquid.recipe import RECIPE
from holdfast_models.liquid.run_settings import LiquidSettings

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
LONG = ["data.sequence_length=8192", "model.max_position_embeddings=8192", "train.data.batch=1"]


def settings_of(preset: str, more: list[str]) -> LiquidSettings:
    words = ["train.holdfast.run.quiet=true", "data.megabytes=0.3", *more]
    return resolve(RECIPE, preset=preset, overrides=words, platform="none")


def measured(args: argparse.Namespace, phase: str, mode: str) -> dict[str, Any]:
    more = [f"train.compile.mode={mode}", *args.set]
    preset = f"phase{phase}"
    if args.part == "generation":
        return generating(settings_of(preset, args.set), DEVICE, length=512)
    if args.part == "reference":
        return reference_ratio(settings_of(preset, args.set), seconds=20)
    if args.part == "bare":
        settings = settings_of(preset, args.set)
        times = bare(settings, DEVICE, warm=args.warm, steps=args.steps)
        return times.told(settings.train.data.batch * settings.data.sequence_length, "tokens")
    if args.part == "long":
        more = [*LONG, *more]
    return training(settings_of(preset, more), DEVICE, warm=args.warm, steps=args.steps)


def main() -> int:
    parser = argparse.ArgumentParser(description="Speed of the liquid family.")
    parser.add_argument(
        "--part",
        choices=("training", "bare", "generation", "reference", "long"),
        default="training",
    )
    parser.add_argument("--phases", default="1,2,3")
    parser.add_argument("--compile", default="none", help="modes of train.compile, by commas")
    parser.add_argument("--kernels", choices=("auto", "off"), default="auto")
    parser.add_argument("--warm", type=int, default=10)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=1e9, help="nothing is begun after them")
    parser.add_argument("--set", action="append", default=[])
    args = parser.parse_args()
    began = time.perf_counter()
    print(hardware(), " ".join(sys.argv[1:]), flush=True)
    for mode in args.compile.split(","):
        for phase in args.phases.split(","):
            if time.perf_counter() - began > args.seconds:
                break
            at = time.perf_counter()
            try:
                with using(args.kernels):
                    found = measured(args, phase, mode)
                took = time.perf_counter() - at
                text = json.dumps(found, default=str)
                print(
                    f"phase {phase} {args.part} {mode} {args.kernels} {took:.0f} s: {text}",
                    flush=True,
                )
            except Exception:
                print(f"phase {phase} {mode}: {traceback.format_exc(limit=-4)[-2500:]}", flush=True)
    print(*faults(), sep="\n", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
