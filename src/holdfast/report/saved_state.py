"""What is left of a run that ended early: the saved state, and how to load it."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePath

from ..records.recovery import LastStateResult, SavingLastState
from ..records.resuming import CheckpointResult, ResumeCheck
from ..run import Run
from ..run.resumption import DIGEST, NONE_YET, RESUMED_FROM, Resumable, resumable_from
from ..types import Event
from . import words
from .action_words import one_line
from .layout import Line, Span, line, paragraph

# The folder of a run in which they are; a run is loaded by its newest good one.
_CHECKPOINTS = "checkpoints"
LOOSE = "parameters"
"""What the tensors of an optimizer are saved as that belong to no module."""


@dataclass(frozen=True, kw_only=True)
class SavedState:
    """The newest state on disk of a run that ended early, or why its last one was not saved."""

    path: str = ""
    step: int = -1
    bytes: int = 0
    what: str = ""
    """The state in a few words: after which step, how large."""
    code: tuple[str, ...] = ()
    """Lines that load it into plain PyTorch."""
    failed: str = ""
    """Why the state after the last complete step was not saved; empty when it was."""
    goes_on: str = ""
    """The command that goes on with the run; empty where none can."""
    goes_back: str = ""
    """After which step it does so, and how many are taken again."""
    why_not: str = ""
    """Why there is none, where that is known."""


def saved_state_of(events: Iterable[Event], run: Path, *, ended_early: bool) -> SavedState | None:
    """The saved state of a run; None for a run that has ended well or has saved nothing."""
    events = sorted(events, key=lambda event: (-event.rank, event.time))
    found = [(event.step, last) for event in events if (last := LastStateResult.of(event))]
    step, last = found[-1] if found else (-1, None)
    if last is not None and last.file:
        return _last(last, step, run)
    failed = "" if last is None else one_line(last.failed)
    written = [(e.step, one) for e in events if (one := CheckpointResult.of(e)) and one.file]
    if written and (ended_early or failed):
        return _checkpoint(written[-1][1], written[-1][0], run, failed)
    return SavedState(failed=failed) if failed else None


def with_command(
    saved: SavedState | None, run: Run, events: Iterable[Event], last: int
) -> SavedState | None:
    """The saved state of a run that ended early, with the command that goes on from there.

    ``last`` is the last step that the run has taken, -1 for none.
    """
    events = list(events)
    followed = any(event.kind == ResumeCheck.kind for event in events) or RESUMED_FROM in run.meta
    if not followed and (last < 0 or not _is_script(run, events)):
        return saved
    found = resumable_from(run, events)
    if not found.accepted:
        return replace(saved or SavedState(), why_not=_why_not(found, saved))
    known = _on_disk(saved or SavedState(), found, run.path)
    command = shlex.join(str(word) for word in run.meta.get("command", ()))
    return replace(
        known,
        goes_on=f"holdfast run --resume {shlex.quote(str(run.path))} {command}",
        goes_back=_goes_back(found.step, last),
    )


def _is_script(run: Run, events: Sequence[Event]) -> bool:
    """Whether this is the run of an unmodified script in one process."""
    watched = any(last.counted for last in filter(None, map(LastStateResult.of, events)))
    return bool(run.meta.get(DIGEST)) and not watched and not any(e.rank for e in events)


def _why_not(found: Resumable, saved: SavedState | None) -> str:
    if found.reason != NONE_YET or saved is None or not saved.path:
        return found.why
    return (
        "what was saved are the weights and the optimizer, amid a step; where the loop reads a "
        "DataLoader, a checkpoint with its place too is made after 30 s, or by --set "
        "checkpoint.steps=N"
    )


def _goes_back(step: int, last: int) -> str:
    again = last - step
    if again <= 0:
        return f"goes on after step {step}, the last one"
    steps = f"{words.plural(again, 'step')} after it {'is' if again == 1 else 'are'}"
    return f"goes back to step {step}: the {steps} taken again"


def _on_disk(saved: SavedState, found: Resumable, run: Path) -> SavedState:
    """The newer checkpoint, where one was written and a kill came before its event was recorded."""
    path = Path(found.checkpoint)
    if found.step <= saved.step or not path.is_file():
        return saved
    shown, size = _shown(found.checkpoint, run), path.stat().st_size
    return replace(
        saved,
        path=shown,
        step=found.step,
        bytes=size,
        what=f"checkpoint of step {found.step}, {words.size(size)}".replace(words.NBSP, " "),
        code=tuple(row.replace(saved.path, shown) for row in saved.code),
    )


def saved_lines(saved: SavedState | None, width: int, *, brief: bool = False) -> list[Line]:
    """The same as lines of a text report; ``brief`` without the lines of python that load it."""
    if saved is None:
        return []
    lines: list[Line] = []
    if saved.failed:
        text = f"the state after the last complete step: {saved.failed}"
        lines += paragraph(text, label="not saved", indent=2, width=width, label_style="yellow")
    if saved.path:
        lines += [line("  ", Span("saved   ", "dim"), saved.path)]
        how = "; to load it see the report" if brief and saved.code else ""
        lines += paragraph(f"{saved.what}{how}", indent=10, width=width)
        code = () if brief else saved.code
        lines += [line(" " * 10, Span(_fitted(row, saved.path, width), "cyan")) for row in code]
    if saved.goes_on:
        lines += [line("  ", Span("go on   ", "dim"), Span(saved.goes_on, "cyan"))]
        lines += paragraph(saved.goes_back, indent=10, width=width)
    elif saved.why_not:
        text = f"this run cannot be resumed: {saved.why_not}"
        lines += paragraph(text, label="go on  ", indent=2, width=width, label_style="dim")
    return lines


def _fitted(row: str, path: str, width: int) -> str:
    """A line that loads a checkpoint; by the folder of the run where its name is too long.

    A terminal would break it amid a word, and what is copied from there would not run.
    """
    folder = PurePath(path).parent
    short = 10 + len(row) <= width or folder.name != _CHECKPOINTS
    return row if short else row.replace(path, str(folder.parent))


def saved_line(event: Event) -> str:
    """Live line of what is saved at the end; empty where the summary will say it."""
    if (saving := SavingLastState.of(event)) is not None:
        large = words.size(saving.bytes)
        about = f", about {words.duration(saving.expected)}" if saving.expected else ""
        reported = f"{large}{about}".replace(words.NBSP, " ")
        return (
            f"holdfast: saving the state after step {event.step} ({reported}); Ctrl-C ends at once"
        )
    last = LastStateResult.of(event)
    failed = "" if last is None else one_line(last.failed)
    return f"holdfast: the state after the last complete step was not saved: {failed}" * bool(
        failed
    )


def _last(last: LastStateResult, step: int, run: Path) -> SavedState:
    # How much of the time between SIGTERM and SIGKILL it takes.
    took = f", written in {words.duration(last.seconds)}" if last.seconds else ""
    path = _shown(one_line(last.file), run)
    return SavedState(
        path=path,
        step=step,
        bytes=last.bytes,
        what=_what(_after(last, step), last.bytes, took, good=last.good),
        code=_code(path, last.models, last.optimizers),
    )


def _checkpoint(saved: CheckpointResult, step: int, run: Path, failed: str) -> SavedState:
    path, size = _shown(one_line(saved.file), run), saved.bytes or 0
    return SavedState(
        path=path,
        step=step,
        bytes=size,
        what=_what(f"checkpoint of step {step}", size, "", good=saved.good),
        code=_code(path, (), 1),
        failed=failed,
    )


def _what(state: str, size: int, took: str, *, good: bool) -> str:
    large = f", {words.size(size)}" if size > 0 else ""
    doubtful = "" if good else ", saved while the run was unhealthy"
    return f"{state}{large}{took}{doubtful}".replace(words.NBSP, " ")


def _after(last: LastStateResult, step: int) -> str:
    if last.source != "snapshot":
        # A watch counts the steps it has made, as its checkpoints do.
        return (
            f"state after {words.plural(step + 1, 'step')}"
            if last.counted
            else f"state after step {step}"
        )
    why = one_line(last.note)
    return f"newest snapshot, after step {step}{f': {why}' if why else ''}"


def _shown(file: str, run: Path) -> str:
    """The path as the user calls the run, where it lies in the run folder."""
    try:
        return str(run / Path(file).relative_to(run.resolve()))
    except (ValueError, OSError):
        return file


def _code(path: str, models: Sequence[str], optimizers: int) -> tuple[str, ...]:
    lines = ["import holdfast", f"state = holdfast.load_checkpoint({json.dumps(path)})"]
    if list(models) == [LOOSE]:
        lines += ['parameters = state["model"].values()  # in the order of the optimizer']
    elif len(models) <= 1:
        lines += ['model.load_state_dict(state["model"])']
    else:
        lines += [
            f'{_variable(name)}.load_state_dict(state["models"]["{name}"])' for name in models
        ]
    if optimizers == 1:
        return (*lines, 'optimizer.load_state_dict(state["optimizer"])')
    more = (f'optimizer{i}.load_state_dict(state["optimizers"][{i}])' for i in range(optimizers))
    return (*lines, *more)


def _variable(name: str) -> str:
    return name.lower() if name.isidentifier() else "model"
