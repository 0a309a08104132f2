"""Restore kernel: one launch that restores many tensors if a device flag is set.

There is no ``_foreach_where``; a loop of ``torch.where`` reads and writes everything on every
step. This kernel looks at the flag first, so a good step costs a launch and nothing else. It
copies words of bytes, so every dtype is served. Where Triton or CUDA is missing the plain loop is
used.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ..probes.launch import launcher

_CHUNK = 1024
_CHUNKS = 16
"""Words that a program copies at a time, and how often at most."""
_WORDS = 8, 4, 2, 1
"""Bytes that a word may have."""

Pair = tuple[Tensor, Tensor]  # what is live, and what it may go back to
Settling = tuple[Callable[..., object], tuple[object, ...]]
"""What starts a launch that settles, and what it is told behind the addresses of both flags."""


class Restorer:
    """Restores the same list of tensors every step; its layout is cached."""

    def __init__(self) -> None:
        self._pairs: Sequence[Pair] = ()
        self._addresses: list[int] = []
        self._dense: list[Pair] = []
        self._others: list[Pair] = []
        self._table: tuple[Tensor, ...] = ()
        self._word = 1
        self._pointers: list[int] = []
        self._launcher: Callable[..., object] | None = None

    def restore(self, pairs: Sequence[Pair], flag: Tensor, when: float = 1.0) -> None:
        """Where ``flag`` equals ``when``: the first tensor of each pair becomes its second.

        A caller that passes the same list again guarantees the same content.
        """
        kernel = _kernel() if flag.is_cuda else None
        if kernel is None:
            _restore_each(pairs, flag, when)
            return
        if pairs is not self._pairs:
            self._learn(pairs, flag.device)
        if self._others:
            _restore_each(self._others, flag, when)
        if self._dense:
            self._launch(kernel, flag, when)

    def _learn(self, pairs: Sequence[Pair], device: torch.device) -> None:
        dense: list[Pair] = []
        self._others = []
        for pair in pairs:
            (dense if _bytewise(pair, device) else self._others).append(pair)
        addresses = [t.data_ptr() for pair in dense for t in pair]
        if dense and addresses != self._addresses:
            self._table, self._word = _address_table(dense, addresses, device)
            self._pointers = [t.data_ptr() for t in self._table]
            self._launcher = None
        self._pairs, self._dense, self._addresses = pairs, dense, addresses

    def _launch(self, kernel: Any, flag: Tensor, when: float) -> None:
        if self._launcher is not None:
            # The compiled kernel without the dispatch around it, which costs more than the launch.
            self._launcher(flag.data_ptr(), *self._pointers, when, None, _CHUNK, _CHUNKS)
            return
        grid = (self._table[3].numel(), 1, 1)
        compiled = kernel[grid](
            *(flag, *self._table, when),
            WORD=_triton_integer(self._word),
            CHUNK=_CHUNK,
            CHUNKS=_CHUNKS,
            num_warps=8,
        )
        self._launcher = launcher(compiled, grid)


class Settler(Restorer):
    """Decides for every pair at once, on the device, which of the two tensors becomes the other.

    A bad step: what is live goes back. A good one that spoilt something: what is ``running`` goes
    back. Any other: what is live is the new copy.
    """

    def __init__(self) -> None:
        super().__init__()
        self._heals = torch.empty(0)
        self._act = False

    def settle(
        self,
        pairs: Sequence[Pair],
        running: Sequence[bool],
        flags: tuple[Tensor, Tensor],
        act: bool,
    ) -> bool:
        """One launch; False when not all of them can be served by it, and nothing was done.

        Args:
            pairs: live tensors and their copies; the very same list means the very same tensors.
            running: which of them must never stay non-finite.
            flags: the step is bad; one of the pairs holds non-finite values.
            act: whether live tensors may be put back at all.
        """
        kernel = _settles_on(flags[0].device)
        if kernel is None:
            return False
        if pairs is not self._pairs:
            self._learn(pairs, flags[0].device)
            if self._dense and not self._others:
                heals = torch.tensor(list(running), dtype=torch.int64).pin_memory()
                self._heals = heals.to(flags[0].device, non_blocking=True)
                self._launcher = None
        if self._others or not self._dense:
            return False
        if self._launcher is not None and self._act == act:
            addresses = (flags[0].data_ptr(), flags[1].data_ptr(), *self._pointers)
            self._launcher(*addresses, self._heals.data_ptr(), act, None, _CHUNK, _CHUNKS)
            return True
        grid = (self._table[3].numel(), 1, 1)
        compiled = kernel[grid](
            *flags,
            *self._table,
            self._heals,
            ACT=act,
            WORD=_triton_integer(self._word),
            CHUNK=_CHUNK,
            CHUNKS=_CHUNKS,
            num_warps=8,
        )
        self._launcher, self._act = launcher(compiled, grid), act
        return True

    def again(self, pairs: Sequence[Pair]) -> Settling | None:
        """What settles these once more; None where the last launch was about something else."""
        if self._launcher is None or pairs is not self._pairs or not self._act:
            return None
        about = *self._pointers, self._heals.data_ptr(), True, None, _CHUNK, _CHUNKS
        return self._launcher, about


def _bytewise(pair: Pair, device: torch.device) -> bool:
    """Whether a copy of bytes is a copy of the tensor."""
    live, saved = pair
    if live.device != device or live.stride() != saved.stride():
        return False
    return live.is_contiguous() or bool(torch.ops.aten.is_non_overlapping_and_dense(live))


def _restore_each(pairs: Sequence[Pair], flag: Tensor, when: float) -> None:
    flags: dict[torch.device, Tensor] = {}
    for live, saved in pairs:
        raised = flags.get(live.device)
        if raised is None:
            raised = flags[live.device] = flag.to(live.device, non_blocking=True) == when
        live.copy_(torch.where(raised, saved, live))


def _address_table(
    pairs: Sequence[Pair], addresses: Sequence[int], device: torch.device
) -> tuple[tuple[Tensor, ...], int]:
    """Addresses and sizes in words, the pair and offset of each program; bytes of a word.

    A word is as wide as all addresses and sizes allow.
    """
    sizes = [live.numel() * live.element_size() for live, _ in pairs]
    word = next(w for w in _WORDS if not any(n % w for n in (*sizes, *addresses)))
    owner: list[int] = []
    offset: list[int] = []
    for i, size in enumerate(sizes):
        for start in range(0, size // word, _CHUNK * _CHUNKS):
            owner.append(i)
            offset.append(start)
    words = [size // word for size in sizes]
    columns = (addresses[0::2], addresses[1::2], words, owner, offset)
    table = tuple(
        torch.tensor(c, dtype=torch.int64).pin_memory().to(device, non_blocking=True)
        for c in columns
    )
    return table, word


def _triton_integer(size: int) -> Any:
    """Triton's integer type with this many bytes."""
    import triton.language as tl  # pyright: ignore[reportMissingImports]

    return getattr(tl, f"int{8 * size}")


