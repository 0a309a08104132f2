"""What the machine itself suggests, as settings below everything a person has set."""

from __future__ import annotations

import difflib
import platform as machine
from collections.abc import Collection
from dataclasses import dataclass

from ..errors import UsageError

AUTO = "auto"
ARM = ("aarch64", "arm64", "armv7l", "armv8l")


@dataclass(frozen=True, kw_only=True)
class Suggestion:
    """One setting, as it would be typed after ``--set``, and why this kind of machine wants it."""

    key: str
    value: str
    why: str


@dataclass(frozen=True, kw_only=True)
class Platform:
    """A kind of machine, by the name that ``--platform`` takes.

    Args:
        name: one word.
        summary: one line.
        suggestions: what it sets for any recipe. None of them changes what is learned: how many
            samples make a batch is a matter of the recipe (``Recipe.platforms``).
        broader: the kind it is one of, whose suggestions and settings come before its own.
        gpu: part of the name of its GPU, by which it is found.
    """

    name: str
    summary: str
    suggestions: tuple[Suggestion, ...] = ()
    broader: str = ""
    gpu: str = ""


PLATFORMS = (
    Platform(
        name="gh200",
        summary="an ARM processor and a Hopper GPU on one board",
        suggestions=(
            Suggestion(
                key="train.data.threads",
                value="8",
                why="enough for one worker, and 64 cores stay free; a guess",
            ),
        ),
        broader="arm",
        gpu="GH200",
    ),
    Platform(name="h200", summary="an H200 GPU", broader="cuda", gpu="H200"),
    Platform(name="h100", summary="an H100 GPU", broader="cuda", gpu="H100"),
    Platform(name="a100", summary="an A100 GPU", broader="cuda", gpu="A100"),
    # How many workers it needs is measured at the start, as anywhere, and is one at most.
    Platform(name="arm", summary="an ARM processor, with or without a GPU"),
    Platform(name="cuda", summary="another CUDA GPU beside another processor"),
    Platform(name="cpu", summary="no GPU"),
    Platform(
        name="shared",
        summary="a machine that others use too; only on request",
        suggestions=(
            Suggestion(key="train.data.workers", value="2", why="cores are left to others"),
            Suggestion(key="train.data.threads", value="2", why="cores are left to others"),
        ),
    ),
    Platform(name="none", summary="the defaults, whatever the machine is"),
)
"""Every kind there is; where the defaults fit already there is nothing to suggest."""


def detect() -> Platform:
    """The kind of this machine; the processor counts before the GPU: it makes the batches."""
    import torch

    gpu = torch.cuda.get_device_name().upper() if torch.cuda.is_available() else ""
    arm = machine.machine().lower() in ARM
    for one in PLATFORMS:
        if one.gpu and one.gpu in gpu and (one.broader == "arm") == arm:
            return one
    return named("arm" if arm else "cuda" if gpu else "cpu")


def named(name: str, own: Collection[str] = ()) -> Platform:
    """The kind of this name, ``auto`` for this machine's; else a ``UsageError``.

    Args:
        name: what was asked for.
        own: further names, of a recipe.
    """
    if name == AUTO:
        return detect()
    for one in PLATFORMS:
        if one.name == name:
            return one
    if name in own:
        return Platform(name=name, summary="of the recipe")
    names = dict.fromkeys([AUTO, *(one.name for one in PLATFORMS), *own])
    near = difflib.get_close_matches(name, names, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(names)}"
    raise UsageError(f"no platform {name!r}; {hint}")


def kinds(platform: Platform) -> list[Platform]:
    """The kind and those it is one of, the broadest first."""
    return [*(kinds(named(platform.broader)) if platform.broader else []), platform]
