"""Takes containers of Python's own by their items; of long ones that have not changed, a digest."""

from __future__ import annotations

import collections
from collections.abc import Callable, Iterable
from typing import Any

from .baseline import Comparing
from .digests import items_digest
from .nodes import DICTS, KIND, SCALARS, Node, SeenObjects, Take, class_name, last_name
from .secrets import Secrets

_MANY, _SOME = 4096, 256
"""Items. A longer container is taken only if the source changes something of its name and it is not
what it was before the first step: until training begins data is appended to, too. After a pass,
which may be short, the smaller number counts."""


class Containers:
    """Takes the containers of one look.

    Args:
        changes: whether the source changes something of this name.
        comparing: with what was there before the first step.
        seen: what the look has met.
        secrets: what no checkpoint may hold.
        inside: this is no look between two passes.
    """

    def __init__(
        self,
        changes: Callable[[str], bool],
        comparing: Comparing,
        seen: SeenObjects,
        secrets: Secrets,
        *,
        inside: bool,
    ) -> None:
        self._secrets = secrets
        self._changes, self._comparing, self._seen = changes, comparing, seen
        self._most = _MANY if inside else _SOME

    def _large(self, value: Any, path: str) -> Node | None:
        """The node of a container of so many items that they are only compared; None if few."""
        if len(value) <= self._most:
            return None
        if self._changes(last_name(path)) and not self._comparing.container(value, path):
            return None
        name, digest = type(value).__name__, items_digest(value)
        return {KIND: "large", "n": len(value), "c": name, "h": digest}

    def take_list(self, value: Any, path: str, take: Take) -> Node:
        """A list, a set or a deque."""
        self._seen.note(value, path)
        large = self._large(value, path)
        if large is not None:
            return large
        node: Node = {KIND: type(value).__name__, "v": self._items(value, path, take)}
        if isinstance(value, collections.deque):
            node["m"] = value.maxlen
        return node

    def take_tuple(self, value: Any, path: str, take: Take) -> Node:
        """A tuple, or a named one."""
        large = self._large(value, path)
        if large is not None:
            return large
        node: Node = {KIND: "tuple", "v": self._items(value, path, take)}
        if hasattr(type(value), "_fields"):
            node["c"] = class_name(type(value))
        elif type(value) is not tuple:
            return self._comparing.held(value, path)
        return node

    def take_dict(self, value: Any, path: str, take: Take) -> Node:
        """A dict, or one of its relatives in ``collections``."""
        self._seen.note(value, path)
        large = self._large(value, path)
        if large is not None:
            return large
        node: Node = {KIND: "dict", "t": type(value).__name__, "v": self._pairs(value, path, take)}
        if isinstance(value, collections.defaultdict):
            factory = value.default_factory
            node["f"] = getattr(factory, "__name__", "") if factory in (int, float, list) else ""
        if type(value) is collections.OrderedDict and vars(value):
            # What `state_dict` knows of versions goes into every file that is made of it.
            node["a"] = take(dict(vars(value)), f"{path}.__dict__")
        return node

    def _pairs(self, values: Any, path: str, take: Take) -> list[Node]:
        # The rows of a table are thousands of these: no path is written for what needs none.
        if _plain(values) and _plain(values.values()):
            named = self._secrets.named
            return [
                [
                    named(key, "") if type(key) is str else key,
                    named(one, f"{key}") if type(one) is str else one,
                ]
                for key, one in values.items()
            ]
        pairs: list[Node] = []
        for number, (key, one) in enumerate(values.items()):
            if type(key) in SCALARS and type(key) is not str:
                pairs.append([key, take(one, f"{path}[{key!r}]")])
                continue
            where = f"{path}[key {number}]"
            saved = take(key, where)
            inner = f"{path}[{key!r}]" if saved is key else f"{path}[{number}]"
            pairs.append([saved, take(one, inner)])
        return pairs

    def _items(self, values: Any, path: str, take: Take) -> list[Node]:
        kinds = set(map(type, values))
        if not kinds <= SCALARS:
            return [take(one, f"{path}[{i}]") for i, one in enumerate(values)]
        if str not in kinds:
            return list(values)
        name = last_name(path)
        return [self._secrets.named(one, name) if type(one) is str else one for one in values]


def _plain(values: Iterable[Any]) -> bool:
    """Whether all of them are their own nodes."""
    return SCALARS.issuperset(map(type, values))


def _exactly(*kinds: type) -> Any:
    """What ``isinstance`` takes for these classes alone, none that is made from them."""

    class Exact(type):
        def __instancecheck__(cls, instance: Any) -> bool:
            return type(instance) in kinds

    return Exact("Exact", (), {})


EXACT_LISTS = _exactly(list, set, frozenset, collections.deque)
EXACT_DICTS = _exactly(*DICTS.values())
