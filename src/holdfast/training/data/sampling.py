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


class EpochBatches:
    """The batches of one rank, as lists of indices; a ``batch_sampler`` for a ``DataLoader``.

    Global batch ``k`` is ``order[k * batch:(k + 1) * batch]``, of which a rank takes every
    ``world``-th sample. While training every rank gives the same number of batches, or a
    collective would wait for ever: a last batch with fewer samples than ranks is left out.

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
    ) -> None:
        """What to share out, and how.

        Args:
            length: samples in the dataset.
            batch: samples in a batch over all ranks; a multiple of their number.
            place: which rank this is, of how many.
            shuffle: another order in every epoch; the order of the dataset otherwise.
            seed: with the epoch, decides the order.
            drop_last: leave out a last batch that is not full.
            every: each sample exactly once over all ranks, as a validation wants it. Nothing is
                left out, and ranks may give different numbers of batches.
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
        order = self._order(epoch) if self._shuffle else None
        for first in range(0, len(self) * self.batch, self.batch):
            last = min(first + self.batch, self.length)
            mine = slice(first + self._place.rank, last, self._place.world)
            yield list(range(self.length)[mine]) if order is None else order[mine].tolist()

    def _order(self, epoch: int) -> torch.Tensor:
        # Half the memory where it will do: a billion samples are 4 GB in every rank.
        dtype = torch.int32 if self.length < 2**31 else torch.int64
        order = generator(self._seed, epoch)
        return torch.randperm(self.length, generator=order, dtype=dtype, device="cpu")


def share(batch: int, world: int) -> int:
    """Samples of a global batch that each rank takes."""
    if batch < 1 or batch % world:
        near = max(world, round(batch / world) * world)
        raise SettingsError(
            f"data.batch is {batch}, which {world} ranks cannot share evenly; "
            f"it counts samples over all ranks, so set data.batch={near}"
        )
    return batch // world
