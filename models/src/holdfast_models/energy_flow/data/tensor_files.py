"""Reads files of tensors without running anything that is in them."""

from __future__ import annotations

import ctypes
import mmap
import os
import re
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch

from holdfast import HoldfastError

SUFFIXES = (".npy", ".pt", ".pth", ".safetensors")
"""Files that are mapped into memory, not read; but for a torch file of before 1.6."""

_ZIP, _PICKLE = b"PK", b"\x80"
_CLASS = re.compile(r"GLOBAL (\S+)")  # in torch's error on a file that holds more than tensors


def read_tensors(path: str | os.PathLike[str]) -> Any:
    """What a ``.safetensors``, ``.npy`` or torch file holds, memory-mapped if the file allows it.

    Errors name the file and the next move. Those of torch and numpy are not passed on: they
    advise to load the objects in a file, which runs what its author wrote.
    """
    path = Path(path)
    if path.is_dir():
        raise HoldfastError(f"{path}: is a folder; give a file: {', '.join(SUFFIXES)}")
    try:
        with path.open("rb") as file:
            start = file.read(8)
    except OSError as error:
        raise HoldfastError(
            f"{path}: {error.strerror}; give a file that you can read: {', '.join(SUFFIXES)}"
        ) from None
    if not start:
        raise HoldfastError(f"{path}: is empty; write it again")
    if path.suffix == ".safetensors":
        return _safetensors(path)
    return _npy(path) if path.suffix == ".npy" else _torch(path, start)


def expect_shuffled_reads(x_NE: torch.Tensor) -> None:
    """Tell the system that rows of a mapped tensor are read in no order.

    It would read megabytes around each of them otherwise: of a set three times as large as memory
    130 instead of 5,000 pairs a second came from disk. Without effect on other tensors.
    """
    page = mmap.PAGESIZE
    start = x_NE.data_ptr() // page * page
    length = x_NE.data_ptr() + x_NE.nbytes - start
    # Advice only: where it is refused, reading is slower.
    ctypes.CDLL(None).madvise(
        ctypes.c_void_p(start), ctypes.c_size_t(length), ctypes.c_int(mmap.MADV_RANDOM)
    )


def _safetensors(path: Path) -> dict[str, torch.Tensor]:
    try:
        from safetensors.torch import load_file
    except ImportError:
        raise HoldfastError(
            f"{path}: reading it needs the package safetensors, which is not installed; "
            "pip install 'holdfast-models[text]'"
        ) from None
    try:
        return load_file(path)
    except Exception as error:  # whatever a broken file brings about in a foreign reader
        raise HoldfastError(
            f"{path}: no safetensors file, or cut short ({error}); write it again"
        ) from None


def _npy(path: Path) -> torch.Tensor:
    try:
        array = np.lib.format.open_memmap(path, mode="r")
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
            return torch.from_numpy(array)
    except Exception as error:  # whatever a broken file brings about in a foreign reader
        objects = "Python objects" in str(error)
        what = "holds Python objects" if objects else "no numpy file, or cut short"
        raise HoldfastError(
            f"{path}: {what}; write one float array of shape [rows, width] with numpy.save"
        ) from None


def _torch(path: Path, start: bytes) -> Any:
    again = "save a dict of tensors with torch.save or safetensors"
    if not start.startswith((_ZIP, _PICKLE)):
        raise HoldfastError(f"{path}: no torch file, it begins with {start!r}; {again}")
    try:
        # The older format is no archive, and is read whole.
        mapped = start.startswith(_ZIP)
        return torch.load(path, map_location="cpu", weights_only=True, mmap=mapped)
    except Exception as error:  # whatever a broken file brings about in a foreign reader
        named = _CLASS.search(str(error))
        what = f"holds {named[1]}, not only tensors" if named else "is damaged or cut short"
        raise HoldfastError(f"{path}: {what}; {again}") from None
