"""Check what ``holdfast run`` is to run, before anything is started."""

from __future__ import annotations

import ast
import importlib.util
import os
import sys
import tokenize
import zipfile
from pathlib import Path

from ..errors import UsageError
from ..launcher.command import ScriptCommand
from ..launcher.interpreter import is_ours
from ..torch_version import check_torch


def check_call(command: ScriptCommand) -> None:
    """Check script or module, as far as it is known which python runs it and how.

    Raises:
        UsageError: one clear line where python would print a traceback, or worse, run it.
    """
    if not command.interpreter and not command.launcher:
        check_torch()
    call = command.call
    if call is None or command.launcher:
        return  # its launcher knows where it is
    # What another Python accepts is not known here.
    ours = not command.interpreter or is_ours(command.interpreter)
    if call.kind == "script":
        check_script(Path(call.target), ours=ours)
    elif call.kind == "module" and (ours or not call.target):
        check_module(call.target)
    elif call.kind == "code" and not call.target:
        raise UsageError("-c needs code; try `holdfast run -c 'import mypackage'`")


def check_script(path: Path, *, ours: bool = True) -> None:
    """Check that there is a script and, where it is for our own python, that it is one."""
    try:
        _check_script(path, ours)
    except OSError as error:
        name = str(path) if len(str(path)) < 200 else f"{str(path)[:80]}…"
        raise UsageError(
            f"cannot read {name}: {error.strerror}; check its name and its permissions"
        ) from error


def _check_script(path: Path, ours: bool) -> None:
    if path.is_dir():
        if not (path / "__main__.py").is_file():
            raise UsageError(f"{path} is a folder without a __main__.py; name the script in it")
        return
    if not path.exists():
        near = _nearest(path)
        hint = f"did you mean {near}?" if near else "check the path and the working directory"
        raise UsageError(f"no such script: {path}; {hint}")
    if not ours:
        return
    try:
        if zipfile.is_zipfile(path):
            return
        with tokenize.open(path) as file:
            ast.parse(file.read(), filename=str(path))
    except SyntaxError as error:
        where = f"line {error.lineno}: " if error.lineno else ""
        raise UsageError(
            f"{path} is not Python: {where}{error.msg}; holdfast run needs a Python script"
        ) from error
    except (UnicodeDecodeError, ValueError) as error:
        raise UsageError(
            f"{path} is not Python: it is not text; holdfast run needs a Python script"
        ) from error


def check_module(name: str) -> None:
    """Only the top package is looked up: finding a submodule would import its parents here."""
    if not name:
        raise UsageError("-m needs a module name; try `holdfast run -m package.module`")
    top = name.partition(".")[0]
    sys.path.insert(0, os.getcwd())
    try:
        found = importlib.util.find_spec(top)
    except (ImportError, ValueError):
        found = None
    finally:
        sys.path.remove(os.getcwd())
    if found is None:
        raise UsageError(
            f"no module named {top!r}; check the name, the working directory "
            "and the environment holdfast is installed in"
        )


def _nearest(path: Path) -> str:
    try:
        names = [p.name for p in path.parent.iterdir() if p.suffix == ".py"]
    except OSError:
        return ""
    import difflib

    close = difflib.get_close_matches(path.name, names, n=1)
    return str(path.with_name(close[0])) if close else ""
