"""Events in ROOT files: found, checked when they are opened, read by ranges of entries."""

from __future__ import annotations

import bisect
import functools
import glob
import os
import struct
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Executor
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from holdfast import HoldfastError

from ..geometry.layout import SENSORS
from .branches import BRANCHES, WIDTHS, import_uproot

BLOCK = 512
"""Events whose baskets are decompressed together."""

MOST_OPEN = 128
"""Files that a process keeps open; systems allow some hundreds."""

_WIDE = (SENSORS,)
_LARGE = 1_000_000  # added to the version in a header with 64-bit places
_DTYPES = {"f": torch.float32, "i": torch.int64, "u": torch.int64, "b": torch.bool}


def find_files(path: str) -> list[Path]:
    """The ROOT files of a file, a folder or a pattern, sorted; an error where there are none."""
    if not path.strip():
        raise HoldfastError("no files of events given; set data.train_path and data.val_path")
    given = Path(path).expanduser()
    if given.is_dir():
        found = sorted(given.glob("*.root"))
    elif given.exists():
        found = [given]
    else:
        found = sorted(map(Path, glob.glob(str(given), recursive=True)))
    if not found:
        kind = "holds no *.root file" if given.is_dir() else "no such file, and no pattern of any"
        raise HoldfastError(f"{path}: {kind}; give a file, a folder or a pattern like run*.root")
    return found


