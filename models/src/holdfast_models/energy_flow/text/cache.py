"""What the text bridge has read and written before: two bounded caches and their file.

A key is a digest of everything the answer depends on, the weights of the model among it, so an
entry of another model or other settings is never taken; it goes when room is needed.

Shape suffixes: S cells W*H, N entries.
"""

from __future__ import annotations

import hashlib
import json
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, Generic, NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from holdfast import HoldfastError
from holdfast.training import channel

Value = TypeVar("Value")

_cache = channel("cache")
_KIND = "holdfast energy_flow text cache 1"
_DECIMALS = 4  # of a surface's energies, beyond which two count as the same


class Counts(NamedTuple):
    """How a cache was used."""

    hits: int
    misses: int
    evictions: int


class Cache(Generic[Value]):
    """The entries used last, at most ``size`` of them; any thread may ask and add.

    A copy starts empty: it belongs to a copy of the model, which will be another one.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self._entries: OrderedDict[str, Value] = OrderedDict()
        self._lock = threading.Lock()
        self._hits = self._misses = self._evictions = 0

    def __reduce__(self) -> tuple[type[Cache[Value]], tuple[int]]:
        return type(self), (self.size,)

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: str) -> Value | None:
        """What was kept under the key, which is now the last used; None: nothing is."""
        with self._lock:
            found = self._entries.get(key)
            if found is None:
                self._misses += 1
                return None
            self._hits += 1
            self._entries.move_to_end(key)
            return found

    def put(self, key: str, value: Value) -> None:
        """Keep a value; the one not used for longest goes where there is no room."""
        with self._lock:
            self._entries[key] = value
            self._entries.move_to_end(key)
            while len(self._entries) > self.size:
                self._entries.popitem(last=False)
                self._evictions += 1

    def answers(
        self, keys: Sequence[str], make: Callable[[list[int]], Iterable[Value]]
    ) -> list[Value]:
        """The values of these keys, in their order; those missing are made in one call and kept.

        Args:
            keys: of the questions, the same one several times if need be.
            make: given the places of the missing keys, each key once, makes their values.
        """
        found: dict[str, Value] = {}
        missing: dict[str, int] = {}
        for place, key in enumerate(keys):
            value = self.get(key)
            if value is not None:
                found[key] = value
            elif key not in missing:
                missing[key] = place
        if missing:
            for key, value in zip(missing, make(list(missing.values())), strict=True):
                found[key] = value
                self.put(key, value)
        return [found[key] for key in keys]

    def entries(self) -> list[tuple[str, Value]]:
        """Keys and values, those not used for longest first."""
        with self._lock:
            return list(self._entries.items())

    @property
    def counts(self) -> Counts:
        """Hits, misses and evictions so far."""
        with self._lock:
            return Counts(self._hits, self._misses, self._evictions)


def _used(name: str, cache: Cache[Any]) -> str:
    hits, misses, evictions = cache.counts
    return (
        f"text cache, {name}: {hits} hits, {misses} misses, {evictions} evictions; "
        f"{len(cache)} of {cache.size} kept"
    )


class TextCache:
    """Surfaces of texts and texts of surfaces, for inference.

    Args:
        size: entries in each direction.
        lattice: width, height and depth; a file of another lattice is refused.
    """

    def __init__(self, size: int, lattice: tuple[int, int, int]) -> None:
        self.lattice = lattice
        self.surfaces: Cache[Tensor] = Cache(size)
        self.texts: Cache[str] = Cache(size)

    def tell(self) -> None:
        """How it was used so far, on the channel ``cache``."""
        if _cache.on:
            _cache(_used, "surfaces", self.surfaces)
            _cache(_used, "texts", self.texts)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write everything to a safetensors file, whole or not at all."""
        surfaces, texts = self.surfaces.entries(), dict(self.texts.entries())
        cells = self.lattice[0] * self.lattice[1]
        stacked_NS = torch.stack([s for _, s in surfaces]) if surfaces else torch.empty(0, cells)
        record = {
            "kind": _KIND,
            "cells": str(cells),
            "lattice": _sizes(self.lattice),
            "surfaces": json.dumps([key for key, _ in surfaces]),
            "texts": json.dumps(texts),
        }
        package, target = _safetensors(), Path(path)
        part = target.with_name(f"{target.name}.{os.getpid()}.part")
        try:
            package.torch.save_file({"surfaces": stacked_NS}, part, record)
            os.replace(part, target)
        except (OSError, package.SafetensorError) as error:
            part.unlink(missing_ok=True)
            raise HoldfastError(
                f"text cache {path} cannot be written ({error}); give a place with room"
            ) from None

    def load(self, path: str | os.PathLike[str]) -> None:
        """Add what a file holds, in its order, within the bounds of this cache."""
        package = _safetensors()
        try:
            with package.safe_open(str(path), framework="pt") as file:
                record: dict[str, str] = file.metadata() or {}
                self._refuse_strange(path, record)
                surfaces_NS: Tensor = file.get_tensor("surfaces")
        except (OSError, package.SafetensorError) as error:
            raise HoldfastError(
                f"text cache {path} cannot be read ({error}); delete it, it is made anew"
            ) from None
        for key, surface_S in zip(json.loads(record["surfaces"]), surfaces_NS, strict=True):
            self.surfaces.put(key, surface_S.clone())  # a row would keep the whole file alive
        for key, text in json.loads(record["texts"]).items():
            self.texts.put(key, text)

    def _refuse_strange(self, path: str | os.PathLike[str], record: dict[str, str]) -> None:
        if record.get("kind") != _KIND:
            raise HoldfastError(
                f"{path} is no text cache ({record.get('kind')}); give another file"
            )
        cells = str(self.lattice[0] * self.lattice[1])
        if (record["cells"], record["lattice"]) != (cells, _sizes(self.lattice)):
            raise HoldfastError(
                f"text cache {path} holds surfaces of {record['cells']} cells "
                f"(lattice {record['lattice']}), the model has {cells} ({_sizes(self.lattice)}); "
                "give another file"
            )


