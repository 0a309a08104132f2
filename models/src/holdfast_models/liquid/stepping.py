"""Writing one token after the other on the device: the host launches, and reads blocks of tokens.

What a token depends on stays there: the state, the token before, random numbers that were drawn
ahead, and tokens of prompts that are longer than others. On a GPU a token is one CUDA graph, which
works on tensors that stay where they are. So the state is copied into places of its own, and what
attention remembers has its final size from the beginning.

B rows, N tokens of a block, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map_only

from .graphed import Graphed
from .model.model import LiquidNet

NO_TOKEN = -1
"""Where a row does not read but chooses."""


class Stepper:
    """The network from a state on, one token of every row at a time.

    Args:
        net: in evaluation mode; its weights stay where they are.
        state: after the prompts.
        tokens: how many will come, at most, where the state has to stay in its places; else None.
    """

    def __init__(self, net: LiquidNet, state: Any, tokens: int | None = None) -> None:
        self._net, self._stays = net, tokens is not None
        if tokens is not None:
            state = tree_map_only(Tensor, torch.clone, net.with_room(state, tokens))
        self.state = state
        """Where the rows are now; the next token changes it."""

    @torch.no_grad()
    def __call__(self, token_B1: Tensor) -> Tensor:
        """Logits (B, V) after one more token of each row."""
        out = self._net(token_B1, self.state)
        if not self._stays:
            self.state = out.state
            return out.y_BTV[:, -1]
        pairs: dict[torch.dtype, tuple[list[Tensor], list[Tensor]]] = {}
        for own, new in zip(tree_leaves(self.state), tree_leaves(out.state), strict=True):
            if own is not new:  # it may be none, or a cache that was written into
                old_parts, new_parts = pairs.setdefault(own.dtype, ([], []))
                old_parts.append(own)
                new_parts.append(new)
        for old_parts, new_parts in pairs.values():  # one launch for each type
            torch._foreach_copy_(old_parts, new_parts)
        return out.y_BTV[:, -1]


class Writer:
    """Writes blocks of tokens, each chosen after the one before.

    Args:
        step: gives the logits after one more token.
        choose: the next token of every row from its logits, what is in it, and a number drawn.
        token_B: the last token of every row, which is not in the state yet.
        seen_BV: which tokens are in a row; None where nobody asks.
        block: tokens that are written at once, at most.
        reads: some rows read first.
        captures: replay a CUDA graph; without it the same passes run one by one.
    """

    def __init__(
        self,
        step: Stepper,
        choose: Callable[[Tensor, Tensor | None, Tensor], Tensor],
        token_B: Tensor,
        seen_BV: Tensor | None,
        *,
        block: int,
        reads: bool,
        captures: bool,
    ) -> None:
        rows, device = len(token_B), token_B.device
        self.step, self.block = step, block
        self._choose, self._seen_BV = choose, seen_BV
        self._token_B1 = token_B[:, None].clone()
        self._at = torch.zeros(1, dtype=torch.int64, device=device)
        self._draw_NB = torch.zeros(block, rows, dtype=torch.double, device=device)
        self._given_NB = torch.full((block, rows), NO_TOKEN, device=device) if reads else None
        self._written_NB = torch.zeros(block, rows, dtype=torch.int64, device=device)
        self._pass = Graphed(self._write, on=captures)

    @torch.no_grad()
    def __call__(self, draw_NB: Tensor, given_NB: Tensor) -> list[list[int]]:
        """The next N tokens of every row, read or written.

        Args:
            draw_NB: a number from 0 to 1 for each.
            given_NB: tokens of prompts, or ``NO_TOKEN``.
        """
        count = len(draw_NB)
        self._at.zero_()
        self._draw_NB[:count] = draw_NB.to(self._draw_NB.device)
        if self._given_NB is not None:
            self._given_NB[:count] = given_NB.to(self._given_NB.device)
        for _ in range(count):
            self._pass()
        return self._written_NB[:count].tolist()

    @property
    def token_B(self) -> Tensor:
        """The last one, which is not in the state yet."""
        return self._token_B1[:, 0]

    def _write(self) -> tuple[()]:
        if self._seen_BV is not None:
            self._seen_BV.scatter_(1, self._token_B1, value=True)
        logits_BV = self.step(self._token_B1)
        draw_B = self._draw_NB.index_select(0, self._at)[0]
        token_B = self._choose(logits_BV, self._seen_BV, draw_B)
        if self._given_NB is not None:
            given_B = self._given_NB.index_select(0, self._at)[0]
            token_B = torch.where(given_B == NO_TOKEN, token_B, given_B)
        self._token_B1.copy_(token_B[:, None])
        self._written_NB.index_copy_(0, self._at, token_B[None])
        self._at += 1
        return ()
