"""One pass over a loader, and how to make it again up to the batch it was at.

A ``DataLoader`` cannot be asked to go on amid an epoch. But its order is made from random
numbers, and those can be put back: the epoch is begun again with the random state it began with,
and the batches that were used are left behind. What workers draw for their transforms comes out
the same, because they do the same work again.
"""

from __future__ import annotations

import itertools
import time
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeGuard

import torch
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset
from torch.utils.data.dataloader import _BaseDataLoaderIter

from ..errors import CheckpointError
from . import rng
from .object_state import plain, restored

Say = Callable[[str], object]

LASTING = "workers that last from epoch to epoch have random numbers of their own"

# Seconds between two lines about batches that are left behind.
_PATIENCE = 5.0
_SAMPLE = 16
# Draws that may have been added by batches that are skipped.
_RECENT = 16
# Draws of which the digests are made together.
_NOTED = 32


class LoaderPass:
    """One pass of a loop over a loader."""

    def __init__(self, loader: Iterable[Any], origin: Mapping[str, Any] | None = None) -> None:
        self.why = ""
        """Why this pass cannot be what it was; empty as far as is known."""
        self._origin = origin or _origin_if_known(loader)
        self.iterator: Iterator[Any] = iter(loader)
        self._loader = loader
        self._count = 0
        self._order = _Order.of(self.iterator, _generators_if_known(loader))

    @property
    def batches(self) -> int:
        """How many batches the loop has had."""
        # A batch that a rerun hands out twice is counted once by the iterator itself.
        return getattr(self.iterator, "_num_yielded", self._count)

    def handed_out(self) -> None:
        """The loop has one more batch."""
        self._count += 1

    def state(self) -> dict[str, Any]:
        """What ``again`` needs; what it begins with was taken when the pass began."""
        state: dict[str, Any] = {"batches": self.batches, "order": self._drawn}
        state["origin"] = self._origin
        if _keeps_its_place(self._loader):
            state["own"] = plain(self._loader.state_dict(), "loader", set())
        return state

    @classmethod
    def again(
        cls,
        loader: Iterable[Any],
        saved: Mapping[str, Any],
        *,
        fast: bool,
        say: Say,
        led: bool = False,
    ) -> LoaderPass:
        """Begin a pass as it began and leave behind the batches it had.

        The random state is then anywhere: whoever knows it puts it back. ``led``: workers that last
        have been led through the passes before.
        """
        origin, count = saved["origin"], int(saved["batches"])
        if _keeps_its_place(loader) and "own" in saved:
            loader.load_state_dict(restored(loader.state_dict(), saved["own"]))
            loader_pass = cls(loader, origin)
            loader_pass._count = count
            return loader_pass
        if origin is None:
            raise CheckpointError(
                f"how the pass over the {type(loader).__name__} began could not be saved; resume "
                "from a checkpoint taken between two epochs"
            )
        if origin["reused"]:
            wake(loader)
        return_to(loader, origin)
        if fast and isinstance(loader, DataLoader) and _is_mapped(loader) and loader.num_workers:
            loader_pass = cls(_from_batch(loader, count), origin)
            loader_pass._loader, loader_pass._count = loader, count
            loader_pass.iterator._num_yielded = count  # type: ignore[attr-defined]
            loader_pass.why = (
                "fast=True: the workers have not drawn the random numbers of the batches before"
            )
            return loader_pass
        loader_pass = cls(loader, origin)
        if first := saved.get("first"):
            put_generators_back(loader, first["generators"])
            rng.put_back(first["dice"])
        loader_pass._leave_behind(count, say)
        loader_pass.why = loader_pass.why or loader_pass._doubts(saved, led=led)
        return loader_pass

    @property
    def _drawn(self) -> int | None:
        return None if self._order is None else self._order.recent()[-1]

    def beginning(self) -> Beginning:
        """How it began, for whoever saves it later without this object."""
        made = Beginning.__new__(Beginning)
        made.origin, made._order = self._origin, self._order
        made._generators = _generators_if_known(self._loader)
        return made

    def _doubts(self, saved: Mapping[str, Any], *, led: bool) -> str:
        """What stands in the way of an exact repetition; empty if nothing does."""
        loader: Any = self._loader
        # Where a batch is skipped now, workers have been given one more than they had then.
        known = (None,) if self._order is None else self._order.recent()
        if saved["order"] not in known:
            return "the loader draws other samples than it did"
        if isinstance(loader, Sequence):
            return ""
        if not isinstance(self.iterator, _BaseDataLoaderIter):
            return f"a {type(loader).__name__} is no DataLoader"
        if saved["origin"]["reused"] and not led:
            return LASTING
        if not loader.in_order:
            return "a loader with in_order=False hands out batches as they come"
        stream = loader.dataset
        if isinstance(stream, IterableDataset) and (
            hasattr(stream, "state_dict") or hasattr(stream, "__next__")
        ):
            return f"a {type(stream).__name__} keeps its own place in the data"
        return ""

    def _leave_behind(self, count: int, say: Say) -> None:
        """Draw and drop."""
        take = self._taker()
        began = last_said = time.monotonic()
        after_first: Mapping[str, Any] | None = None
        for number in range(count):
            try:
                take()
            except StopIteration:
                self.why = f"the loader ended after {number} batches, {count} had been used"
                return
            self._count += 1
            if after_first is None:
                after_first = rng.state()
            now = time.monotonic()
            if now - last_said > _PATIENCE:
                last_said = now
                left = (count - number - 1) * (now - began) / (number + 1)
                say(f"resuming: {number + 1} of {count} batches left behind, {left:.0f} s to go")
        if after_first is not None and not rng.same(after_first, rng.state()):
            self.why = "the data draws from the random numbers of the loop itself"

    def _taker(self) -> Callable[[], object]:
        """How to get past one batch."""
        iterator: Any = self.iterator
        if not isinstance(iterator, _BaseDataLoaderIter):
            return lambda: next(iterator)
        if _is_mapped(self._loader) and not iterator._num_workers:
            take: Callable[[], object] = iterator._next_index
        else:
            # Past __next__, which informs the guard about a batch that nobody will train on.
            take = iterator._next_data

        def counted() -> None:
            take()
            iterator._num_yielded += 1

        return counted


