"""The calls of a traceback: whose code each is, and the expression that it was at."""

from __future__ import annotations

import ast
import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from types import FrameType, TracebackType

from ...source.ownership import is_ours, kind_of
from ...source.statements import expression_at, statement_at


@dataclass(frozen=True, slots=True)
class TracebackEntry:
    """One entry of a traceback."""

    frame: FrameType
    line: int
    last: int
    """Offset of the instruction that it was at."""

    @property
    def file(self) -> str:
        """The file, as the module was loaded from it."""
        return self.frame.f_code.co_filename

    @property
    def function(self) -> str:
        """The name of the function."""
        return self.frame.f_code.co_name

    @property
    def is_users(self) -> bool:
        """Whether this is the user's own code."""
        return kind_of(self.file) == "user"

    def expression(self) -> ast.expr | None:
        """The expression that failed, or was waiting for the next call; None where unknown."""
        positions = self.frame.f_code.co_positions()
        found = next(itertools.islice(positions, self.last // 2, None), None)
        if found is None or found[0] is None or found[2] is None:
            return None
        return expression_at(self.file, found)

    def statement(self) -> ast.stmt | None:
        """The innermost statement around it."""
        found = statement_at(self.file, self.line)
        return found.node if found is not None else None


def calls(traceback: TracebackType | None) -> list[TracebackEntry]:
    """The entries of a traceback without our own, outermost first."""
    return [
        TracebackEntry(at.tb_frame, at.tb_lineno, at.tb_lasti)
        for at in _entries(traceback)
        if not is_ours(at.tb_frame.f_code.co_filename)
    ]


def chain(error: BaseException) -> Iterator[BaseException]:
    """The error, and those that led to it, as python would print them."""
    seen: set[int] = set()
    found: BaseException | None = error
    while found is not None and id(found) not in seen:
        seen.add(id(found))
        yield found
        hidden = found.__suppress_context__
        found = found.__cause__ or (None if hidden else found.__context__)


def hide_ours(error: BaseException) -> None:
    """Take our own calls out of the traceback of an error, and of those that led to it."""
    for each in chain(error):
        kept = [
            at for at in _entries(each.__traceback__) if not is_ours(at.tb_frame.f_code.co_filename)
        ]
        if not kept:
            continue
        for at, following in itertools.pairwise(kept):
            at.tb_next = following
        kept[-1].tb_next = None
        each.__traceback__ = kept[0]


def _entries(traceback: TracebackType | None) -> list[TracebackType]:
    found: list[TracebackType] = []
    while traceback is not None:
        found.append(traceback)
        traceback = traceback.tb_next
    return found
