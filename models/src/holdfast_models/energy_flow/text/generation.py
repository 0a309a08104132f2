"""Writing texts with a decoder: the likeliest ones, by following several at once.

All rows are written at once. Only pieces that can stand in a text are written: no padding, no
begin, nothing unknown.

Shape suffixes: B batch, S cells W*H, K beams, R rows (B*K), P places of a text, V pieces of the
vocabulary.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from .decoder import TextDecoder
from .tokens import Vocabulary


class Marks(NamedTuple):
    """The numbers of the pieces with a meaning of their own."""

    pad: int
    unknown: int
    begin: int
    end: int

    @classmethod
    def of(cls, vocabulary: Vocabulary) -> Marks:
        """Those of a vocabulary."""
        return cls(vocabulary.pad, vocabulary.unknown, vocabulary.begin, vocabulary.end)


class WrittenTexts(NamedTuple):
    """Texts and how likely they are."""

    ids_BKP: Tensor
    likely_BK: Tensor  # as a logarithm; minus infinity: there is no such text


@torch.no_grad()
def search(
    decoder: TextDecoder,
    surface_BS: Tensor,
    marks: Marks,
    *,
    length: int,
    beams: int = 1,
    temperature: float = 1.0,
) -> WrittenTexts:
    """The likeliest texts of each surface, best first by the mean over their pieces.

    Args:
        decoder: in evaluation mode.
        surface_BS: what to put into words.
        marks: of the decoder's vocabulary.
        length: the most pieces, the end included.
        beams: how many texts are followed; 1 takes the likeliest piece each time.
        temperature: above 1 evens out how likely the pieces are, below sharpens it.
    """
    count, device = len(surface_BS), surface_BS.device
    past = decoder.start(surface_BS).repeat(beams)
    last_R = torch.full((count * beams,), marks.begin, device=device)
    written_BKP = last_R.new_empty((count, beams, 0))
    # All beams start alike: only the first may go on, or all would write the same.
    score_BK = torch.full((count, beams), -torch.inf, device=device)
    score_BK[:, 0] = 0.0
    done_BK = torch.zeros_like(score_BK, dtype=torch.bool)
    size_BK = torch.zeros_like(score_BK)
    offset_B1 = torch.arange(count, device=device)[:, None] * beams
    for _ in range(length):
        logits_RPV, past = decoder.advance(last_R[:, None], past)
        likely_RV = _likely(logits_RPV[:, -1], marks, temperature)
        likely_RV = torch.where(done_BK.flatten()[:, None], _only(marks.pad, likely_RV), likely_RV)
        words = likely_RV.shape[-1]
        total_BKV = score_BK[:, :, None] + likely_RV.unflatten(0, (count, beams))
        score_BK, best_BK = total_BKV.flatten(1).topk(beams, dim=1)
        beam_BK, word_BK = best_BK // words, best_BK % words
        written_BKP = torch.cat((_beams(written_BKP, beam_BK), word_BK[:, :, None]), dim=2)
        done_BK = done_BK.gather(1, beam_BK)
        size_BK = size_BK.gather(1, beam_BK) + ~done_BK
        done_BK = done_BK | (word_BK == marks.end)
        past, last_R = past.pick((offset_B1 + beam_BK).flatten()), word_BK.flatten()
        if bool(done_BK.all()):
            break
    # The sum alone would favour the text that ends first.
    order_BK = (score_BK / size_BK).argsort(dim=1, descending=True, stable=True)
    return WrittenTexts(_beams(written_BKP, order_BK), score_BK.gather(1, order_BK))


def _likely(logits_RV: Tensor, marks: Marks, temperature: float) -> Tensor:
    """Logarithms of how likely each piece is, those that cannot stand in a text left out."""
    never = torch.zeros(logits_RV.shape[-1], dtype=torch.bool, device=logits_RV.device)
    never[[marks.pad, marks.unknown, marks.begin]] = True
    open_RV = logits_RV.float().masked_fill(never, -torch.inf)
    # From the largest down: divided by a temperature near zero the others end, it stays.
    return ((open_RV - open_RV.amax(-1, keepdim=True)) / temperature).log_softmax(-1)


def _only(word: int, like_RV: Tensor) -> Tensor:
    """Certainty that this piece follows."""
    certain_V = torch.full_like(like_RV[0], -torch.inf)
    certain_V[word] = 0.0
    return certain_V


def _beams(rows_BKP: Tensor, pick_BK: Tensor) -> Tensor:
    return rows_BKP.gather(1, pick_BK[:, :, None].expand(-1, -1, rows_BKP.shape[2]))
