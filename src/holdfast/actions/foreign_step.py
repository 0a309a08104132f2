"""Skip a step of an optimizer that is not torch's own: nothing of it is called.

Torch's own optimizers take a missing gradient for "nothing to do"; one of the script need not ask.
So its ``step`` is not called where the step is known to be bad before it runs. Where it runs
already (its closure has just made the gradients, or it is a wrapper such as Lookahead around the
optimizer whose step is bad), it runs to its end, and everything it can reach is put back.

For this the class's ``step`` is wrapped once; a good step pays for two look-ups.
"""

from __future__ import annotations

import functools
import operator
import sys
import weakref
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any

import torch
from torch.optim import Optimizer

from ._kept_state import KeptState
from ._kept_state import is_foreign as is_foreign

NOT_CALLED = "not called"
PUT_BACK = "put back"
_compiling = torch.compiler.is_dynamo_compiling
_MARK = "_holdfast_skippable"
# Between our hook and torch's wrapper of a step, or a wrapper of the script's, are few frames.
_NEAR = 16
_PLAIN = (int, float, bool, str, type(None))
# Wrappers that keep nothing that a step could spoil, and count what the script asks them to.
_FRAMEWORKS = {"torch", "accelerate", "lightning", "pytorch_lightning", "transformers", "holdfast"}

_offered: Callable[[type], None] | None = None
_skipped: set[int] = set()
"""Ids of optimizers whose step is about to be called and must not be."""
_calls: list[_Call] = []
"""Foreign steps at work that may have to be undone, the innermost last."""
_kept: dict[int, KeptState] = {}
"""By the id of an optimizer whose step is called and put back when it is over."""
_failures: list[Exception] = []
"""What went wrong inside the script's own step; there it must not raise."""
_cleared: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()
"""How the step of an optimizer clears its gradients, if it does."""
_unasked: set[int] = set()
"""Ids of optimizers of which that is not known yet."""
_early: weakref.WeakKeyDictionary[Any, bool] = weakref.WeakKeyDictionary()
"""Whether the step of an optimizer changes weights before it calls its closure."""


def offer(wrap_class: Callable[[type], None] | None) -> None:
    """Say how the ``step`` of a class is wrapped: that is a patch."""
    global _offered
    _offered = wrap_class


def wrap_class(optimizer: object) -> None:
    """From now on steps of this class of optimizers can be skipped; torch's own can without."""
    kind = type(optimizer)
    if _offered is None or not is_foreign(kind):
        return
    _unasked.add(id(optimizer))
    if not hasattr(getattr(kind, "step", None), _MARK):
        _offered(kind)


def wrap_caller(optimizer: Optimizer, frame: FrameType | None) -> None:
    """The same for a wrapper of an optimizer that calls its ``step``, such as Lookahead.

    Args:
        optimizer: which is about to step.
        frame: of our hook.
    """
    for _ in range(_NEAR):
        frame = None if frame is None else frame.f_back
        if frame is None:
            return
        if frame.f_code.co_name != "step" or not frame.f_code.co_varnames:
            continue
        caller = frame.f_locals.get(frame.f_code.co_varnames[0])
        kind = type(caller)
        if caller is optimizer or kind.__module__.partition(".")[0] in _FRAMEWORKS:
            continue
        own = getattr(caller, "__dict__", {})
        # A trainer or an agent has such a method, too, and what that does is not to be undone.
        wraps = any(value is optimizer for value in own.values())
        if not wraps or not hasattr(caller, "param_groups") or kind.__hash__ is None:
            continue
        if "step" in own and not hasattr(own["step"], _MARK):
            # A scheduler has put it there, around the class's method as it was then.
            own["step"] = _around_bound(own["step"], caller)
        elif "step" not in own:
            wrap_class(caller)


class _Call:
    """One call of a foreign ``step`` that may have to be undone."""

    def __init__(self, owner: Any, *, closure: bool) -> None:
        self.owner = owner
        self.bad = False
        early = _early.get(owner, None if closure else False)
        self.kept = KeptState(owner) if early else None
        # Not asked again once it is known.
        self.versions = _versions(owner) if early is None else None
        holders = [vars(owner), *getattr(owner, "param_groups", ())]
        self._started = [
            (holder, {k: v for k, v in holder.items() if type(v) in _PLAIN}) for holder in holders
        ]

    def undo(self) -> None:
        """Everything as it was when the step was found bad, numbers as when it began."""
        if self.bad and self.kept is not None:
            self.kept.put_back()
            for holder, numbers in self._started:
                holder.update(numbers)


def skippable(step: Callable[..., Any], *, hooked: bool) -> Callable[..., Any]:
    """A foreign ``step`` that is not called, or undone, when it must be skipped.

    ``hooked``: torch's hooks are called before it.
    """

    @functools.wraps(step)
    def skipped(self: Any, *args: Any, **kwargs: Any) -> Any:
        if _compiling():
            return step(self, *args, **kwargs)
        if _skipped and id(self) in _skipped:
            return _pass_over(self)
        if args or kwargs or not hooked:
            return _undoable(step, self, *args, **kwargs)
        if _unasked and id(self) in _unasked:
            return _first(step, self)
        return step(self)

    vars(skipped)[_MARK] = True
    return skipped


