"""Writing on: prompts are read at once, then one token at a time with the state of the network.

Every row of a batch draws its own random numbers: row r with a seed s is what a single prompt with
seed s + r gives.

B rows, T tokens, V vocabulary.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from holdfast import HoldfastError, Section, bounded

from .data.tokenizers import Tokenizer
from .model.model import LiquidNet, rows_of
from .stepping import NO_TOKEN, Stepper, Writer

_WORTH = 16  # tokens: as long as a graph takes to be made
_BLOCK = 32  # tokens between two looks of the host: some milliseconds, and what a stop may waste
_UNFINISHED = "\N{REPLACEMENT CHARACTER}"  # how bytes decode that are no character, or not yet


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sampling(Section):
    """How the next token is chosen."""

    temperature: float = bounded(1.0, 0.0)  # 0 takes the likeliest, 1 draws as the network says
    top_k: int | None = bounded(None, 1)  # draw from so many of the likeliest only
    top_p: float | None = bounded(None, 0.0, 1.0, above=True)  # from the fewest of this share
    penalty: float = bounded(1.0, 0.0, above=True)  # above 1: less of what is there already
    seed: int = bounded(0, 0)  # of the first row


def choose(logits_BV: Tensor, seen_BV: Tensor | None, draw_B: Tensor, how: Sampling) -> Tensor:
    """The next token of every row, given which tokens are in it and a number from 0 to 1."""
    if seen_BV is not None:
        weaker_BV = torch.where(logits_BV > 0, logits_BV / how.penalty, logits_BV * how.penalty)
        logits_BV = torch.where(seen_BV, weaker_BV, logits_BV)
    if how.temperature == 0:
        return logits_BV.argmax(-1)
    # From the largest down: divided by a temperature near zero the others end, it stays.
    logits_BV = logits_BV.double()
    logits_BV = (logits_BV - logits_BV.amax(-1, keepdim=True)) / how.temperature
    share_BV, token_BV = logits_BV.softmax(-1).sort(dim=-1, descending=True, stable=True)
    if how.top_k is not None:
        share_BV[:, how.top_k :] = 0
    if how.top_p is not None:
        before_BV = share_BV.cumsum(-1) - share_BV
        share_BV = share_BV.masked_fill(before_BV >= how.top_p * share_BV.sum(-1, True), 0)
    below_BV = share_BV.cumsum(-1)
    place_B = torch.searchsorted(below_BV, (draw_B * below_BV[:, -1])[:, None], right=True)[:, 0]
    last_B = (share_BV > 0).sum(-1) - 1  # where rounding would go beyond it
    return token_BV.gather(-1, torch.minimum(place_B, last_B)[:, None])[:, 0]


@torch.no_grad()
def generate(
    net: LiquidNet,
    prompts: Sequence[Sequence[int]],
    length: int,
    how: Sampling | None = None,
    stop: int | None = None,
) -> Iterator[tuple[int, int]]:
    """Row and token, one after the other, in the order in which they are written.

    What all prompts have at least is read at once; longer ones are read on while others write. A
    row ends after ``length`` tokens or before ``stop``; on a GPU, which writes blocks of tokens, it
    goes on unseen to the end of its block.
    """
    how = how or Sampling()
    _check(net, prompts)
    if length < 1:
        return
    place = min(map(len, prompts))
    rows = _Rows(prompts, length, how.seed)
    device = next(net.parameters()).device
    x_BT = torch.tensor([list(prompt[:place]) for prompt in prompts], device=device)
    seen_BV = None
    if how.penalty != 1.0:
        seen_BV = torch.zeros(len(prompts), net.sizes.inputs, dtype=torch.bool, device=device)
        seen_BV.scatter_(1, x_BT, value=True)
    output = net(x_BT)
    state, writer = output.state, None
    draw_NB, given_NB = (one.to(device) for one in rows.ahead(place, 1))
    token_B = choose(output.y_BTV[:, -1], seen_BV, draw_NB[0], how)
    token_B = torch.where(given_NB[0] == NO_TOKEN, token_B, given_NB[0])
    written_NB = [token_B.tolist()]
    while True:
        for token_of_row in written_NB:
            yield from rows.reported(place, token_of_row, stop)
            place += 1
        keep = rows.keep()
        if not keep:
            return
        if len(keep) < len(token_B):
            index_B = torch.tensor(keep, device=device)
            if writer is not None:
                state, token_B, writer = writer.step.state, writer.token_B, None
            state, token_B = rows_of(state, index_B), token_B[index_B]
            seen_BV = None if seen_BV is None else seen_BV[index_B]
        if writer is None:
            writer = _writer(net, state, token_B, seen_BV, how, rows, place)
        written_NB = writer(*rows.ahead(place, min(writer.block, rows.left(place))))


class _Rows:
    """Which rows still read or write, and what they read and draw next."""

    def __init__(self, prompts: Sequence[Sequence[int]], length: int, seed: int) -> None:
        self._prompts = prompts
        self._row_B = list(range(len(prompts)))
        self._left = [length for _ in prompts]
        self._draws = [torch.Generator().manual_seed(seed + row) for row in self._row_B]

    def reads(self, place: int) -> bool:
        """Whether one of them still reads there."""
        return any(place < len(self._prompts[row]) for row in self._row_B)

    def left(self, place: int) -> int:
        """Tokens until the last row is done."""
        return max(max(0, len(self._prompts[r]) - place) + self._left[r] for r in self._row_B)

    def ahead(self, place: int, count: int) -> tuple[Tensor, Tensor]:
        """Numbers drawn and tokens given for ``count`` places.

        A row that still reads draws nothing, so that it goes on as if it were alone.
        """
        draw_NB = torch.zeros(count, len(self._row_B), dtype=torch.double)
        given_NB = torch.full((count, len(self._row_B)), NO_TOKEN)
        for index, row in enumerate(self._row_B):
            read = torch.tensor(self._prompts[row][place : place + count], dtype=torch.int64)
            given_NB[: len(read), index] = read
            drawn = torch.rand(count - len(read), generator=self._draws[row])
            draw_NB[len(read) :, index] = drawn.double()
        return draw_NB, given_NB

    def reported(
        self, place: int, token_B: list[int], stop: int | None
    ) -> Iterator[tuple[int, int]]:
        """Tokens that rows wrote at a place; a row is skipped after its last token."""
        for row, token in zip(self._row_B, token_B, strict=True):
            if self._left[row] == 0 or place < len(self._prompts[row]):
                continue
            if token == stop:
                self._left[row] = 0
                continue
            self._left[row] -= 1
            yield row, token

    def keep(self) -> list[int]:
        """Forget rows that are done; where the others stood."""
        kept = [index for index, row in enumerate(self._row_B) if self._left[row]]
        self._row_B = [self._row_B[index] for index in kept]
        return kept


def _writer(
    net: LiquidNet, state: Any, token_B: Tensor, seen_BV: Tensor | None, how: Sampling,
    rows: _Rows, place: int,
) -> Writer:  # fmt: skip
    """For the tokens to come: on a GPU in blocks, and as a graph where they are worth it."""
    left = rows.left(place)
    blocks = _in_blocks(token_B.device)
    step = Stepper(net, state, left if blocks else None)
    return Writer(
        step, functools.partial(choose, how=how), token_B, seen_BV,
        block=_BLOCK if blocks else 1, reads=rows.reads(place),
        captures=token_B.is_cuda and left >= _WORTH,
    )  # fmt: skip


def _in_blocks(device: torch.device) -> bool:
    return device.type == "cuda"


class TextPieces:
    """Turns tokens into pieces of text that never end inside a character."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._tokens: list[int] = []
        self._reported = 0  # characters of the text of these tokens

    def add(self, token: int) -> str:
        """What can be told now; bytes that may become a character are kept back."""
        self._tokens.append(token)
        text = self._tokenizer.decode(self._tokens)
        end = len(text) - text.endswith(_UNFINISHED)
        piece, self._reported = text[self._reported : end], max(end, self._reported)
        if end == len(text):  # all is told: go on from the last token, which says what joins it
            self._tokens = self._tokens[-1:]
            self._reported = len(self._tokenizer.decode(self._tokens))
        return piece

    def end(self) -> str:
        """What was kept back and never became a character."""
        return self._tokenizer.decode(self._tokens)[self._reported :]


