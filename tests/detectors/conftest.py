"""A witness: runs a statement with torch and writes down the cause of its first NaN or inf."""

from __future__ import annotations

import math
import textwrap
import warnings
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from holdfast.records.nonfinite import Cause, TensorStats

# Infinity that was asked for is no fault.
_ASKED = {
    "masked_fill", "full", "full_like", "fill", "scalar_tensor", "lift_fresh", "where", "detach",
    "clone", "_to_copy", "index", "view", "t", "transpose", "unsqueeze", "expand", "select", "neg",
    "empty", "empty_like", "new_empty", "alias", "copy", "permute", "squeeze", "slice",
}  # fmt: skip
# Nobody trains these.
_FIXED = {"mask", "count", "y"}


def stat(tensor: torch.Tensor) -> TensorStats:
    """One tensor in numbers."""
    values = tensor.detach().double().flatten()
    fine = values[values.isfinite()]
    some = fine.numel() > 0
    return TensorStats(
        shape=tuple(tensor.shape),
        dtype=str(tensor.dtype).removeprefix("torch."),
        min=fine.min().item() if some else None,
        max=fine.max().item() if some else None,
        mean=fine.mean().item() if some else None,
        zeros=int((values == 0).sum()),
        negative=int((values < 0).sum()),
        nan=int(values.isnan().sum()),
        inf=int(values.isinf().sum()),
        numel=values.numel(),
    )


def tensors(value: Any) -> list[torch.Tensor]:
    """The floating point tensors in a value."""
    if isinstance(value, torch.Tensor):
        return [value] if value.is_floating_point() else []
    if isinstance(value, list | tuple):
        return [t for item in value for t in tensors(item)]
    return []


def finite(value: Any) -> bool:
    return all(bool(t.isfinite().all()) for t in tensors(value))


class _Forward(TorchDispatchMode):
    """Keeps the first operation whose result is not finite although nobody asked for that."""

    def __init__(self, *, floating: bool) -> None:
        super().__init__()
        self.found: dict[str, Any] = {}
        self._floating = floating

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        given = [a for a in args if isinstance(a, torch.Tensor)]
        given = tensors(given) if self._floating else given
        inputs = () if self.found else tuple(stat(a) for a in given)
        result = func(*args, **(kwargs or {}))
        name = func._schema.name.partition("::")[2]
        if not self.found and name.rstrip("_") not in _ASKED and not finite(result):
            bad = next(t for t in tensors(result) if not t.isfinite().all())
            # Infinity that passes through, as in exp(-inf) or a maximum, was born elsewhere.
            through = any(s.inf for s in inputs) and not bad.isnan().any()
            if not through or name == "logsumexp":
                self.found = {
                    "phase": "forward", "op": name, "inputs": inputs, "output": stat(bad),
                    "dtype": str(bad.dtype).removeprefix("torch."),
                }  # fmt: skip
        return result


def _watch_backward(root: Any, found: dict[str, Any], *, saved: bool) -> None:
    seen, todo = set(), [root]
    while todo:
        node = todo.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        todo += [following for following, _ in node.next_functions]
        kept = [n for n in dir(node) if n.startswith("_saved_")] if saved else []
        node.register_hook(partial(_note, found, node, kept))


def _note(found: dict[str, Any], node: Any, kept: list[str], made: Any, incoming: Any) -> None:
    """Keep the first backward function that was handed something finite and made NaN of it."""
    if found or not finite(incoming) or finite(made):
        return
    bad = next(t for t in tensors(made) if not t.isfinite().all())
    inputs = [*tensors([getattr(node, name) for name in kept]), *tensors(incoming)]
    found.update(
        phase="backward", op=type(node).__name__, inputs=tuple(stat(t) for t in inputs),
        output=stat(bad), dtype=str(bad.dtype).removeprefix("torch."),
    )  # fmt: skip


def execute(code: str, given: Mapping[str, Any]) -> list[torch.Tensor]:
    """Run a statement as the body of a function; the floating point tensors it made."""
    scope = {"torch": torch, "th": torch, "F": F, "nn": nn, "math": math, **vars(math), **given}
    scope |= {"log": torch.log, "exp": torch.exp, "softmax": F.softmax}
    body = textwrap.indent(code, "    ")
    exec(f"def statement({', '.join(scope)}):\n{body}\n    return locals()", made := {})
    result = made["statement"](**scope)
    if isinstance(result, dict):
        result = [v for k, v in result.items() if k not in scope or v is not scope[k]]
    return tensors(result)


def gradients(
    code: str,
    make: Callable[[], dict[str, Any]],
    found: dict[str, Any] | None = None,
    *,
    saved: bool = False,
):
    """Results of a statement and the gradients of what went into it."""
    given = make()
    for name, value in given.items():
        if name not in _FIXED and tensors(value):
            value.requires_grad_()
    results = execute(code, given)
    made = [r for r in results if r.requires_grad]
    if made:
        total = torch.stack([r.float().sum() for r in made]).sum()
        if found is not None:
            _watch_backward(total.grad_fn, found, saved=saved)
        total.backward()
    grads = [v.grad for v in tensors(list(given.values())) if v.grad is not None]
    return results, grads


def witness(code: str, make: Callable[[], dict[str, Any]], *, sparing: bool = False) -> Cause:
    """The cause of a statement that goes wrong, forward or backward.

    A ``sparing`` witness has no eye for whole numbers and truth values among the inputs, but in
    backward for what was kept of the forward pass.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # std of one value warns as well
        with _Forward(floating=sparing) as forward:
            execute(code, make())
        found = forward.found
        if not found:
            gradients(code, make, found, saved=sparing)
    assert found, f"nothing goes wrong in: {code}"
    return Cause(
        how="replay", observed=7, file="train.py", line=88, start=88, function="step", code=code,
        excerpt=((88, "    " + code.split("\n")[0]),), samples_bad=1, **found,
    )  # fmt: skip


@pytest.fixture(scope="session")
def torch_witness():
    """``torch_witness(code, make)``: the recorded cause of what goes wrong in a statement."""
    return witness


@pytest.fixture(scope="session")
def run_statement():
    """``run_statement(code, make)``: results and gradients of a statement."""

    def run(code: str, make: Callable[[], dict[str, Any]]):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return gradients(code, make)

    return run
