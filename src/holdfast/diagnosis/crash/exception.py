"""Describe the exception that ended the script: the user's line, what its call held, the sample.

Runs once, when the process is ending. torch need not have been imported.
"""

from __future__ import annotations

import contextlib
import itertools
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import Any

from ...records.crash import CrashValue, InnerCall, RaisedException, StackLine
from ...redaction import learn, redact_code, redact_text
from ...run.host_memory import nearest, own_limits, shared_limits
from ...source.excerpts import excerpt_at
from ...source.ownership import kind_of
from ...source.paths import from_here, short_name
from . import origins, surroundings, worker_error
from .differences import differences
from .division import divisor
from .names import near
from .operands import operands
from .recursion import recursion
from .traceback_frames import TracebackEntry, calls, chain
from .traceback_text import Reported, reported_by, text_of
from .values import described, is_module, is_tensor, local_values

_LONGEST = 2000
_FRAMES = 24
_PLACE = ("file", "line", "function", "code", "start", "excerpt", "library", "frames")


def facts(
    error: BaseException, batches: Sequence[Any] = (), models: Sequence[Any] = ()
) -> RaisedException:
    """What an Event says of it.

    Args:
        error: the exception.
        batches: those that the loop was working on.
        models: the models behind the optimizers.
    """
    with _no_news_of_children():
        return _facts(error, batches, models)


@contextlib.contextmanager
def _no_news_of_children() -> Iterator[None]:
    """Handle no SIGCHLD meanwhile: torch's handler raises anew for a worker that has died, in
    whatever line is being run."""
    before = signal.getsignal(signal.SIGCHLD) if hasattr(signal, "SIGCHLD") else None
    if not callable(before) or threading.current_thread() is not threading.main_thread():
        yield
        return
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGCHLD, before)


def _facts(error: BaseException, batches: Sequence[Any], models: Sequence[Any]) -> RaisedException:
    blamed = _blamed(error)
    for call in blamed:
        if call.is_users:
            learn(call.frame.f_locals)
    found = RaisedException(
        type=type(error).__name__,
        message=redact_text(_message(error)[: 2 * _LONGEST])[:_LONGEST],
        error_file=str(getattr(error, "filename", None) or ""),
    )
    found = _and(found, _file_limit)
    found = _and(found, lambda: RaisedException(traceback=text_of(error)))
    found = _and(found, lambda: _place(error, blamed))
    if blamed:
        found = _and(found, lambda: _call(blamed))
        found = _and(found, lambda: near(error, blamed[-1]))
        found = _and(found, lambda: divisor(error, blamed[-1]))
        found = _and(found, lambda: recursion(error, blamed))
        found = _and(found, lambda: differences(blamed))
        if "torch" in sys.modules:
            found = _with_torch(found, error, blamed, batches, models)
    if isinstance(error, MemoryError):
        found = _and(found, _host_limit)
    found = _and(found, surroundings.world)
    found = _and(found, lambda: surroundings.output(error))
    message, traced = found.message, calls(error.__traceback__)
    found = _and(found, lambda: surroundings.disk(message, traced))
    reported, noted = reported_by(_message(error)), worker_error.noted(traced)
    if noted is not None:
        found = _from_worker(noted, found)
    elif reported is not None:
        with contextlib.suppress(Exception):
            found = _from_text(reported, found)
    else:
        found = _and(found, lambda: surroundings.dead_workers(message, traced))
        found = _and(found, lambda: _behind(error, batches, models))
    return found if reported is None else found.replace(process=reported.where or "another process")


def _with_torch(
    found: RaisedException,
    error: BaseException,
    blamed: list[TracebackEntry],
    batches: Sequence[Any],
    models: Sequence[Any],
) -> RaisedException:
    from . import checkpoints, graph, samples

    found = _and(found, lambda: samples.loaded(blamed))
    users = [call for call in blamed if call.is_users]
    if users:
        found = _and(found, lambda: samples.over_loader(users[-1]))
    found = _and(found, lambda: checkpoints.facts(calls(error.__traceback__)))
    if found.phase == "backward":
        found = _and(found, lambda: graph.facts(blamed, models))
    if found.sample is None and found.indices is None:
        rows = _rows(found)
        found = _and(found, lambda: samples.at_work(batches, rows))
    return found


def user_line(traceback: TracebackType | None) -> tuple[str, int]:
    """The innermost line of the user's own code in a traceback."""
    users = [call for call in calls(traceback) if call.is_users]
    return (users[-1].file, users[-1].line) if users else ("", 0)


def _and(found: RaisedException, measure: Callable[[], RaisedException]) -> RaisedException:
    """With one more part: one that fails must not lose the others."""
    try:
        part = measure()
    except Exception:
        return found
    return found.replace(**part.measured())


def _file_limit() -> RaisedException:
    """How large a file of this process may be, where that is limited (``ulimit -f``)."""
    import resource

    limit = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
    return RaisedException(file_limit=limit if limit != resource.RLIM_INFINITY else None)


def _behind(error: BaseException, batches: Sequence[Any], models: Sequence[Any]) -> RaisedException:
    """The error that this one was raised for, and whether the script says so (``from``)."""
    found = list(itertools.islice(chain(error), 1, 2))
    if not found:
        return RaisedException()
    behind = _facts(found[0], batches, models).replace(traceback=None)
    return RaisedException(behind=behind, raised_from=error.__cause__ is not None)


