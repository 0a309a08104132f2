"""What a run was trained on, in a few lines beside its record: data that has changed is noticed.

keep_data_facts(run_folder, sets, bridge)                   # when a run begins or goes on
changed_data(run_folder, sets, bridge, "with --set ...")    # when it is used
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from holdfast import HoldfastError

from ..evaluation.compatibility import Difference
from ..text.bridge import TextBridge
from .pairs import Pairs, PairSets

__all__ = ["FILE", "changed_data", "data_facts", "keep_data_facts"]

FILE = "data.json"

_VOCABULARY = "vocabulary"  # where it differs, a text bridge has learned other words
_SOURCES = "sources"  # kept for people: a file with another name may hold the same data
_DIGITS = 16  # of a digest, enough to tell two apart
_LOOKED_AT = 1024  # rows of embeddings that are digested; a set may be larger than memory


def data_facts(sets: PairSets, bridge: TextBridge | None) -> Mapping[str, Any]:
    """Sizes and digests of the data of a run.

    Args:
        sets: its pairs. Where a teacher embeds them its name and their texts say it all: another
            machine may give the last bit of a vector otherwise.
        bridge: whose vocabulary was made of them; None where there is none.
    """
    parts = (sets.train, sets.validation, sets.test)
    return {
        "training pairs": len(sets.train),
        "validation pairs": len(sets.validation),
        "test pairs": len(sets.test),
        _SOURCES: list(sets.sources) or None,
        "texts": _digest(_texts(parts)) if sets.train.has_texts else None,
        "embeddings": _digest(_rows(parts)) if sets.teacher is None else None,
        "teacher": None if sets.teacher is None else sets.teacher.fingerprint[:_DIGITS],
        _VOCABULARY: None if bridge is None else bridge.vocabulary.fingerprint[:_DIGITS],
    }


def keep_data_facts(
    run_folder: str | os.PathLike[str], sets: PairSets, bridge: TextBridge | None
) -> None:
    """Write down what a run is trained on; one that goes on tells what is not as it was."""
    for one in changed_data(run_folder, sets, bridge, "or begin a new run"):
        print(f"holdfast: {one.line}", file=sys.stderr)
    text = json.dumps(data_facts(sets, bridge), indent=2) + "\n"
    (Path(run_folder) / FILE).write_text(text, encoding="utf-8")


def changed_data(
    run_folder: str | os.PathLike[str], sets: PairSets, bridge: TextBridge | None, way_out: str
) -> list[Difference]:
    """What is not as it was noted; nothing of a run that noted nothing.

    Args:
        run_folder: of the run.
        sets: its data as it is now.
        bridge: as it would be now.
        way_out: what else to do than to give the data the run had, for the error.

    Raises:
        HoldfastError: the text bridge has learned other words than these data have.
    """
    try:
        noted: Any = json.loads((Path(run_folder) / FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return []
    known: Mapping[str, Any] = noted if isinstance(noted, dict) else {}
    found = [
        Difference("warning", name, known[name], now)
        for name, now in data_facts(sets, bridge).items()
        if name in known and known[name] != now and name != _SOURCES
    ]
    if bridge is not None and any(one.key == _VOCABULARY for one in found):
        listed = ", ".join(f"{one.key} was {one.saved}, is {one.wanted}" for one in found)
        raise HoldfastError(
            f"{run_folder}: its data has changed since it was trained ({listed}); give the data "
            f"it had, {way_out}"
        )
    return found


def _digest(pieces: Iterable[bytes]) -> str:
    found = hashlib.sha256()
    for piece in pieces:
        found.update(piece)
    return found.hexdigest()[:_DIGITS]


def _texts(parts: Iterable[Pairs]) -> Iterable[bytes]:
    return (part.text(index).digest for part in parts for index in range(len(part)))


def _rows(parts: Iterable[Pairs]) -> Iterable[bytes]:
    for part in parts:
        every = max(1, len(part) // _LOOKED_AT)
        x_BE, y_BE, _ = part.__getitems__(range(0, len(part), every)).batch
        yield from (x_BE.numpy().tobytes(), y_BE.numpy().tobytes())
