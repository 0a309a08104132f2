"""Whether a run of an unmodified script can be gone on with, as its record says; no torch.

The training process decides when it makes a checkpoint: it records a ``ResumeCheck``, and marks
each checkpoint that can be resumed from.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from holdfast.records.resuming import ResumeCheck
from holdfast.redaction import same_command
from holdfast.run import jsonl
from holdfast.run.folder import Run
from holdfast.types import Event

RESUMED_FROM = "resumed_from"
"""The key of ``run.json`` that says which run this one goes on with: run, step, checkpoint."""
DIGEST = "digest"
"""The key of ``run.json`` with the SHA-256 of the script."""
NONE_YET = "no checkpoint was written yet"
"""Why a run cannot be gone on with that would be resumable otherwise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Resumable:
    """Whether and from where a run can be gone on with."""

    accepted: bool
    reason: str = ""
    """Why not; empty when it can."""
    file: str = ""
    line: int = 0
    """The line to blame, where there is one."""
    own: int = 0
    """Line at which the script restores an optimizer by itself; 0 where it does not."""
    step: int = -1
    """The last step that the checkpoint includes."""
    checkpoint: str = ""

    @property
    def why(self) -> str:
        """The reason with its place."""
        return f"{self.reason}, at {self.file}:{self.line}" if self.file else self.reason


def resumable(run: Run) -> Resumable:
    """From which checkpoint a run can be gone on with, or why it cannot."""
    from holdfast.run.reader import LaneReader

    return resumable_from(
        run, [event for lane in run.lanes() for event in LaneReader(run, lane).events()]
    )


def resumable_from(run: Run, events: Iterable[Event]) -> Resumable:
    """The same where the events of the run have been read."""
    checks = [check for event in events if (check := ResumeCheck.of(event)) is not None]
    last = checks[-1] if checks else ResumeCheck(accepted=False)
    for step, path in checkpoints(run):
        return Resumable(accepted=True, own=last.own, step=step, checkpoint=str(path))
    reason, file, line = last.reason or NONE_YET, last.file, last.line
    return Resumable(accepted=False, reason=reason, own=last.own, file=file, line=line)


def checkpoints(run: Run) -> list[tuple[int, Path]]:
    """Step and file of each checkpoint that can be resumed from, the newest first.

    Those of the run itself, from their records, which are proven by whoever loads them; then the
    one that it was resumed from.
    """
    found: list[tuple[int, Path]] = []
    for record in _folder(run).glob("step-*.json"):
        with contextlib.suppress(OSError, ValueError, KeyError):
            fields = jsonl.read_object(record)
            data = record.with_name(Path(str(fields["file"])).name)
            if fields.get("resume") and data.stat().st_size == fields["bytes"]:
                found.append((int(fields["step"]), data.resolve()))
    found.sort(reverse=True)
    before = _section(run.meta, RESUMED_FROM)
    if before:
        path = Path(str(before.get("checkpoint")))
        found += [(int(before.get("step", -1)), path)] if path.exists() else []
    return found


def _folder(run: Run) -> Path:
    given = _section(_section(run.meta, "settings"), "checkpoint").get("dir")
    return Path(str(given)) if given else run.path / "checkpoints"


def _section(fields: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = fields.get(key)
    return cast("Mapping[str, Any]", value) if isinstance(value, Mapping) else {}


def script_digest(script: str) -> str:
    """What a script is known by; empty for none and for what cannot be read."""
    try:
        return hashlib.sha256(Path(script).read_bytes()).hexdigest()
    except OSError:
        return ""


def other_script(meta: Mapping[str, Any], command: Sequence[str], digest: str) -> str:
    """Why a command is not that of an earlier run; empty when it is. Arguments count."""
    reported: Any = meta.get("command")
    then = [str(word) for word in cast("list[Any]", reported)] if isinstance(reported, list) else []
    if not same_command(then, command):
        return f"it ran `{' '.join(then)}`, not `{' '.join(command)}`"
    if digest and meta.get(DIGEST) and meta[DIGEST] != digest:
        return f"{meta.get('script') or command[0]} has changed since"
    return ""