def stream(
    net: LiquidNet,
    tokenizer: Tokenizer,
    prompts: Sequence[str],
    length: int,
    how: Sampling | None = None,
) -> Iterator[tuple[int, str]]:
    """Row and piece of text, as they are written; joined they are the text of the row.

    A prompt without text stands for the beginning of a document. A row ends with its document.
    """
    begin = [tokenizer.end]
    tokens = [tokenizer.encode(prompt).tolist() or begin for prompt in prompts]
    pieces = [TextPieces(tokenizer) for _ in prompts]
    for row, token in generate(net, tokens, length, how, tokenizer.end):
        if piece := pieces[row].add(token):
            yield row, piece
    for row, kept in enumerate(pieces):
        if piece := kept.end():
            yield row, piece


def _check(net: LiquidNet, prompts: Sequence[Sequence[int]]) -> None:
    if net.training:
        raise HoldfastError("the model is in training mode, where it drops units; call net.eval()")
    if not prompts or not all(map(len, prompts)):
        raise HoldfastError(f"{len(prompts)} prompts, or one without a token; give one at least")
    known, highest = net.sizes.inputs, max(max(prompt) for prompt in prompts)
    if highest >= known:
        raise HoldfastError(f"token {highest}, and the model knows {known}; use its tokenizer")
