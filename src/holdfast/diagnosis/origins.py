"""Where the user's code made what it trains with: loaders, optimizers, the parts of a model.

Findings about ranks are about how a run was set up, not about what a step does: the line to change
is the one that made the loader or the optimizer. It is noted when that happens, for a microsecond.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Iterable, Iterator, Sequence
from types import FrameType
from typing import Any

from torch import Tensor, nn

from ..records.ranks import MadeAt
from ..source.assignments import attribute_of_class
from ..source.frames import user_line
from ..source.ownership import file_of, owner_of
from ..source.paths import from_here

Line = tuple[str, int]

# Parts of a model whose lines are looked up.
_PARTS = 64


class Origins:
    """The lines at which objects were made, as long as these live."""

    def __init__(self) -> None:
        self.loader = MadeAt()
        """Where the loader of the pass at work was made."""
        self._lines: weakref.WeakKeyDictionary[Any, Line] = weakref.WeakKeyDictionary()
        self._beginning: Line | None = None

    def made(self, thing: Any, frame: FrameType | None) -> None:
        """An object was made; ``frame`` leads to the line."""
        line = user_line(frame)
        if line is not None:
            with contextlib.suppress(TypeError):  # of a class without a hash
                self._lines.setdefault(thing, line)

    def of(self, thing: Any) -> MadeAt:
        """File and line of an object; nothing in it where they are not known."""
        with contextlib.suppress(TypeError):
            return _reported(self._lines.get(thing))
        return MadeAt()

    def pass_begins(self, loader: Any) -> None:
        """A loop over a loader is about to get its iterator."""
        with contextlib.suppress(TypeError):
            self._beginning = self._lines.get(loader)

    def pass_began(self, iterator: Any) -> None:
        """It has it; None where that failed."""
        line, self._beginning = self._beginning, None
        if line is not None and iterator is not None:
            with contextlib.suppress(TypeError):
                self._lines[iterator] = line

    def feeds(self, iterator: Any) -> None:
        """The training has got a batch of a pass that is new."""
        self.loader = self.of(iterator)


def parts_of(roots: Iterable[nn.Module], parameters: Sequence[Tensor]) -> list[MadeAt]:
    """For each parameter the line at which the class of its model makes the part it belongs to.

    Empty where none does: a model that is put together from parts of torch alone.
    """
    lines: dict[int, Line] = {}
    looked: dict[tuple[type, str], Line | None] = {}
    for root in roots:
        for name, parameter in root.named_parameters(remove_duplicate=False):
            for owner, attribute in _way(root, name):
                kind = type(owner)
                if len(looked) >= _PARTS or owner_of(kind) != "user":
                    continue
                if (kind, attribute) not in looked:
                    looked[kind, attribute] = _assigned(kind, attribute)
                if (line := looked[kind, attribute]) is not None:
                    lines[id(parameter)] = line
    return [_reported(lines.get(id(parameter))) for parameter in parameters]


def _way(root: nn.Module, name: str) -> Iterator[tuple[nn.Module, str]]:
    """The modules from a root down to a parameter, each with the attribute that leads on."""
    module: Any = root
    for part in name.split("."):
        yield module, part
        module = getattr(module, part, None)


def _assigned(kind: type, attribute: str) -> Line | None:
    """The line of ``self.attribute = …`` in a class or one that it inherits from."""
    for one in kind.__mro__:
        file = file_of(one) or ""
        own = owner_of(one) == "user" and file
        if own and (line := attribute_of_class(file, one.__name__, attribute)):
            return file, line
    return None


def _reported(line: Line | None) -> MadeAt:
    return MadeAt() if line is None else MadeAt(file=from_here(line[0]), line=line[1])
