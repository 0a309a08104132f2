"""Every change holdfast makes to torch, in one table.

An entry names the target, says why, and builds the replacement around the original. A patch of
torch anywhere else fails the architecture test. All of them do the same: notify the engine of what
the script is doing, then do exactly what torch would have done.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
from collections.abc import Callable, Iterator
from time import perf_counter
from typing import Any

import torch
from torch.nn.modules.module import (
    register_module_module_registration_hook,
    register_module_parameter_registration_hook,
)
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from ..actions import foreign_step, replace_sample, split_batch
from ..diagnosis.memory import evaluation
from ..diagnosis.throughput import host_reads
from ..guard.fast import direct_calls
from ..guard.finite_loss import frees_graph
from . import (
    _compiler_patches,
    _crash_patches,
    _loader_patches,
    _memory_patches,
    _optimizer_patches,
    _scaler_patches,
    _time_patches,
)
from ._patch import Function, GetEngine, Patch

_AS_USUAL = (None, False), {"inputs": None}
"""What ``loss.backward()`` gives it beside the loss and its gradient."""


def _backward(engine_of: GetEngine, original: Function) -> Function:
    @functools.wraps(original)
    def backward(*args: Any, **kwargs: Any) -> Any:
        engine = engine_of()
        if engine is None:
            return original(*args, **kwargs)
        roots = args[0] if args else kwargs.get("tensors")
        lost, freed = engine.backward_begins(roots), False
        try:
            if not lost:
                usual = (args[2:], kwargs) == _AS_USUAL
                short = usual and args[1] is None and engine.may_rewrite
                called = short and direct_calls.backward(roots)
                result = None if called else original(*args, **kwargs)
                freed = usual or frees_graph(*args[2:], **kwargs)
                return result
        except (RuntimeError, MemoryError) as error:
            if not engine.backward_fails(error, roots):
                raise
        finally:
            engine.backward_ends(freed=freed)
        # Not above: the error holds the frames it came through, and they hold tensors.
        engine.backward_lost(roots)
        return None

    return backward


def _optimizer_made(engine_of: GetEngine, original: Function) -> Function:
    @functools.wraps(original)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        engine = engine_of()
        if engine is not None:
            engine.made(self)

    return __init__


def _optimizer_freed(engine_of: GetEngine, original: Function | None) -> Function:
    def __del__(self: Any) -> None:
        engine = engine_of()
        if engine is not None:
            engine.leaves(self)

    return __del__


def _clip(engine_of: GetEngine, original: Function) -> Function:
    @functools.wraps(original)
    def clip_grad_norm_(parameters: Any, *args: Any, **kwargs: Any) -> Any:
        engine = engine_of()
        if engine is None or torch.compiler.is_compiling():
            return original(parameters, *args, **kwargs)
        if not isinstance(parameters, torch.Tensor):
            parameters = list(parameters)
        measured = engine.clip_begins(parameters)
        try:
            if not engine.may_rewrite:
                return original(parameters, *args, **kwargs)
            torch_time_saved, total = engine.torch_time_saved, None
            began = perf_counter() if torch_time_saved.timed else 0.0
            if not torch_time_saved.own:
                total = direct_calls.clip(parameters, args, kwargs, measured)
            if total is None:
                total = original(parameters, *args, **kwargs)
            if began:
                torch_time_saved.took(perf_counter() - began)
            return total
        finally:
            engine.clip_ends()

    return clip_grad_norm_


def _copy(engine_of: GetEngine, original: Function) -> Function:
    @functools.wraps(original)
    def copy(self: Any, *args: Any, **kwargs: Any) -> Any:
        if self.is_cuda:
            return original(self, *args, **kwargs)
        began = perf_counter()
        result = original(self, *args, **kwargs)
        if result is not self and result.is_cuda:
            engine = engine_of()
            if engine is not None:
                engine.copied(perf_counter() - began)
        return result

    return copy


def _scheduler_step(engine_of: GetEngine, original: Function) -> Function:
    @functools.wraps(original)
    def step(self: Any, *args: Any, **kwargs: Any) -> Any:
        engine = engine_of()
        if engine is not None and not engine.scheduled(self):
            return None
        return original(self, *args, **kwargs)

    return step


TABLE = (
    Patch(
        target="torch.autograd.backward",
        why="the loss, and when backward begins and ends; Tensor.backward calls it by this name",
        make=_backward,
    ),
    Patch(
        target="torch.optim.Optimizer.__init__",
        why="the model's buffers must be copied before its first forward pass",
        make=_optimizer_made,
    ),
    Patch(
        target="torch.optim.Optimizer.__del__",
        why="an optimizer that is freed takes the state after the last step with it; it is copied "
        "before, for a script that crashes later",
        make=_optimizer_freed,
        when=lambda: not hasattr(torch.optim.Optimizer, "__del__"),
        adds=True,
    ),
    Patch(
        target="torch.nn.utils.clip_grad.clip_grad_norm_",
        aliases=("torch.nn.utils.clip_grad_norm_",),
        why="clipping by a NaN norm makes every gradient NaN and hides which one was first",
        make=_clip,
    ),
    *(
        Patch(
            target=f"torch.optim.lr_scheduler.{scheduler}.step",
            why="a batch that is fed twice, to find a fault, must not advance the schedule; "
            "a rollback takes it along; all others inherit the first one's step",
            make=_scheduler_step,
        )
        for scheduler in (
            "LRScheduler",
            "CosineAnnealingWarmRestarts",
            "ReduceLROnPlateau",
            "SequentialLR",
            "ChainedScheduler",
        )
    ),
    Patch(
        target="torch.Tensor.to",
        why="time spent copying batches to the device",
        make=_copy,
        when=torch.backends.cuda.is_built,
    ),
    Patch(
        target="torch.Tensor.cuda",
        why="time spent copying batches to the device",
        make=_copy,
        when=torch.backends.cuda.is_built,
    ),
    *_optimizer_patches.PATCHES,
    *_scaler_patches.PATCHES,
    *_compiler_patches.PATCHES,
    *_memory_patches.PATCHES,
    *_time_patches.PATCHES,
    *_crash_patches.PATCHES,
    *_loader_patches.PATCHES,
)

_undo: list[Callable[[], None]] = []
_ON_ORDER = {"reads": host_reads, "evaluation": evaluation}
_undo_order: dict[str, list[Callable[[], None]]] = {what: [] for what in _ON_ORDER}
_undo_indices: list[Callable[[], None]] = []


def install(engine_of: GetEngine) -> None:
    """Install every patch, and the hooks of optimizers and modules that torch offers for this."""
    if _undo:
        return
    for patch in TABLE:
        if patch.when() and not patch.on_order:
            _replace(patch, engine_of, _undo)
    for what, measurement in _ON_ORDER.items():
        measurement.offer(
            functools.partial(_put_in_order, what, engine_of),
            functools.partial(_take_out_order, what),
        )
    split_batch.offer(functools.partial(_hook_calls, engine_of))
    replace_sample.offer(fetch_in_worker)
    foreign_step.offer(lambda kind: _undo.append(_optimizer_patches.wrap_foreign_step(kind)))

    def before(optimizer: Any, args: Any, kwargs: Any) -> Any:
        engine = None if torch.compiler.is_compiling() else engine_of()
        return None if engine is None else engine.step_begins(optimizer, args, kwargs)

    def after(optimizer: Any, args: Any, kwargs: Any) -> None:
        engine = engine_of()
        if engine is not None:
            engine.step_ends(optimizer)

    def registers(module: torch.nn.Module, name: str, part: object) -> None:
        engine = None if torch.compiler.is_dynamo_compiling() else engine_of()
        if engine is not None:
            engine.registers(module)

    _undo.append(register_module_parameter_registration_hook(registers).remove)
    _undo.append(register_module_module_registration_hook(registers).remove)
    _undo.append(register_optimizer_step_pre_hook(before).remove)
    _undo.append(register_optimizer_step_post_hook(after).remove)


def uninstall() -> None:
    """Remove every patch, last one first."""
    for what, measurement in _ON_ORDER.items():
        measurement.withdraw()
        _take_out_order(what)
    split_batch.withdraw()
    replace_sample.offer(None)
    foreign_step.offer(None)
    while _undo:
        _undo.pop()()


def wrap_steps() -> None:
    """Wrap ``step`` of each kind of optimizer, as torch does when it makes the first of a kind.

    It does not where ours stands in its place, and optimizers may outlive our patches: without
    torch's wrapper nobody would call their hooks.
    """
    for patch in _optimizer_patches.PATCHES:
        kind, name = locate(patch.target)
        if name == "step" and not getattr(kind.step, "hooked", False):
            kind.step = torch.optim.Optimizer.profile_hook_step(kind.step)
            vars(kind.step)["hooked"] = True


def install_indices(engine_of: GetEngine) -> None:
    """Install only what tells which samples a loader draws, for ``holdfast.watch``.

    A loader with workers has drawn some before its iterator is there to be asked.
    """
    if not _undo_indices:
        _replace(_loader_patches.INDICES, engine_of, _undo_indices)


def uninstall_indices() -> None:
    """Remove it, unless all patches were installed over it: it does nothing without an engine."""
    while _undo_indices and not _undo:
        _undo_indices.pop()()


@contextlib.contextmanager
def loop_begins(engine_of: GetEngine) -> Iterator[None]:
    """While a watched loop begins: what fetches its batches may replace samples.

    Its iterator and forked workers are made inside. Nothing to do where all patches are in place.
    """
    undo: list[Callable[[], None]] = []
    if not _undo:
        replace_sample.offer(fetch_in_worker)
        _replace(_loader_patches.FETCHER, engine_of, undo)
    try:
        yield
    finally:
        while undo:
            undo.pop()()


def fetch_in_worker() -> None:
    """The same for good, in a worker that is no fork: it is sent this function by its name."""
    if not _undo:
        _replace(_loader_patches.FETCHER, lambda: None, _undo)


def _put_in_order(what: str, engine_of: GetEngine) -> None:
    if not _undo_order[what]:
        for patch in TABLE:
            if patch.on_order == what and patch.when():
                _replace(patch, engine_of, _undo_order[what])


def _take_out_order(what: str) -> None:
    while _undo_order[what]:
        _undo_order[what].pop()()


def _hook_calls(engine_of: GetEngine, kind: type[torch.nn.Module]) -> None:
    """Take over the calls of a class of models, mostly one of the script's own.

    On the class, so that no object of the script carries anything: a model is copied and pickled
    as before. Only calls of this class pay for it, one per step; on ``nn.Module`` each layer would.
    """
    own = kind.__dict__.get("__call__")
    if getattr(own, "__globals__", None) is vars(_memory_patches):
        return
    original = kind.__call__ if own is None else own
    kind.__call__ = _memory_patches.call_of_model(engine_of, original)
    undo = functools.partial(delattr, kind, "__call__")
    _undo.append(undo if own is None else functools.partial(setattr, kind, "__call__", own))


def _replace(patch: Patch, engine_of: GetEngine, undo: list[Callable[[], None]]) -> None:
    owner, name = locate(patch.target)
    # Through the class dictionary: getattr would bind or inherit.
    original = owner.__dict__.get(name, None if patch.adds else getattr(owner, name))
    inherited = isinstance(owner, type) and name not in owner.__dict__
    replacement = patch.make(engine_of, original)
    for target in (patch.target, *patch.aliases):
        where, attribute = locate(target)
        setattr(where, attribute, replacement)
        if inherited:
            undo.append(functools.partial(delattr, where, attribute))
        else:
            undo.append(functools.partial(setattr, where, attribute, original))


def locate(target: str) -> tuple[Any, str]:
    """The object that holds a dotted target, and the attribute's name."""
    parts = target.split(".")
    for cut in range(len(parts) - 1, 0, -1):
        try:
            owner: Any = importlib.import_module(".".join(parts[:cut]))
        except ModuleNotFoundError:
            continue
        for part in parts[cut:-1]:
            owner = getattr(owner, part)
        return owner, parts[-1]
    raise LookupError(f"torch has no {target}")
