"""A run folder and a supply of records, for the tests of the run package."""

from __future__ import annotations

import os
import resource
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from holdfast.run import DECLARATION, Run, encode
from holdfast.run.ring import Record

COLUMNS = [["step", "<i8"], ["time", "<f8"], ["loss", "<f4"], ["skipped", "<f4"]]


class Supply:
    """Makes the ring records that a training of so many steps would put."""

    def __init__(self, table: str = "steps", number: int = 16, columns: Any = None) -> None:
        self.table, self.number = table, number
        self.columns = columns or COLUMNS
        self.dtype = np.dtype([tuple(column) for column in self.columns])

    def declaration(self, **extra: Any) -> Record:
        data = {"id": self.number, "table": self.table, "dtype": self.columns, **extra}
        return DECLARATION, encode(data)

    def array(self, first: int, count: int, bad: Any = ()) -> Any:
        rows = np.zeros(count, self.dtype)
        rows["step"] = np.arange(first, first + count)
        rows["time"] = rows["step"] * 0.25
        for name, form in self.columns[2:]:
            rows[name] = rows["step"] % 1000 if form.startswith("<f") else 0
        if "skipped" in (rows.dtype.names or ()):
            rows["skipped"] = np.isin(rows["step"], bad)
        return rows

    def rows(self, first: int, count: int, bad: Any = ()) -> list[Record]:
        data, size = self.array(first, count, bad).tobytes(), self.dtype.itemsize
        return [(self.number, data[at : at + size]) for at in range(0, len(data), size)]


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Syncing only matters when the power fails, which no test does; it costs most of the time."""
    monkeypatch.setattr(os, "fsync", lambda fd: None)


@pytest.fixture
def supply() -> Callable[..., Supply]:
    return Supply


@pytest.fixture
def steps() -> Supply:
    return Supply()


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run.create(tmp_path / "run", {"script": "train.py"})


@pytest.fixture
def full_disk() -> Callable[[int], AbstractContextManager[None]]:
    """Files cannot grow beyond so many bytes: the kernel writes a part, then refuses."""

    @contextmanager
    def limit(size: int) -> Iterator[None]:
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

    return limit
