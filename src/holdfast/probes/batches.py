"""Which batch was in the step: dataset indices, loader worker, fingerprint, bad values.

Indices are noted when the loader draws them from the sampler and joined to the batch when it
is handed out, so that a bad sample can be named. Only the batches around an incident are
recorded; all others leave a 24-bit fingerprint in the row.
"""

from __future__ import annotations

import dataclasses
import weakref
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

_DEPTH = 4
_SAMPLE = 16
_NAMED = 16
# Bad columns of a table that are named; more of them are no columns any more.
_COLUMNS = 3
# Batches of one step that are remembered, and those whose contents are held for a look.
_WINDOW = 64
HELD = 16
_INTEGERS = {int}


def tensors(batch: object, path: str = "", depth: int = 0) -> Iterator[tuple[str, Tensor]]:
    """Every tensor inside a batch with the path a user would write to reach it."""
    if isinstance(batch, Tensor):
        yield path or "batch", batch
    elif isinstance(batch, np.ndarray):
        if batch.dtype.kind == "f":
            yield path or "batch", torch.from_numpy(batch)
    elif depth >= _DEPTH or batch is None or isinstance(batch, str | bytes | int | float):
        return
    elif isinstance(batch, Mapping):
        for key, value in batch.items():
            yield from tensors(value, f"{path or 'batch'}[{key!r}]", depth + 1)
    elif isinstance(batch, list | tuple):
        for i, value in enumerate(batch):
            yield from tensors(value, f"{path or 'batch'}[{i}]", depth + 1)
    else:
        if dataclasses.is_dataclass(batch):
            fields = {f.name: getattr(batch, f.name, None) for f in dataclasses.fields(batch)}
        else:
            fields = getattr(batch, "__dict__", {})
        for key, value in fields.items():
            yield from tensors(value, f"{path or 'batch'}.{key}", depth + 1)


