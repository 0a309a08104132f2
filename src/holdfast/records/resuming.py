"""Checkpoints, and how a run goes on from one."""

from __future__ import annotations

from typing import Any, ClassVar

from .base import Kind


class CheckpointResult(Kind, kind="checkpoint"):
    """A checkpoint was written, or could not be."""

    why: str
    """Why it was saved: ``step``, ``time``, ``asked``, ``stop``, ``signal`` or ``end``. Its key is
    ``kind``."""
    failed: str = ""
    """Why it was not written; empty where it was."""
    file: str = ""
    """Empty also on a rank that has written its part of a checkpoint of all ranks."""
    part: int | None = None
    """The rank of that part."""
    bytes: int | None = None
    """Size in bytes."""
    seconds: float | None = None
    """How long writing took, beside the training."""
    good: bool = True
    """False: something was suspected of having damaged the weights when it was saved."""
    resume: bool = False
    """Whether an unmodified script can be resumed from it."""

    # The word of an event stands in ``kind`` already.
    earlier: ClassVar = {"kind": "why"}

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        data = super().to_dict()
        return {"kind": data.pop("why"), **data}


class ResumeCheck(Kind, kind="resumable"):
    """Whether an unmodified script can be resumed from its next checkpoint."""

    accepted: bool
    """Whether it can."""
    reason: str = ""
    """Why not; empty where it can."""
    file: str = ""
    """Where the script does what cannot be resumed; empty where no line is to blame."""
    line: int = 0
    own: int = 0
    """Line at which the script restores an optimizer by itself; 0 where it does not."""


class Resumed(Kind, kind="resume"):
    """The run goes on from a checkpoint."""

    file: str
    step: int
    """How many steps the run had made."""
    exact: bool
    """Whether it computes the same bits as one that was not interrupted."""
    why: str
    """Why not; empty where it does."""


class OutputOpened(Kind, kind="output"):
    """The script opened a file for writing, for the first time."""

    file: str
    bytes: int
    """How long it was before."""
    appends: bool
    """Whether it was opened to append."""
