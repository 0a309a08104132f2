"""What the machine itself suggests, as settings below everything a person has set."""

from __future__ import annotations

import difflib
import platform as machine
from collections.abc import Iterator
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
    """A kind of machine, by the name that ``--platform`` takes."""

    name: str
    summary: str
    suggestions: tuple[Suggestion, ...] = ()

    def lines(self) -> Iterator[str]:
        """A line for each suggestion: what is set and why."""
        for one in self.suggestions:
            yield f"platform {self.name}: {one.key}={one.value}: {one.why}"


PLATFORMS = (
    Platform(
        name="arm",
        summary="an ARM processor, with or without a GPU",
        suggestions=(
            Suggestion(
                key="train.data.workers",
                value="1",
                why="as a rule of thumb, one worker with more threads beats many on an ARM CPU",
            ),
        ),
    ),
    Platform(name="cuda", summary="a CUDA GPU beside another processor"),
    Platform(name="cpu", summary="no GPU"),
    Platform(name="none", summary="the defaults, whatever the machine is"),
)
"""Every kind there is; where the defaults fit already there is nothing to suggest."""


def detect() -> Platform:
    """The kind of this machine; the processor counts before the GPU: it makes the batches."""
    if machine.machine().lower() in ARM:
        return named("arm")
    import torch

    return named("cuda" if torch.cuda.is_available() else "cpu")


def named(name: str) -> Platform:
    """The kind of this name, ``auto`` for this machine's; else a ``UsageError``."""
    if name == AUTO:
        return detect()
    for one in PLATFORMS:
        if one.name == name:
            return one
    names = [AUTO, *(one.name for one in PLATFORMS)]
    near = difflib.get_close_matches(name, names, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(names)}"
    raise UsageError(f"no platform {name!r}; {hint}")