class Beginning:
    """How a pass began, for ``LoaderPass.again``, without keeping its iterator alive.

    Made before the iterator is, which draws random numbers.
    """

    def __init__(self, loader: Iterable[Any]) -> None:
        self.origin: Mapping[str, Any] | None = _origin_if_known(loader)
        self._generators = _generators_if_known(loader)
        self._order: _Order | None = None

    def of(self, iterator: Any) -> None:
        """The iterator is there."""
        self._order = _Order.of(iterator, self._generators)

    def state(self, batches: int) -> dict[str, Any]:
        """What ``again`` needs, after this many batches."""
        drawn = None if self._order is None else self._order.recent()[-1]
        state = {"batches": batches, "order": drawn, "origin": self.origin}
        first = None if self._order is None else self._order.first
        return state if first is None else {**state, "first": first}

    def draws(self, saved: Mapping[str, Any]) -> bool:
        """Whether what was drawn so far is what was drawn then."""
        return self._order is None or saved["order"] in self._order.recent()


_INTEGERS = {int}


class _Order:
    """Stands before the sampler of an iterator and remembers what it has drawn."""

    def __init__(self, inner: Iterator[Any], own: list[torch.Generator]) -> None:
        self._digests = deque([0], maxlen=_RECENT)
        self._noted: list[list[Any]] = []
        self._inner = inner
        self._own: list[torch.Generator] | None = own
        self.first: dict[str, Any] | None = None
        """The random state at the first draw, which may come long after the pass began."""

    @classmethod
    def of(cls, iterator: Any, own: list[torch.Generator]) -> _Order | None:
        """The memory of an iterator over a map-style dataset; others draw no indices.

        Args:
            iterator: of a loader.
            own: generators that the loader and its samplers have for themselves.
        """
        mapped = isinstance(iterator, _BaseDataLoaderIter) and not isinstance(
            iterator._dataset, IterableDataset
        )
        if not mapped:
            return None
        order = iterator._sampler_iter = cls(iterator._sampler_iter, own)  # type: ignore[assignment]
        if iterator._num_workers:  # they were given their first batches when they began
            order._own = None
        return order

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        if self._own is not None:
            states = [generator.get_state() for generator in self._own]
            self.first, self._own = {"dice": rng.state(), "generators": states}, None
        drawn = next(self._inner)
        self._noted.append(drawn[:_SAMPLE] if isinstance(drawn, list) else [drawn])
        if len(self._noted) >= _NOTED:
            self.recent()
        return drawn

    def recent(self) -> deque[int]:
        """The digest after each of the last draws, the last one behind."""
        noted, self._noted = self._noted, []
        for some in noted:
            digest = self._digests[-1]
            if set(map(type, some)) <= _INTEGERS:
                digest = zlib.crc32(repr(some).encode(), digest)
            self._digests.append(digest)
        return self._digests


