"""A training pass as CUDA graphs: launched as one piece, forward and backward.

A pass is captured after it has run a few times as it is, and replayed from then on. It stays as it
is where nothing is trained, where a debugging tool wants to see the single operations, while an
earlier pass still waits for its backward (one set of buffers serves all replays), and where
capturing fails; ``Graphs.reason`` then says why.
"""

from __future__ import annotations

import copy
import weakref
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

__all__ = ["Captured", "Graphs", "twin"]

_WARM = 2  # passes before one is captured: kernels are compiled and libraries opened by then
_MOST = 4  # graphs that are kept: each has memory of its own

_Module = TypeVar("_Module", bound=nn.Module)


class Graphs:
    """The captured passes of one module; a copy of it, or one read from a file, has none yet."""

    def __init__(self) -> None:
        self._seen: dict[tuple[Any, ...], int] = {}
        self._captured: dict[tuple[Any, ...], Captured] = {}
        self._places: tuple[int, ...] = ()
        self.fits: dict[tuple[Any, ...], bool] = {}
        """Which sizes of a batch fit into the memory there was when it was first asked."""
        self.reason: str | None = "no pass yet"
        """Why the last pass was not replayed; None: it was."""
        self.replays = 0

    def __reduce__(self) -> tuple[Any, ...]:
        return (Graphs, ())

    def find(
        self,
        key: tuple[Any, ...],
        inputs: Sequence[Tensor],
        parameters: Sequence[nn.Parameter],
        capture: Callable[[], Captured],
    ) -> Captured | None:
        """The captured form of a pass; None where it has to run as it is, for ``reason``.

        Args:
            key: all that a captured pass depends on, beside what is seen of the tensors.
            inputs: of the pass.
            parameters: that it reads where they are.
            capture: makes it.
        """
        self.reason = _why_not_replayed(inputs[0], parameters)
        if self.reason is not None:
            return None
        places = tuple(one.data_ptr() for one in parameters)
        if places != self._places:  # moved: a graph would read where they were
            self._seen.clear()
            self._captured.clear()
            self._places = places
        seen = tuple((tuple(one.shape), one.dtype, one.requires_grad) for one in inputs)
        key = (*key, inputs[0].device, seen, tuple(one.requires_grad for one in parameters))
        captured = self._captured.get(key)
        if captured is None:
            captured = self._capture(key, inputs[0], capture)
        if captured is not None and captured.busy:
            self.reason = "an earlier pass waits for its backward"
            return None
        self.replays += captured is not None
        return captured

    def _capture(
        self, key: tuple[Any, ...], first: Tensor, capture: Callable[[], Captured]
    ) -> Captured | None:
        seen = self._seen.get(key, 0)
        if seen < 0:
            self.reason = "it could not be captured before"
            return None
        if seen < _WARM or len(self._captured) >= _MOST:
            self._seen[key] = seen + 1
            self.reason = "it is not captured yet"
            return None
        stream = torch.cuda.current_stream(first.device) if first.is_cuda else None
        try:
            self._captured[key] = capture()
            return self._captured[key]
        except Exception as error:  # training goes on without a graph, whatever it was
            if stream is not None:  # a capture that ends in an error leaves its own behind
                torch.cuda.set_stream(stream)
            self._seen[key] = -1
            self.reason = f"it could not be captured: {type(error).__name__}: {error}"
            return None


def _why_not_replayed(first: Tensor, parameters: Sequence[nn.Parameter]) -> str | None:
    """Why a pass has to run as it is."""
    if not first.is_cuda:
        return "it is not on a GPU"
    if not torch.is_grad_enabled() or not any(one.requires_grad for one in parameters):
        return "nothing is trained"
    if torch.is_anomaly_enabled() or torch._C._len_torch_dispatch_stack() > 0:
        return "single operations are watched"
    if torch.cuda.is_current_stream_capturing():
        return "somebody else captures it"
    return None


class _Pass:
    """Lives as long as a forward pass whose backward may come."""

    done = False


