"""Which program a command line starts, and which python of it trains.

``holdfast run`` is put in front of the command that is used anyway: a script, a python with its
options, a launcher of ranks (torchrun, accelerate, deepspeed), a program that runs a command in an
environment (uv, poetry), an executable with a ``#!`` line. Everything else is refused with the
line to write.
"""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath

from ..boot import LAUNCHERS
from ..errors import UsageError
from .python_call import PythonCall, inherited_options, is_python

# The word that must follow.
_VERBS = {"accelerate": "launch", "uv": "run", "poetry": "run"}
# They start one python: what holds for a script alone holds for it.
_ONE_PROCESS = ("uv", "poetry")
_STARTS_RANKS = frozenset(
    word
    for name, modules in LAUNCHERS.items()
    if name not in _ONE_PROCESS
    for word in (name, *modules)
)
_SHEBANG_BYTES = 2048
# pip writes scripts with a long path to the interpreter as shell scripts that replace themselves.
_EXEC = b"'''exec' "


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptCommand:
    """What follows ``holdfast run``."""

    words: tuple[str, ...]
    """As they were given."""
    argv: tuple[str, ...]
    """What is started; the first word may be looked up on the path."""
    name: str
    """What a run of it is called."""
    call: PythonCall | None = None
    """How python is called, where that is known."""
    interpreter: str = ""
    """The python that is called, where that is known and it may be another one than ours."""
    launcher: str = ""
    """The launcher in front, if any."""

    @property
    def source(self) -> str:
        """The script; empty where it is no file or not known."""
        return self.call.script if self.call is not None else ""

    @property
    def several(self) -> bool:
        """Whether it may start several ranks."""
        if not self.launcher:
            return (
                self.call is not None
                and self.call.kind == "module"
                and (self.call.target in _STARTS_RANKS)
            )
        # Also one that uv starts; what follows another option than -m is the value of that option.
        before = ("", *self.words)
        return any(
            PurePath(word).name in _STARTS_RANKS and (previous == "-m" or previous[:1] != "-")
            for previous, word in zip(before, self.words, strict=False)
        )


def read_command(words: Sequence[str]) -> ScriptCommand:
    """Read a command line.

    Raises:
        UsageError: it is none that holdfast can enter; says what to write.
    """
    first = words[0]
    if first.startswith("-"):
        return _ours(words)
    if is_python(first) and not _is_folder(first):
        _find(first)
        return _python(words)
    name = PurePath(first).name
    if name in LAUNCHERS and not _is_folder(first):
        return _launcher(words, name)
    path = Path(first)
    if os.path.lexists(first):
        shebang = [] if path.suffix in (".py", ".pyw") else read_shebang(path)
        if os.access(path, os.X_OK) and (shebang or _is_binary(path)):
            return _executable(words, str(path), shebang)
        return _ours(words)
    found = shutil.which(first) if os.sep not in first and path.suffix != ".py" else None
    if found is None:
        import difflib

        near = difflib.get_close_matches(first, ["python", *LAUNCHERS], n=1)
        if near and not path.suffix:
            raise UsageError(f"no such script or program: {first}; did you mean {near[0]}?")
        return _ours(words)
    return _executable(words, found, read_shebang(Path(found)))


def read_shebang(path: Path) -> list[str]:
    """The words of the ``#!`` line of a file, without ``env``; empty where it has none.

    >>> import tempfile
    >>> file = Path(tempfile.mkdtemp(), "train")
    >>> file.write_text("#!/usr/bin/env -S python3 -u") and read_shebang(file)
    ['python3', '-u']
    """
    try:
        with open(path, "rb") as file:
            beginning = file.read(_SHEBANG_BYTES)
    except OSError:
        return []
    if not beginning.startswith(b"#!"):
        return []
    lines = beginning.splitlines()
    line = lines[0][2:]
    if len(lines) > 1 and lines[1].startswith(_EXEC):
        line = lines[1].removeprefix(_EXEC)
    try:
        words = shlex.split(line.decode(errors="replace"))
    except ValueError:
        return []
    if words and PurePath(words[0]).name == "env":
        words = [word for word in words[1:] if word != "-S" and "=" not in word]
    return [word for word in words if word not in ("$0", "$@")]


def _ours(words: Sequence[str]) -> ScriptCommand:
    """A script, a module, code or standard input: for the python that holdfast runs in."""
    call = PythonCall.read(words)
    argv = (sys.executable, *inherited_options(sys.orig_argv), *words)
    return ScriptCommand(words=tuple(words), argv=argv, name=call.name, call=call)


