"""The options of ``holdfast run`` that are short names for settings."""

from __future__ import annotations

import argparse

from ..errors import UsageError

HEALTH = 50
"""Steps between two health lines where none are given."""
# Everything by which holdfast changes a training, whatever the settings file says.
_WATCH_ONLY = {
    "guard.skip": "false",
    "policy": "observe",
    "clip.norm": "null",
    "clip.per_parameter": "null",
    "clip.value": "null",
    "clip.adaptive": "false",
    "scaler.policy": "false",
    "quarantine.skip": "false",
}
TAKES_VALUE = (
    "--run-dir",
    "--config",
    "--set",
    "--on",
    "--clip-norm",
    "--clip-value",
    "--checkpoint-minutes",
)
MAY_TAKE_NUMBER = ("--health",)


def describe_rescue(parser: argparse.ArgumentParser) -> None:
    """The options about what may be done to a training."""
    group = parser.add_argument_group("what holdfast may do to save the run")
    group.add_argument(
        "--observe",
        action="store_true",
        help="only watch: detect and report, never skip, clip, roll back or stop",
    )
    group.add_argument(
        "--on",
        metavar="CODE=ACTION",
        action="append",
        default=[],
        help="what to do about a finding, e.g. OPT001=observe or OPT002=skip,clip (repeatable)",
    )
    group.add_argument(
        "--show-policy",
        action="store_true",
        help="print what would be done about which finding, and leave",
    )
    group.add_argument(
        "--no-rollback",
        action="store_true",
        help="keep no copies of the state in host memory and never roll back",
    )
    group.add_argument("--clip-norm", metavar="X", help="clip gradients to this global L2 norm")
    group.add_argument(
        "--clip-value", metavar="X", help="clip every element of the gradients to this value"
    )
    group.add_argument(
        "--clip-adaptive",
        action="store_true",
        help="clip gradients to what is usual in this run",
    )
    group.add_argument(
        "--scaler-policy",
        action="store_true",
        help="make the GradScaler of the script grow and shrink more calmly",
    )
    looking = group.add_mutually_exclusive_group()
    looking.add_argument(
        "--look-out",
        action="store_true",
        help="look for memory that grows and time that goes with every exam, also those that fetch "
        "samples of a dataset in this process to name its line",
    )
    looking.add_argument(
        "--no-look-out",
        action="store_true",
        help="do not look for memory that grows and time that goes",
    )
    group.add_argument(
        "--checkpoint-minutes",
        metavar="M",
        help="minutes between two checkpoints of the full state (default: 10; 0: none)",
    )


def _either(on: bool, off: bool) -> str | None:
    return "true" if on else "false" if off else None


def overrides_of(args: argparse.Namespace) -> list[str]:
    """Flags are short names for settings, and settle after the file and before ``--set``."""
    flags = {
        "run.dir": args.run_dir,
        "guard.fused": "false" if args.no_fused else None,
        "guard.replay": "false" if args.no_replay else None,
        "run.quiet": "true" if args.quiet else None,
        "run.health": args.health,
        "rollback.snapshots": "0" if args.no_rollback else None,
        "checkpoint.minutes": args.checkpoint_minutes,
        "lookouts.memory": _either(args.look_out, args.no_look_out),
        "lookouts.time": _either(args.look_out, args.no_look_out),
        "lookouts.samples": _either(args.look_out, args.no_look_out),
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
                f"--observe changes nothing, {flag} changes the training; leave one out"
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
