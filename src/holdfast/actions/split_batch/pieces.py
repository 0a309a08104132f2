"""Forward and backward of a batch in pieces, for a loop that hands its whole step over.

Here the script's own loss is part of what is called, so that a piece is a smaller batch and nothing
is computed twice. Gradients of the pieces add up in ``.grad``. A backward pass that fails half-way
has added a part of its own, so that the caller says how they are taken back.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from . import structure
from .boundary import even
from .memory import ran_out, release


class Piece(NamedTuple):
    """Some samples of a batch."""

    content: Any
    batch: int
    """Which of the batches, counted from 0."""
    begin: int
    end: int
    samples: int
    """Of the whole batch; 0 where nothing in it says how many."""

    @property
    def share(self) -> float:
        """Its share of the batch."""
        return (self.end - self.begin) / self.samples if self.samples else 1.0

    @property
    def last(self) -> bool:
        """Whether the batch is complete with it."""
        return self.end == self.samples


Compute = Callable[[Piece], None]
"""Forward and backward of a piece."""


class Made(NamedTuple):
    """What it took to make a batch fit."""

    pieces: int
    error: str
    seconds: float
    """Time lost with tries that failed."""


class Pieces:
    """Makes pieces of batches; remembers what fits."""

    def __init__(self) -> None:
        self.fits = 0
        """Samples that are computed at once; 0: all of a batch."""

    def run(
        self,
        batches: Sequence[Any],
        compute: Compute,
        device: Callable[[], torch.device],
        undo: Callable[[str], None],
    ) -> Made | None:
        """Add the gradient of the last of these batches.

        Args:
            batches: those whose gradients are in ``.grad`` already, where they are to be computed
                again after a failure, and the new one.
            compute: forward and backward of a piece.
            device: where memory runs out; asked when it does.
            undo: takes back what was added to ``.grad``, all of it; gets the error.

        Returns:
            What it took, where there are more pieces than for the batch before; else None.
        """
        new = len(batches) - 1
        first, error, began = "", "", time.perf_counter()
        while True:
            tried = time.perf_counter()
            error = self._tried(batches, 0 if error else new, compute, device)
            if not error:
                break
            first = first or error
            undo(error)
            release(device())
            samples = count(batches[-1])
            self.fits = -(-samples // (2 * self._pieces(samples)))
        if not first:
            return None
        return Made(self._pieces(count(batches[-1])), first, tried - began)

    def _pieces(self, samples: int) -> int:
        return -(-samples // self.fits) if self.fits and samples else 1

    def _tried(
        self, batches: Sequence[Any], new: int, compute: Compute, device: Callable[[], torch.device]
    ) -> str:
        """Compute the batches from one on; the error where memory runs out, else empty."""
        try:
            for number in range(new, len(batches)):
                for piece in self._cut(batches[number], number):
                    compute(piece)
            return ""
        except (RuntimeError, MemoryError) as error:
            samples = count(batches[-1])
            if self._pieces(samples) >= max(samples, 1) or not ran_out(error, device()):
                raise
            if name := _uncuttable(batches[-1]):
                error.add_note(f"holdfast: a batch with a {name} in it cannot be split")
                raise
            return str(error) or type(error).__name__

    def _cut(self, batch: Any, number: int) -> Iterable[Piece]:
        samples = count(batch)
        pieces = self._pieces(samples)
        if pieces == 1 or _uncuttable(batch):
            return [Piece(batch, number, 0, samples, samples)]
        return (
            Piece(cut(batch, samples, begin, end), number, begin, end, samples)
            for begin, end in even(samples, pieces)
        )


@contextlib.contextmanager
def set_aside(leaves: Sequence[Tensor]) -> Iterator[Callable[[str], None]]:
    """Gradients of before are added at the end, so that new ones can be taken back.

    Gives what does so.
    """
    before = [(p, p.grad) for p in leaves if p.grad is not None]

    def clear(error: str = "") -> None:
        for parameter in leaves:
            parameter.grad = None

    clear()
    try:
        yield clear
    except BaseException:
        for parameter, earlier in before:
            parameter.grad = earlier
        raise
    for parameter, earlier in before:
        parameter.grad = earlier if parameter.grad is None else parameter.grad.add_(earlier)


def count(batch: Any) -> int:
    """The samples of a batch: the first dimension of its first tensor."""
    first = next((t for t in structure.tensors(batch) if t.ndim), None)
    return 0 if first is None else first.shape[0]


def cut(batch: Any, samples: int, begin: int, end: int) -> Any:
    """Some samples of a batch; what has no row for each of them goes in whole."""

    def change(value: Any) -> Any:
        if isinstance(value, Tensor):
            return value[begin:end] if value.ndim and value.shape[0] == samples else value
        return value[begin:end] if len(value) == samples else value

    return structure.changed(batch, change)


def _uncuttable(batch: Any) -> str:
    """The class of what moves itself (a packed sequence, a graph): only it could cut itself."""
    if isinstance(batch, Tensor):
        return ""
    if callable(getattr(batch, "to", None)) and not isinstance(batch, Mapping):
        return type(batch).__name__
    return next(filter(None, (_uncuttable(inner) for _, inner in structure.members(batch))), "")


def why_not_exact(modules: Sequence[nn.Module]) -> list[str]:
    """Why pieces are not exactly the whole batch, by what the modules are."""
    return list(dict.fromkeys(_reasons(modules)))


def _reasons(modules: Sequence[nn.Module]) -> Iterator[str]:
    for module in (m for root in modules for m in root.modules() if m.training):
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            yield "BatchNorm normalises each part by itself"
        if isinstance(module, nn.modules.dropout._DropoutNd) and module.p > 0:
            yield "dropout draws other random numbers for parts"
