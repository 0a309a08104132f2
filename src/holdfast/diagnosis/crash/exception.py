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

from ...redaction import learn, redact_code, redact_text
from ...run.host_memory import nearest, own_limits, shared_limits
from ..source.excerpts import source_of
from ..source.files import from_here, kind_of, short_name
from . import origins, surroundings, worker_error
from .differences import differences
from .division import divisor
from .names import near
from .operands import operands
from .recursion import recursion
from .traceback_frames import Call, calls, chain
from .traceback_text import Told, text_of, told_by
from .values import Facts, described, is_module, is_tensor, local_facts

_LONGEST = 2000
_FRAMES = 24
_PLACE = ("file", "line", "function", "code", "start", "excerpt", "library", "frames")


def facts(error: BaseException, batches: Sequence[Any] = (), models: Sequence[Any] = ()) -> Facts:
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


def _facts(error: BaseException, batches: Sequence[Any], models: Sequence[Any]) -> Facts:
    blamed = _blamed(error)
    for call in blamed:
        if call.is_users:
            learn(call.frame.f_locals)
    data: Facts = {
        "type": type(error).__name__,
        "message": redact_text(_message(error)[: 2 * _LONGEST])[:_LONGEST],
        "file": "",
        "line": 0,
        "error_file": str(getattr(error, "filename", None) or ""),
    }
    _add(data, _file_limit)
    _add(data, lambda: {"traceback": text_of(error)})
    _add(data, lambda: _place(error, blamed))
    if blamed:
        _add(data, lambda: _scene(blamed))
        _add(data, lambda: near(error, blamed[-1]))
        _add(data, lambda: divisor(error, blamed[-1]))
        _add(data, lambda: recursion(error, blamed))
        _add(data, lambda: differences(blamed))
        if "torch" in sys.modules:
            from . import checkpoints, graph, samples

            _add(data, lambda: samples.loaded(blamed))
            users = [call for call in blamed if call.is_users]
            _add(data, lambda: samples.over_loader(users[-1]) if users else {})
            _add(data, lambda: checkpoints.facts(calls(error.__traceback__)))
            if data.get("phase") == "backward":
                _add(data, lambda: graph.facts(blamed, models))
            if "sample" not in data and "indices" not in data:
                _add(data, lambda: samples.at_work(batches, _rows(data)))
    if isinstance(error, MemoryError):
        _add(data, _host_limit)
    _add(data, surroundings.world)
    _add(data, lambda: surroundings.output(error))
    _add(data, lambda: surroundings.disk(data["message"], calls(error.__traceback__)))
    told = told_by(_message(error))
    noted = worker_error.noted(calls(error.__traceback__))
    if noted is not None:
        data |= _from_worker(noted, data)
    elif told is not None:
        _add(data, lambda: _from_text(told, data))
    else:
        _add(data, lambda: surroundings.dead_workers(data["message"], calls(error.__traceback__)))
        _add(data, lambda: _behind(error, batches, models))
    if told is not None:
        data["process"] = told.where or "another process"
    return data


def user_line(traceback: TracebackType | None) -> tuple[str, int]:
    """The innermost line of the user's own code in a traceback."""
    users = [call for call in calls(traceback) if call.is_users]
    return (users[-1].file, users[-1].line) if users else ("", 0)


def _add(data: Facts, measure: Callable[[], Facts]) -> None:
    """Each part for itself: one that fails must not lose the others."""
    with contextlib.suppress(Exception):
        data |= measure()


def _file_limit() -> Facts:
    """How large a file of this process may be, where that is limited (``ulimit -f``)."""
    import resource

    limit = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
    return {"file_limit": limit} if limit != resource.RLIM_INFINITY else {}


def _behind(error: BaseException, batches: Sequence[Any], models: Sequence[Any]) -> Facts:
    """The error that this one was raised for, and whether the script says so (``from``)."""
    found = list(itertools.islice(chain(error), 1, 2))
    if not found:
        return {}
    told = {n: v for n, v in _facts(found[0], batches, models).items() if n != "traceback"}
    return {"behind": told, "raised_from": error.__cause__ is not None}


def _host_limit() -> Facts:
    limit = nearest([*own_limits(), *shared_limits()])
    return {} if limit is None else {"limit": limit.name, "limit_bytes": limit.bytes}


