"""Events out of an uncompressed cache: in memory, or in files that are mapped into it.

Values are kept normalised in half precision with their masks, 24 kB an event. The cache is
filled when the files are opened, in one pass, and only if they, the normalisation or the
quantities have changed since.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset

from holdfast.training import Gathered, MappedTensors, TensorWriter

from ..geometry.layout import SENSORS
from ..settings import DataSettings, NormalizationSettings
from .batches import NORMALISED, inputs_of, packed, unpacked
from .event_files import EventFile
from .made_once import made_once, name_of, stamps

_BLOCK = 512  # events that are packed at once
_EVENT = 5 * SENSORS  # bytes
_VERSION = 1

Say = Callable[[str], None]


class CachedEvents(Dataset[Any]):
    """Events of a cache by number, in normalised or packed form."""

    def __init__(
        self,
        events: MappedTensors | Mapping[str, Tensor],
        normalization: NormalizationSettings | None,
        weights: Tensor | None = None,
    ) -> None:
        """Where events are.

        Args:
            events: mapped from disk, or in memory.
            normalization: unpacks events here; without it they stay packed, for the device.
            weights: of all events.
        """
        self._events, self._normalization, self._weights = events, normalization, weights

    def __len__(self) -> int:
        events = self._events
        return len(events) if isinstance(events, MappedTensors) else len(events["masks"])

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        if not -len(self) <= index < len(self):
            raise IndexError(f"event {index} of {len(self)} in a cache")
        return self.__getitems__([index % len(self)])[0]

    def __getitems__(self, indices: Sequence[int]) -> Gathered:
        """A whole batch at once."""
        which = torch.as_tensor(indices, dtype=torch.int64)
        if isinstance(self._events, MappedTensors):
            found: dict[str, Tensor] = self._events.__getitems__(indices).batch
        else:
            found = {name: rows.index_select(0, which) for name, rows in self._events.items()}
        if self._weights is not None:
            found["weight"] = self._weights.index_select(0, which)
        if self._normalization is not None:
            inputs = unpacked(found.pop("values"), found.pop("masks"), self._normalization)
            found |= dict(zip(NORMALISED, inputs, strict=True))
        return Gathered(found, len(which))


def cached_events(
    files: Sequence[EventFile],
    settings: DataSettings,
    normalization: NormalizationSettings,
    *,
    say: Say = print,
) -> CachedEvents:
    """The events of these files out of the cache that ``data.cache`` names, filled if need be."""
    unpacks = None if settings.device_transform else normalization
    given = [file.weights for file in files if file.weights is not None]
    weights = torch.cat(given) if given else None
    if settings.cache == "ram":
        blocks = _blocks(files, normalization, "memory", say)
        return CachedEvents(_in_memory(blocks, sum(map(len, files))), unpacks, weights)
    folder = Path(settings.cache_dir).expanduser()
    decides = (
        stamps(file.root.path for file in files),
        [(file.root.tree_name, file.root.branches, file.names) for file in files],
        dataclasses.asdict(normalization),
        dataclasses.asdict(settings.fiducial),
    )

    def make(part: Path) -> None:
        with TensorWriter(part) as writer:
            for block in _blocks(files, normalization, str(folder), say):
                writer.append(block)

    made = made_once(folder / name_of("events", _VERSION, *decides), make)
    return CachedEvents(MappedTensors(made, form="dict"), unpacks, weights)


def _blocks(
    files: Sequence[EventFile], normalization: NormalizationSettings, where: str, say: Say
) -> Iterator[dict[str, Tensor]]:
    """All events of these files, packed."""
    count, begin = sum(map(len, files)), time.monotonic()
    say(f"data: filling the cache in {where} with {count} events, {count * _EVENT / 1e9:.2f} GB")
    for file in files:
        for first in range(0, len(file), _BLOCK):
            found = file.__getitems__(range(first, min(first + _BLOCK, len(file)))).batch
            block = packed(inputs_of(found, normalization))
            left = {*NORMALISED, "time", "weight"}
            yield block | {name: rows for name, rows in found.items() if name not in left}
    say(f"data: the cache is filled, {count / max(time.monotonic() - begin, 1e-9):.0f} events/s")


def _in_memory(blocks: Iterator[dict[str, Tensor]], count: int) -> dict[str, Tensor]:
    """Blocks in memory that workers share."""
    held: dict[str, Tensor] = {}
    done = 0
    for block in blocks:
        for name, rows in block.items():
            if name not in held:
                held[name] = torch.empty((count, *rows.shape[1:]), dtype=rows.dtype).share_memory_()
            held[name][done : done + len(rows)] = rows
        done += len(block["masks"])
    return held
