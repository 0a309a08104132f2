"""Which line of a dataset or a collate function is slow, found by making a few samples again.

For loaders with workers, whose lines the main process does not see. Bound: half a second, or one
sample. The RNG state of Python, numpy and torch is restored afterwards.
"""

from __future__ import annotations

import contextlib
import copy
import random
import sys
from collections.abc import Iterator, Sequence
from itertools import islice
from time import perf_counter
from typing import Any

import numpy as np
import torch
from torch.utils.data import IterableDataset

from .profiles import LoaderLook, Timer

_SECONDS = 0.5
_SAMPLES = 64


@contextlib.contextmanager
def _random_states() -> Iterator[None]:
    python, numbers, tensors = random.getstate(), np.random.get_state(), torch.get_rng_state()
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(numbers)
        torch.set_rng_state(tensors)


def look(iterator: Any, indices: Sequence[Any], times: Timer) -> LoaderLook | None:
    """Make these samples of a loader's dataset again; None where that cannot be done."""
    dataset = getattr(iterator, "_dataset", None)
    if dataset is None:
        return None
    found = LoaderLook()
    with _random_states():
        began = perf_counter()
        traced = times.begin(sys._getframe())
        try:
            made = _make(dataset, indices, found, began)
            before = perf_counter()
            collate = getattr(iterator, "_collate_fn", None)
            if collate is not None and made and getattr(iterator, "_auto_collation", True):
                collate(made)
                found.collate = (perf_counter() - before) / len(made)
        finally:
            times.step(0.0)
            times.stop()
    if not found.samples:
        return None
    if traced:
        for line in times.profile().by_spot().values():
            line.seconds /= len(found.samples) + isinstance(dataset, IterableDataset)
            found.lines.append(line)
        found.lines.sort(key=lambda line: -line.seconds)
    return found


def _make(dataset: Any, indices: Sequence[Any], found: LoaderLook, began: float) -> list[Any]:
    made: list[Any] = []
    samples: Iterator[tuple[Any, Any]]
    if isinstance(dataset, IterableDataset):
        samples = ((None, s) for s in islice(iter(copy.copy(dataset)), _SAMPLES))
    else:
        samples = ((i, dataset[i]) for i in indices[:_SAMPLES])
    while True:
        before = perf_counter()
        taken = next(samples, None)
        if taken is None:
            break
        # The first one of a stream also opens it.
        if made or not isinstance(dataset, IterableDataset):
            found.samples.append((taken[0], perf_counter() - before))
        made.append(taken[1])
        if perf_counter() - began > _SECONDS:
            break
    return made


def workers_of(iterator: Any) -> int:
    """How many workers a loader has."""
    return int(getattr(iterator, "_num_workers", 0) or 0)


def batch_of(iterator: Any) -> int:
    """Samples that it puts into a batch; 1 where it does not say."""
    sampler = getattr(iterator, "_index_sampler", None)
    return int(getattr(sampler, "batch_size", 1) or 1)