def text_key(fingerprint: str, text: str) -> str:
    """The key of a text that is read by the model of this fingerprint."""
    return _digest(["text", fingerprint, text])


def surface_key(fingerprint: str, surface_S: Tensor, **settings: Any) -> str:
    """The key of a surface on the CPU that is put into words by this model with these settings."""
    # Adding zero makes -0.0 and 0.0 the same bytes.
    rounded_S = surface_S.detach().float().round(decimals=_DECIMALS) + 0.0
    said = json.dumps([fingerprint, list(surface_S.shape), settings], sort_keys=True)
    return _digest(["surface", said, rounded_S.contiguous().numpy().tobytes()])


def weights_digest(module: nn.Module) -> str:
    """A digest of every parameter and buffer of a module, names and shapes included."""
    parts: list[str | bytes] = []
    for name, tensor in module.state_dict().items():
        parts.append(f"{name} {tensor.dtype} {list(tensor.shape)}")
        parts.append(
            tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes()
        )
    return _digest(parts)


def _digest(parts: Iterable[str | bytes]) -> str:
    """One digest of several parts; where one ends is part of it."""
    found = hashlib.sha256()
    for part in parts:
        raw = part.encode("utf-8", "surrogatepass") if isinstance(part, str) else part
        found.update(len(raw).to_bytes(8, "little"))
        found.update(raw)
    return found.hexdigest()


def _sizes(lattice: tuple[int, int, int]) -> str:
    return "x".join(map(str, lattice))


def _safetensors() -> ModuleType:
    try:
        import safetensors.torch
    except ImportError:
        raise HoldfastError(
            "a text cache is kept in a safetensors file and that package is missing; "
            "install holdfast-models[text]"
        ) from None
    return safetensors