def unless_skipped(step: Callable[..., Any]) -> Callable[..., Any]:
    """One of torch's that is not called when it must be skipped."""

    @functools.wraps(step)
    def skipped(self: Any, *args: Any, **kwargs: Any) -> Any:
        if _skipped and id(self) in _skipped:
            return _pass_over(self)
        return step(self, *args, **kwargs)

    vars(skipped)[_MARK] = True
    return skipped


def skip(optimizer: Optimizer) -> str:
    """Skip the step that has begun: ``NOT_CALLED``, ``PUT_BACK``, or empty for one of torch's.

    Wrappers at work around it are put back in any case. ``settle`` must follow.
    """
    at_work = False
    for call in _calls:
        call.bad = True
        if call.kept is None:
            call.kept = KeptState(call.owner)
        at_work = at_work or call.owner is optimizer
    if at_work:
        return PUT_BACK
    if _comes_skippable(optimizer):
        _skipped.add(id(optimizer))
        return NOT_CALLED
    if is_foreign(type(optimizer)):
        # A schedule or the script has held its step since before we came.
        _kept[id(optimizer)] = KeptState(optimizer)
        return PUT_BACK
    return ""


def gradients_made(optimizer: Optimizer) -> None:
    """The closure of a step has run: what was changed before it has to be kept from then on."""
    for call in _calls:
        if call.owner is optimizer and call.versions is not None:
            _early[optimizer] = call.versions != _versions(optimizer)


def settle(optimizer: Optimizer) -> None:
    """The step is over, called or not; raises what went wrong where it was undone."""
    _skipped.discard(id(optimizer))
    kept = _kept.pop(id(optimizer), None)
    if kept is not None:
        kept.put_back()
    if _failures:
        raise _failures.pop()


def _around_bound(step: Callable[..., Any], owner: Any) -> Callable[..., Any]:
    @functools.wraps(step)
    def skipped(*args: Any, **kwargs: Any) -> Any:
        return _undoable(lambda _, *a, **k: step(*a, **k), owner, *args, **kwargs)

    vars(skipped)[_MARK] = True
    return skipped


def _undoable(step: Callable[..., Any], owner: Any, *args: Any, **kwargs: Any) -> Any:
    call = _Call(owner, closure=bool(args or kwargs))
    _calls.append(call)
    try:
        return step(owner, *args, **kwargs)
    except Exception:
        if not call.bad:
            raise
        # It was about numbers that are not to be used, and nothing of it stays.
        closure = kwargs.get("closure") or (args[0] if args else None)
        return getattr(closure, "result", None)
    finally:
        _calls.remove(call)
        try:
            call.undo()
        except Exception as error:
            _failures.append(error)


def _first(step: Callable[..., Any], optimizer: Any) -> Any:
    """The first step of an optimizer that is called: does it clear the gradients by itself?"""
    _unasked.discard(id(optimizer))
    parameters = [p for g in optimizer.param_groups for p in g["params"] if p.grad is not None]
    result = step(optimizer)
    how = ""
    if parameters and all(p.grad is None for p in parameters):
        how = "none"
    elif parameters and all(p.grad is not None for p in parameters):
        on_host = all(p.grad.is_cpu for p in parameters)
        how = "zero" if on_host and not any(p.grad.count_nonzero() for p in parameters) else ""
    _cleared[optimizer] = how
    return result


def _versions(owner: Any) -> list[int]:
    groups: list[dict[str, Any]] = getattr(owner, "param_groups", [])
    return [p._version for group in groups for p in group["params"]]


def _pass_over(optimizer: Any) -> None:
    """In place of a step: gradients that it would have cleared would keep a NaN for ever."""
    _skipped.discard(id(optimizer))
    how = _cleared.get(optimizer)
    if not how:
        return
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if how == "none":
                parameter.grad = None
            elif parameter.grad is not None:
                parameter.grad.zero_()


def _comes_skippable(optimizer: Optimizer) -> bool:
    """Whether torch's wrapper, whose hook we are in, will call what can be skipped."""
    frame: FrameType | None = sys._getframe(2)
    for _ in range(_NEAR):
        if frame is None:
            return False
        if frame.f_code is _CODE_OF_STEPS and frame.f_locals.get("self") is optimizer:
            return False  # it is at work, and has called its closure
        if frame.f_code is _CODE_OF_HOOKS:
            seen = frame.f_locals
            if seen["args"][:1] == (optimizer,):
                return hasattr(seen["func"], _MARK)
        frame = frame.f_back
    return False


_CODE_OF_HOOKS: CodeType = Optimizer.profile_hook_step(is_foreign).__code__
_code_of: Callable[[Any], CodeType] = operator.attrgetter("__code__")
_CODE_OF_STEPS = _code_of(unless_skipped(is_foreign))
