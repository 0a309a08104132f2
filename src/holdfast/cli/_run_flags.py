"""Options of ``holdfast run`` that are short names for settings."""

from __future__ import annotations

import argparse
from typing import Any

from ..errors import UsageError

HEALTH = 50
"""Steps between two health lines where none are given."""
# Everything by which holdfast changes a training, whatever the settings file says.
_WATCH_ONLY = {
    "guard.skip": "false",
    "guard.split": "false",
    "policy": "observe",
    "clip.norm": "null",
    "clip.per_parameter": "null",
    "clip.value": "null",
    "clip.adaptive": "false",
    "scaler.policy": "false",
    "quarantine.skip": "false",
    "quarantine.replace": "false",
}
TAKES_VALUE = (
    "--run-dir",
    "--resume",
    "--config",
    "--set",
    "--on",
    "--clip-norm",
    "--clip-value",
    "--checkpoint-minutes",
    "--hang-after",
    "--restart",
    "--track",
)
MAY_TAKE_NUMBER = ("--health",)
TRACK: dict[str, Any] = {
    "metavar": "NAME",
    "action": "append",
    "choices": ("mlflow", "tensorboard", "json"),
    "help": "experiment tracker that follows the run: mlflow, tensorboard or json (repeatable)",
}
"""The option ``--track``, the same wherever something is trained."""


def describe_rescue(parser: argparse.ArgumentParser) -> None:
    """The options about what may be done to a training."""
    group = parser.add_argument_group("what holdfast may do to save the run")
    group.add_argument(
        "--observe",
        action="store_true",
        help="only detect and report: never skip, clip, roll back or stop",
    )
    group.add_argument(
        "--keep-nan",
        action="store_true",
        help="leave the loss of a skipped step NaN for the script to read (default: once backward "
        "has returned it reads as the last finite loss, so that averages stay numbers)",
    )
    group.add_argument(
        "--on",
        metavar="CODE=ACTION",
        action="append",
        default=[],
        help="action for a finding, e.g. OPT001=observe or OPT002=skip,clip (repeatable)",
    )
    group.add_argument(
        "--show-policy",
        action="store_true",
        help="print which finding gets which action, and exit",
    )
    group.add_argument(
        "--no-rollback",
        action="store_true",
        help="keep no snapshots of the state in host memory and never roll back",
    )
    group.add_argument(
        "--no-replace-samples",
        action="store_true",
        help="let an exception of an unreadable sample go through at once (default: it is read "
        "again, then another sample takes its place, for 0.1 %% of the samples at most)",
    )
    group.add_argument(
        "--no-split-batches",
        action="store_true",
        help="let an out-of-memory error of the model go through (default: the batch is split into "
        "parts that fit, with the same gradients, and stays so)",
    )
    group.add_argument("--clip-norm", metavar="X", help="clip gradients to this global L2 norm")
    group.add_argument(
        "--clip-value", metavar="X", help="clip every element of the gradients to this value"
    )
    group.add_argument(
        "--clip-adaptive",
        action="store_true",
        help="clip gradients to a threshold from the baseline of this run",
    )
    group.add_argument(
        "--scaler-policy",
        action="store_true",
        help="make the script's GradScaler start lower and grow more slowly, with a floor",
    )
    group.add_argument(
        "--no-watchers",
        action="store_true",
        help="do not watch for leaks, stalls, slowdowns and waits for data",
    )
    group.add_argument(
        "--fetch-samples",
        action="store_true",
        help="fetch samples of a slow or leaking loader in this process too, to name the line of "
        "its dataset (may shift the RNG state of the dataset)",
    )
    group.add_argument(
        "--restart",
        metavar="K",
        help="start the script again, K times in all, after a crash, a hang or a kill, from its "
        "last checkpoint; a batch that ends it twice is skipped (default: 0)",
    )
    group.add_argument(
        "--hang-after",
        metavar="SECONDS",
        help="how long nothing may go on before the stacks of all processes are looked at, and at "
        "least three times the longest pause so far (default: 600; 0: never)",
    )
    group.add_argument(
        "--checkpoint-minutes",
        metavar="M",
        help="minutes between two checkpoints of the full state (default: 10; 0: none)",
    )


def overrides_of(args: argparse.Namespace) -> list[str]:
    """Apply flags as settings, after the file and before ``--set``."""
    flags = {
        "run.dir": args.run_dir,
        "guard.fused": "false" if args.no_fused else None,
        "guard.keep_nan": "true" if args.keep_nan else None,
        "guard.replay": "false" if args.no_replay else None,
        "guard.split": "false" if args.no_split_batches else None,
        "run.quiet": "true" if args.quiet else None,
        "run.verbose": "true" if args.verbose else None,
        "run.hang_after": args.hang_after,
        "restart.times": args.restart,
        "run.health": args.health,
        "track.to": ",".join(args.track) if args.track else None,
        "quarantine.replace": "false" if args.no_replace_samples else None,
        "rollback.snapshots": "0" if args.no_rollback else None,
        "checkpoint.minutes": args.checkpoint_minutes,
        "watchers.memory": "false" if args.no_watchers else None,
        "watchers.time": "false" if args.no_watchers else None,
        "watchers.fetch_samples": "true" if args.fetch_samples else None,
    }
    changing = {
        "clip.norm": args.clip_norm,
        "clip.value": args.clip_value,
        "clip.adaptive": "true" if args.clip_adaptive else None,
        "scaler.policy": "true" if args.scaler_policy else None,
    }
    if args.observe:
        asked = next((key for key, value in changing.items() if value is not None), None)
        if asked:
            flag = f"--{asked.replace('.', '-')}"
            raise UsageError(
                f"--observe changes nothing, {flag} changes the training; remove one of them"
            )
        changing = _WATCH_ONLY
    given = {**flags, **changing}
    overrides = [f"{key}={value}" for key, value in given.items() if value is not None]
    for rule in args.on:
        code, equals, action = rule.partition("=")
        if not code.strip() or not equals or not action.strip() or "." in code:
            raise UsageError(f"--on {rule!r}: write it as CODE=ACTION, e.g. OPT001=observe")
        overrides.append(f"policy.{code.strip()}={action}")
    return overrides + args.set