def _python(words: Sequence[str]) -> ScriptCommand:
    call = PythonCall.read(words[1:])
    return ScriptCommand(
        words=tuple(words), argv=tuple(words), name=call.name, call=call, interpreter=words[0]
    )


def _launcher(words: Sequence[str], name: str) -> ScriptCommand:
    verb = _VERBS.get(name, "")
    if verb and verb not in words[1:]:
        given = shlex.join(words[:2])
        raise UsageError(
            f"`{given}` trains nothing; write `holdfast run {name} {verb} …`, with the options and "
            "the script that you use anyway"
        )
    # The environment of holdfast may be used without being activated: its python was named in full.
    beside = shutil.which(words[0], path=os.path.dirname(sys.executable))
    program = words[0] if beside is None or shutil.which(words[0]) else beside
    found = _find(program)
    after = words[1:]
    # The python of uv or poetry itself is not the one that trains.
    one = name in _ONE_PROCESS
    shebang = [] if one else read_shebang(Path(found))
    return ScriptCommand(
        words=tuple(words),
        argv=(program, *after),
        name=_inner_name(after) or name,
        call=_inner_call(after) if one else None,
        interpreter=shebang[0] if shebang and is_python(shebang[0]) else "",
        launcher=name,
    )


def _executable(words: Sequence[str], path: str, shebang: Sequence[str]) -> ScriptCommand:
    if not shebang or not is_python(shebang[0]):
        raise UsageError(_what_to_write(words, shebang))
    if os.sep in shebang[0] and not os.path.exists(shebang[0]):
        raise UsageError(
            f"{path}: its first line names {shebang[0]}, which does not exist; "
            f"correct it, or write `holdfast run python {shlex.join([path, *words[1:]])}`"
        )
    program = path if os.sep in path else os.path.join(os.curdir, path)
    call = PythonCall.read([*shebang[1:], path])
    return ScriptCommand(
        words=tuple(words),
        argv=(program, *words[1:]),
        name=call.name,
        call=call,
        interpreter=shebang[0],
    )


def _what_to_write(words: Sequence[str], shebang: Sequence[str]) -> str:
    """What is wrong with a command that is neither python nor a launcher we know."""
    first = words[0]
    # A shell reads a script or a text, in which holdfast has to stand.
    shell = PurePath(first).name.endswith("sh")
    for i, word in enumerate(words[1:] if not shell else (), 1):
        name = PurePath(word).name
        if is_python(word) or name in LAUNCHERS or name.endswith(".py"):
            better = f"{shlex.join(words[:i])} holdfast run {shlex.join(words[i:])}"
            return f"{first} is not python; put holdfast behind it: `{better}`"
    if shebang:
        return (
            f"{first} is a script for {PurePath(shebang[0]).name}, not for python; write "
            "`holdfast run` in front of the python command inside it"
        )
    return (
        f"{first} is a program, not a Python script; write `holdfast run` in front of the python, "
        "torchrun, accelerate, deepspeed, uv or poetry command that it starts"
    )


def _find(word: str) -> str:
    """The file of a program, as a shell finds it."""
    found = shutil.which(word)
    if found is not None:
        return found
    if os.sep in word:
        why = "it is not executable" if os.path.exists(word) else "it does not exist"
        raise UsageError(f"cannot start {word}: {why}; check the path")
    advice = "write `holdfast run SCRIPT` for the python of holdfast" if is_python(word) else ""
    raise UsageError(
        f"no program {word!r} on the path; "
        + (advice or f"install {word}, or activate the environment that has it")
    )


def _inner_name(words: Sequence[str]) -> str:
    """What a launcher starts: the first script, or the module, among its words."""
    for i, word in enumerate(words):
        if word.endswith(".py"):
            return PurePath(word).name
        if word in ("-m", "--module") and i + 1 < len(words):
            return words[i + 1].replace(".", "_")
    return ""


def _inner_call(words: Sequence[str]) -> PythonCall | None:
    """How uv or poetry call python, as far as their words say it."""
    for i, word in enumerate(words):
        if is_python(word):
            return PythonCall.read(words[i + 1 :])
        if word.endswith(".py"):
            return PythonCall(kind="script", target=word)
    return None


def _is_binary(path: Path) -> bool:
    """Whether a file is a program of the machine."""
    try:
        with open(path, "rb") as file:
            return file.read(4) == b"\x7fELF"
    except OSError:
        return False


def _is_folder(word: str) -> bool:
    return os.sep in word and os.path.isdir(word)
