"""Find checkpoints by path and print them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from ..checkpoint.compare import describe
from ..checkpoint.record import (
    DATA,
    FOLDER_NAME,
    RECORD,
    RUN,
    is_single,
    read_record,
    record_path,
)
from ..checkpoint.store import (
    FOLDER,
    CheckpointStore,
    Entry,
    entry_at,
)
from ..config import RunSettings
from ..errors import CheckpointError, RunFolderError
from ..report import Line
from ..report.layout import Span, line, paragraph
from ..report.words import (
    duration,
    figure,
    listed,
    number,
    plural,
    ranks,
    size,
)
from ..run import Run, run_path

if TYPE_CHECKING:
    from ..checkpoint.values import Contrast

_SHOWN = 20
_HIDDEN = {"tensors", "metrics", "format", "record", "sha256", "files", "chunks"}


# What a user calls a checkpoint.


def path_of(word: str) -> Path:
    """The path that a word means: itself, or the run of that name."""
    return run_path(word, RunSettings().root)


def store_of(path: Path) -> CheckpointStore:
    """The folder of checkpoints of a run, or the one given."""
    if not path.is_dir():
        raise CheckpointError(
            f"{path} is a file; give the folder of a run or a folder of checkpoints"
        )
    return store_in(path)


def store_in(folder: Path) -> CheckpointStore:
    """The folder of checkpoints of the run in a folder, or the folder itself."""
    try:
        run = Run.open(folder)
    except RunFolderError:
        return CheckpointStore(folder)
    given: Any = run.meta
    for key in ("settings", "checkpoint", "dir"):
        given = cast("dict[str, Any]", given).get(key) if isinstance(given, dict) else None
    return CheckpointStore(given if isinstance(given, str) else run.path / FOLDER)


def is_elsewhere(store: CheckpointStore, run: Path) -> bool:
    """Whether a store that a path stands for lies outside of it."""
    return not store.folder.resolve().is_relative_to(run.resolve())


def is_of_run(entry: Entry, run: Path) -> bool:
    """Whether a checkpoint is proven to be what was written, and says that it is of a run."""
    return entry.record.get(RUN) == str(run.resolve()) and not entry.checked().damage


def entries_of(word: str) -> list[Entry]:
    """Every checkpoint that a path or the name of a run refers to."""
    path = _given(word)
    return [_single(path)] if is_single(path) else store_of(path).entries()


def entry_of(word: str) -> Entry:
    """The checkpoint that a word refers to as well: of a folder the newest good one."""
    path = _given(word)
    if is_single(path):
        return _single(path)
    store = store_of(path)
    entries = store.entries()
    found = store.latest(rank=entries[0].rank if entries else 0)
    if found is None:
        raise CheckpointError(
            f"there is no good checkpoint in {store.folder} ({plural(len(entries), 'checkpoint')} "
            f"in all); see: holdfast checkpoint ls {path}"
        )
    return found


def _given(word: str) -> Path:
    # The data of a checkpoint may be gone while its record is there, and the other way round.
    path = Path(word)
    one = path.suffix in (DATA, RECORD) or FOLDER_NAME.fullmatch(path.name)
    return path if one else path_of(word)


def _single(path: Path) -> Entry:
    if not path.exists() and not (path.suffix in (DATA, RECORD) and record_path(path).exists()):
        raise CheckpointError(
            f"{path} does not exist; give the folder of a run, of checkpoints, or a checkpoint"
        )
    record_path(path)  # refuses a file that is neither of the two
    return entry_at(path)


# StepReporter.


def plain_entry(entry: Entry) -> dict[str, Any]:
    """An entry for programs."""
    known = {key: entry.record.get(key) for key in ("time", "kind", "world", "bytes", "metrics")}
    return {
        "path": str(entry.path), "step": entry.step, "rank": entry.rank, "good": entry.good,
        "damage": entry.damage, **known,
    }  # fmt: skip


def table(entries: Sequence[Entry]) -> list[Line]:
    """Checkpoints, one line each, under a head."""
    rows = [["STEP", "RANK", "AGE", "SIZE", "KIND", "METRICS"]]
    for entry in entries:
        record = entry.record
        age = duration(max(0.0, time.time() - float(record["time"]))) if record else "?"
        rows.append(
            [str(entry.step), "all" if entry.shared else str(entry.rank), age,
             size(entry.bytes) if record else "?", str(record.get("kind", "?")), _metrics(entry)]
        )  # fmt: skip
    widths = [max(len(row[i]) for row in rows) for i in range(5)]
    lines: list[Line] = []
    for row, entry in zip(rows, [None, *entries], strict=True):
        cells = "  ".join(row[i].rjust(widths[i]) for i in range(4))
        text = f"{cells}  {row[4].ljust(widths[4])}  "
        if entry is None:
            lines.append(line(Span(text + row[5], "bold")))
        elif entry.damage:
            lines.append(line(text, Span(f"DAMAGED: {entry.damage}", "red")))
        else:
            note = Span("" if entry.good else "  saved while the run was unhealthy", "yellow")
            lines.append(line(text, row[5], note))
    return lines


def verdict_lines(entry: Entry) -> list[Line]:
    """Result of verifying one checkpoint."""
    if entry.damage:
        return [line(Span("damaged", "red"), f"  {entry.path}: {entry.damage}")]
    tensors = plural(len(entry.record["tensors"]), "tensor")
    return [line(Span("intact ", "green"), f"  {entry.path}: {size(entry.bytes)}, {tensors}")]


def show_lines(entry: Entry, width: int, *, tensors: bool) -> list[Line]:
    """What a checkpoint holds, from its record."""
    record = entry.record or read_record(entry.path)  # which says why there is none
    lines = [line(Span(str(entry.path), "bold"))]
    when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(float(record["time"])))
    facts = {
        "step": f"{entry.step}, {_ranks(entry)}",
        "saved": f"{when}, {record.get('kind')}, holdfast {record.get('holdfast')}, "
        f"torch {record.get('torch')}",
        "good": "yes, the run was healthy"
        if entry.good
        else f"no: {entry.damage or 'the run was unhealthy'}",
        "size": f"{size(entry.bytes)}, sha256 {str(record['sha256'])[:16]}…",
        "metrics": _metrics(entry) or "none",
    }
    known = {"step", "rank", "world", "time", "kind", "holdfast", "torch", "good", "bytes", "file"}
    for key, value in record.items():
        if key not in known | _HIDDEN:
            facts[key] = str(value)
    for label, text in facts.items():
        lines += paragraph(text, label=label, indent=2, column=9, width=width, label_style="bold")
    forms: dict[str, Any] = record["tensors"]
    lines += paragraph(
        listed(_parts(forms)), label="tensors", indent=2, column=9, width=width, label_style="bold"
    )
    if tensors:
        lines += [line("    ", name, "  ", describe(form)) for name, form in forms.items()]
    return lines


def _ranks(entry: Entry) -> str:
    if not entry.shared:
        return f"rank {entry.rank} of {entry.world}"
    files: dict[str, Any] = entry.record["files"]
    largest = max(int(one["bytes"]) for one in files.values())
    return f"saved by {plural(len(files), 'rank')}, a file each of up to {size(largest)}"


def diff_lines(first: Entry, second: Entry, found: Contrast) -> list[Line]:
    """Where two checkpoints differ."""
    names = [f"step {one.step}" for one in (first, second)]
    if names[0] == names[1]:
        names = [str(first.path), str(second.path)]
    lines = [
        line(Span("1  ", "bold"), str(first.path)),
        line(Span("2  ", "bold"), str(second.path)),
    ]
    if not found:
        return [*lines, line(f"bitwise equal: {plural(found.equal, 'tensor')}")]
    if found.shapes:
        text = found.shapes.message(saved=names[0], live=names[1])
        lines += [line(row) for row in text.splitlines()]
    if found.tensors:
        lines += [line(f"{plural(len(found.tensors), 'tensor')} with different values:")]
        for one in found.tensors[:_SHOWN]:
            share = f"{number(one.changed)} of {plural(one.elements, 'element')}"
            apart = f"by up to {figure(one.largest)}, {figure(one.relative)} of its norm"
            lines += [line("  ", one.name, f": {share}, {apart}")]
        lines += _more(len(found.tensors))
    if found.values:
        lines += [line(f"{plural(len(found.values), 'other value')} that differ:")]
        shown = [(name, _short(a), _short(b)) for name, a, b in found.values[:_SHOWN]]
        lines += [line("  ", name, f": {a} → {b}") for name, a, b in shown]
        lines += _more(len(found.values))
    return [*lines, line(f"{plural(found.equal, 'tensor')} bitwise equal")]


def plain_contrast(found: Contrast) -> dict[str, Any]:
    """The same for programs."""
    return {
        "equal": found.equal,
        "missing": dict(found.shapes.missing),
        "unexpected": dict(found.shapes.unexpected),
        "differing": {name: [one, other] for name, one, other in found.shapes.differing},
        "tensors": [asdict(change) for change in found.tensors],
        "values": {name: [_short(a), _short(b)] for name, a, b in found.values},
    }


def prune_lines(gone: Sequence[Entry], kept: Sequence[Entry], *, dry_run: bool) -> list[Line]:
    """What was removed and what remains."""
    verb = "would remove" if dry_run else "removed"
    lines = [
        line(f"{verb}  {entry.path.name}  {size(entry.bytes)}", _reason(entry)) for entry in gone
    ]
    freed = size(sum(entry.bytes for entry in gone))
    total = f"{verb} {plural(len(gone), 'checkpoint')} ({freed}), {len(kept)} left"
    whose = ranks([entry.rank for entry in kept]) if kept else ""
    return [*lines, line(f"{total}{f': {whose}' if whose else ''}")]


def _reason(entry: Entry) -> Span:
    return Span(f"  damaged: {entry.damage}" if entry.damage else "", "red")


def _metrics(entry: Entry) -> str:
    return "  ".join(f"{name} {_metric(entry, name)}" for name in entry.metrics)


def _metric(entry: Entry, name: str) -> str:
    """A metric that was NaN says so; one without a number was not recorded."""
    known = entry.record["metrics"].get(name) is not None
    return figure(entry.metric(name)) if known else "not recorded"


def _parts(forms: dict[str, Any]) -> list[str]:
    """How many tensors each part of the state has."""
    counts: dict[str, int] = {}
    for name in forms:
        part = name.partition(".")[0]
        counts[part] = counts.get(part, 0) + 1
    counts = {"random state" if part == "dice" else part: n for part, n in counts.items()}
    return [f"{count} in {part}" for part, count in counts.items()] or ["none"]


def _more(count: int) -> list[Line]:
    return [line(f"  and {count - _SHOWN} more")] if count > _SHOWN else []


def _short(value: Any) -> str:
    text = str(value) if isinstance(value, str) else repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
