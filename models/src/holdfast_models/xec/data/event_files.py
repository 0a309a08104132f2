"""The events of one file in batches: read by ranges, cut, normalised by threads."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor

from holdfast.training import Gathered

from ..settings import NormalizationSettings
from .normalization import normalise
from .root_files import RootEvents

_SLICE = 32  # events a thread normalises at once: their arrays fit into its cache
_NAMED = 10  # invalid values of a chunk that are named

logger = logging.getLogger("holdfast.xec")


class EventFile:
    """The events of a file that are used, as batches in raw or normalised form; a shard."""

    def __init__(
        self,
        root: RootEvents,
        names: Iterable[str],
        *,
        kept: Tensor | None = None,
        weights: Tensor | None = None,
        normalization: NormalizationSettings | None = None,
        log_invalid: bool = True,
    ) -> None:
        """What to read of a file.

        Args:
            root: the file.
            names: of the quantities.
            kept: the entries that are used, ascending; all by default.
            weights: of the entries that are used.
            normalization: normalises on reading; without it values stay raw.
            log_invalid: warn of non-finite photon counts.
        """
        self.root, self.names, self.kept, self.weights = root, tuple(names), kept, weights
        self.normalization, self.log_invalid = normalization, log_invalid
        edges = torch.tensor(root.boundaries)
        inside = edges if kept is None else torch.searchsorted(kept, edges)
        self.boundaries = tuple(inside.unique().tolist())
        self.seconds = {"read": 0.0, "transform": 0.0}
        """Spent in this process so far."""

    def __len__(self) -> int:
        return len(self.root) if self.kept is None else len(self.kept)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        if not -len(self) <= index < len(self):
            raise IndexError(f"event {index} of {len(self)} in {self.root.path}")
        index %= len(self)
        return self.__getitems__(range(index, index + 1))[0]

    def __getitems__(self, indices: range) -> Gathered:
        """A range of events, read and transformed at once."""
        begin = time.perf_counter()
        found = self._read(indices.start, indices.stop)
        if self.weights is not None:
            found["weight"] = self.weights[indices.start : indices.stop].clone()
        if self.log_invalid:
            self._tell_invalid(found)
        middle = time.perf_counter()
        if self.normalization is not None:
            _normalise(found, self.normalization, self.root.threads)
        self.seconds["read"] += middle - begin
        self.seconds["transform"] += time.perf_counter() - middle
        return Gathered(found, len(indices))

    def _read(self, start: int, stop: int) -> dict[str, Tensor]:
        if self.kept is None or start == stop:
            return self.root.read(start, stop, self.names)
        which = self.kept[start:stop]
        first, last = int(which[0]), int(which[-1]) + 1
        found = self.root.read(first, last, self.names)
        if last - first == stop - start:
            return found
        return {name: found.pop(name).index_select(0, which - first) for name in self.names}

    def _tell_invalid(self, found: dict[str, Tensor]) -> None:
        npho_BS = found["npho"]
        if bool(npho_BS.sum().isfinite()):  # one pass and no mask, where all is well
            return
        bad = (~npho_BS.isfinite()).nonzero()
        for event, sensor in bad[:_NAMED].tolist():
            logger.warning(
                "%s: run %d, event %d, sensor %d: npho is %s; taken as dead",
                self.root.path, found["run"][event], found["event"][event], sensor,
                npho_BS[event, sensor].item(),
            )  # fmt: skip
        if len(bad) > _NAMED:
            logger.warning(
                "%s: %d more non-finite photon counts among %d events; look with "
                "`holdfast xec check-data`",
                self.root.path, len(bad) - _NAMED, len(npho_BS),
            )  # fmt: skip


def _normalise(found: dict[str, Tensor], settings: NormalizationSettings, threads: int) -> None:
    """From raw to normalised form; photon counts in place, slices written where they stay."""
    npho_BS, time_BS = found["npho"], found.pop("time")
    found["x"] = x_BSC = torch.empty((*npho_BS.shape, 2))
    found["npho_valid"] = npho_valid_BS = torch.empty(npho_BS.shape, dtype=torch.bool)
    found["time_valid"] = time_valid_BS = torch.empty(npho_BS.shape, dtype=torch.bool)

    def transform(at: int) -> None:
        part = slice(at, at + _SLICE)
        inputs = normalise(npho_BS[part], time_BS[part], settings)
        into = x_BSC[part], npho_valid_BS[part], time_valid_BS[part], npho_BS[part]
        for target, made in zip(into, inputs, strict=True):
            target.copy_(made)

    starts = range(0, len(npho_BS), _SLICE)
    if threads == 1 or len(starts) == 1:
        for at in starts:
            transform(at)
        return
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(transform, starts))