@functools.cache
def _copying() -> Any:
    """Copies the words of one program."""
    import triton  # pyright: ignore[reportMissingImports]
    import triton.language as tl  # pyright: ignore[reportMissingImports]

    @triton.jit
    def copy(to, of, start, size, WORD: tl.constexpr, CHUNK: tl.constexpr, CHUNKS: tl.constexpr):
        to = to.to(tl.pointer_type(WORD))
        of = of.to(tl.pointer_type(WORD))
        # As far as there is something: most buffers are one chunk, and an empty one takes as long.
        for first in range(start, tl.minimum(size, start + CHUNK * CHUNKS), CHUNK):
            at = first + tl.arange(0, CHUNK)
            inside = at < size
            tl.store(to + at, tl.load(of + at, mask=inside), mask=inside)

    return copy


@functools.cache
def _kernel() -> Any:
    try:
        import triton  # pyright: ignore[reportMissingImports]
        import triton.language as tl  # pyright: ignore[reportMissingImports]
    except ImportError:
        return None

    copy = _copying()

    @triton.jit
    def put_back(
        flag,
        live,
        saved,
        sizes,
        owner,
        offset,
        when,
        WORD: tl.constexpr,
        CHUNK: tl.constexpr,
        CHUNKS: tl.constexpr,
    ):
        if tl.load(flag) == when:
            block = tl.program_id(0)
            which = tl.load(owner + block)
            start = tl.load(offset + block)
            size = tl.load(sizes + which)
            copy(tl.load(live + which), tl.load(saved + which), start, size, WORD, CHUNK, CHUNKS)

    return put_back


def _settles_on(device: torch.device) -> Any:
    """The program that settles there; None where there is none."""
    return _settle_kernel() if device.type == "cuda" else None


@functools.cache
def _settle_kernel() -> Any:
    try:
        import triton  # pyright: ignore[reportMissingImports]
        import triton.language as tl  # pyright: ignore[reportMissingImports]
    except ImportError:
        return None

    copy = _copying()

    @triton.jit
    def settle(
        flag,
        bad_buffers,
        live,
        saved,
        sizes,
        owner,
        offset,
        heals,
        ACT: tl.constexpr,
        WORD: tl.constexpr,
        CHUNK: tl.constexpr,
        CHUNKS: tl.constexpr,
    ):
        block = tl.program_id(0)
        which = tl.load(owner + block)
        start = tl.load(offset + block)
        size = tl.load(sizes + which)
        one = tl.load(live + which)
        other = tl.load(saved + which)
        bad = tl.load(flag) != 0.0
        sick = tl.load(bad_buffers) != 0.0
        if bad | (sick & (tl.load(heals + which) != 0)):
            if ACT:
                copy(one, other, start, size, WORD, CHUNK, CHUNKS)
        elif sick == 0:
            copy(other, one, start, size, WORD, CHUNK, CHUNKS)

    return settle
