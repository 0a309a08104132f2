"""Reads files of tensors without running anything that is in them."""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

import torch

from holdfast import HoldfastError


def read_tensors(path: str | os.PathLike[str]) -> Any:
    """What a ``.safetensors`` or a torch file holds, memory-mapped where the file allows it."""
    path = Path(path)
    if not path.is_file():
        raise HoldfastError(f"{path}: no file; give a .safetensors or a torch file of tensors")
    return _safetensors(path) if path.suffix == ".safetensors" else _torch(path)


def _safetensors(path: Path) -> dict[str, torch.Tensor]:
    try:
        from safetensors import SafetensorError
        from safetensors.torch import load_file
    except ImportError:
        raise HoldfastError(
            f"{path}: reading it needs the package safetensors, which is not installed; "
            "pip install 'holdfast-models[text]'"
        ) from None
    try:
        return load_file(path)
    except (SafetensorError, OSError) as error:
        raise HoldfastError(f"{path}: no safetensors file ({error}); write it again") from None


def _torch(path: Path) -> Any:
    try:
        with path.open("rb") as file:
            mapped = file.read(2) == b"PK"  # the older format is no archive, and is read whole
        return torch.load(path, map_location="cpu", weights_only=True, mmap=mapped)
    except (pickle.UnpicklingError, RuntimeError, EOFError, ValueError, OSError) as error:
        first = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise HoldfastError(
            f"{path}: cannot be read as plain tensors ({first}); save a dict of tensors with "
            "torch.save or safetensors"
        ) from None