def fingerprint(batch: object, indices: object) -> int:
    """A 24-bit number that tells batches apart: from the indices, else from some values."""
    if isinstance(indices, list) and indices:
        head = repr(indices[:_SAMPLE]) + str(len(indices))
        return zlib.crc32(head.encode()) & 0xFFFFFF
    digest = 0
    for _, tensor in tensors(batch):
        digest = zlib.crc32(f"{tuple(tensor.shape)}{tensor.dtype}".encode(), digest)
        if tensor.device.type == "cpu" and tensor.layout is torch.strided and tensor.numel():
            flat = tensor.detach().reshape(-1) if tensor.is_contiguous() else None
            if flat is not None:
                some = flat[:: max(1, flat.numel() // _SAMPLE)][:_SAMPLE]
                digest = zlib.crc32(repr(some.tolist()).encode(), digest)
    return digest & 0xFFFFFF


def plain_index(index: Any) -> Any:
    """A dataset index in a form that can be compared and written down."""
    if isinstance(index, np.generic) or (isinstance(index, Tensor) and index.numel() == 1):
        return index.item()
    if isinstance(index, tuple):
        return tuple(plain_index(part) for part in index)
    return index if isinstance(index, int | str) else repr(index)[:200]


def plain_indices(drawn: Any) -> list[Any] | None:
    """The dataset indices of a draw; None where it is none, as those for a stream."""
    if isinstance(drawn, int):
        return [drawn]
    if not isinstance(drawn, list) or (drawn and drawn[0] is None):
        return None
    return list(map(plain_index, cast("list[Any]", drawn)))


def nonfinite(batch: object) -> list[tuple[str, list[int]]]:
    """The tensors of a batch that hold NaN or infinity, with the positions along dimension 0.

    Only those on the CPU are searched: looking into one on a device would wait for it.
    """
    found: list[tuple[str, list[int]]] = []
    for path, tensor in tensors(batch):
        if not tensor.is_cpu or not tensor.is_floating_point():
            continue
        if not tensor.numel() or tensor.is_sparse:
            continue
        finite = torch.isfinite(tensor.detach())
        if bool(finite.all()):
            continue
        bad = ~finite.reshape(tensor.shape[0], -1).all(1) if tensor.dim() else ~finite.reshape(1)
        found.append((path, bad.nonzero().flatten().tolist()))
    return found


def bad_columns(tensor: Tensor) -> list[int]:
    """The columns of a table that hold all of its non-finite values, if they are few."""
    if tensor.dim() != 2 or tensor.shape[1] < 2 * _COLUMNS or not tensor.is_floating_point():
        return []
    found = (~torch.isfinite(tensor.detach()).all(0)).nonzero().flatten().tolist()
    return found if len(found) <= _COLUMNS else []


@dataclasses.dataclass(slots=True)
class Batch:
    """One batch as it was handed to the loop."""

    content: Any
    indices: list[Any] | None
    worker: int
    mark: int | None
    """Its fingerprint; None while nobody has asked for it."""
    bad: Sequence[tuple[str, list[int]]] = ()
    columns: Mapping[str, list[int]] | None = None
    """By the path of a table: the columns that hold its bad values, once they were searched."""
    dataset: Callable[[], Any] | None = None
    """Gives what the indices are of, as long as it lives."""
    searched: bool = False
    """Whether ``bad`` is known."""

    @property
    def fingerprint(self) -> int:
        """A 24-bit number that tells batches apart."""
        if self.mark is None:
            self.mark = fingerprint(self.content, self.indices)
        return self.mark

    def search(self) -> int:
        """Search the content for non-finite values; returns how many tensors hold some."""
        if self.content is not None and not self.searched:
            self.searched = True
            self.bad = nonfinite(self.content)
            if self.bad:
                paths = dict(self.bad)
                named = {p: bad_columns(t) for p, t in tensors(self.content) if p in paths}
                self.columns = {path: columns for path, columns in named.items() if columns}
        return len(self.bad)

    def look(self) -> int:
        """The same, and let go of the content."""
        found = self.search()
        self.content = None
        return found

    def record(self) -> dict[str, Any]:
        """What is written to ``batches.rN.jsonl``."""
        return {
            "indices": None if self.indices is None else self.indices[:4096],
            "worker": self.worker,
            "fingerprint": self.fingerprint,
            "bad": [[path, rows[:_NAMED], self._samples(rows)[:_NAMED]] for path, rows in self.bad],
            "columns": self.columns or {},
        }

    def _samples(self, rows: list[int]) -> list[Any]:
        """Dataset indices of the bad rows, when the batch is one row per index."""
        if self.indices is None:
            return []
        return [self.indices[r] for r in rows if r < len(self.indices)]


def _dataset_of(iterator: Any) -> Callable[[], Any] | None:
    """The dataset a loader iterator reads, without keeping it alive."""
    dataset = getattr(iterator, "_dataset", None)
    if dataset is None:
        return None
    try:
        return weakref.ref(dataset)
    except TypeError:  # a list; its loader's iterator holds it long enough
        holder = weakref.ref(iterator)
        return lambda: getattr(holder(), "_dataset", None)


class LoaderBatches:
    """Joins the indices a loader iterator draws to the batches it hands out, and those to steps.

    Kept on the iterator itself, so that it lives and dies with it. A step may use several
    batches (accumulation), and a loop may hold batches it has fetched ahead of their use
    (accelerate, transformers): more are fetched before the first step than between later ones.
    """

    ATTRIBUTE = "_holdfast_ledger"

    def __init__(self, ahead: int | None = None) -> None:
        self.used: list[Batch] = []
        self.ahead = ahead
        self.fresh: list[Batch] = []
        """Those that came since the last step."""
        self._carried: list[Batch] = []
        self._first: int | None = None
        self._exhausted = False
        self.drawn: dict[int, Any] = {}
        """What the sampler gave for the tasks that were not handed out yet, by their number."""
        self._expected: tuple[int, int] | None = None
        self._owner = 0
        self._dataset: tuple[Callable[[], Any] | None] | None = None

    @classmethod
    def of(cls, iterator: Any, last: LoaderBatches | None = None) -> LoaderBatches:
        """The ledger of this iterator; a new one goes on from what the last has learned."""
        loader_batches = getattr(iterator, cls.ATTRIBUTE, None)
        if loader_batches is not None:
            return loader_batches
        if last is not None and last._owner == id(iterator):
            last._dataset = None
            return last
        loader_batches = cls(None if last is None else last.ahead)
        try:
            setattr(iterator, cls.ATTRIBUTE, loader_batches)
        except AttributeError:
            loader_batches._owner = id(iterator)  # a generator cannot carry it
        return loader_batches

    def expects(self, iterator: Any) -> None:
        """The loop asks for its next batch, which a worker makes: which one that will be."""
        self._expected = self.upcoming(iterator)

    @staticmethod
    def upcoming(iterator: Any) -> tuple[int, int]:
        """Task number and worker of the batch that will be handed out next."""
        number = getattr(iterator, "_rcvd_idx", None)
        if number is None:
            return 0, -1
        info = iterator._task_info.get(number)
        return number, info[0] if info else -1

    def handed_out(self, iterator: Any, content: object, keep: int) -> None:
        """A batch came; of those not used yet the contents of the last ``keep`` are held."""
        (number, worker), self._expected = self._expected or (0, -1), None
        received, indices = getattr(iterator, "_rcvd_idx", None), None
        # Loaders that deliver out of order, or skipped a dead worker, cannot be joined.
        if received is None or received == number + 1:
            indices = self.drawn.pop(number, None)
            # Mostly numbers, and of a large batch there are thousands.
            if type(indices) is int:
                indices = [indices]
            elif type(indices) is not list or not set(map(type, indices)) <= _INTEGERS:
                indices = plain_indices(indices)
        else:
            worker = -1
        # Of batches that were dropped on the way nobody will ask.
        while self.drawn and received is not None and next(iter(self.drawn)) < received:
            del self.drawn[next(iter(self.drawn))]
        self._exhausted = False
        # Indices are a list of our own: what is made of them can wait until somebody asks.
        mark = None if indices else fingerprint(content, indices)
        if self._dataset is None:
            self._dataset = (_dataset_of(iterator),)
        self.fresh.append(Batch(content, indices, worker, mark, dataset=self._dataset[0]))
        if len(self.fresh) > keep:
            for old in self.fresh[:-keep]:
                old.content = None
            del self.fresh[:-_WINDOW]

    def at_work(self) -> list[Batch]:
        """The batches the loop is working on, before their step has ended."""
        waiting = [*self._carried, *self.fresh]
        return waiting[: self._due(waiting)] or waiting[:1] or self.used

    def hand_out_again(self, batch: Batch, content: object) -> None:
        """A batch of before is given to the loop once more."""
        self.fresh.append(dataclasses.replace(batch, content=content, bad=(), searched=False))

    def ran_out(self) -> None:
        """The iterator is at its end: what was fetched ahead is used up next."""
        self._exhausted = True

    @property
    def spent(self) -> bool:
        """Whether the iterator is at its end and has left no batch for another step."""
        return self._exhausted and not (self.fresh or self._carried or self.ahead)

    def step(self) -> list[Batch]:
        """The batches of the step that is ending."""
        if not self.fresh:
            # A second optimizer on the same batch, or the last batches of a loop ahead.
            if self._exhausted and self._carried:
                self.used, self._carried = self._carried, []
            return self.used
        if self._first is None:
            self._first = len(self.fresh)
        elif self.ahead is None:
            self.ahead = max(0, self._first - len(self.fresh))
            self._carried = self.used[len(self.used) - self.ahead :]
        if not self._carried and not self.ahead:
            self.used, self.fresh = self.fresh, []
            return self.used
        waiting = [*self._carried, *self.fresh]
        cut = self._due(waiting)
        self.used, self._carried = (waiting[:cut] or waiting[:1]), waiting[cut:]
        self.fresh = []
        return self.used

    def _due(self, waiting: list[Batch]) -> int:
        """How many of the batches that wait are the step's; at the end none is left for another."""
        return len(waiting) - (0 if self._exhausted else self.ahead or 0)
