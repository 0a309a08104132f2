"""Whether holdfast can enter the python that a command starts, asked before it starts."""

from __future__ import annotations

import importlib.util
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence

from ..boot import NEEDED, PYTHON
from .command import ScriptCommand
from .python_call import PythonCall

# Runs on any Python, also one that is much too old for the rest of us.
_ASK = """
import sys
del sys.path[0]
print("%d.%d.%d" % tuple(sys.version_info[:3]))
try:
    from importlib.util import find_spec
    print(" ".join([name for name in sys.argv[1:] if find_spec(name) is None]))
except ImportError:
    print("")
"""
# A guess: an interpreter on a slow network file system.
_PATIENCE = 30.0


def keeps_out(command: ScriptCommand) -> tuple[str, str] | None:
    """Why a command runs unguarded and what to do about it; None where holdfast gets in.

    Where the interpreter is not known (uv, poetry), it says so itself once it imports torch.
    """
    call = command.call
    if call is not None and call.keeps_out:
        does = "loads no site module" if call.keeps_out == "-S" else "ignores PYTHONPATH"
        why = f"python {call.keeps_out} {does}, by which holdfast gets in"
        return why, f"to guard it, leave {call.keeps_out} out"
    if not command.interpreter or is_ours(command.interpreter):
        return None
    why, needs = _asked(shutil.which(command.interpreter) or command.interpreter)
    return (why, f"to guard it, {_use_ours(command) or needs}") if why else None


def is_ours(interpreter: str) -> bool:
    """Whether an interpreter is the one of our own environment, by whatever name."""
    found = shutil.which(interpreter)
    if found is None:
        return False
    # Not the files that the names link to: environments share those.
    folders = [os.path.realpath(os.path.dirname(path)) for path in (found, sys.executable)]
    return folders[0] == folders[1] and os.path.realpath(found) == os.path.realpath(sys.executable)


def _asked(interpreter: str) -> tuple[str, str]:
    """Why an interpreter of another environment keeps us out, and what it needs; else empty."""
    try:
        asked = subprocess.run(
            [interpreter, "-c", _ASK, *NEEDED],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_PATIENCE,
        )
        version, missing = asked.stdout.splitlines()[:2]
        numbers = tuple(int(number) for number in version.split("."))
    except (OSError, ValueError, subprocess.SubprocessError):
        return "", ""  # it has something else to say, and says it when it is started
    if numbers < PYTHON:
        needed = ".".join(map(str, PYTHON))
        return (
            f"{interpreter} is Python {version}, holdfast needs {needed} or newer",
            f"use a python {needed} that has holdfast and torch",
        )
    if missing:
        return f"{interpreter} has no {missing.split()[0]}", "install holdfast in that environment"
    return "", ""


def _use_ours(command: ScriptCommand) -> str:
    """How the command is written for our own python; empty where that could not train either.

    Mostly ``holdfast`` was called by its path, and the environment that has torch is its own.
    """
    if any(importlib.util.find_spec(name) is None for name in NEEDED):
        return ""
    activate = os.path.join(sys.prefix, "bin", "activate")
    activated = f"activate its environment: source {activate}" if os.path.isfile(activate) else ""
    if command.launcher or command.call is None:
        return activated
    call = command.call
    given = command.words[command.words[0] == command.interpreter :]
    # Options of python need a python in front of them, and so does a script with another one's #!.
    short = len(given) < len(command.words) and _begins_call(given, call)
    words = given if short else (sys.executable, *given)
    end = words.index(call.target) + 1 if call.target in words else len(words)
    better = " ".join(shlex.join(words[:end]).split()) + " …" * (end < len(words))
    return " or ".join(filter(None, [f"write `holdfast run {better}`", activated]))


def _begins_call(words: Sequence[str], call: PythonCall) -> bool:
    """Whether what a python is called with begins with what it runs, without options."""
    return bool(words) and words[0] in (call.target, "-m", "-c")