def _origin(loader: Any) -> dict[str, Any]:
    """What decides how an epoch begins."""
    return {
        "dice": rng.state(),
        "generators": generators(loader),
        "epochs": [place.epoch for place in _epoch_keepers(loader)],
        "reused": getattr(loader, "_iterator", None) is not None,
    }


def _origin_if_known(loader: Any) -> dict[str, Any] | None:
    """None for a loader whose parts cannot be asked: it must be iterated all the same."""
    try:
        return _origin(loader)
    except Exception:
        return None


def _generators_if_known(loader: Any) -> list[torch.Generator]:
    try:
        return _generators(loader)
    except Exception:
        return []


def return_to(loader: Any, origin: Mapping[str, Any]) -> None:
    """Put back the random state that a pass over a loader began with."""
    for keeper, epoch in zip(_epoch_keepers(loader), origin["epochs"], strict=False):
        keeper.set_epoch(epoch)
    put_generators_back(loader, origin["generators"])
    rng.put_back(origin["dice"])


def generators(loader: Any) -> list[Tensor]:
    """The state of the generators that a loader and its samplers have for themselves."""
    return [generator.get_state() for generator in _generators(loader)]


def put_generators_back(loader: Any, states: Iterable[Tensor]) -> None:
    """Put back what ``generators`` gave."""
    for generator, state in zip(_generators(loader), states, strict=False):
        generator.set_state(state.cpu())


def wake(loader: Any) -> bool:
    """Start workers that last, as they were started in an epoch before; True when there are any.

    Their later epochs do not draw the random number the first one does.
    """
    if not getattr(loader, "persistent_workers", False) or loader._iterator is not None:
        return False
    rolled = rng.state()
    iter(loader)
    rng.put_back(rolled)
    return True


def _parts(loader: Any) -> list[Any]:
    batches = getattr(loader, "batch_sampler", None)
    sampler, inner = getattr(loader, "sampler", None), getattr(batches, "sampler", None)
    found: dict[int, Any] = {}
    for part in (loader, sampler, batches, inner, getattr(loader, "dataset", None)):
        if part is not None:
            found.setdefault(id(part), part)
    return list(found.values())


def _generators(loader: Any) -> list[torch.Generator]:
    held = [getattr(part, "generator", None) for part in _parts(loader)]
    return list({id(g): g for g in held if isinstance(g, torch.Generator)}.values())


def _epoch_keepers(loader: Any) -> list[Any]:
    return [
        part
        for part in _parts(loader)
        if callable(getattr(part, "set_epoch", None))
        and isinstance(getattr(part, "epoch", 0), int)
        and hasattr(part, "epoch")
    ]


def _keeps_its_place(loader: Any) -> TypeGuard[Any]:
    """Whether a loader saves its own position, as stateful ones of other libraries do."""
    return all(callable(getattr(loader, name, None)) for name in ("state_dict", "load_state_dict"))


def _is_mapped(loader: Any) -> bool:
    return isinstance(loader, DataLoader) and not isinstance(loader.dataset, IterableDataset)


def _from_batch(loader: Any, count: int) -> Any:
    """The same loader with a sampler that leaves out its first draws."""
    ahead = object.__new__(type(loader))
    ahead.__dict__.update(loader.__dict__)
    which = "batch_sampler" if loader._auto_collation else "sampler"
    # Past the loader's own __setattr__, which forbids another sampler.
    ahead.__dict__[which] = _Ahead(loader._index_sampler, count)
    return ahead


class _Ahead:
    """A sampler that begins later."""

    def __init__(self, sampler: Any, count: int) -> None:
        self._sampler = sampler
        self._count = count

    def __len__(self) -> int:
        return len(self._sampler)

    def __iter__(self) -> Iterator[Any]:
        # Nothing is drawn before it is asked for: the loader draws a number of its own first.
        yield from itertools.islice(self._sampler, self._count, None)
