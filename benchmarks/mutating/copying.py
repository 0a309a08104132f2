"""A copy of the repository's tracked files in which one text at a time is replaced and tested."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from .catalogue import Mutation

PACKAGES: Mapping[str, str] = {"holdfast": "src", "holdfast_models": "models/src"}
"""Where their sources lie."""

_LONGEST = 900  # seconds of the tests of one fault
_FAILED = re.compile(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", re.MULTILINE)
_NOTHING_FAILED, _SOME_FAILED = 0, 1  # exit codes of pytest


class MutationError(Exception):
    """A fault that cannot be put in, or tests that cannot tell."""


@dataclass(frozen=True)
class Outcome:
    """What became of one fault: the first test that failed; None: no test did."""

    mutation: Mutation
    caught_by: str | None


def _room(test: str) -> str:
    return test.split("/")[0]


def mutated(text: str, mutation: Mutation) -> str:
    """The text with the fault in it; an error unless the old text is there exactly once."""
    found = text.count(mutation.old)
    if found != 1:
        raise MutationError(
            f"{mutation.file}: {mutation.name!r} replaces a text that is there {found} times, not "
            "once; say in benchmarks/mutating/catalogue.py what stands there now"
        )
    return text.replace(mutation.old, mutation.new)


class Copy:
    """The tracked files as they are now, elsewhere.

    Args:
        root: of the repository.
        folder: where to, empty.
        packages: that are imported from the copy, and the folders they lie in.
    """

    def __init__(self, root: Path, folder: Path, packages: Mapping[str, str] = PACKAGES) -> None:
        self.folder, self._packages = folder, packages
        listed = subprocess.run(
            ["git", "ls-files", "-z"], cwd=root, capture_output=True, text=True, check=True
        )
        for name in filter(None, listed.stdout.split("\0")):
            if (root / name).is_file():
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(root / name, folder / name)
        self._check_imports()

    def outcome(self, mutation: Mutation) -> Outcome:
        """Put the fault in, run its tests until one fails, take it out again."""
        with self._fault(mutation):
            found = self.failing(mutation.tests, first=True)
        return Outcome(mutation, found[0] if found else None)

    def failing(self, tests: Iterable[str], *, first: bool = False) -> list[str]:
        """The default tests of these files that fail; with ``first`` the search ends at one.

        As ``make test`` does, tests of holdfast and of the models run apart: plugins differ.
        """
        found: list[str] = []
        for _, files in groupby(sorted(tests, key=_room), key=_room):
            found += self._pytest(list(files), first=first)
            if found and first:
                return found[:1]
        return found

    def _pytest(self, files: list[str], *, first: bool) -> list[str]:
        words = ["-m", "pytest", "-q", "-rfE", "--tb=no", "-p", "no:cacheprovider"]
        ended = self._python(*words, *(["-x"] if first else []), *files)
        if ended.returncode == _NOTHING_FAILED:
            return []
        failed = _FAILED.findall(ended.stdout)
        if ended.returncode != _SOME_FAILED or not failed:
            raise MutationError(
                f"pytest {' '.join(files)} ended with {ended.returncode} and told of no test; "
                f"the fault may break an import:\n{ended.stdout[-2000:]}{ended.stderr[-2000:]}"
            )
        return failed

    @contextlib.contextmanager
    def _fault(self, mutation: Mutation) -> Iterator[None]:
        path = self.folder / mutation.file
        before, times = path.read_text(encoding="utf-8"), path.stat()
        path.write_text(mutated(before, mutation), encoding="utf-8")
        try:
            yield
        finally:
            path.write_text(before, encoding="utf-8")
            # The time too: compiled sources are recognised by it.
            os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))

    def _check_imports(self) -> None:
        """The packages must come from the copy, or every fault would survive."""
        for name, source in self._packages.items():
            shown = self._python("-c", f"import {name}; print({name}.__file__)").stdout.strip()
            if not Path(shown).is_relative_to(self.folder / source):
                raise MutationError(f"{name} is not that of the copy, but {shown or 'not found'}")

    def _python(self, *words: str) -> subprocess.CompletedProcess[str]:
        path = os.pathsep.join(str(self.folder / one) for one in self._packages.values())
        given = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
        # The tests choose their plugins themselves, unless somebody has before.
        given.pop("HOLDFAST_PLUGINS", None)
        given.pop("PYTEST_ADDOPTS", None)
        try:
            return subprocess.run(
                [sys.executable, *words],
                cwd=self.folder, env=given, capture_output=True, text=True, timeout=_LONGEST,
                check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            raise MutationError(f"{' '.join(words[-3:])}: longer than {_LONGEST} s") from None
