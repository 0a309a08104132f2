"""The texts of a dataset as numbers, packed: a few bytes a piece, filled up batch by batch.

Shapes: B batch, P pieces of the longest text.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice

import torch
from torch import Tensor

from .tokens import Vocabulary

_LONGEST = 128  # pieces of a text that are read
_CHUNK = 1024  # texts split into pieces together


class PackedPieces:
    """Numbers of texts, one after the other without the filling between them.

    Args:
        texts: each is read once.
        vocabulary: whose numbers.
    """

    def __init__(self, texts: Iterable[str], vocabulary: Vocabulary) -> None:
        small = torch.int16 if len(vocabulary) <= torch.iinfo(torch.int16).max else torch.int32
        packed, lengths = [torch.empty(0, dtype=small, device="cpu")], list[Tensor]()
        rest = iter(texts)
        while chunk := list(islice(rest, _CHUNK)):
            ids_BP, mask_BP = vocabulary.encode(chunk, length=_LONGEST)
            packed.append(ids_BP[mask_BP].to(small))
            lengths.append(mask_BP.sum(1, dtype=torch.int32))
        self._packed, self._pad = torch.cat(packed), vocabulary.pad
        ends_N = torch.cat([torch.zeros(1, dtype=torch.int64, device="cpu"), *lengths]).cumsum(0)
        self._ends_N = ends_N
        self._places_P = torch.arange(int(ends_N.diff().max()), device="cpu")

    @property
    def bytes(self) -> int:
        """Of memory."""
        return self._packed.nbytes + self._ends_N.nbytes

    def rows(self, index_B: Tensor) -> Tensor:
        """Numbers [B, P] of some texts, filled up to the longest of all: batches have one shape."""
        starts_B1, ends_B1 = self._ends_N[index_B, None], self._ends_N[index_B + 1, None]
        places_BP = starts_B1 + self._places_P
        ids_BP = self._packed[places_BP.clamp_max(len(self._packed) - 1)].long()
        return ids_BP.masked_fill_(places_BP >= ends_B1, self._pad)
