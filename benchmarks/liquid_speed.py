r"""The liquid family: what training steps and written tokens take.

    python benchmarks/liquid_speed.py --phases 1,2,3 --part training,bare,generation    # a GPU
    python benchmarks/liquid_speed.py --part bare --phases 1            # without trainer and guard
    python benchmarks/liquid_speed.py --part reference --phases 1                       # one thread
    python benchmarks/liquid_speed.py --part long --tokens 1024,2048,4096,8192
    python benchmarks/liquid_speed.py --part long --set data.tokenizer=random \
        --set data.vocab_size=8192 [--whole-logits]

Whole steps under the trainer with its guard. ``--kernels off`` is plain torch.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import time
import traceback
from typing import Any

import torch
from overhead import hardware

from holdfast.training import resolve
from holdfast_models.liquid.evaluation.reference import reference_ratio
from holdfast_models.liquid.evaluation.speed import bare, generating, training
from holdfast_models.liquid.kernels.choice import faults, using
from holdfast_models.liquid.model import heads
from holdfast_models.liquid.recipe import RECIPE
from holdfast_models.liquid.run_settings import LiquidSettings

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
PARTS = ("training", "bare", "generation", "reference", "long")


def settings_of(preset: str, more: list[str]) -> LiquidSettings:
    words = ["train.holdfast.run.quiet=true", "data.megabytes=0.3", *more]
    return resolve(RECIPE, preset=preset, overrides=words, platform="none")


def long(tokens: str) -> list[str]:
    """One sequence of so many tokens."""
    lengths = [f"data.sequence_length={tokens}", f"model.max_position_embeddings={tokens}"]
    return [*lengths, "train.data.batch=1"]


def measured(args: argparse.Namespace, part: str, phase: str, mode: str) -> dict[str, Any]:
    steps: dict[str, Any] = {"warm": args.warm, "steps": args.steps}
    more = [f"train.compile.mode={mode}", *args.set]
    preset = f"phase{phase}"
    if part == "generation":
        return generating(settings_of(preset, args.set), DEVICE, length=512)
    if part == "reference":
        return reference_ratio(settings_of(preset, args.set), seconds=20)
    if part == "bare":
        settings = settings_of(preset, args.set)
        tokens = settings.train.data.batch * settings.data.sequence_length
        return bare(settings, DEVICE, **steps).reported(tokens, "tokens")
    if part == "long":
        return {
            f"T = {tokens}": training(settings_of(preset, long(tokens) + more), DEVICE, **steps)
            for tokens in args.tokens.split(",")
        }
    return training(settings_of(preset, more), DEVICE, **steps)


def main() -> int:
    parser = argparse.ArgumentParser(description="Speed of the liquid family.")
    parser.add_argument("--part", default="training", help=f"by commas, of {', '.join(PARTS)}")
    parser.add_argument("--phases", default="1,2,3")
    parser.add_argument("--compile", default="none", help="modes of train.compile, by commas")
    parser.add_argument("--kernels", choices=("auto", "off"), default="auto")
    parser.add_argument("--warm", type=int, default=10)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--tokens", default="8192", help="lengths of --part long, by commas")
    parser.add_argument("--seconds", type=float, default=1e9, help="nothing is begun after them")
    parser.add_argument("--set", action="append", default=[])
    parser.add_argument(
        "--whole-logits", action="store_true", help="as many as there are, not in parts"
    )
    args = parser.parse_args()
    if args.whole_logits:
        heads._AT_A_TIME = sys.maxsize
    began = time.perf_counter()
    print(hardware(), " ".join(sys.argv[1:]), flush=True)
    lists = (args.compile.split(","), args.phases.split(","), args.part.split(","))
    for mode, phase, part in itertools.product(*lists):
        if part not in PARTS:
            parser.error(f"--part {part}: choose of {', '.join(PARTS)}")
        if time.perf_counter() - began > args.seconds:
            break
        at = time.perf_counter()
        try:
            with using(args.kernels):
                found = measured(args, part, phase, mode)
            took = time.perf_counter() - at
            text = json.dumps(found, default=str)
            print(f"phase {phase} {part} {mode} {args.kernels} {took:.0f} s: {text}", flush=True)
        except Exception:
            reported = traceback.format_exc(limit=-4)[-2500:]
            print(f"phase {phase} {part} {mode}: {reported}", flush=True)
    print(*faults(), sep="\n", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
