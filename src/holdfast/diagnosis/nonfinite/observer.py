"""Trace every operation of a step and find the one that first made a non-finite value.

Forward: a dispatch mode checks the output of each operation. A non-finite number is
followed from operation to operation, so that the answer is not the first infinity ever seen
(masks are full of them, on purpose) but the one that ended up in the loss. Backward: a hook on
each node of the graph looks at what comes in and what goes out; autograd's own anomaly records
say on which line the node was made. Costs many times the price of a step; nothing is left
switched on after ``stop``.
"""

from __future__ import annotations

import contextlib
import sys
import warnings
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook
from torch.utils._python_dispatch import (
    TorchDispatchMode,
    _get_current_dispatch_mode,  # pyright: ignore[reportPrivateUsage]
)

from ...records.nonfinite import TensorStats
from ...shards import local
from .place import CallPlace, place_in_traceback, place_of
from .tensor_stats import (
    bad,
    floating,
    has_nan,
    rises,
    stat,
    tensors,
)

# Their output is whatever lay in memory.
_UNWRITTEN = ("empty", "new_empty", "resize")
# Nodes of one graph that are hooked at most; far beyond any sane model.
_NODES = 200_000

Node = Any


@dataclass(slots=True)
class FirstBadOp:
    """The operation that first made a non-finite value, or the tensor that brought it in."""

    op: str
    place: CallPlace
    inputs: tuple[TensorStats, ...] = ()
    output: Tensor | None = None
    reported: TensorStats | None = None
    """The output's numbers at birth."""
    intended: bool = False
    """An infinity that somebody wrote down, as masks do: no fault by itself."""
    leaf: Tensor | None = None
    """The bad tensor, where no operation made it: a parameter, a buffer or data."""
    backward: bool = False


class Observer(TorchDispatchMode):
    """Follows bad numbers through everything this thread computes between start and stop.

    Args:
        names: dotted path of every module by its id.
        buffers: where the modules' buffers are. The poisoned step may have spoilt them already:
            they are blamed only when nothing else is bad.
        data: where the batch is; an infinity in it is never meant.
    """

    def __init__(
        self,
        names: Mapping[int, str],
        buffers: Collection[int] = (),
        data: Collection[int] = (),
    ) -> None:
        super().__init__()
        self.running = False
        self.backward_bad_op: FirstBadOp | None = None
        self._names = names
        self._buffers, self._data = buffers, data
        self._first_bad_ops: dict[int, FirstBadOp] = {}
        self._owners: dict[Node, str] = {}
        self._undo = contextlib.ExitStack()
        self._graph: list[Any] = []
        self._inert = True

    # ------------------------------------------------------------------ switching

    def start(self) -> None:
        """Switch everything on."""
        self._inert = False
        self.running = True
        if "torch._dynamo" in sys.modules:
            # Compiled code hides its operations: run it eagerly for as long as we look.
            self._undo.enter_context(torch.compiler.set_stance("force_eager"))
        self._undo.enter_context(torch.autograd.set_detect_anomaly(True, check_nan=False))
        self._undo.enter_context(_without_warning())
        self._undo.callback(register_module_forward_hook(self._module_ran).remove)
        self.__enter__()

    def stop(self) -> bool:
        """Switch everything off; False when another mode lies on ours: ask again later."""
        self._inert = True
        for handle in self._graph:
            handle.remove()
        self._graph.clear()
        self._owners.clear()
        with contextlib.suppress(Exception):
            self._undo.close()
        if self.running:
            if _get_current_dispatch_mode() is not self:
                return False
            self.__exit__(None, None, None)
            self.running = False
        return True

    # ------------------------------------------------------------------ forward

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Run the operation, then look at what came out."""
        kwargs = kwargs or {}
        if self._inert:
            return func(*args, **kwargs)
        before: dict[int, FirstBadOp] | None = None
        # In here we run inside the user's own calls: an operation that cannot be looked at
        # (subclasses, sparse, fake) is passed over.
        with contextlib.suppress(Exception):
            # An operation in place overwrites the evidence: keep what is known of its arguments.
            before = self._known((args, kwargs)) if func._schema.is_mutable else None
        out = func(*args, **kwargs)
        with contextlib.suppress(Exception):
            self._look(func, args, kwargs, out, before)
        return out

    def responsible(self, tensor: Tensor) -> FirstBadOp | None:
        """Origin of the non-finite value in ``tensor``; None when it was not seen."""
        return self._first_bad_ops.get(_key(tensor))

    def _known(self, values: Any) -> dict[int, FirstBadOp]:
        keys = map(_key, floating(values))
        return {key: self._first_bad_ops[key] for key in keys if key in self._first_bad_ops}

    def _look(
        self, func: Any, args: Any, kwargs: Any, out: Any, before: dict[int, FirstBadOp] | None
    ) -> None:
        name = func._schema.name.split("::")[-1]
        if name.startswith(_UNWRITTEN):
            return
        outputs = list(floating(out)) or (list(floating(args[:1])) if before is not None else [])
        bad_values = [t for t in outputs if bad(t)]
        if before is not None:
            for tensor in outputs:
                self._first_bad_ops.pop(_key(tensor), None)
        if not bad_values:
            return
        written = {_key(t) for t in outputs} if before is not None else set[int]()
        parents = [
            (first_bad_op, not first_bad_op.intended) for first_bad_op in (before or {}).values()
        ]
        for tensor in floating((args, kwargs)):
            key = _key(tensor)
            if key not in written and key not in self._buffers and bad(tensor):
                parents.append(
                    (self._first_bad_ops.get(key) or self._leaf(tensor), has_nan(tensor))
                )
        if not parents:
            bad_buffers = [t for t in floating((args, kwargs)) if _key(t) in self._buffers]
            parents += [(self._leaf(t), has_nan(t)) for t in bad_buffers if bad(t)]
        nan = has_nan(bad_values[0])  # nobody masks with it
        meant = not parents and not nan and _written(args, kwargs)
        first_bad_op = _guilty(parents, nan) or self._born(
            name, (args, kwargs), bad_values[0], intended=meant
        )
        for tensor in bad_values:
            self._first_bad_ops[_key(tensor)] = first_bad_op

    def _leaf(self, tensor: Tensor) -> FirstBadOp:
        """A bad tensor that nobody made; infinities that are not its owner's may be a mask's."""
        own = tensor.requires_grad or _key(tensor) in self._data
        meant = not own and not has_nan(tensor) and not rises(tensor)
        return replace(self._born("", (), tensor, intended=meant), leaf=tensor)

    def _born(self, name: str, given: Any, out: Tensor, *, intended: bool) -> FirstBadOp:
        return FirstBadOp(
            op=name.strip("_") if name.endswith("_") else name,
            place=place_of(sys._getframe(), self._names),
            inputs=tuple(stat(t) for t in list(tensors(given))[:4]),
            output=out,
            reported=stat(out),
            intended=intended,
        )

    # ------------------------------------------------------------------ backward

    def _module_ran(self, module: nn.Module, _inputs: Any, output: Any) -> None:
        """The nodes behind a module's output that no inner module claimed are its own."""
        with contextlib.suppress(Exception):
            self._claim(self._names.get(id(module), ""), output)

    def _claim(self, name: str, output: Any) -> None:
        if self._inert or not name:
            return
        made = _nodes([t.grad_fn for t in floating(output)], self._owners)
        self._owners.update(dict.fromkeys(made, name))

    def follow(self, loss: Tensor) -> None:
        """Backward is about to run from ``loss``: hook every node behind it."""
        for node in _nodes([loss.grad_fn]):
            self._graph.append(node.register_hook(partial(self._node_ran, node)))

    def _node_ran(self, node: Node, made: Any, given: Any) -> None:
        with contextlib.suppress(Exception):
            if not self._inert and self.backward_bad_op is None:
                self._look_at_node(node, made, given)

    def _look_at_node(self, node: Node, made: Any, given: Any) -> None:
        bad_values = next((t for t in floating(made) if bad(t)), None)
        if bad_values is None or any(bad(t) for t in floating(given)):
            return
        place = place_in_traceback(node.metadata.get("traceback_", ()))
        # A backward of the user's own has lines of its own.
        inner = self._first_bad_ops.get(_key(bad_values))
        if inner is not None and inner.place.file and inner.leaf is None and _own(node):
            place = inner.place
        self.backward_bad_op = FirstBadOp(
            op=node.name(),
            place=replace(place, module=self._owners.get(node, "")),
            inputs=tuple(stat(t) for t in [*_saved(node), *floating(given)][:4]),
            output=bad_values,
            reported=stat(bad_values),
            backward=True,
        )


