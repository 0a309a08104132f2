"""How a python is called: its options, and what it is to run."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePath

_NAME = re.compile(r"(python|pypy)[\d.]*[td]?")
# Options of one letter whose value is the rest of the word, or the next word.
_TAKES_VALUE = "WXQ"
_LONG_WITH_VALUE = "--check-hash-based-pycs"
_KEEP_OUT = "IES"


def is_python(word: str) -> bool:
    """Whether a word is the name of an interpreter, with or without its folder.

    >>> [is_python(word) for word in ("python", "env/bin/python3.11", "train.py", "ipython")]
    [True, True, False, False]
    """
    return _NAME.fullmatch(PurePath(word).name) is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class PythonCall:
    """What follows ``python`` on a command line."""

    kind: str
    """``script``, ``module``, ``code``, ``stdin``, or empty where nothing is named."""
    target: str = ""
    """The script, the name of the module, or the code."""
    options: tuple[str, ...] = ()
    """The words before it."""
    letters: frozenset[str] = frozenset()
    """The options among them that are one letter."""

    @classmethod
    def read(cls, words: Sequence[str]) -> PythonCall:
        """Read the words after ``python``, as python does.

        >>> PythonCall.read(["-uX", "dev", "-m", "pkg", "-S"]).kind
        'module'
        >>> call = PythonCall.read(["-IOO", "-Wignore", "train.py", "-E"])
        >>> call.target, sorted(call.letters)
        ('train.py', ['I', 'O'])
        """
        letters = set[str]()
        i = 0
        while i < len(words):
            word = words[i]
            if word == "-" or not word.startswith("-"):
                kind = "stdin" if word == "-" else "script"
                return cls._of(kind, word, words[:i], letters)
            i += 1
            if word.startswith("--"):
                i += word == _LONG_WITH_VALUE
                continue
            for place, letter in enumerate(word[1:], 2):
                if letter in "mc":
                    target = word[place:] or "".join(words[i : i + 1])
                    kind = "module" if letter == "m" else "code"
                    return cls._of(kind, target, words[: i - 1], letters)
                if letter in _TAKES_VALUE:
                    i += not word[place:]
                    break
                letters.add(letter)
        return cls._of("", "", words, letters)

    @classmethod
    def _of(cls, kind: str, target: str, before: Sequence[str], letters: set[str]) -> PythonCall:
        return cls(kind=kind, target=target, options=tuple(before), letters=frozenset(letters))

    @property
    def keeps_out(self) -> str:
        """The first option by which python ignores ``PYTHONPATH`` or loads no ``site``; or none."""
        return next((f"-{letter}" for letter in _KEEP_OUT if letter in self.letters), "")

    @property
    def script(self) -> str:
        """The script; empty where it is no file."""
        return self.target if self.kind == "script" else ""

    @property
    def name(self) -> str:
        """What a run of it is called."""
        if self.kind == "module":
            return self.target.replace(".", "_")
        return PurePath(self.script).name or self.kind or "python"


def inherited_options(words: Sequence[str]) -> list[str]:
    """Options of our own interpreter, which the script's interpreter gets too.

    Without ``-I``, ``-E`` and ``-S``: they would keep holdfast out.

    >>> inherited_options(["python", "-uE", "-X", "dev", "-m", "holdfast", "run", "-u"])
    ['-u', '-X', 'dev']
    """
    options: list[str] = []
    value = False
    for word in PythonCall.read(words[1:]).options:
        if value or word.startswith(("--", "-W", "-X")):
            options.append(word)
        elif letters := word[1:].translate({ord(letter): None for letter in _KEEP_OUT}):
            options.append(f"-{letters}")
        value = not value and (word in ("-W", "-X", _LONG_WITH_VALUE))
    return options
