"""One try and one row of the table."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import TypeVar

T = TypeVar("T")


@dataclass(frozen=True)
class Try:
    """What became of one try: nothing to say when it was survived.

    ``lost`` says what is gone: the run, a state, rows. ``silent`` says what went wrong without an
    event, a finding or a line that told of it.
    """

    what: str
    lost: str = ""
    silent: str = ""


@dataclass
class Score:
    """All tries of one drill; ``means`` says in one line what counts."""

    name: str
    means: str
    tries: list[Try] = field(default_factory=list[Try])
    notes: list[str] = field(default_factory=list[str])

    @property
    def lost(self) -> list[Try]:
        return [one for one in self.tries if one.lost]

    @property
    def silent(self) -> list[Try]:
        return [one for one in self.tries if one.silent]

    @property
    def survived(self) -> int:
        return sum(not (one.lost or one.silent) for one in self.tries)

    def problems(self) -> list[str]:
        """One line for each try that was not survived."""
        reported: list[str] = []
        for one in self.tries:
            what = [f"lost: {one.lost}"] * bool(one.lost)
            what += [f"silent: {one.silent}"] * bool(one.silent)
            reported += [f"{self.name}: {one.what}: {'; '.join(what)}"] * bool(what)
        return reported


Progress = Callable[[str, int, int], None]


def quiet(name: str, done: int, total: int) -> None:
    """Show nothing."""


def counter(name: str, done: int, total: int) -> None:
    """``kills 17/200`` in place on a terminal, the last one elsewhere too."""
    if sys.stderr.isatty():
        print(f"\r{name} {done}/{total} ", end="\n" if done == total else "", file=sys.stderr)
    elif done == total:
        print(f"{name} {done}/{total}", file=sys.stderr)
    sys.stderr.flush()


def counted(name: str, things: Iterable[T], show: Progress) -> Iterator[T]:
    """Each thing, shown when it is over."""
    everything = list(things)
    for number, thing in enumerate(everything, 1):
        yield thing
        show(name, number, len(everything))
