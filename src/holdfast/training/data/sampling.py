"""Which samples every rank trains on, from the seed and the epoch alone.

One order per epoch, the same for any number of ranks: a run on two ranks sees the same global
batches as a run on one, and a resumed run the same as one that was never interrupted.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from ...errors import SettingsError
from ..device import Place
from ..seeding import generator

CHUNKS = 2
"""Chunks whose samples are mixed with each other."""


class EpochBatches:
    """The batches of one rank, as lists of indices; a ``batch_sampler`` for a ``DataLoader``.

    Global batch ``k`` is ``order[k * batch:(k + 1) * batch]``, of which a rank takes every
    ``world``-th sample. While training every rank gives the same number of batches, or a
    collective would wait for ever: a last batch with fewer samples than ranks is skipped.

    >>> from holdfast.training.device import Place
    >>> place = Place(torch.device("cpu"), rank=1, world=2)
    >>> list(EpochBatches(7, 4, place, shuffle=False, seed=0))
    [[1, 3], [5]]
    """

    def __init__(
        self,
        length: int,
        batch: int,
        place: Place,
        *,
        shuffle: bool,
        seed: int,
        drop_last: bool = False,
        every: bool = False,
        chunk: int | None = None,
    ) -> None:
        """What to share out, and how.

        Args:
            length: samples in the dataset.
            batch: samples in a batch over all ranks; a multiple of their number.
            place: which rank this is, of how many.
            shuffle: another order in every epoch; the order of the dataset otherwise.
            seed: with the epoch, decides the order.
            drop_last: skip a last batch that is not full.
            every: each sample exactly once over all ranks, as a validation wants it. Nothing is
                skipped, and ranks may give different numbers of batches.
            chunk: shuffle in chunks of so many samples that follow each other: chunks in another
                order, and samples among those of two chunks. So a dataset that is larger than
                memory is read a part at a time.
        """
        if length < 0:
            raise ValueError(f"a dataset of {length} samples; its length is at least 0")
        share(batch, place.world)
        self.length = length
        self.batch = batch
        self.epoch = 0
        self._place = place
        self._shuffle = shuffle
        self._seed = seed
        self._drop_last = drop_last
        self._every = every
        self._chunk = chunk

    def set_epoch(self, epoch: int) -> None:
        """The epoch whose order is given next; one that is under way keeps its own."""
        self.epoch = int(epoch)

    def __len__(self) -> int:
        full, tail = divmod(self.length, self.batch)
        if self._every:
            return full + (tail > self._place.rank)
        return full + (tail >= self._place.world and not self._drop_last)

    def __iter__(self) -> Iterator[list[int]]:
        return self._batches(self.epoch)

    def _batches(self, epoch: int) -> Iterator[list[int]]:
        if not self._shuffle:
            for first in range(0, len(self) * self.batch, self.batch):
                last = min(first + self.batch, self.length)
                own = slice(first + self._place.rank, last, self._place.world)
                yield list(range(self.length)[own])
            return
        order = self._order(epoch)
        held = next(order, torch.empty(0, device="cpu"))
        for _ in range(len(self)):
            while len(held) < self.batch and (more := next(order, None)) is not None:
                held = torch.cat((held, more))
            yield held[self._place.rank : self.batch : self._place.world].tolist()
            held = held[self.batch :]

    def _order(self, epoch: int) -> Iterator[torch.Tensor]:
        """Every index once, a part at a time: all of them, or those of two chunks."""
        # Half the memory where it will do: a billion samples are 4 GB in every rank.
        dtype = torch.int32 if self.length < 2**31 else torch.int64
        drawn = generator(self._seed, epoch)
        if self._chunk is None:
            yield torch.randperm(self.length, generator=drawn, dtype=dtype, device="cpu")
            return
        count = -(-self.length // self._chunk)
        order = torch.randperm(count, generator=drawn, device="cpu").tolist()
        for at in range(0, count, CHUNKS):
            firsts = [number * self._chunk for number in order[at : at + CHUNKS]]
            ends = [min(first + self._chunk, self.length) for first in firsts]
            ranges = zip(firsts, ends, strict=True)
            both = torch.cat([torch.arange(*one, dtype=dtype, device="cpu") for one in ranges])
            yield both[torch.randperm(len(both), generator=drawn, device="cpu")]


def share(batch: int, world: int) -> int:
    """Samples of a global batch that each rank takes."""
    if batch < 1 or batch % world:
        near = max(world, round(batch / world) * world)
        raise SettingsError(
            f"data.batch is {batch}, which {world} ranks cannot share evenly; "
            f"it counts samples over all ranks, so set data.batch={near}"
        )
    return batch // world
