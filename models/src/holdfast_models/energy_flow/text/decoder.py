"""From surface to text: a small causal transformer that reads the surface as a few vectors.

Shape suffixes: B batch (rows), S cells W*H, P places of a text, M memories, D width of the bridge,
V pieces of the vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from .attention import DROPOUT, AttendedKeys, Attention, FeedForward, Words, start_weights
from .settings import BridgeSettings

# Wider than this the adapter of a large lattice would outgrow the model (S*S/2 weights).
_WIDEST_ADAPTER = 1024


class Past(NamedTuple):
    """What writing the next piece needs of those before: per layer, pieces and memories seen."""

    pieces: tuple[AttendedKeys, ...]
    memories: tuple[AttendedKeys, ...]
    places: int

    def pick(self, rows: Tensor) -> Past:
        """The past of other rows: ``rows[i]`` is the one that row ``i`` goes on with."""
        return self._replace(pieces=_picked(self.pieces, rows))

    def repeat(self, times: int) -> Past:
        """Every row so many times, one after the other."""
        count = self.memories[0].keys.shape[0]
        rows = torch.arange(count, device=self.memories[0].keys.device).repeat_interleave(times)
        return self.pick(rows)._replace(memories=_picked(self.memories, rows))


class TextDecoder(nn.Module):
    """Writes the text of a surface, piece by piece; the table that reads pieces also writes them.

    Args:
        words: pieces of the vocabulary.
        cells: of the surface.
        settings: its widths, and as how many memories the surface is shown.
    """

    def __init__(self, words: int, cells: int, settings: BridgeSettings) -> None:
        super().__init__()
        width, memories = settings.width, settings.memories
        between = min(max(cells // 2, 1), _WIDEST_ADAPTER)
        self.adapter = nn.Sequential(
            nn.Linear(cells, between),
            nn.GELU(),
            nn.LayerNorm(between),
            nn.Dropout(DROPOUT),
            nn.Linear(between, memories * width),
            nn.Unflatten(-1, (memories, width)),
            nn.LayerNorm(width),
        )
        self.words = Words(words, width, dropout=DROPOUT)
        self.layers = nn.ModuleList(
            DecoderLayer(width, settings.heads, dropout=DROPOUT)
            for _ in range(settings.decoder_layers)
        )
        self.norm = nn.LayerNorm(width)
        self.apply(start_weights)

    def forward(self, surface_BS: Tensor, ids_BP: Tensor) -> Tensor:
        """Logits ``[B, P, V]`` for the piece after each place, the right pieces being given."""
        return self.advance(ids_BP, self.start(surface_BS))[0]

    def loss(self, surface_BS: Tensor, ids_BP: Tensor, *, pad: int) -> Tensor:
        """Cross-entropy of each piece after the first, the padding left out."""
        logits_BPV = self(surface_BS, ids_BP[:, :-1])
        return functional.cross_entropy(
            logits_BPV.float().flatten(0, 1), ids_BP[:, 1:].flatten(), ignore_index=pad
        )

    def start(self, surface_BS: Tensor) -> Past:
        """The past of a text of which nothing is written."""
        memory_BMD = self.adapter(surface_BS)
        return Past((), tuple(layer.across.see(memory_BMD) for layer in self._layers), 0)

    def advance(self, ids_BP: Tensor, past: Past) -> tuple[Tensor, Past]:
        """Logits after these further pieces, and the past with them.

        Several pieces at once are allowed where nothing was written before.
        """
        x_BPD = self.words(ids_BP, past.places)
        pieces: list[AttendedKeys] = []
        for number, layer in enumerate(self._layers):
            former = past.pieces[number] if past.pieces else None
            x_BPD, seen = layer(x_BPD, past.memories[number], former)
            pieces.append(seen)
        logits_BPV = self.words.logits(self.norm(x_BPD))
        return logits_BPV, Past(tuple(pieces), past.memories, past.places + ids_BP.shape[1])

    @property
    def _layers(self) -> Sequence[DecoderLayer]:
        return [layer for layer in self.layers if isinstance(layer, DecoderLayer)]


class DecoderLayer(nn.Module):
    """Attention to the pieces before, to the memories, and feed-forward.

    Each is normalised before instead of after: that learns at the rates of the core, unwarmed.
    """

    def __init__(self, width: int, heads: int, *, dropout: float) -> None:
        super().__init__()
        self.within = Attention(width, heads, dropout=dropout)
        self.across = Attention(width, heads, dropout=dropout)
        self.forward_part = FeedForward(width, dropout=dropout)
        self.norms = nn.ModuleList([nn.LayerNorm(width) for _ in range(3)])
        self.dropout = nn.Dropout(dropout)

    def forward(
        self, x_BPD: Tensor, memory: AttendedKeys, former: AttendedKeys | None
    ) -> tuple[Tensor, AttendedKeys]:
        """The places after this layer, and all pieces it has seen."""
        norm1, norm2, norm3 = self.norms
        normed_BPD = norm1(x_BPD)
        seen = self.within.see(normed_BPD)
        if former is not None:
            seen = AttendedKeys(
                torch.cat((former.keys, seen.keys), dim=2),
                torch.cat((former.values, seen.values), dim=2),
            )
        taken_BPD = self.within(normed_BPD, seen, causal=former is None)
        x_BPD = x_BPD + self.dropout(taken_BPD)
        x_BPD = x_BPD + self.dropout(self.across(norm2(x_BPD), memory))
        return x_BPD + self.dropout(self.forward_part(norm3(x_BPD))), seen


def _picked(seen: tuple[AttendedKeys, ...], rows: Tensor) -> tuple[AttendedKeys, ...]:
    return tuple(AttendedKeys(one.keys[rows], one.values[rows]) for one in seen)
