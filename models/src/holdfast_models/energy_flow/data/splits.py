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
from collections.abc import Iterable, Sequence
from typing import Literal

import torch
from torch import Tensor

from holdfast import HoldfastError

from .text_pairs import TextPair

Part = Literal["train", "validation", "test"]
SplitKind = Literal["compositional", "hard", "pair"]

PARTS: tuple[Part, ...] = ("train", "validation", "test")
HELD_TOGETHER: dict[SplitKind, tuple[str, ...]] = {
    "compositional": ("subject", "activity", "place"),
    "hard": ("subject", "activity"),
    "pair": (),
}
"""What of a pair's meta decides its part; nothing: its texts do."""


def part_of(key: bytes) -> Part:
    """The part that everything with this key belongs to."""
    # 0 to 9: eight for training, one each for the others.
    tenth = int.from_bytes(hashlib.sha256(key).digest()[:8], "big") % 10
    return "train" if tenth < 8 else "validation" if tenth == 8 else "test"


def split_pairs(pairs: Sequence[TextPair], kind: SplitKind) -> dict[Part, list[int]]:
    """Numbers of the pairs of each part, in their order."""
    return _sorted_out(_key(pair, kind, number) for number, pair in enumerate(pairs))


def possible_splits(pairs: Sequence[TextPair]) -> list[SplitKind]:
    """The splits for which every pair says what is held out together."""
    known = set.intersection(*(set(pair.meta) for pair in pairs)) if pairs else set[str]()
    return [kind for kind, names in HELD_TOGETHER.items() if known.issuperset(names)]


def split_rows(x_NE: Tensor, y_NE: Tensor) -> dict[Part, list[int]]:
    """The same for embeddings without texts, by the bytes of the two rows."""
    return _sorted_out(_bytes(x_E) + _bytes(y_E) for x_E, y_E in zip(x_NE, y_NE, strict=True))


def _bytes(row_E: Tensor) -> bytes:
    return row_E.contiguous().view(torch.uint8).numpy().tobytes()  # numpy knows no bfloat16


def _sorted_out(keys: Iterable[bytes]) -> dict[Part, list[int]]:
    parts: dict[Part, list[int]] = {part: [] for part in PARTS}
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
