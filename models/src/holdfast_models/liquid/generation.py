"""Writing on: prompts are read at once, then one token at a time with the state of the network.

Every row of a batch draws its own random numbers: row r with a seed s is what a single prompt with
seed s + r gives.

B rows, T tokens, V vocabulary.
"""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from holdfast import HoldfastError, Section, bounded

from .data.tokenizers import Tokenizer
from .model.model import LiquidNet, rows_of
from .stepping import Stepper

__all__ = ["Sampling", "TextPieces", "choose", "generate", "stream"]

_WORTH = 16  # tokens: as long as a graph takes to be made
_UNFINISHED = "\N{REPLACEMENT CHARACTER}"  # how bytes decode that are no character, or not yet


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sampling(Section):
    """How the next token is chosen."""

    temperature: float = bounded(1.0, 0.0)  # 0 takes the likeliest, 1 draws as the network says
    top_k: int | None = bounded(None, 1)  # draw from so many of the likeliest only
    top_p: float | None = bounded(None, 0.0, 1.0, above=True)  # from the fewest of this share
    penalty: float = bounded(1.0, 0.0, above=True)  # above 1: less of what is there already
    seed: int = bounded(0, 0)  # of the first row


def choose(logits_BV: Tensor, seen_BV: Tensor, draw_B: Tensor, how: Sampling) -> Tensor:
    """The next token of every row, given which tokens are in it and a number from 0 to 1."""
    logits_BV = logits_BV.double()
    weaker_BV = torch.where(logits_BV > 0, logits_BV / how.penalty, logits_BV * how.penalty)
    logits_BV = torch.where(seen_BV, weaker_BV, logits_BV)
    if how.temperature == 0:
        return logits_BV.argmax(-1)
    # From the largest down: divided by a temperature near zero the others end, it stays.
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
    row ends after ``length`` tokens or before ``stop``, and costs nothing any more.
    """
    how = how or Sampling()
    _check(net, prompts)
    device = next(net.parameters()).device
    shortest = min(map(len, prompts))
    row_B = list(range(len(prompts)))
    written = [0 for _ in prompts]
    draws = [torch.Generator().manual_seed(how.seed + row) for row in row_B]
    x_BT = torch.tensor([list(prompt[:shortest]) for prompt in prompts], device=device)
    seen_BV = torch.zeros(len(prompts), net.sizes.inputs, dtype=torch.bool, device=device)
    state, place, stepper, graphs = None, shortest, None, _graphs_on(device)
    while row_B and length > 0:
        seen_BV.scatter_(1, x_BT, value=True)
        if stepper is None:
            output = net(x_BT, state)
            state, logits_BV = output.state, output.y_BTV[:, -1]
            if graphs:
                left = max(map(len, prompts)) + length - place
                stepper = _stepper(net, state, len(row_B), left)
                graphs = stepper is not None
        else:
            logits_BV = stepper(x_BT)
        writes_B = [place >= len(prompts[row]) for row in row_B]
        # A row that still reads draws nothing, so that it goes on as if it were alone.
        draw_B = [
            float(torch.rand((), generator=draws[row])) if writes else 0.0
            for row, writes in zip(row_B, writes_B, strict=True)
        ]
        draw = torch.tensor(draw_B, dtype=torch.double, device=device)
        chosen_B = choose(logits_BV, seen_BV, draw, how)
        token_B, keep = chosen_B.tolist(), list[int]()
        for index, (row, writes) in enumerate(zip(row_B, writes_B, strict=True)):
            if not writes:
                token_B[index] = prompts[row][place]
            elif token_B[index] == stop:
                continue
            else:
                yield row, token_B[index]
                written[row] += 1
            if written[row] < length:
                keep.append(index)
        place += 1
        if len(keep) < len(row_B):
            index_B = torch.tensor(keep, dtype=torch.int64, device=device)
            if stepper is not None:
                state, stepper = stepper.state, None
            state, seen_BV = rows_of(state, index_B), seen_BV[index_B]
            row_B, token_B = [row_B[i] for i in keep], [token_B[i] for i in keep]
        x_BT = torch.tensor(token_B, dtype=torch.int64, device=device)[:, None]


def _graphs_on(device: torch.device) -> bool:
    return device.type == "cuda"


def _stepper(net: LiquidNet, state: Any, rows: int, tokens: int) -> Stepper | None:
    """One graph for the tokens to come, where they are worth it."""
    if tokens < _WORTH:
        return None
    try:
        return Stepper(net, state, rows, tokens, captures=True)
    except RuntimeError as error:  # whatever the device says, passes can run one by one
        warnings.warn(f"writing without a CUDA graph: {error}", stacklevel=2)
        return None


class TextPieces:
    """Turns tokens into pieces of text that never end inside a character."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._tokens: list[int] = []
        self._told = 0  # characters of the text of these tokens

    def add(self, token: int) -> str:
        """What can be told now; bytes that may become a character are kept back."""
        self._tokens.append(token)
        text = self._tokenizer.decode(self._tokens)
        end = len(text) - text.endswith(_UNFINISHED)
        piece, self._told = text[self._told : end], max(end, self._told)
        if end == len(text):  # all is told: go on from the last token, which says what joins it
            self._tokens = self._tokens[-1:]
            self._told = len(self._tokenizer.decode(self._tokens))
        return piece

    def end(self) -> str:
        """What was kept back and never became a character."""
        return self._tokenizer.decode(self._tokens)[self._told :]


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
