"""Forward and backward of the batches of a step, in pieces where memory is short.

A batch that does not fit into memory is split as ``watch.run_step`` splits it, and from then on
every batch is. The gradients of the pieces add up to that of the batch, so the step is the same.
The guard is told of a batch, not of its pieces.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from ...errors import UsageError
from ...run.host_memory import ran_out
from ...watching.watch import Piece
from .. import channels, parallel
from ..data.transfer import count, tensors
from .parts import LoopParts

_forward = channels.get("forward")


class _Pass(NamedTuple):
    """What came of one piece."""

    loss: Tensor
    extra: dict[str, Any]
    samples: int


class MicroBatches:
    """Takes batches one by one; those of one step make a window."""

    def __init__(self, parts: LoopParts) -> None:
        self._parts = parts
        # Amid a reduction of DistributedDataParallel no rank can begin anew.
        self._local = parts.place.world == 1 or parts.settings.reduce_late
        self._split = self._local and parts.settings.holdfast.guard.split
        # Of this window, as they were loaded: what runs out of memory amid it begins anew.
        self._batches: list[Any] = []
        self._weight = 1.0

    def take(self, batch: Any, *, step: int, inner: bool) -> None:
        """Add the gradient of one more batch.

        Args:
            batch: as it was loaded.
            step: number of the step it is for.
            inner: unless the window is full, another batch will follow before the step.
        """
        parts, before = self._parts, self._parts.watch.fits
        if self._split:
            self._batches.append(batch)
        try:
            self._add(self._batches or [batch], step, inner)
        except (RuntimeError, MemoryError) as error:
            if ran_out(error):
                error.add_note(self._advice(count(batch)))
            raise
        if parts.watch.fits != before:
            self._tell(step, count(batch))

    def replay(self, batch: Any, *, step: int) -> None:
        """A batch of a poisoned window once more, for a rerun."""
        self._add([batch], step, inner=False)

    def window_ends(self) -> None:
        """The gradient of the window is complete."""
        self._batches.clear()

    # ------------------------------------------------------------------ one batch

    def _add(self, batches: list[Any], step: int, inner: bool) -> None:
        """The gradient of the last of these batches, of all where memory runs out."""
        parts, done = self._parts, list[_Pass]()

        def compute(piece: Piece) -> None:
            if piece.begin == 0:
                done.clear()  # those of earlier batches were reported when they came
                self._weight = parts.window.weigh(count(batches[piece.batch]))
            with parallel.unsynchronised(parts.net, inner and not parts.window.full):
                done.append(self._run(piece, step, done))

        def undo(why: str) -> None:
            self._begin_anew(why, step, parts.window.passes - len(batches))

        parts.watch.in_pieces(batches, compute, undo, local=self._local)
        for one in done:
            parts.step_reporter.saw(*one)

    def _run(self, piece: Piece, step: int, former: list[_Pass]) -> _Pass:
        """One piece; ``former`` are those of its batch before it."""
        parts = self._parts
        batch = parts.transfer(piece.content)
        samples, weight = piece.end - piece.begin or count(batch), self._weight * piece.share
        loss_of = parts.loss.as_it_is if parts.watch.replaying else parts.loss

        def forward_and_backward(batch: Any) -> _Pass:
            with parts.precision.autocast():
                loss, extra = loss_of(parts.net, batch)
            if parts.loss.replays:
                parts.watch.graphs_are_wanted()
            # Where a graph is replayed the next step would write into what this one returned.
            loss = parts.compiled.keep(loss)
            extra = {name: parts.compiled.keep(value) for name, value in extra.items()}
            if not loss.requires_grad:
                raise UsageError(
                    "the loss has no gradient: nothing it is made of is a trainable parameter; "
                    "look for detach(), no_grad() or frozen weights in the loss function"
                )
            if piece.last:
                parts.watch.backward(_of_batch(loss, samples, former), weight=weight)
            else:
                parts.watch.backward_piece(loss, weight=weight)
            return _Pass(loss.detach(), extra, samples)

        if step < parts.settings.anomaly:
            with parts.compiled.paused(), torch.autograd.set_detect_anomaly(True):
                done = forward_and_backward(batch)
        elif parts.watch.replaying:
            with parts.compiled.paused():
                done = forward_and_backward(batch)
        else:
            done = parts.compiled.run(forward_and_backward, batch)
        if _forward.on:
            _forward(_forward_reported, batch, done.loss)
        return done

    # ------------------------------------------------------------------ out of memory

    def _begin_anew(self, why: str, step: int, earlier: int) -> None:
        """Drop the gradients of this window: its batches come again, in smaller pieces."""
        parts = self._parts
        if earlier > 0:
            raise torch.OutOfMemoryError(
                f"{why}\nout of memory at step {step}, amid a window whose first {earlier} "
                "batches came before a resume and cannot be computed again"
            )
        parts.watch.drop_window()
        parts.window.drop()
        parts.compiled.batches_are_cut()
        parts.loss.forget()

    def _tell(self, step: int, samples: int) -> None:
        parts = self._parts
        most = parts.window.fits = parts.watch.fits
        pieces = -(-samples // most)
        parts.say(
            f"out of memory at step {step}: batches of {samples} samples are taken in pieces of "
            f"{most} from here on; faster: "
            f"{_setting(samples * parts.place.world, parts.settings.accumulate, pieces)}"
        )

    def _advice(self, samples: int) -> str:
        """What to do about a batch that does not fit."""
        parts = self._parts
        batch, window = samples * parts.place.world, parts.settings.accumulate
        shares = [share for share in (2, 4, 8, 16) if batch // share >= parts.place.world]
        table = [f"  {_setting(batch, window, share)}" for share in shares]
        if self._split:
            what = "make the model smaller, set train.recompute or train.precision=bf16"
        elif parts.settings.parallel == "fsdp" and parts.place.world > 1:
            what = "set train.recompute or more ranks"
        elif parts.place.world > 1 and parts.settings.holdfast.guard.split:
            what = "train.reduce_late=true splits batches into pieces that fit"
        else:
            what = "train.holdfast.guard.split=true splits batches into pieces that fit"
        at_once = parts.watch.fits or samples
        return "\n".join(
            [
                f"holdfast: out of memory with {at_once} samples at once; {what}, holdfast train "
                f"RECIPE --find-batch measures what fits{', or set one of' if table else ''}",
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


def _forward_reported(batch: Any, loss: Tensor) -> str:
    """What went in and what came out."""
    shapes = [f"{'×'.join(map(str, one.shape))} {str(one.dtype)[6:]}" for one in tensors(batch)]
    return f"{', '.join(shapes)}: loss {float(loss.detach()):.4g}"
