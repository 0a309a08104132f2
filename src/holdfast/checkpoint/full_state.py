"""Sharded tensors in a state that is saved whole: gathered for the file, shared out when read.

Every rank gathers, so every rank has to save at the same step. What is read is cut without a
message: each rank takes its own share of a file that holds everything, so the number of ranks
may be another one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.optim import Optimizer

from .training_state import TrainingState, Tree


def gathered(tree: Any) -> Any:
    """The same tree with every sharded tensor whole, in host memory; a collective."""
    if isinstance(tree, DTensor):
        return tree.detach().full_tensor().cpu()
    return _mapped(tree, gathered)


def shared_out(tree: Tree, training_state: TrainingState) -> Tree:
    """The same tree with the tensors cut that are sharded in the live objects."""
    live = training_state.state(dice=False)
    shared = {part: _like(tree[part], live[part]) for part in ("models", "ema") if part in tree}
    for part, cut in (("optimizers", _moments), ("gradients", _numbered)):
        if part in tree:
            pairs = zip(tree[part], training_state.optimizers, strict=False)
            shared[part] = [cut(saved, optimizer) for saved, optimizer in pairs]
    return {**tree, **shared}


def _moments(saved: Mapping[str, Any], optimizer: Optimizer) -> Mapping[str, Any]:
    if "state" not in saved:
        return saved  # an optimizer that takes its state in its own way
    return {**saved, "state": _numbered(saved["state"], optimizer)}


def _numbered(saved: Mapping[Any, Any], optimizer: Optimizer) -> dict[Any, Any]:
    """Values by the number of the parameter whose form they have."""
    parameters = dict(enumerate(p for group in optimizer.param_groups for p in group["params"]))
    # Whether the state is of this optimizer at all is found out, and said, when it is put back.
    return {number: _shaped(one, parameters.get(number)) for number, one in saved.items()}


def _shaped(saved: Any, parameter: Tensor | None) -> Any:
    """Whatever has the shape of a sharded parameter, cut as it is."""
    if isinstance(saved, Tensor):
        return _cut(saved, parameter)
    return _mapped(saved, lambda one: _shaped(one, parameter))


def _like(saved: Any, live: Any) -> Any:
    """A saved value in the form of the live one in the same place."""
    if isinstance(saved, Tensor):
        return _cut(saved, live)
    if isinstance(saved, Mapping) and isinstance(live, Mapping):
        return {key: _like(one, live.get(key)) for key, one in saved.items()}
    return saved


def _cut(saved: Tensor, live: Any) -> Tensor:
    if not isinstance(live, DTensor) or live.shape != saved.shape:
        return saved
    # Without a source nobody sends anything: every rank has read the same values.
    return distribute_tensor(saved, live.device_mesh, live.placements, src_data_rank=None)


def _mapped(tree: Any, function: Callable[[Any], Any]) -> Any:
    if isinstance(tree, Mapping):
        return {key: function(one) for key, one in tree.items()}
    if isinstance(tree, Sequence) and not isinstance(tree, str | bytes):
        same = [function(one) for one in tree]
        return tuple(same) if isinstance(tree, tuple) else same
    return tree
