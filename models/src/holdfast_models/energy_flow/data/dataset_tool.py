"""What ``holdfast energy_flow data`` does: make, list, describe, check, thin out and put away.

A set is a JSONL file of pairs, a file of embeddings, or a folder of mapped embeddings. Every
function returns its report; with ``dry_run`` it says what it would do and does nothing.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from holdfast import HoldfastError
from holdfast.training import TensorWriter

from .dataset_files import TEXTS, Set, content, find_sets, is_set, set_at, shown_size, size_of
from .embeddings import EmbeddingCache, embed
from .pairs import DataSettings, cache_folder, load_texts
from .precomputed import read_precomputed
from .splits import possible_splits, split_pairs
from .teachers import Teacher, make_teacher
from .text_pairs import SHORTEST, TextFile, TextPair, Texts, scan_pairs, write_pairs

ARCHIVE = "archive"
"""The folder below a folder of sets that old ones are moved to."""

_NAMED = 10  # problems named in a report
_CHUNK = 1024  # pairs embedded together: a set may be larger than memory
_DAY = 24 * 3600.0


class Report(NamedTuple):
    """Lines for the user, and whether all is well."""

    lines: list[str]
    ok: bool = True


def make(
    root: str | os.PathLike[str],
    settings: DataSettings,
    *,
    embedded: bool = False,
    dry_run: bool = False,
) -> Report:
    """Write the pairs of a source as a set whose name holds everything that decides its content.

    Args:
        root: the folder of sets.
        settings: which pairs.
        embedded: write mapped embeddings by the teacher, with the texts, instead of texts alone.
        dry_run: only say what would be written.
    """
    teacher = make_teacher(settings.teacher, settings.width) if embedded else None
    by = f"_{teacher.name}-{teacher.fingerprint[:8]}" if teacher else ".jsonl"
    path = Path(root) / f"{_name(settings)}{by}"
    if is_set(path):
        return Report([f"{path}: there already; the name says that its content is the same"])
    pairs = load_texts(settings)
    if dry_run:
        return Report([f"{path}: would be written, {len(pairs)} pairs"])
    if teacher is None:
        write_pairs(path, pairs)
        return Report([f"{path}: written, {len(pairs)} pairs, {shown_size(size_of(path))}"])
    # The texts first: a folder is a set once its tensors are described, which comes last.
    write_pairs(path / TEXTS, pairs)
    _write_embedded(path, pairs, teacher, cache_folder(settings))
    width = f"width {teacher.dim} by {teacher.name}"
    return Report([f"{path}: written, {len(pairs)} pairs, {width}, {shown_size(size_of(path))}"])


def list_sets(root: str | os.PathLike[str], *, now: float | None = None) -> Report:
    """One line for every set in a folder.

    Args:
        root: the folder of sets.
        now: seconds since 1970; the clock by default.
    """
    sets = find_sets(root)
    if not sets:
        return Report([f"{root}: no sets; make one with `holdfast energy_flow data make`"])
    now = time.time() if now is None else now
    widest = max(len(found.path.name) for found in sets)
    return Report(
        [
            f"{found.path.name:<{widest}}  {found.kind:<10}  {shown_size(found.size):>8}  "
            f"{max(0.0, now - found.changed) / _DAY:.0f} days old"
            for found in sets
        ]
    )


def info(path: str | os.PathLike[str]) -> Report:
    """What is in a set: how many pairs, how different, how split, an example."""
    found = set_at(path)
    if found.kind == "pairs":
        return Report([f"{path}: {shown_size(found.size)}", *_described(TextFile(path))])
    opened = read_precomputed(path)
    x_NE, texts = opened.x_NE, opened.texts()
    lines = [
        f"{path}: {shown_size(found.size)}, {found.kind}",
        f"{len(x_NE)} pairs of width {x_NE.shape[1]}, {str(x_NE.dtype).removeprefix('torch.')}, "
        f"norms of inputs {opened.norms.least:.3g} to {opened.norms.most:.3g}",
    ]
    return Report([*lines, *(_described(texts) if len(texts) else [])])


def validate(path: str | os.PathLike[str]) -> Report:
    """Whether a set can be trained on; every problem of a file of pairs, not only the first."""
    try:
        found = set_at(path)
        return _validated_pairs(found.path) if found.kind == "pairs" else _validated_rows(found)
    except HoldfastError as error:
        return Report([str(error)], False)


def dedup(path: str | os.PathLike[str], *, dry_run: bool = False) -> Report:
    """Remove what is there twice: pairs of a JSONL file, or files of a folder, by content.

    Args:
        path: a file, whose first pair of each kind stays, or a folder, whose oldest file stays.
        dry_run: only say what would go.
    """
    if Path(path).is_dir():
        return _dedup_files(path, dry_run)
    if set_at(path).kind != "pairs":
        raise HoldfastError(f"{path}: holds embeddings; give a JSONL file, or a folder of sets")
    pairs = TextFile(path)
    kept = sum(1 for _ in _first_ones(pairs))
    if kept < len(pairs) and not dry_run:
        write_pairs(path, _first_ones(pairs))
    verb = "would be removed" if dry_run else "removed"
    gone = len(pairs) - kept
    return Report([f"{path}: {gone} of {len(pairs)} pairs {verb}, {kept} different ones"])


def archive(
    root: str | os.PathLike[str],
    days: float,
    *,
    dry_run: bool = False,
    now: float | None = None,
) -> Report:
    """Move sets that have not been changed for so many days to the folder ``archive`` in it.

    Args:
        root: the folder of sets.
        days: how old a set may get.
        dry_run: only say what would be moved.
        now: seconds since 1970; the clock by default.
    """
    limit = (time.time() if now is None else now) - days * _DAY
    old = [found for found in find_sets(root) if found.changed < limit]
    lines: list[str] = []
    for found in old:
        to = Path(root) / ARCHIVE / found.path.name
        if to.exists():
            lines.append(f"{found.path.name}: stays, {to} is there already; rename one of them")
        elif dry_run:
            lines.append(f"{found.path.name}: would be moved to {to}")
        else:
            to.parent.mkdir(exist_ok=True)
            shutil.move(found.path, to)
            lines.append(f"{found.path.name}: moved to {to}")
    return Report(lines or [f"{root}: nothing is older than {days:g} days"])


def _name(settings: DataSettings) -> str:
    if settings.source == "grammar":
        return f"grammar_{settings.task}_n{settings.count}_s{settings.seed}"
    if settings.source not in ("pairs", "snli"):
        raise HoldfastError(
            f"data make: source {settings.source} has no texts to make a set of; "
            "use grammar, pairs or snli"
        )
    of = "_".join(f"{Path(file).stem}-{content(Path(file))[:8]}" for file in settings.files)
    if settings.source == "pairs":
        return f"pairs_{of}"
    return f"snli_{of}_entailment_n{settings.count}_s{settings.seed}_min{SHORTEST}"


def _write_embedded(path: Path, pairs: Texts, teacher: Teacher, cache: Path | None) -> None:
    kept = None if cache is None else EmbeddingCache(cache, teacher)
    rest = iter(pairs)
    with TensorWriter(path) as writer:
        while chunk := list(islice(rest, _CHUNK)):
            sentences = [pair.input for pair in chunk] + [pair.target for pair in chunk]
            rows_NE = embed(teacher, sentences) if kept is None else kept.encode(sentences)
            x_BE, y_BE = rows_NE.split(len(chunk))
            writer.append({"x": x_BE, "y": y_BE})


def _first_ones(pairs: Texts) -> Iterator[TextPair]:
    """Each different pair once; remembers digests, not texts."""
    seen: set[bytes] = set()
    for pair in pairs:
        digest = pair.digest
        if digest not in seen:
            seen.add(digest)
            yield pair


def _different(texts: Iterator[str]) -> int:
    """How many texts differ; remembers hashes, not texts."""
    return len({hash(text) for text in texts})


def _described(pairs: Texts) -> list[str]:
    if not len(pairs):
        return ["no pairs"]
    inputs = _different(pair.input for pair in pairs)
    targets = _different(pair.target for pair in pairs)
    words = sum(len(pair.input.split()) for pair in pairs) / len(pairs)
    splits = [
        f"split {kind}: " + ", ".join(f"{part} {len(n)}" for part, n in parts.items())
        for kind in possible_splits(pairs)
        for parts in [split_pairs(pairs, kind)]
    ]
    return [
        f"{len(pairs)} pairs, {inputs} different inputs, {targets} different targets, "
        f"{words:.1f} words an input",
        *splits,
        f"for example: {pairs[0].input!r} to {pairs[0].target!r}",
    ]


def _validated_pairs(path: Path) -> Report:
    seen: set[bytes] = set()
    lines: list[str] = []
    count = problems = 0
    for number, found in scan_pairs(path):
        if isinstance(found, str):
            problems += 1
            if problems <= _NAMED:
                lines.append(f"{path}:{number}: {found}")
        else:
            count += 1
            seen.add(found.digest)
    if problems > _NAMED:
        lines.append(f"{path}: and {problems - _NAMED} lines more")
    lines.append(f"{path}: {count} pairs, {count - len(seen)} of them repeated")
    lines.append("not valid" if problems or not count else "valid")
    return Report(lines, bool(count) and not problems)


def _validated_rows(found: Set) -> Report:
    x_NE = read_precomputed(found.path).x_NE
    texts = found.path / TEXTS
    if texts.is_file():
        report, rows = _validated_pairs(texts), len(x_NE)
        count = sum(1 for _ in scan_pairs(texts))
        if not report.ok or count != rows:
            return Report([*report.lines, f"{texts}: {count} texts for {rows} rows"], False)
    return Report([f"{found.path}: {len(x_NE)} pairs of width {x_NE.shape[1]}", "valid"])


def _dedup_files(root: str | os.PathLike[str], dry_run: bool) -> Report:
    kept: dict[str, Path] = {}
    lines: list[str] = []
    for found in sorted(find_sets(root), key=lambda found: (found.changed, found.path)):
        first = kept.setdefault(content(found.path), found.path)
        if first == found.path:
            continue
        verb = "would be removed" if dry_run else "removed"
        lines.append(f"{found.path.name}: {verb}, the same as {first.name}")
        if not dry_run:
            shutil.rmtree(found.path) if found.path.is_dir() else found.path.unlink()
    return Report(lines or [f"{root}: no two sets have the same content"])
