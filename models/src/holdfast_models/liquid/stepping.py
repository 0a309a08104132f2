"""The network one token at a time, on a GPU as one CUDA graph: the host launches one thing a token.

A graph works on tensors that stay where they are. So the state is copied into places of its own,
and what attention remembers has its final size from the beginning.

B rows, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from .model.mixing.causal import KeyValues, with_room
from .model.model import LiquidNet, mapped

__all__ = ["Stepper"]

_WARM = 2  # passes before one is captured: kernels are compiled and libraries opened by then


class Stepper:
    """Goes on from a state, token by token.

    Args:
        net: in evaluation mode; its weights stay where they are.
        state: after the prompts.
        rows: how many there are.
        tokens: how many will come, at most.
        captures: replay a CUDA graph; without it the same passes run one by one.
    """

    def __init__(
        self, net: LiquidNet, state: Any, rows: int, tokens: int, *, captures: bool
    ) -> None:
        device = next(net.parameters()).device
        self._net = net
        self._token_B1 = torch.zeros(rows, 1, dtype=torch.int64, device=device)
        self._logits_BV = torch.empty(0)
        self._graph: torch.cuda.CUDAGraph | None = None

        def roomy(part: Any) -> Any:
            return with_room(part, tokens) if isinstance(part, KeyValues) else part.clone()

        self.state = mapped(roomy, state)
        """Where the rows are now; the next token changes it."""
        if captures:
            self._capture(device)

    @torch.no_grad()
    def __call__(self, token_B1: Tensor) -> Tensor:
        """Logits (B, V) after one more token of each row; the next call overwrites them."""
        self._token_B1.copy_(token_B1)
        if self._graph is None:
            self._pass()
        else:
            self._graph.replay()
        return self._logits_BV

    def _pass(self) -> None:
        out = self._net(self._token_B1, self.state)
        self._logits_BV = out.y_BTV[:, -1]
        torch._foreach_copy_(list(_leaves(self.state)), list(_leaves(out.state)))

    @torch.no_grad()
    def _capture(self, device: torch.device) -> None:
        stream = torch.cuda.Stream(device)
        stream.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(stream):
            for _ in range(_WARM):
                self._net(self._token_B1, self.state)
        torch.cuda.current_stream(device).wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            self._pass()
        self._graph = graph


def _leaves(state: Any) -> Iterator[Tensor]:
    if isinstance(state, dict):
        state = tuple(state.values())
    if isinstance(state, Tensor):
        yield state
    elif isinstance(state, tuple):
        for part in state:
            yield from _leaves(part)
