"""Origin of a sample: the dataset below all wrappers, its index there, its file."""

from __future__ import annotations

import bisect
import os
from collections.abc import Sequence
from typing import Any, cast

import numpy as np
from torch.utils.data import ConcatDataset, Subset

# Attributes in which datasets keep one path, or one tuple that begins with it, for each sample.
_LISTS = (
    "samples",
    "imgs",
    "files",
    "paths",
    "filenames",
    "image_paths",
    "image_files",
    "file_paths",
    "file_list",
)
# Wrappers within wrappers that are followed.
_DEPTH = 16


def innermost(dataset: Any, index: Any) -> tuple[Any, Any]:
    """The dataset that holds a sample, behind ``Subset`` and ``ConcatDataset``, and its index."""
    for _ in range(_DEPTH):
        if isinstance(dataset, Subset) and isinstance(index, int):
            subset = cast("Subset[Any]", dataset)
            dataset, index = subset.dataset, _number(subset.indices[index])
        elif isinstance(dataset, ConcatDataset) and isinstance(index, int):
            joined = cast("ConcatDataset[Any]", dataset)
            index = index if index >= 0 else index + len(joined)
            at = bisect.bisect_right(joined.cumulative_sizes, index)
            index -= joined.cumulative_sizes[at - 1] if at else 0
            dataset = joined.datasets[at]
        else:
            break
    return dataset, index


def file_of(dataset: Any, index: Any) -> str:
    """The file of a sample where the dataset keeps a list of them; empty where it does not."""
    length = length_of(dataset)
    # From the instance alone: a property may load the whole list from somewhere.
    fields: dict[str, Any] = getattr(dataset, "__dict__", {})
    for name in _LISTS:
        listed = fields.get(name)
        if not isinstance(listed, list | tuple | np.ndarray) or len(listed) != length:
            continue
        if not isinstance(index, int) or not -length <= index < length:
            return ""
        entry = cast("Sequence[Any]", listed)[index]
        if isinstance(entry, list | tuple) and entry:
            entry = cast("Sequence[Any]", entry)[0]
        if isinstance(entry, str | os.PathLike):
            return str(cast("str", entry))
    return ""


def length_of(dataset: Any) -> int:
    """How many samples there are; -1 when the dataset does not say."""
    try:
        return len(dataset)
    except (TypeError, NotImplementedError, AttributeError):
        return -1


def _number(index: Any) -> Any:
    return index if isinstance(index, int) else int(index)
