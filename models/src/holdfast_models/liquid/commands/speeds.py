"""The verb that times: bench."""

from __future__ import annotations

import argparse
from typing import Any

from ...answers import Verb, add_set, answer, figures, say, whole

_EXAMPLES = """\
  holdfast liquid bench --preset phase1
  holdfast liquid bench --preset phase3 --set train.compile.mode=reduce-overhead
  holdfast liquid bench --preset phase1 --device cpu --generate 0 --reference
Steps are whole: loader, forward, backward, guard, optimizer, and what happens between steps."""


def add_bench_verb(verb: Verb) -> None:
    """Describe it."""
    what = "Tokens per second of training, of writing, and beside the plain reference."
    one = verb("bench", what, _bench, _EXAMPLES)
    one.add_argument("--preset", metavar="NAME", help="see: holdfast train --list")
    add_set(one, "a setting, e.g. data.sequence_length=8192")
    one.add_argument("--steps", metavar="N", type=whole(2), help="default: 200; 10 on a CPU")
    one.add_argument("--warm", metavar="N", type=whole(1), default=10,
                     help="steps before them (default: 10)")  # fmt: skip
    one.add_argument("--generate", metavar="N", type=whole(0), default=64,
                     help="tokens to write, 0: none (default: 64)")  # fmt: skip
    one.add_argument("--reference", action="store_true",
                     help="one thread of the CPU beside the plain reference, too")  # fmt: skip
    one.add_argument("--plain", action="store_true", help="without kernels, to compare with")
    one.add_argument("--device", metavar="NAME", default="auto", help="auto, cpu, cuda")


def _bench(args: argparse.Namespace) -> int:
    import torch

    from holdfast import HoldfastError
    from holdfast.training import resolve

    from ...step_times import STEPS
    from ..evaluation.reference import reference_ratio
    from ..evaluation.speed import bare, generating, training
    from ..kernels.choice import faults, using
    from ..recipe import RECIPE

    settings = resolve(RECIPE, preset=args.preset, overrides=args.set)
    if settings.task != "llm":
        raise HoldfastError(f"bench counts tokens, and task is {settings.task}; choose llm")
    device = args.device
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    steps = args.steps or STEPS[torch.device(device).type]
    found: dict[str, Any] = {"device": device}
    with using("off" if args.plain else "auto"):
        say(f"training, {args.warm} and {steps} steps on {device}, and without trainer and guard")
        without = bare(settings, device, warm=args.warm, steps=max(2, steps // 4))
        found["training"] = training(settings, device, warm=args.warm, steps=steps, without=without)
        if args.generate:
            say(f"writing {args.generate} tokens")
            found["writing"] = generating(settings, device, length=args.generate)
    if args.reference:
        say("the plain reference, on one thread")
        found["beside the plain reference"] = reference_ratio(settings)
    found["kernels that are not used"] = faults()
    answer(args, found, figures(found))
    return 0