class RootEvents:
    """The events of one file.

    Only entries that are asked for are read. The file is opened again in each process, so that
    handing this object to a worker costs nothing.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        branches: Mapping[str, str],
        tree_name: str = "tree",
        threads: int = 1,
        optional: Mapping[str, str] | None = None,
    ) -> None:
        """Open a file and check all that can be checked without reading events.

        Args:
            path: the file.
            branches: names here, and the names of their branches.
            tree_name: of the tree in the file.
            threads: that decompress.
            optional: more of ``branches``, left alone where the file has no such branch.
        """
        self.path, self.tree_name, self.threads = Path(path), tree_name, threads
        self.branches = dict(branches)
        self._opened: tuple[int, Any] | None = None
        _check_header(self.path)
        tree = self._tree()
        for name, branch in (optional or {}).items():
            if branch in tree:
                self.branches[name] = branch
        self._length = int(tree.num_entries)
        if not self._length:
            raise HoldfastError(f"{self.path}: tree {tree_name!r} has no events; give other files")
        self.kinds = {name: self._kind(tree, name) for name in self.branches}
        """Dtype and shape of a sample, by name."""
        largest = max(self.branches, key=lambda name: WIDTHS.get(name, 1))
        offsets = {int(n) for n in tree[self.branches[largest]].entry_offsets}
        self.boundaries = tuple(sorted(offsets | {0, self._length}))
        """Entries that baskets begin with, and the number of all; cheap places to cut at."""

    def __len__(self) -> int:
        return self._length

    def read(self, start: int, stop: int, names: Sequence[str] | None = None) -> dict[str, Tensor]:
        """Entries ``start`` to ``stop`` of these quantities, or of all of them."""
        tree, found = self._tree(), {}
        for name in self.branches if names is None else names:
            branch = tree[self.branches[name]]
            dtype, shape = self.kinds[name]
            # Straight into the memory it stays in: nothing is concatenated, and what is
            # decompressed is never more than a few baskets.
            into = np.empty((stop - start, *shape), branch.interpretation.to_dtype.base)
            for first, last in self._steps(start, stop) if shape == _WIDE else [(start, stop)]:
                self._fill(branch, into[first - start : last - start], first, last)
            found[name] = torch.from_numpy(into).to(dtype)
        return found

    def _steps(self, start: int, stop: int) -> Iterator[tuple[int, int]]:
        """Ranges of some ``BLOCK`` entries; a basket is decompressed as often as it is cut."""
        while start < stop:
            after = bisect.bisect_right(self.boundaries, start + BLOCK)
            last = self.boundaries[after - 1]
            if last <= start:
                last = self.boundaries[after]
            yield start, min(last, stop)
            start = last

    def _fill(self, branch: Any, into: NDArray[Any], start: int, stop: int) -> None:
        try:
            branch.array(
                branch.interpretation.inplace(into),
                entry_start=start,
                entry_stop=stop,
                library="np",
                array_cache=None,
                decompression_executor=_decompressors(os.getpid(), self.threads),
            )
        except Exception as error:
            raise HoldfastError(
                f"{self.path}: entries {start} to {stop} of branch {branch.name!r} cannot be read "
                f"({_first_line(error)}); copy or write the file again"
            ) from error

    def close(self) -> None:
        """Close the file; reading opens it again."""
        if self._opened is not None:
            self._opened[1].file.close()
            self._opened = None

    def _tree(self) -> Any:
        # A forked process has a copy of this object, and shares the place in its file.
        if self._opened is None or self._opened[0] != os.getpid():
            self._opened = os.getpid(), self._open(import_uproot())
            _open_files.append(self)
            if len(_open_files) > MOST_OPEN:
                _open_files.popleft().close()
        return self._opened[1]

    def _open(self, uproot: Any) -> Any:
        try:
            file = uproot.open(self.path, object_cache=None, array_cache=None)
            kinds = file.classnames(recursive=True, cycle=False)
            if kinds.get(self.tree_name) == "TTree":
                return file[self.tree_name]
        except Exception as error:
            raise HoldfastError(
                f"{self.path}: not readable as a ROOT file ({_first_line(error)}); "
                "copy or write it again"
            ) from error
        trees = ", ".join(name for name, kind in kinds.items() if kind == "TTree")
        there = f"there are {trees}; set data.tree_name" if trees else "there is none"
        raise HoldfastError(f"{self.path}: no tree {self.tree_name!r}; {there}")

    def _kind(self, tree: Any, name: str) -> tuple[torch.dtype, tuple[int, ...]]:
        branch, width = self.branches[name], WIDTHS.get(name, 1)
        known = name in BRANCHES or name in WIDTHS  # others are passed on as they are
        if branch not in tree:
            there = ", ".join(tree.keys(recursive=False)[:20])
            raise HoldfastError(
                f"{self.path}: no branch {branch!r} in tree {self.tree_name!r}, needed for "
                f"{name}; there are {there}"
            )
        kind = getattr(tree[branch].interpretation, "to_dtype", None)
        if kind is None or kind.base.kind not in _DTYPES:
            raise HoldfastError(
                f"{self.path}: branch {branch!r} is {tree[branch].typename}, needed is a fixed "
                f"number of values per event{f': {width}' if known else ''}; write it as an array"
            )
        if known and kind.shape != ((width,) if width > 1 else ()):
            has = kind.shape[0] if kind.shape else 1
            raise HoldfastError(
                f"{self.path}: branch {branch!r} has {has} values per event, needed for {name} "
                f"are {width}; choose another branch or file"
            )
        return _DTYPES[kind.base.kind], kind.shape

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_opened": None}


_open_files: deque[RootEvents] = deque()  # of this process, the oldest first


@functools.cache
def _decompressors(process: int, threads: int) -> Executor | None:
    """Threads that all files of a process share; those of another one are not there."""
    return import_uproot().ThreadPoolExecutor(threads) if threads > 1 else None


def scan(
    files: Sequence[RootEvents], names: Sequence[str], events: int | None = None
) -> Iterator[dict[str, Tensor]]:
    """Blocks of these quantities, of all events or of some from every file."""
    total = sum(map(len, files))
    for file in files:
        share = len(file) if events is None else min(len(file), -(-events * len(file) // total))
        for start in range(0, share, BLOCK):
            yield file.read(start, min(start + BLOCK, share), names)


def _check_header(path: Path) -> None:
    """That this is a ROOT file, and as long as it says it is."""
    try:
        with path.open("rb") as file:
            start = file.read(20)
            size = os.fstat(file.fileno()).st_size
    except OSError as error:
        raise HoldfastError(f"{path}: {error.strerror}; give a file that you can read") from None
    if not size:
        raise HoldfastError(f"{path}: is empty, 0 bytes; write or copy it again")
    if start[:4] != b"root" or len(start) < 20:
        raise HoldfastError(f"{path}: is no ROOT file; give files that were written by ROOT")
    (version,) = struct.unpack(">i", start[4:8])
    (end,) = (
        struct.unpack(">q", start[12:20])
        if version >= _LARGE
        else struct.unpack(">i", start[12:16])
    )
    if size < end:
        raise HoldfastError(f"{path}: is cut short, {size} of {end} bytes; write or copy it again")


def _first_line(error: Exception) -> str:
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0][:100]}" if text else type(error).__name__
