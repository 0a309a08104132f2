"""A module of the script, as far as the tests of forged checkpoints need one: full of traps."""

from __future__ import annotations

import collections
import enum
import os
import types
from typing import Any, NamedTuple

from torch import nn

CALLS: list[str] = []
"""What has run that no value of a file may make run."""
system, FunctionType, namespace = os.system, types.FunctionType, types.SimpleNamespace


def trap(*about: Any) -> Any:
    CALLS.append(f"trap {about}")


class Meta(type):
    def __call__(cls, *about: Any) -> Any:
        CALLS.append("Meta.__call__")
        return super().__call__(*about)

    def __getattr__(cls, name: str) -> Any:
        CALLS.append(f"Meta.__getattr__ {name}")
        raise AttributeError(name)

    def __setattr__(cls, name: str, value: Any) -> None:
        CALLS.append(f"Meta.__setattr__ {name}")

    def __getitem__(cls, name: str) -> Any:
        CALLS.append(f"Meta.__getitem__ {name}")


class Trapped(metaclass=Meta):
    count = 0

    def __new__(cls, *about: Any) -> Trapped:
        CALLS.append("__new__")
        return object.__new__(cls)

    def __init__(self, *about: Any) -> None:
        CALLS.append("__init__")

    def __setattr__(self, name: str, value: Any) -> None:
        CALLS.append(f"__setattr__ {name}")

    def __getattr__(self, name: str) -> Any:
        CALLS.append(f"__getattr__ {name}")
        raise AttributeError(name)

    @property
    def reported(self) -> int:
        CALLS.append("reported")
        return 0

    @reported.setter
    def reported(self, value: int) -> None:
        CALLS.append("reported=")

    def method(self) -> None:
        CALLS.append("method")

    def __setstate__(self, state: Any) -> None:
        CALLS.append("__setstate__")


class Deleted:
    def __init__(self) -> None:
        self.path = ""

    def __del__(self) -> None:
        CALLS.append(f"__del__ {vars(self)}")


class Hashed:
    def __hash__(self) -> int:
        CALLS.append("__hash__")
        return 1

    def __eq__(self, other: object) -> bool:
        CALLS.append("__eq__")
        return True


class Items(list[Any]):
    def extend(self, values: Any) -> None:
        CALLS.append("extend")

    def clear(self) -> None:
        CALLS.append("clear")

    def __iter__(self) -> Any:
        CALLS.append("__iter__")
        return iter(())


class Pairs(dict[Any, Any]):
    def __setitem__(self, key: Any, value: Any) -> None:
        CALLS.append("__setitem__")

    def update(self, *about: Any, **more: Any) -> None:
        CALLS.append("update")


class Fields(NamedTuple):
    x: int
    y: int


class Checked(collections.namedtuple("Checked", "x y")):
    def __new__(cls, x: Any, y: Any) -> Checked:
        CALLS.append("Checked.__new__")
        return super().__new__(cls, x, y)


class Colour(enum.Enum):
    RED = 1

    @classmethod
    def _missing_(cls, value: object) -> Any:
        CALLS.append("_missing_")


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 2)
        self.rate = 0.1
        self.register_buffer("mean", None)
