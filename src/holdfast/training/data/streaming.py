"""Datasets that are read as a stream: larger than memory, shuffled as well as that allows.

What a rank and a worker read follows from the seed, the epoch and their numbers alone, so a
resumed run with as many workers reads the same samples again.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Iterator, Sequence
from itertools import accumulate, islice
from typing import Any, TypeVar

import torch
from torch.utils.data import IterableDataset, get_worker_info

from ...errors import UsageError
from ..device import Place
from ..seeding import generator, mixed
from .chunks import Piece, batches, cut, samples, windows
from .sampling import CHUNKS
from .shards import Shard, is_sized, opened, samples_of

T = TypeVar("T")


# Salts: the order of shards and that of samples must not follow from each other.
_SHARDS, _SAMPLES = 1, 2


class Streamed(IterableDataset[Any]):
    """Samples of many shards, one after the other, no two processes reading the same.

    Where the length of every shard is known, the samples are cut into equal ranges; otherwise
    whole shards are dealt out, or, where there are fewer shards than processes, every process
    reads all of them and keeps its part. At most ``buffer`` samples are held by each.

    With ``chunk``, shards of known length are cut into ranges of so many samples. The ranges of
    all shards come in another order in every epoch, each is read at once (``__getitems__`` of its
    shard, where there is one), and the samples of two of them are mixed. At most two are held by
    each process, so one large file feeds all of them. Where all shards have ``__getitems__``, a
    loader is given whole batches, each gathered at once.

    >>> list(Streamed([[1, 2], [3, 4, 5]], shuffle=False))
    [1, 2, 3, 4, 5]
    """

    def __init__(
        self,
        shards: Sequence[Shard],
        *,
        length: int | None = None,
        shuffle: bool | None = None,
        buffer: int = 1024,
        chunk: int | None = None,
        keys: Sequence[str] | None = None,
        form: str = "tuple",
    ) -> None:
        """What to read.

        Args:
            shards: each a folder of tensors, a dataset or list, anything else that can be
                iterated over again and again, or a function that opens one.
            length: samples of an epoch over all ranks; shards are read again where they hold
                fewer. All there are by default; that has to be known to train on several ranks.
            shuffle: shards in another order every epoch, and samples through the buffer; by
                default while training.
            buffer: samples among which the next one is drawn; more are mixed better.
            chunk: samples that are read at once; the setting ``data.chunk`` goes before it.
            keys: of folders of tensors, which; see ``MappedTensors``.
            form: of folders of tensors, "tuple" or "dict" samples.
        """
        self.shards = [opened(shard, keys, form) for shard in shards]
        """What is read, in its order."""
        if not self.shards:
            raise UsageError("a stream of no shards; give at least one")
        if length is not None and length < 1:
            raise UsageError(f"a stream of length {length}; give at least 1, or None for all")
        if buffer < 1:
            raise UsageError(f"a stream with a buffer of {buffer}; give at least 1")
        if chunk is not None and chunk < 1:
            raise UsageError(f"a stream in chunks of {chunk}; give at least 1")
        sizes = [len(shard) if is_sized(shard) else None for shard in self.shards]
        self._sizes = None if None in sizes else [size or 0 for size in sizes]
        self._asked = length
        self._shuffle = shuffle
        self._buffer = buffer
        self.chunk = chunk
        """Samples that are read at once; None: one."""
        self._place = Place(torch.device("cpu"))
        self._batch = 1
        self._whole = self._drop_last = False
        self._first = 0
        self._seed = 0
        self._train = True
        # Shared: workers that live from epoch to epoch hold a copy of this object, not this one.
        self._epoch = torch.zeros(1, dtype=torch.int64, device="cpu").share_memory_()

    def joined(
        self,
        place: Place,
        batch: int,
        *,
        seed: int,
        train: bool,
        chunk: int | None = None,
        shuffle: bool = True,
    ) -> Streamed:
        """This rank's part of it, in batches of ``batch``; ``make_loader`` asks for it.

        A stream of its own: the same one may be trained on and validated on side by side. What it
        was made with goes before ``shuffle``, the setting of a training.
        """
        own = copy.copy(self)
        if own._shuffle is None:
            own._shuffle = train and shuffle
        own.chunk = chunk or self.chunk
        own._place, own._batch, own._seed, own._train = place, batch, seed, train
        own._epoch = self._epoch.clone().share_memory_()
        own._check_share()
        return own

    @property
    def held(self) -> int | None:
        """Samples of all shards, no more than were asked for; None where one has no length."""
        if self._sizes is None:
            return None
        return min(sum(self._sizes), self._asked if self._asked is not None else sum(self._sizes))

    @property
    def gathers(self) -> bool:
        """Whether it can give whole batches: it reads chunks, and each shard a chunk at once."""
        at_once = all(hasattr(shard, "__getitems__") for shard in self.shards)
        return self.chunk is not None and self._sizes is not None and at_once

    def in_batches(self, *, drop_last: bool) -> Streamed:
        """The same stream, of batches that are made already: ``Gathered``, or lists of samples.

        Its length is the number of batches. With ``drop_last`` all of them are full.
        """
        own = copy.copy(self)
        own._whole, own._drop_last = True, drop_last
        return own

    def between(self, first: int, last: int) -> Streamed:
        """The samples from one number to another, in the order of the shards.

        Only they are read; every shard has to have a length.
        """
        own = copy.copy(self)
        own._first, own._asked, own._shuffle = self._first + first, last - first, False
        return own

    def _check_share(self) -> None:
        place, train, total = self._place, self._train, self._total()
        if train and total is None and place.world > 1:
            raise UsageError(
                f"{place.world} ranks cannot train alike on a stream of unknown length; "
                "give Streamed(length=), in samples per epoch over all ranks"
            )
        if train and total is not None and total < place.world:
            raise UsageError(
                f"a stream of {total} samples for {place.world} ranks; give it more, or fewer ranks"
            )

    @property
    def epoch(self) -> int:
        """The epoch whose order is read next."""
        return int(self._epoch)

    def set_epoch(self, epoch: int) -> None:
        """Another epoch, another order; workers that are alive know it when they begin again."""
        self._epoch.fill_(int(epoch))

    def first(self) -> Any:
        """The first sample of the first shard that has one; ``StopIteration`` where none has."""
        return next(sample for shard in self.shards for sample in samples_of(shard))

    def __len__(self) -> int:
        """Samples of this rank in an epoch; batches where it gives whole ones."""
        total = self._total()
        if total is None:
            raise TypeError("a Streamed of shards of unknown length has none; give it length=")
        first, last = self._range(total)
        return -(-(last - first) // self._batch) if self._whole else last - first

    def __iter__(self) -> Iterator[Any]:
        worker = get_worker_info()
        number, workers = (worker.id, worker.num_workers) if worker is not None else (0, 1)
        epoch, total = self.epoch, self._total()
        part = None
        if total is not None:
            first, last = self._range(total)
            count = -(-(last - first) // self._batch)
            # Whole batches to each worker, or each would end with a short one of its own.
            low, high = (count * n // workers * self._batch for n in (number, number + 1))
            part = range(first + low, min(first + high, last))
        if self._sizes is not None and part is not None:
            return self._ranged(part, epoch, number)
        return self._dealt(None if part is None else len(part), epoch, number, workers)

    def _total(self) -> int | None:
        """Samples of an epoch over all ranks."""
        held = None if self._sizes is None else sum(self._sizes)
        if self._asked is None or not held:
            return self._asked if held is None else held
        return self._asked if self._train else min(self._asked, held)

    def _range(self, total: int) -> tuple[int, int]:
        """First and last of this rank's samples; of equal lengths while training."""
        rank, world = self._place.rank, self._place.world
        share = total // world
        first = rank * share if self._train else rank * total // world
        last = first + share if self._train else (rank + 1) * total // world
        if self._drop_last:
            last -= (last - first) % self._batch
        return self._first + first, self._first + last

    def _ranged(self, part: range, epoch: int, worker: int) -> Iterator[Any]:
        """The samples of a range of the shards put end to end."""
        pieces = self._pieces_of(part, epoch)
        if self.chunk is None:
            positions = ((shard, index) for shard, *ends in pieces for index in range(*ends))
            where = self._mixed(positions, epoch, worker)
            return (self.shards[shard][index] for shard, index in where)
        salt = (_SAMPLES, epoch, self._place.rank, worker)
        drawn = generator(self._seed, *salt) if self._shuffles else None
        found = windows(self.shards, pieces, drawn)
        if self._whole:
            return batches(found, self._batch, drop_last=self._drop_last)
        return samples(found)

    def _pieces_of(self, part: range, epoch: int) -> Iterator[Piece]:
        """What lies in a range of the epoch; it may go through the shards several times."""
        assert self._sizes is not None
        held = sum(self._sizes)
        at = part.start
        while at < part.stop:
            again, inside = divmod(at, held)
            order = self._pieces(epoch, again)
            ends = accumulate(last - first for _, first, last in order)
            for (shard, first, last), end in zip(order, ends, strict=True):
                begin = end - (last - first)
                low, high = max(begin, inside), min(end, inside + part.stop - at)
                if low < high:
                    yield shard, first + low - begin, first + high - begin
            at = min(part.stop, (again + 1) * held)

    def _pieces(self, epoch: int, again: int) -> list[Piece]:
        """Every shard, or every chunk of every shard, in the order of an epoch."""
        assert self._sizes is not None
        pieces = [
            (number, first, last)
            for number, (shard, size) in enumerate(zip(self.shards, self._sizes, strict=True))
            for first, last in cut(size, self.chunk or size, getattr(shard, "boundaries", ()))
        ]
        if self._shuffles:
            random.Random(mixed(self._seed, _SHARDS, epoch, again)).shuffle(pieces)
        return pieces

    def _dealt(self, count: int | None, epoch: int, worker: int, workers: int) -> Iterator[Any]:
        """The samples of every so-many-th shard, ``count`` of them or all there are."""
        slot = self._place.rank * workers + worker
        slots = self._place.world * workers
        samples = self._passes(epoch, slot, slots, endless=count is not None and self._train)
        return self._mixed(islice(samples, count), epoch, worker)

    def _passes(self, epoch: int, slot: int, slots: int, *, endless: bool) -> Iterator[Any]:
        again = 0
        while not again or endless:
            order = self._order(epoch, again)
            own = order[slot::slots] if len(order) >= slots else order
            samples = (sample for shard in own for sample in samples_of(self.shards[shard]))
            empty = True
            for sample in samples if len(order) >= slots else islice(samples, slot, None, slots):
                empty = False
                yield sample
            if empty and endless:
                raise UsageError(
                    f"the shards of reader {slot} of {slots} hold no sample; "
                    "remove empty shards, or use fewer workers"
                )
            again += 1

    def _order(self, epoch: int, again: int) -> list[int]:
        order = list(range(len(self.shards)))
        if self._shuffles:
            random.Random(mixed(self._seed, _SHARDS, epoch, again)).shuffle(order)
        return order

    def _mixed(self, items: Iterator[T], epoch: int, worker: int) -> Iterator[T]:
        if not self._shuffles:
            return items
        rng = random.Random(mixed(self._seed, _SAMPLES, epoch, self._place.rank, worker))
        return _through(items, CHUNKS * self.chunk if self.chunk else self._buffer, rng)

    @property
    def _shuffles(self) -> bool:
        return self._train if self._shuffle is None else self._shuffle


def _through(items: Iterator[T], size: int, rng: random.Random) -> Iterator[T]:
    """Items in another order, of which at most ``size`` are held."""
    held = list(islice(items, size))
    for item in items:
        at = rng.randrange(size)
        yield held[at]
        held[at] = item
    rng.shuffle(held)
    yield from held