class Captured:
    """A function of tensors as two graphs, forward and backward, with what they read and write.

    Args:
        function: of the inputs; gives a tuple of tensors, and reads the parameters by itself.
        inputs: examples; those that require a gradient get one.
        parameters: twins of the module's own (``twin``), which get a gradient too.
        carries: so many of the results carry gradients, the first ones.
    """

    def __init__(
        self,
        function: Callable[..., Sequence[Tensor]],
        inputs: Sequence[Tensor],
        parameters: Sequence[nn.Parameter],
        *,
        carries: int,
    ) -> None:
        self.carries = carries
        self._inputs = [
            torch.empty_like(one).copy_(one.detach()).requires_grad_(one.requires_grad)
            for one in inputs
        ]
        leaves = [*self._inputs, *parameters]
        self._needed = [one.requires_grad for one in leaves]
        wanted = [one for one in leaves if one.requires_grad]
        pool = torch.cuda.graph_pool_handle()
        self._forward, self._backward = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
        # Other threads (loaders, the guard) may use the device meanwhile.
        how: Any = {"pool": pool, "capture_error_mode": "thread_local"}
        kind = inputs[0].device.type
        with torch.cuda.graph(self._forward, **how):
            results = function(*self._inputs)
        self._seeds = [torch.zeros_like(one) for one in results[:carries]]
        # A backward pass is outside of autocast as a rule; this one must be.
        with torch.autocast(kind, enabled=False), torch.cuda.graph(self._backward, **how):
            found = torch.autograd.grad(results[:carries], wanted, self._seeds, allow_unused=True)
        self._found = [None if one is None else one.detach() for one in found]
        self._results = [one.detach() for one in results]
        self._waiting: weakref.ref[_Pass] | None = None

    @property
    def busy(self) -> bool:
        """Whether the newest pass may still be run backward."""
        waiting = None if self._waiting is None else self._waiting()
        return waiting is not None and not waiting.done

    def replay(self, inputs: Sequence[Tensor], parameters: Sequence[Tensor]) -> Sequence[Tensor]:
        """One pass; the results are copies and stay what they are.

        Args:
            inputs: of the shapes that were captured.
            parameters: the module's own.
        """
        return _Replay.apply(self, len(inputs), *inputs, *parameters)

    def forward(self, inputs: Sequence[Tensor]) -> tuple[_Pass, tuple[Tensor, ...]]:
        """Replay the first graph."""
        for mine, given in zip(self._inputs, inputs, strict=True):
            mine.detach().copy_(given)
        self._forward.replay()
        now = _Pass()
        self._waiting = weakref.ref(now)
        return now, tuple(one.clone() for one in self._results)

    def backward(self, seeds: Sequence[Tensor]) -> list[Tensor | None]:
        """Replay the second graph; gradients of inputs and parameters."""
        for mine, given in zip(self._seeds, seeds, strict=True):
            mine.copy_(given)
        self._backward.replay()
        # New tensors in one launch: the next replay writes into these, and a gradient may be kept.
        there = [one for one in self._found if one is not None]
        copies = iter(torch._foreach_mul(there, 1.0))
        found = iter([None if one is None else next(copies) for one in self._found])
        return [next(found) if needed else None for needed in self._needed]


class _Replay(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, captured: Captured, inputs: int, *tensors: Tensor) -> Any:
        ctx.captured = captured
        # Saved to be told when one is changed before backward, which reads them again.
        ctx.save_for_backward(*tensors[inputs:])
        ctx.now, out = captured.forward(tensors[:inputs])
        ctx.mark_non_differentiable(*out[captured.carries :])
        return out

    @staticmethod
    @once_differentiable  # hides the name of ctx from the type checker
    def backward(ctx: Any, *grads: Tensor) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        _ = ctx.saved_tensors
        if ctx.now.done:
            raise RuntimeError(
                "this pass was run backward before, and its buffers are overwritten; call backward "
                "once for each forward, or switch graphs off in the settings of the model"
            )
        ctx.now.done = True
        return None, None, *ctx.captured.backward(grads[: ctx.captured.carries])


def twin(module: _Module) -> _Module:
    """The same network with parameters and buffers of its own in the same memory.

    A parameter remembers the stream of a pass that is still known somewhere, and a capture must
    not touch another stream than its own.
    """
    made = copy.deepcopy(module)
    for mine, theirs in zip(made.parameters(), module.parameters(), strict=True):
        mine.grad = None
        mine.data = theirs.data
    for mine, theirs in zip(made.buffers(), module.buffers(), strict=True):
        mine.data = theirs.data
    return made
