"""Datasets of plain tensors on disk, mapped into memory: no loading, no copy per process.

A folder holds one ``.bin`` file of raw numbers per tensor and ``tensors.json`` that describes
them. The description is written last: a folder whose writing was cut short has none.
"""

from __future__ import annotations

import json
import math
import mmap
import os
import re
import sys
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, Literal, Self

import torch
from torch import Tensor
from torch.utils.data import Dataset

from ...errors import UsageError
from .gathered import Gathered, select

HEADER = "tensors.json"
PARTIAL = "unfinished.json"
"""Describes what of a folder that is still written is safe; another writer may go on from it."""
_FORMAT = "holdfast tensors 1"
_KEY = re.compile(r"\w[\w.-]*")
_DTYPES = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (
        torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float16,
        torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.complex128,
    )
}  # fmt: skip


def write_tensors(
    folder: str | os.PathLike[str], tensors: Mapping[str, Any], *, overwrite: bool = False
) -> None:
    """Write tensors of equal length; ``TensorWriter`` for more than fits into memory."""
    with TensorWriter(folder, overwrite=overwrite) as writer:
        writer.append(tensors)


class TensorWriter:
    """Writes a folder of tensors chunk by chunk; nothing of it is valid before ``close``.

    with TensorWriter("data/train") as writer:
        for x, y in chunks:
            writer.append({"x": x, "y": y})
    """

    def __init__(
        self, folder: str | os.PathLike[str], *, overwrite: bool = False, resume: bool = False
    ) -> None:
        """Where to write.

        Args:
            folder: made where it is not there.
            overwrite: replace what it holds.
            resume: go on after what was last kept by a writer that was interrupted.
        """
        self.folder = Path(folder)
        self.length = 0
        """Samples written so far."""
        self.noted: dict[str, Any] = {}
        """Plain values that are kept beside the tensors."""
        self._kinds: dict[str, tuple[torch.dtype, tuple[int, ...]]] = {}
        self._files: dict[str, BinaryIO] = {}
        header = self.folder / HEADER
        if header.exists() and not overwrite:
            raise UsageError(
                f"{self.folder}: already holds tensors; write elsewhere, or pass overwrite=True"
            )
        self.folder.mkdir(parents=True, exist_ok=True)
        header.unlink(missing_ok=True)
        if resume and not overwrite and (self.folder / PARTIAL).exists():
            self._go_on()
        else:
            (self.folder / PARTIAL).unlink(missing_ok=True)

    def append(self, chunk: Mapping[str, Any]) -> None:
        """Add samples: tensors, arrays or lists by name, all of the same length."""
        given = {key: torch.as_tensor(value, device="cpu").detach() for key, value in chunk.items()}
        kinds = {key: (tensor.dtype, tuple(tensor.shape[1:])) for key, tensor in given.items()}
        lengths = {key: len(tensor) if tensor.ndim else None for key, tensor in given.items()}
        if len(set(lengths.values())) != 1 or None in lengths.values():
            shown = ", ".join(f"{key} {length}" for key, length in lengths.items()) or "nothing"
            raise UsageError(f"{self.folder}: a chunk of unequal lengths ({shown}); cut it alike")
        if not self._kinds:
            self._begin(kinds)
        elif kinds != self._kinds:
            raise UsageError(
                f"{self.folder}: a chunk of {_shown(kinds)} after {_shown(self._kinds)}; "
                "every chunk has the same names, dtypes and shapes"
            )
        for key, tensor in given.items():
            raw = tensor.contiguous().reshape(-1).view(torch.uint8)
            self._files[key].write(raw.numpy().data)
        self.length += next(iter(lengths.values())) or 0

    def keep(self) -> None:
        """Make what was written so far safe: ``resume`` goes on from here."""
        if self._kinds:
            self._describe(PARTIAL)

    def close(self) -> None:
        """Write the description; from now on the folder can be read."""
        if not self._kinds:
            raise UsageError(f"{self.folder}: nothing was written; append at least one chunk")
        self._describe(HEADER)
        self._close_files()
        (self.folder / PARTIAL).unlink(missing_ok=True)

    def stop(self) -> None:
        """Close the files and leave the folder unfinished."""
        self._close_files()

    def _describe(self, name: str) -> None:
        for file in self._files.values():
            file.flush()
            os.fsync(file.fileno())
        described = {
            key: {"dtype": str(dtype).removeprefix("torch."), "shape": list(shape)}
            for key, (dtype, shape) in self._kinds.items()
        }
        header = {"format": _FORMAT, "byteorder": sys.byteorder, "length": self.length}
        noted = {"noted": self.noted} if self.noted else {}
        part = self.folder / f"{name}.part"
        with part.open("w", encoding="utf-8") as file:
            json.dump({**header, "tensors": described, **noted}, file, indent=1)
            file.flush()
            os.fsync(file.fileno())
        part.replace(self.folder / name)

    def _go_on(self) -> None:
        """Open what was kept; what came after it is cut off."""
        self.length, self._kinds = _read_header(self.folder, PARTIAL)
        known = json.loads((self.folder / PARTIAL).read_text(encoding="utf-8"))
        self.noted = dict(known.get("noted", {}))
        for key, (dtype, shape) in self._kinds.items():
            path = self.folder / f"{key}.bin"
            size = self.length * math.prod(shape) * dtype.itemsize
            if not path.exists() or path.stat().st_size < size:
                self._close_files()
                raise UsageError(f"{path}: is shorter than {PARTIAL} says; write the folder again")
            file = self._files[key] = path.open("r+b")
            file.truncate(size)
            file.seek(size)

    def _begin(self, kinds: Mapping[str, tuple[torch.dtype, tuple[int, ...]]]) -> None:
        for key, (dtype, _) in kinds.items():
            if not _KEY.fullmatch(key):
                raise UsageError(
                    f"{self.folder}: {key!r} cannot name a file; use letters, digits and _"
                )
            if dtype not in _DTYPES.values():
                raise UsageError(
                    f"{self.folder}: {key} is {dtype}; use one of {', '.join(_DTYPES)}"
                )
        self._kinds = dict(kinds)
        for key in kinds:
            self._files[key] = (self.folder / f"{key}.bin").open("wb")

    def _close_files(self) -> None:
        while self._files:
            self._files.popitem()[1].close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *exception: object) -> None:
        if kind is None:
            self.close()
        else:
            self.stop()


