"""Predictions as ``predictions_{task}.csv``, from which pictures can be drawn again."""

from __future__ import annotations

import csv
import os
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from torch import Tensor

from holdfast import HoldfastError

from ..evaluation.regression_metrics import QUANTITIES, as_columns
from .drawing import Floats

_IDS = ("run_id", "event_id")
_ALSO = ("true_energy", "true_u", "true_v", "true_w")  # what residuals are drawn along


def write_tables(
    folder: str | os.PathLike[str], rows: Mapping[str, Tensor | Floats], *, suffix: str = ""
) -> list[Path]:
    """Write one table for each task that has predictions; the files."""
    columns = as_columns(rows)
    files: list[Path] = []
    Path(folder).mkdir(parents=True, exist_ok=True)
    for task, names in QUANTITIES.items():
        if f"pred_{names[0]}" not in columns:
            continue
        own = [f"{side}_{name}" for name in names for side in ("pred", "true")]
        own += [f"pred_{name}_log_var" for name in names]
        header = [name for name in dict.fromkeys((*_IDS, *own, *_ALSO)) if name in columns]
        path = Path(folder) / f"predictions_{task}{suffix}.csv"
        whole = ["%d" if name in _IDS else "%.9g" for name in header]
        values = np.stack([columns[name] for name in header], axis=1)
        np.savetxt(path, values, whole, delimiter=",", header=",".join(header), comments="")
        files.append(path)
    return files


def read_tables(
    folder: str | os.PathLike[str], *, suffix: str = ""
) -> dict[str, dict[str, Floats]]:
    """The columns of each task's table.

    Raises:
        HoldfastError: there is no table, or one of them cannot be read.
    """
    found: dict[str, dict[str, Floats]] = {}
    for task in QUANTITIES:
        path = Path(folder) / f"predictions_{task}{suffix}.csv"
        if path.is_file():
            found[task] = _read(path)
    if not found:
        raise HoldfastError(
            f"no predictions_TASK{suffix}.csv in {folder}; give the folder of a run's pictures"
        )
    return found


def _read(path: Path) -> dict[str, Floats]:
    with path.open(newline="", encoding="utf-8") as file:
        header, *lines = csv.reader(file)
    try:
        values = np.array(lines, dtype=np.float64).reshape(-1, len(header))
    except ValueError as error:
        raise HoldfastError(f"{path} is no table of numbers: {error}; write it again") from error
    return dict(zip(header, values.T, strict=True))