def _host_limit() -> RaisedException:
    limit = nearest([*own_limits(), *shared_limits()])
    if limit is None:
        return RaisedException()
    return RaisedException(limit=limit.name, limit_bytes=limit.bytes)


def _message(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # the user's own code
        return ""


def _blamed(error: BaseException) -> list[TracebackEntry]:
    """The calls of the error, or of the one that led to it where only that has a line of his."""
    for each in chain(error):
        found = calls(each.__traceback__)
        if any(call.is_users for call in found):
            return found
    return calls(error.__traceback__)


def _place(error: BaseException, blamed: Sequence[TracebackEntry]) -> RaisedException:
    users = [call for call in blamed if call.is_users]
    frames = tuple(
        StackLine(
            file=from_here(call.file),
            line=call.line,
            function=call.function,
            code=redact_code(" ".join(excerpt_at(call.file, call.line).code.split()))[:160],
        )
        for call in users[-_FRAMES:]
    )
    file, line, function = "", 0, ""
    if users:
        file, line, function = users[-1].file, users[-1].line, users[-1].function
    if isinstance(error, SyntaxError) and error.filename and kind_of(error.filename) == "user":
        file, line, function = error.filename, error.lineno or 0, ""
    inside = [call for call in blamed[blamed.index(users[-1]) + 1 :]] if users else []
    library = f"{short_name(inside[-1].file)}:{inside[-1].line}" if inside else ""
    return _at(file, line, function).replace(library=library, frames=frames)


def _at(file: str, line: int, function: str) -> RaisedException:
    source = excerpt_at(file, line)
    return RaisedException(
        file=from_here(file),
        line=line,
        function=function,
        code=redact_code(source.code),
        start=source.start,
        excerpt=tuple((number, redact_code(text)) for number, text in source.lines),
    )


def _call(blamed: Sequence[TracebackEntry]) -> RaisedException:
    """Operands and variables of the failing call, and the call of torch that it led to."""
    users = [call for call in blamed if call.is_users]
    found = RaisedException(
        phase=_phase(blamed), inner=_inner(blamed[-1]), module=_module_at_work(blamed)
    )
    if not users:
        return found
    last = users[-1]
    to_user = blamed[: blamed.index(last) + 1]
    made = (origins.origin(name, to_user) for name in origins.names_in(last))
    return found.replace(
        operands=operands(last),
        variables=local_values(_variables(last)),
        origins=tuple(line for line in made if line is not None),
        reshapes=origins.reshapes(blamed),
        plain_attributes=origins.plain_attributes(last),
    )


def _inner(call: TracebackEntry) -> InnerCall | None:
    """The call of a library that failed, and the tensors and modules in it."""
    if call.is_users:
        return None
    held = (
        described(name, value)
        for name, value in call.frame.f_locals.items()
        if is_tensor(value) or is_module(value)
    )
    return InnerCall(function=call.function, values=tuple(itertools.islice(held, 8)))


def _module_at_work(blamed: Sequence[TracebackEntry]) -> CrashValue | None:
    for call in reversed(blamed):
        module = call.frame.f_locals.get("self")
        if call.frame.f_code.co_varnames[:1] == ("self",) and is_module(module):
            path, made = origins.made_at(module, blamed)
            return described(path or type(module).__name__, module).replace(made=made)
    return None


def _variables(call: TracebackEntry) -> dict[str, Any]:
    """The locals of a function; of a file's top level those that the statement reads."""
    if call.frame.f_code.co_name != "<module>":
        return dict(call.frame.f_locals)
    return {n: call.frame.f_locals[n] for n in origins.names_in(call) if n in call.frame.f_locals}


def _phase(blamed: Sequence[TracebackEntry]) -> str:
    """What the script was doing; empty where no call of torch says it."""
    files = [short_name(call.file).replace("\\", "/") for call in blamed]
    for phase, part in (
        ("loading", "torch/utils/data/"),
        ("backward", "torch/autograd/"),
        ("optimizer", "torch/optim/"),
        ("forward", "torch/nn/modules/"),
    ):
        if any(part in f"{'' if 'torch/' in file else 'torch/'}{file}" for file in files):
            return phase
    return ""


def _rows(found: RaisedException) -> list[int]:
    """Rows of the smallest and the largest whole numbers: labels and tokens."""
    values = [*(found.operands or ()), *(found.inner.values if found.inner else ())]
    rows = {row for value in values for row in (value.min_row, value.max_row) if row is not None}
    return sorted(rows)


def _short_place(found: RaisedException) -> str:
    return f"{found.file}:{found.line}" if found.file else ""


def _from_worker(noted: RaisedException, found: RaisedException) -> RaisedException:
    """The facts of a worker; the line is the loop's where no code of the user's failed there."""
    there = {name: value for name, value in vars(noted).items() if value is not None}
    if noted.line:
        return found.replace(called_from=_short_place(found)).replace(**there)
    return found.replace(**{n: value for n, value in there.items() if n not in _PLACE})


def _from_text(reported: Reported, found: RaisedException) -> RaisedException:
    """The error of another process, of which only the text came here."""
    said = redact_text(reported.message)[:_LONGEST]
    if not reported.file:
        return found.replace(type=reported.type, message=said)
    there = _at(reported.file, reported.line, reported.function).measured()
    called_from = _short_place(found)
    # The values are of this process, which has done nothing wrong.
    gone = dict.fromkeys(("operands", "variables", "inner", "module", "origins"))
    return found.replace(
        **{**there, **gone}, type=reported.type, message=said, called_from=called_from
    )
