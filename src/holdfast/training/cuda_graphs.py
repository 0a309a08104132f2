"""A training pass as CUDA graphs: launched as one piece, forward and backward.

    graphs = Graphs()
    found = graphs.run(function, [x], [model], carries=1)
    y = function(x)[0] if found is None else found[0]     # graphs.reason says why

A pass is captured after it has run a few times as it is, and replayed from then on. It stays as it
is where nothing is trained, where a debugging tool wants to see the single operations, while an
earlier pass still waits for its backward (one set of buffers serves all replays), and where
capturing fails; ``Graphs.reason`` then says why.

What Python computes in a pass is computed once, when it is captured: shapes and settings may be
part of the key, but a number that changes from step to step has to be a tensor.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from .compilers import shortened

_WARM = 2  # passes before one is captured: kernels are compiled and libraries opened by then
_MOST = 4  # graphs that are kept: each has memory of its own

_FAILED: list[Any] = []

Function = Callable[..., Sequence[Tensor]]


class Graphs:
    """The captured passes of one module; a copy of it, or one read from a file, has none yet.

    Args:
        most: largest number of captured sizes; further sizes run without a graph.
    """

    def __init__(self, most: int = _MOST) -> None:
        self._most = most
        self._seen: dict[tuple[Any, ...], int] = {}
        self._captured: dict[tuple[Any, ...], Captured] = {}
        self._places: tuple[int, ...] = ()
        self.reason: str | None = "no pass yet"
        """Why the last pass was not replayed; None: it was."""
        self.failed = False
        """Whether that was because it cannot be captured."""
        self.replays = 0

    def __reduce__(self) -> tuple[Any, ...]:
        return (Graphs, (self._most,))

    def run(
        self,
        function: Function,
        inputs: Sequence[Tensor],
        modules: Sequence[nn.Module],
        *,
        carries: int,
        key: tuple[Any, ...] = (),
        check: Callable[[Captured], str | None] | None = None,
    ) -> Sequence[Tensor] | None:
        """The results of ``function(*inputs)`` by a replay; None where it has to run as it is.

        Args:
            function: gives a tuple of tensors; reads the parameters of the modules by itself.
            inputs: of the pass; those that require a gradient get one.
            modules: whose parameters it reads, which get gradients.
            carries: so many of the results carry gradients, the first ones.
            key: all that a captured pass depends on, beside what is seen of the tensors.
            check: called with what was captured before it is used; what is wrong with it, or an
                empty word where this pass does not tell and the next may.
        """
        parameters = _parameters(modules)
        self.reason, self.failed = _why_not_replayed(inputs, parameters), False
        if self.reason is not None:
            return None
        places = tuple(one.data_ptr() for one in parameters)
        if places != self._places:  # moved: a graph would read where they were
            self.forget()
            self._places = places
        seen = tuple((tuple(one.shape), one.dtype, one.requires_grad) for one in inputs)
        key = (*key, inputs[0].device, seen, tuple(one.requires_grad for one in parameters))
        captured = self._captured.get(key)
        if captured is None:

            def capture() -> Captured:
                made = Captured(function, inputs, modules, carries=carries)
                if check is not None and (wrong := check(made)) is not None:
                    raise _Wrong(wrong)
                return made

            captured = self._capture(key, inputs[0], capture)
        if captured is None:
            return None
        if captured.busy:
            self.reason = "an earlier pass waits for its backward"
            return None
        self.replays += 1
        return captured.replay(inputs, parameters)

    def forget(self) -> None:
        """Drop what was captured, and the memory it takes."""
        self._seen.clear()
        self._captured.clear()

    def _capture(
        self, key: tuple[Any, ...], first: Tensor, capture: Callable[[], Captured]
    ) -> Captured | None:
        seen = self._seen.get(key, 0)
        if seen < 0:
            self.reason = "it could not be captured before"
            return None
        if seen < _WARM or len(self._captured) >= self._most:
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
            self._captured.clear()  # they draw from the generator as it was before this
            what = str(error) if isinstance(error, _Wrong) else shortened(error)
            if not what:
                self._seen[key], self.reason = seen, "it is not captured yet"
                return None
            self.reason = f"it could not be captured: {what}"
            self.failed = True
            return None


def _why_not_replayed(inputs: Sequence[Tensor], parameters: Sequence[Tensor]) -> str | None:
    """Why a pass has to run as it is."""
    if not inputs or not all(one.is_cuda for one in inputs):
        return "it is not on a GPU"
    if not torch.is_grad_enabled() or not any(one.requires_grad for one in parameters):
        return "nothing is trained"
    if torch.is_anomaly_enabled() or torch._C._len_torch_dispatch_stack() > 0:
        return "single operations are watched"
    if torch.cuda.is_current_stream_capturing():
        return "somebody else captures it"
    return None


class _Wrong(Exception):
    """A replay does not do what the pass does."""


class _Pass:
    """Lives as long as a forward pass whose backward may come."""

    done = False


class Captured:
    """A function of tensors as two graphs, forward and backward, with what they read and write.

    Args:
        function: of the inputs; gives a tuple of tensors, and reads the parameters by itself.
        inputs: examples; those that require a gradient get one.
        modules: whose parameters get gradients.
        carries: so many of the results carry gradients, the first ones.
    """

    def __init__(
        self,
        function: Function,
        inputs: Sequence[Tensor],
        modules: Sequence[nn.Module],
        *,
        carries: int,
    ) -> None:
        self.carries = carries
        self._inputs = [
            torch.empty_like(one).copy_(one.detach()).requires_grad_(one.requires_grad)
            for one in inputs
        ]
        self._waiting: weakref.ref[_Pass] | None = None
        with twins(modules) as parameters:
            self._record(function, parameters)

    def _record(self, function: Function, parameters: Sequence[nn.Parameter]) -> None:
        leaves, carries = [*self._inputs, *parameters], self.carries
        self._needed = [one.requires_grad for one in leaves]
        wanted = [one for one in leaves if one.requires_grad]
        pool = torch.cuda.graph_pool_handle()
        self._forward, self._backward = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
        # Other threads (loaders, the guard) may use the device meanwhile.
        how: Any = {"pool": pool, "capture_error_mode": "thread_local"}
        device = self._inputs[0].device
        with _can_fail(device, self._forward, self._backward):
            with torch.cuda.graph(self._forward, **how):
                results = function(*self._inputs)
            # Halved weights that lie in the memory of the graph must not outlive this.
            torch.clear_autocast_cache()
            self._seeds = [torch.zeros_like(one) for one in results[:carries]]
            # A backward pass is outside of autocast as a rule; this one must be.
            with (
                torch.autocast(device.type, enabled=False),
                torch.cuda.graph(self._backward, **how),
            ):
                found = torch.autograd.grad(
                    results[:carries], wanted, self._seeds, allow_unused=True
                )
        self._found = [None if one is None else one.detach() for one in found]
        self._results = [one.detach() for one in results]

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
        for own, given in zip(self._inputs, inputs, strict=True):
            own.detach().copy_(given)
        self._forward.replay()
        now = _Pass()
        self._waiting = weakref.ref(now)
        return now, tuple(one.clone() for one in self._results)

    def backward(self, seeds: Sequence[Tensor]) -> list[Tensor | None]:
        """Replay the second graph; gradients of inputs and parameters."""
        for own, given in zip(self._seeds, seeds, strict=True):
            own.copy_(given)
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
                "once for each forward, or switch graphs off in the settings"
            )
        ctx.now.done = True
        return None, None, *ctx.captured.backward(grads[: ctx.captured.carries])


@contextlib.contextmanager
def _can_fail(device: torch.device, *graphs: Any) -> Iterator[None]:
    """What torch leaves behind where a capture fails is put right.

    The generator of the device would be taken for one that is still captured, so that nothing could
    be drawn any more; and the allocator goes on asking the graphs, which therefore stay.
    """
    generator = torch.cuda.default_generators[device.index or 0]
    before = generator.clone_state()
    try:
        yield
    except BaseException:
        generator.graphsafe_set_state(before)
        _FAILED.extend(graphs)
        raise


@contextlib.contextmanager
def twins(modules: Sequence[nn.Module]) -> Iterator[list[nn.Parameter]]:
    """Within the block the modules have other parameters, in the same memory.

    A parameter remembers the stream of a pass that is still known somewhere, and a capture must
    not touch another stream than its own.
    """
    made = {one: nn.Parameter(one.data, one.requires_grad) for one in _parameters(modules)}
    places = [
        (part, name, one)
        for module in modules
        for part in module.modules()
        for name, one in part.named_parameters(recurse=False, remove_duplicate=False)
    ]
    try:
        for part, name, one in places:
            setattr(part, name, made[one])  # recurrent modules keep a list of theirs by it
        yield list(made.values())
    finally:
        for part, name, one in places:
            setattr(part, name, one)


def _parameters(modules: Sequence[nn.Module]) -> list[nn.Parameter]:
    """Each once."""
    return list(dict.fromkeys(one for module in modules for one in module.parameters()))