def _message(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # the user's own code
        return ""


def _blamed(error: BaseException) -> list[Call]:
    """The calls of the error, or of the one that led to it where only that has a line of his."""
    for each in chain(error):
        found = calls(each.__traceback__)
        if any(call.is_users for call in found):
            return found
    return calls(error.__traceback__)


def _place(error: BaseException, blamed: Sequence[Call]) -> Facts:
    users = [call for call in blamed if call.is_users]
    frames = [
        {"file": from_here(call.file), "line": call.line, "function": call.function,
         "code": redact_code(" ".join(source_of(call.file, call.line).code.split()))[:160]}
        for call in users[-_FRAMES:]
    ]  # fmt: skip
    file, line, function = "", 0, ""
    if users:
        file, line, function = users[-1].file, users[-1].line, users[-1].function
    if isinstance(error, SyntaxError) and error.filename and kind_of(error.filename) == "user":
        file, line, function = error.filename, error.lineno or 0, ""
    inside = [call for call in blamed[blamed.index(users[-1]) + 1 :]] if users else []
    library = f"{short_name(inside[-1].file)}:{inside[-1].line}" if inside else ""
    return _at(file, line, function) | {"library": library, "frames": frames}


def _at(file: str, line: int, function: str) -> Facts:
    source = source_of(file, line)
    return {
        "file": from_here(file),
        "line": line,
        "function": function,
        "code": redact_code(source.code),
        "start": source.start,
        "excerpt": [[number, redact_code(str(text))] for number, text in source.excerpt],
    }


def _scene(blamed: Sequence[Call]) -> Facts:
    """Operands and variables of the failing call, and the call of torch that it led to."""
    users = [call for call in blamed if call.is_users]
    data: Facts = {"phase": _phase(blamed)}
    if users:
        last = users[-1]
        data["operands"] = operands(last)
        data["variables"] = local_facts(_variables(last))
        to_user = blamed[: blamed.index(last) + 1]
        found = [origins.origin(name, to_user) for name in origins.names_in(last)]
        data["origins"] = [place for place in found if place is not None]
        data["reshapes"] = origins.reshapes(blamed)
        data["plain_attributes"] = origins.plain_attributes(last)
    inner = blamed[-1]
    if not inner.is_users:
        data["inner"] = {
            "function": inner.function,
            "values": [
                described(name, value)
                for name, value in inner.frame.f_locals.items()
                if is_tensor(value) or is_module(value)
            ][:8],
        }
    for call in reversed(blamed):
        module = call.frame.f_locals.get("self")
        if call.frame.f_code.co_varnames[:1] == ("self",) and is_module(module):
            path, made = origins.made_at(module, blamed)
            data["module"] = described(path or type(module).__name__, module)
            if made is not None:
                data["module"] |= {"made": made}
            break
    return data


def _variables(call: Call) -> dict[str, Any]:
    """The locals of a function; of a file's top level those that the statement reads."""
    if call.frame.f_code.co_name != "<module>":
        return dict(call.frame.f_locals)
    return {n: call.frame.f_locals[n] for n in origins.names_in(call) if n in call.frame.f_locals}


def _phase(blamed: Sequence[Call]) -> str:
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


def _rows(data: Facts) -> list[int]:
    """Rows of the smallest and the largest whole numbers: labels and tokens."""
    tensors = [*data.get("operands", ()), *data.get("inner", {}).get("values", ())]
    rows = {facts[key] for facts in tensors for key in ("min_row", "max_row") if key in facts}
    return sorted(rows)


def _short_place(data: Facts) -> str:
    return f"{data['file']}:{data['line']}" if data["file"] else ""


def _from_worker(noted: Facts, data: Facts) -> Facts:
    """The facts of a worker; the line is the loop's where no code of the user's failed there."""
    if not noted.get("line"):
        return {name: value for name, value in noted.items() if name not in _PLACE}
    return {"called_from": _short_place(data), **noted}


def _from_text(told: Told, data: Facts) -> Facts:
    """The error of another process, of which only the text came here."""
    there: Facts = {"type": told.type, "message": redact_text(told.message)[:_LONGEST]}
    if not told.file:
        return there
    gone = ("operands", "variables", "inner", "module", "origins")
    for name in gone:
        data.pop(name, None)
    return there | _at(told.file, told.line, told.function) | {"called_from": _short_place(data)}
