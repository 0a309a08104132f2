"""Which pairs are trained on and which are held out: fixed by content, never by chance or order.

80 % train, 10 % validation, 10 % test, by a digest of what is held out together:

* ``pair``: the pair itself. Equal pairs fall into the same part.
* ``compositional``: (subject, activity, place) of the grammar, so that no held-out statement was
  trained on with another detail.
* ``hard``: (subject, activity), so that whole combinations are never seen in any place.

Shapes: N pairs, E teacher width.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Iterable, Iterator, Sequence
from typing import Literal

import torch
from torch import Tensor

from holdfast import HoldfastError

from .tables import PairTable, blocks_of
from .text_pairs import TextPair, Texts

Part = Literal["train", "validation", "test"]
SplitKind = Literal["compositional", "hard", "pair"]

PARTS: tuple[Part, ...] = ("train", "validation", "test")
HELD_TOGETHER: dict[SplitKind, tuple[str, ...]] = {
    "compositional": ("subject", "activity", "place"),
    "hard": ("subject", "activity"),
    "pair": (),
}
"""What of a pair's meta decides its part; nothing: its texts do."""

Parts = dict[Part, "array[int]"]
"""Numbers of the pairs of each part, in their order; 8 bytes each."""


def part_of(key: bytes) -> Part:
    """The part that everything with this key belongs to."""
    # 0 to 9: eight for training, one each for the others.
    tenth = int.from_bytes(hashlib.sha256(key).digest()[:8], "big") % 10
    return "train" if tenth < 8 else "validation" if tenth == 8 else "test"


def split_pairs(pairs: Texts, kind: SplitKind) -> Parts:
    """The parts of pairs of sentences."""
    return _sorted_out(_key(pair, kind, number) for number, pair in enumerate(pairs))


def possible_splits(pairs: Texts) -> list[SplitKind]:
    """The splits for which every pair says what is held out together."""
    known = {name for names in HELD_TOGETHER.values() for name in names} if len(pairs) else set()
    for pair in pairs:
        known &= pair.meta.keys()
    return [kind for kind, names in HELD_TOGETHER.items() if known.issuperset(names)]


def split_rows(tables: Sequence[PairTable]) -> Parts:
    """The same for embeddings without texts, by the bytes of the two rows."""
    return _sorted_out(key for table in tables for key in _row_keys(table))


def _row_keys(table: PairTable) -> Iterator[bytes]:
    width = table.x_NE.shape[1]
    blocks = blocks_of(table.x_NE, width), blocks_of(table.y_NE, width)
    for x_BE, y_BE in zip(*blocks, strict=True):
        for x_E, y_E in zip(row_bytes(x_BE), row_bytes(y_BE), strict=True):
            yield x_E + y_E


def row_bytes(x_BE: Tensor) -> Iterator[bytes]:
    """The bytes of every row."""
    # As bytes already in torch: numpy knows no bfloat16.
    return (row_E.tobytes() for row_E in x_BE.contiguous().view(torch.uint8).numpy())


def _sorted_out(keys: Iterable[bytes]) -> Parts:
    parts: Parts = {part: array("q") for part in PARTS}
    for number, key in enumerate(keys):
        parts[part_of(key)].append(number)
    return parts


def _key(pair: TextPair, kind: SplitKind, number: int) -> bytes:
    names = HELD_TOGETHER[kind]
    if not names:
        return pair.digest
    missing = [name for name in names if name not in pair.meta]
    if missing:
        raise HoldfastError(
            f"split {kind!r}: pair {number} ({pair.input[:40]!r}) has no {missing[0]!r} in its "
            "meta, as pairs of the grammar have; set data.split=pair"
        )
    return " ".join([kind, *(f"{name}={pair.meta[name]}" for name in names)]).encode()
