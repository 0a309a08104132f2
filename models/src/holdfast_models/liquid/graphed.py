"""Work on tensors in place as one CUDA graph: the host launches one thing instead of hundreds."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

_WARM = 2  # calls before one is captured: kernels are compiled and libraries opened by then


class Graphed:
    """A function without gradients that is captured at its third call and replayed from then on.

    Results of a replay are overwritten by the next one. Inputs of another shape begin anew.

    Args:
        function: of tensors.
        on: False runs it as it is, as on a CPU.
        touches: tensors that it reads or changes beside its inputs; where one lies elsewhere than
            before, a graph would miss it, and it begins anew.
    """

    def __init__(
        self,
        function: Callable[..., Sequence[Tensor]],
        *,
        on: bool,
        touches: Callable[[], Iterable[Tensor]] = tuple,
    ) -> None:
        self._function, self._on, self._touches = function, on, touches
        self._calls = 0
        self._seen: list[Any] = []
        self._graph: torch.cuda.CUDAGraph | None = None
        self._inputs: list[Tensor] = []
        self._results: Sequence[Tensor] = ()

    @torch.no_grad()
    def __call__(self, *inputs: Tensor) -> Sequence[Tensor]:
        """One call."""
        if not self._on:
            return self._function(*inputs)
        seen = [(one.shape, one.dtype) for one in inputs]
        seen += [one.data_ptr() for one in self._touches()]
        if seen != self._seen:
            self._seen, self._calls, self._graph = seen, 0, None
        self._calls += 1
        if self._graph is None and self._calls > _WARM:
            self._capture(inputs)
        if self._graph is None:
            return self._function(*inputs)
        if inputs:
            torch._foreach_copy_(self._inputs, inputs)
        self._graph.replay()
        return self._results

    def _capture(self, inputs: Sequence[Tensor]) -> None:
        stream, graph = torch.cuda.current_stream(), torch.cuda.CUDAGraph()
        self._inputs = [one.clone() for one in inputs]
        try:
            # Other threads (loaders, the guard) may use the device meanwhile.
            with torch.cuda.graph(graph, capture_error_mode="thread_local"):
                self._results = self._function(*self._inputs)
            self._graph = graph
        except RuntimeError as error:  # whatever the device says, it can run as it is
            torch.cuda.set_stream(stream)  # a capture that ends in an error leaves its own behind
            self._on = False
            warnings.warn(f"it runs without a CUDA graph: {error}", stacklevel=2)
