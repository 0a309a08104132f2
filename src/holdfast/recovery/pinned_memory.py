"""Pinned host memory for snapshots, allocated in a background thread.

Pinning one large block takes the driver most of a second per gigabyte and blocks kernel launches
meanwhile; nearly all of that is page faults. So a thread touches the pages first, which blocks
nothing, and has the driver pin them a piece at a time, a few milliseconds each. Between two pieces
it rests nine times as long, unless somebody waits for the block: steps stay even. A copy must lie
in one piece, so pieces end where tensors do.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor

_ALIGNED = 64
_PAGE = mmap.ALLOCATIONGRANULARITY
_PIECE = 16 << 20
_REST = 9.0  # times what the driver took for a piece, so that a tenth of the launches waits for it
_LONGEST_REST = 0.2  # seconds; a driver that was held up itself says nothing about the next piece
# Seconds that the end of a run waits for a piece.
_PATIENCE = 20.0


@dataclass(frozen=True, slots=True)
class BlockLayout:
    """Where so many bytes each go in one block: offsets, and pieces as (begin, end)."""

    offsets: tuple[int, ...]
    pieces: tuple[tuple[int, int], ...]

    @property
    def size(self) -> int:
        """Of the block."""
        return self.pieces[-1][1] if self.pieces else 0


def plan(sizes: Sequence[int], piece: int = _PIECE) -> BlockLayout:
    """Lay tensors out one after another; a new piece begins with a page.

    >>> plan([100, 100, 100], piece=150)
    BlockLayout(offsets=(0, 128, 4096), pieces=((0, 4096), (4096, 8192)))
    """
    offsets: list[int] = []
    pieces: list[tuple[int, int]] = []
    begin = at = 0
    for size in sizes:
        if at - begin >= piece:
            at = _up(at, _PAGE)
            pieces.append((begin, at))
            begin = at
        offsets.append(at)
        at = _up(at + size, _ALIGNED)
    if at > begin:
        pieces.append((begin, _up(at, _PAGE)))
    return BlockLayout(tuple(offsets), tuple(pieces))


class Room:
    """A block that is being made; an error of the making is raised by ``take``."""

    def __init__(self, wanted: BlockLayout, device: torch.device) -> None:
        self.plan = wanted
        self._device = device
        self._block: Tensor | None = None
        self._error: BaseException | None = None
        self._given_up = False
        self._awaited = threading.Event()
        self._thread = threading.Thread(target=self._make, name="holdfast-room", daemon=True)
        self._thread.start()

    @property
    def ready(self) -> bool:
        """Whether ``take`` returns at once."""
        return not self._thread.is_alive()

    def take(self) -> Tensor:
        """The block; waits for it where it is not ready."""
        self._awaited.set()
        self._thread.join()
        if self._block is None:
            raise self._error or RuntimeError("no pinned memory")
        return self._block

    def give_up(self, patience: float = _PATIENCE) -> None:
        """Release it; waits up to this many seconds for the thread to end.

        A thread that is inside the driver when the interpreter ends takes the process with it.
        """
        self._given_up = True
        self._awaited.set()
        self._thread.join(patience)

    def _make(self) -> None:
        try:
            if self._device.type == "cuda":
                # A thread starts on the first device, where another rank may be at home.
                torch.cuda.set_device(self._device)
            self._block = _pinned(self.plan, lambda: self._given_up, self._awaited.wait)
        except BaseException as error:
            self._error = error


def _pinned(
    wanted: BlockLayout, given_up: Callable[[], bool], rest: Callable[[float], object]
) -> Tensor:
    memory = mmap.mmap(-1, max(wanted.size, _PAGE))
    with contextlib.suppress(OSError, ValueError, AttributeError):
        memory.madvise(mmap.MADV_HUGEPAGE)  # fewer pages to find
    block = torch.frombuffer(memory, dtype=torch.uint8)
    start = block.data_ptr()
    # The tensor holds the mapping; what is pinned must be let go before it is unmapped. At the
    # end of the process the driver is gone before us.
    letting_go = weakref.finalize(memory, _let_go, addresses := list[int]())
    letting_go.atexit = False
    for begin, end in wanted.pieces:
        if given_up():
            raise RuntimeError("the run is over")
        ctypes.memset(start + begin, 0, end - begin)
        began = time.perf_counter()
        _pin(start + begin, end - begin)
        addresses.append(start + begin)
        rest(min(_REST * (time.perf_counter() - began), _LONGEST_REST))
    return block


def _pin(address: int, size: int) -> None:
    code = cast(Any, torch.cuda.cudart()).cudaHostRegister(address, size, 0)
    if int(code) != 0:
        raise RuntimeError(f"cudaHostRegister of {size} bytes: error {int(code)}")


def _let_go(addresses: list[int]) -> None:
    runtime = cast(Any, torch.cuda.cudart())
    for address in addresses:
        runtime.cudaHostUnregister(address)


def _up(value: int, to: int) -> int:
    return -(-value // to) * to