class MappedTensors(Dataset[Any]):
    """A folder of tensors as a dataset; a sample is a tuple, or a dict, of their rows.

    Files are mapped when a process first reads from them: handing the dataset to a worker costs
    nothing, however large it is. Rows are copies: changing one changes nothing on disk.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        keys: Sequence[str] | None = None,
        *,
        form: Literal["tuple", "dict"] = "tuple",
        kept: bool = False,
    ) -> None:
        """Open a folder; everything but the numbers is checked now.

        Args:
            folder: what ``write_tensors`` wrote.
            keys: which tensors, in which order; all by default, as they were written.
            form: what a sample is.
            kept: of a folder whose writer has stopped behind its last ``keep``, what is there.
        """
        self.folder = Path(folder)
        self.form = form
        self._length, kinds = _read_header(self.folder, PARTIAL if kept else HEADER)
        missing = [key for key in keys or () if key not in kinds]
        if missing:
            raise UsageError(
                f"{self.folder}: no tensor {missing[0]!r}; there are {', '.join(kinds)}"
            )
        self.kinds = {key: kinds[key] for key in (kinds if keys is None else keys)}
        """Dtype and shape of a sample of every tensor."""
        for key in self.kinds:
            self._check_file(key)
        self._maps: dict[str, Tensor] = {}

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> Any:
        if not -self._length <= index < self._length:
            raise IndexError(f"sample {index} of {self._length} in {self.folder}")
        return self._formed({key: self.mapped(key)[index].clone() for key in self.kinds})

    def __getitems__(self, indices: Sequence[int]) -> Gathered:
        """A whole batch at once; what a ``DataLoader`` asks for."""
        which = torch.as_tensor(indices, dtype=torch.int64, device="cpu")
        rows = {key: select(self.mapped(key), which) for key in self.kinds}
        return Gathered(self._formed(rows), len(which))

    def mapped(self, key: str) -> Tensor:
        """One tensor, mapped: only for reading, writing to it ends the process."""
        found = self._maps.get(key)
        if found is None:
            found = self._maps[key] = self._map(key)
        return found

    def _map(self, key: str) -> Tensor:
        dtype, shape = self.kinds[key]
        size = self._check_file(key)
        if not size:  # an empty file cannot be mapped
            return torch.empty((self._length, *shape), dtype=dtype, device="cpu")
        # Read-only and shared: private pages would count against the memory of the machine.
        with (self.folder / f"{key}.bin").open("rb") as file:
            pages = mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="The given buffer is not writable")
            flat = torch.frombuffer(pages, dtype=dtype)
        return flat.view(self._length, *shape)

    def _check_file(self, key: str) -> int:
        dtype, shape = self.kinds[key]
        path = self.folder / f"{key}.bin"
        size = self._length * math.prod(shape) * dtype.itemsize
        try:
            found = path.stat().st_size
        except OSError as error:
            raise UsageError(f"{path}: {error.strerror}; write the folder again") from None
        if found != size:
            raise UsageError(
                f"{path}: has {found} bytes, {HEADER} says {size}; "
                "it is torn, write the folder again"
            )
        return size

    def _formed(self, rows: dict[str, Tensor]) -> Any:
        return rows if self.form == "dict" else tuple(rows.values())

    def __getstate__(self) -> dict[str, Any]:
        # A map means nothing to another process, and pickled it would be all of the data.
        return {**self.__dict__, "_maps": {}}


def _shown(kinds: Mapping[str, tuple[torch.dtype, tuple[int, ...]]]) -> str:
    named = (f"{key} {str(d).removeprefix('torch.')}{list(s)}" for key, (d, s) in kinds.items())
    return ", ".join(named)


def _read_header(
    folder: Path, name: str = HEADER
) -> tuple[int, dict[str, tuple[torch.dtype, tuple[int, ...]]]]:
    path = folder / name
    try:
        header = json.loads(path.read_text(encoding="utf-8"))
        if header["format"] != _FORMAT or header["byteorder"] != sys.byteorder:
            raise ValueError(f"{header['format']!r}, {header['byteorder']}-endian")
        kinds = {
            key: (_DTYPES[kind["dtype"]], _whole(*kind["shape"]))
            for key, kind in header["tensors"].items()
            if _KEY.fullmatch(key)
        }
        (length,) = _whole(header["length"])
    except OSError as error:
        next_move = "write it with write_tensors" if not folder.exists() else "write it again"
        raise UsageError(f"{path}: {error.strerror}, so {folder} is no complete folder of tensors; "
                         f"{next_move}") from None  # fmt: skip
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        what = f"{type(error).__name__}: {error}"
        raise UsageError(f"{path}: not a description of tensors ({what}); write it again") from None
    if len(kinds) != len(header["tensors"]) or not kinds:
        raise UsageError(f"{path}: names tensors that cannot be; write the folder again")
    return length, kinds


def _whole(*numbers: Any) -> tuple[int, ...]:
    if not all(type(number) is int and number >= 0 for number in numbers):
        raise ValueError(f"{numbers} are not all whole numbers")
    return numbers