def _guilty(parents: list[tuple[FirstBadOp, bool]], nan_now: bool) -> FirstBadOp | None:
    """Whose fault a bad output is: that of a bad input, or (None) of the operation itself.

    A NaN that comes in goes out. An infinity that was computed is to blame for the NaN it
    becomes; one that was written down (a mask) is not: then the operation is.
    """
    for first_bad_op, nan in parents:
        if nan:
            return first_bad_op
    for first_bad_op, _ in parents:
        if not first_bad_op.intended:
            return first_bad_op
    return parents[0][0] if parents and not nan_now else None


def _own(node: Node) -> bool:
    """Whether a node is the user's ``autograd.Function`` and not one of torch's."""
    return isinstance(node, torch.autograd.function.BackwardCFunction)


def _saved(node: Node) -> Iterator[Tensor]:
    """What a node kept of its forward pass: the values at which its derivative was taken."""
    for name in dir(node):
        if name.startswith("_saved_"):
            with contextlib.suppress(RuntimeError):
                yield from floating(getattr(node, name))


def _nodes(roots: Iterable[Node], known: Collection[Node] = ()) -> Iterator[Node]:
    """The nodes behind these that are not known yet."""
    seen: set[Node] = set()
    waiting = list(roots)
    while waiting and len(seen) < _NODES:
        node = waiting.pop()
        if node is None or node in seen or node in known:
            continue
        seen.add(node)
        yield node
        waiting += [n for n, _ in node.next_functions]


def _key(tensor: Tensor) -> int:
    return local(tensor).untyped_storage()._cdata


def _written(args: Any, kwargs: Mapping[str, Any]) -> bool:
    """Whether an infinity or NaN stands in the call itself, as in ``masked_fill(m, -inf)``."""
    numbers = [*args, *kwargs.values()]
    return any(isinstance(n, float) and not abs(n) < float("inf") for n in numbers)


@contextlib.contextmanager
def _without_warning() -> Iterator[None]:
    """A compiled module warns about global hooks, which are ours and fire twice without harm."""
    warnings.filterwarnings("ignore", message=r"Using `torch\.compile\(module\)` when there are")
    entry = warnings.filters[0]
    try:
        yield
    finally:
        if entry in warnings.filters:
            warnings.filters.remove(entry)  # type: ignore[attr-defined]
