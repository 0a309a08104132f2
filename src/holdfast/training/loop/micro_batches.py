"""Forward and backward of the batches of a step, in pieces where memory is short.

With ``train.auto_batch`` a batch that does not fit into memory is cut into two pieces, then four,
and so on; from then on every batch is. The gradients of the pieces add up to that of the batch,
so the step is the same. The guard is told of a batch, not of its pieces.
"""

from __future__ import annotations

import gc
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ...errors import UsageError
from .. import channels, distributed
from ..batch_size.memory import out_of_memory
from ..compilers import shortened
from ..data.pieces import cut
from ..data.transfer import count, tensors
from .parts import Parts

_forward = channels.get("forward")


class _Pass(NamedTuple):
    """What came of one piece."""

    loss: Tensor
    extra: dict[str, Any]
    samples: int


class MicroBatches:
    """Takes batches one by one; those of one step make a window."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._auto = parts.settings.auto_batch
        # Of this window, as they were loaded: what runs out of memory amid it begins anew.
        self._batches: list[Any] = []

    def take(self, batch: Any, *, step: int, inner: bool) -> None:
        """Add the gradient of one more batch.

        Args:
            batch: as it was loaded.
            step: number of the step it is for.
            inner: unless the window is full, another batch will follow before the step.
        """
        if self._auto:
            self._batches.append(batch)
        try:
            self._report(self._add(batch, step, inner))
            return
        except (RuntimeError, MemoryError) as error:
            if not out_of_memory(error):
                raise
            if not self._auto:
                error.add_note(self._advice(count(batch)))
                raise
            why = shortened(error)
        # Not above: the error holds the frames it came through, and they hold tensors.
        self._begin_anew(why, step)

    def replay(self, batch: Any, *, step: int) -> None:
        """A batch of a poisoned window once more, for an exam."""
        self._report(self._add(batch, step, inner=False))

    def window_ends(self) -> None:
        """The gradient of the window is complete."""
        self._batches.clear()

    # ------------------------------------------------------------------ one batch

    def _add(self, batch: Any, step: int, inner: bool) -> list[_Pass]:
        parts = self._parts
        samples = count(batch)
        weight = parts.window.weigh(samples)
        inner = inner and not parts.window.full
        with distributed.unsynchronised(parts.net, inner):
            if parts.window.pieces == 1:
                return [self._run(batch, step, weight, [])]
            done: list[_Pass] = []
            *first, last = cut(batch, parts.window.pieces)
            for piece in first:
                done.append(self._run(piece, step, weight * count(piece) / samples, None))
            done.append(self._run(last, step, weight * count(last) / max(samples, 1), done))
        return done

    def _run(self, piece: Any, step: int, weight: float, former: list[_Pass] | None) -> _Pass:
        """One piece; ``former`` are those before it if it is the last of its batch."""
        parts = self._parts
        piece = parts.transfer(piece)
        samples = count(piece)

        def forward_and_backward(piece: Any) -> _Pass:
            with parts.precision.autocast():
                loss, extra = split(parts.loss(parts.net, piece))
            # Where a graph is replayed the next step would write into what this one returned.
            loss = parts.compiled.keep(loss)
            if not loss.requires_grad:
                raise UsageError(
                    "the loss has no gradient: nothing it is made of is a trainable parameter; "
                    "look for detach(), no_grad() or frozen weights in the loss function"
                )
            if former is None:
                parts.watch.backward_piece(loss, weight=weight)
            else:
                parts.watch.backward(_of_batch(loss, samples, former), weight=weight)
            return _Pass(loss.detach(), extra, samples)

        if step < parts.settings.anomaly:
            with parts.compiled.paused(), torch.autograd.set_detect_anomaly(True):
                done = forward_and_backward(piece)
        elif parts.watch.replaying:
            with parts.compiled.paused():
                done = forward_and_backward(piece)
        else:
            done = parts.compiled.run(forward_and_backward, piece)
        if _forward.on:
            _forward(_forward_told, piece, done.loss)
        return done

    def _report(self, done: list[_Pass]) -> None:
        for one in done:
            self._parts.telling.saw(*one)

    # ------------------------------------------------------------------ out of memory

    def _begin_anew(self, why: str, step: int) -> None:
        """Cut every batch into more pieces until those of this window fit."""
        parts = self._parts
        earlier = parts.window.passes - len(self._batches)
        while True:
            self._halve(why, step, earlier)
            parts.watch.drop_window()
            parts.window.drop()
            gc.collect()
            if parts.place.device.type == "cuda":
                torch.cuda.empty_cache()
            try:
                *first, last = self._batches
                for batch in first:  # reported when they came
                    self._add(batch, step, inner=False)
                self._report(self._add(last, step, inner=False))
                return
            except (RuntimeError, MemoryError) as error:
                if not out_of_memory(error):
                    raise
                why = shortened(error)

    def _halve(self, why: str, step: int, earlier: int) -> None:
        """Twice as many pieces; raises where that cannot be."""
        parts, batch = self._parts, self._batches[-1]
        samples, pieces = count(batch), 2 * parts.window.pieces
        if parts.window.pieces >= samples:
            raise torch.OutOfMemoryError(
                f"{why}\nout of memory at step {step} with a single sample: make the model "
                "smaller, set train.recompute or train.precision=bf16"
            )
        if len(cut(batch, 2)) < 2:
            raise torch.OutOfMemoryError(
                f"{why}\nout of memory at step {step}, and the batch cannot be cut: it has no "
                f"tensor whose first dimension is its samples\n{self._advice(samples)}"
            )
        if earlier:
            raise torch.OutOfMemoryError(
                f"{why}\nout of memory at step {step}, amid a window of which {earlier} batches "
                f"came before the resume\n{self._advice(samples)}"
            )
        parts.window.pieces = pieces
        parts.compiled.batches_are_cut()
        most = -(-samples // pieces)
        parts.say(
            f"out of memory at step {step}: batches of {samples} samples are taken in pieces of "
            f"{most} from here on, with the same gradient; faster: "
            f"{_setting(samples * parts.place.world, parts.settings.accumulate, pieces)}"
        )
        data = {"pieces": pieces, "samples": samples, "largest": most, "why": why}
        parts.watch.note("batch_cut", data)

    def _advice(self, samples: int) -> str:
        """What to do about a batch that does not fit."""
        parts = self._parts
        batch, window = samples * parts.place.world, parts.settings.accumulate
        shares = [share for share in (2, 4, 8, 16) if batch // share >= parts.place.world]
        table = [f"  {_setting(batch, window, share)}" for share in shares]
        return "\n".join(
            [
                f"holdfast: out of memory with {samples} samples at once; train.auto_batch=true "
                "cuts batches into pieces that fit, holdfast train RECIPE --find-batch measures "
                f"what does{', or set one of' if table else ''}",
                *table,
            ]
        )


def _setting(batch: int, window: int, share: int) -> str:
    """The settings that make smaller batches of the same step."""
    return f"train.data.batch={max(1, batch // share)} train.accumulate={window * share}"


def _of_batch(loss: Tensor, samples: int, former: list[_Pass]) -> Tensor:
    """The mean loss of a batch by value, with the gradient of its last piece alone."""
    if not former:
        return loss
    with torch.no_grad():
        total = loss * samples + sum(one.loss * one.samples for one in former)
        mean = total / (samples + sum(one.samples for one in former))
    return loss + (mean - loss).detach()


def _forward_told(batch: Any, loss: Tensor) -> str:
    """What went in and what came out."""
    shapes = [f"{'×'.join(map(str, one.shape))} {str(one.dtype)[6:]}" for one in tensors(batch)]
    return f"{', '.join(shapes)}: loss {float(loss.detach()):.4g}"


def split(result: Tensor | tuple[Tensor, Any]) -> tuple[Tensor, dict[str, Any]]:
    """The loss and the numbers beside it."""
    loss, extra = result if isinstance(result, tuple) else (result, {})
    if not isinstance(loss, Tensor) or loss.numel() != 1:
        shown = tuple(loss.shape) if isinstance(loss, Tensor) else type(loss).__name__
        raise UsageError(
            f"the loss function returned {shown}, not a scalar tensor; "
            "return the mean over the batch, or (loss, {name: number})"
        )
    return loss.reshape(()), dict(extra)
