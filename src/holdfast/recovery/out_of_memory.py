"""Survive out of memory in the forward and backward pass of an unmodified loop.

Until it happens, the model's call passes through a function of ours and nothing is done.
In forward the same call is made again in parts, at once. In backward the graph is half used up:
it is freed, the step is skipped, and its batches are handed to the loop again; from then on calls
of the model go through a boundary that bears a second try by itself.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import FrameType
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from ..actions import split_batch
from ..actions.split_batch import Compute, Made, Piece, Pieces, Split, SplitBatch
from ..probes.batches import Batch
from ..probes.loss import scalars
from ..probes.ranks import ranks
from ..records import Kind
from ..records.memory import CodeLine, LostStep
from ..shards import is_sharded

# Steps of a run that are skipped because memory ran out in backward: the first one arms the
# boundary, later ones come only from code beyond it.
_TRIES = 4

Place = Callable[[], CodeLine]


class Skippable(Protocol):
    """What is asked of the training."""

    def record_at(self, step: int, record: Kind) -> None:
        """Write an Event of a step."""
        ...

    def models(self) -> list[nn.Module]:
        """The models behind all optimizers."""
        ...

    def parameters(self) -> Sequence[Tensor]:
        """What all optimizers hold."""
        ...


class OutOfMemoryRecovery:
    """Calls in parts, and steps that are begun again.

    Args:
        on: whether batches may be split.
        training: whose memory it is.
    """

    def __init__(self, training: Skippable, *, on: bool) -> None:
        self.lost = False
        """The backward pass of the step at work ran out of memory: it is to be skipped."""
        self.held = False
        """That step is over, and its schedule must not advance: it will be made again."""
        self.split = SplitBatch()
        self._training = training
        self._on = on
        self._hooked = False
        self._tries = _TRIES
        self._reported = False
        self.pieces = Pieces()
        self._within = False
        self.again: list[tuple[Batch, Any]] = []
        """Batches that the loop will be handed once more."""
        self._source: weakref.ref[Any] | None = None

    def made(self, models: Iterable[nn.Module]) -> None:
        """An optimizer exists: calls of its models pass through here."""
        if self._on:
            for model in models:
                if (called := _called(model)) is not None:
                    self._hooked |= split_batch.hook(type(called))

    # ------------------------------------------------------------------ forward

    def forward_fails(
        self, error: BaseException, module: nn.Module, frame: FrameType, place: Place
    ) -> bool:
        """Whether a call that raised this is to be made again; nothing is allocated here.

        Args:
            error: what it raised.
            module: the model.
            frame: of the function that took the call over.
            place: gives the line of the script.
        """
        if not self._on or not split_batch.ran_out(error, _device(module)):
            return False
        within, code = frame.f_back, frame.f_code
        while within is not None:
            if within.f_code is code:
                return False  # called by another one, which can free more
            within = within.f_back
        if ranks() > 1 and _sharded(module):
            return False  # each call talks to the other ranks
        phase = "forward" if torch.is_grad_enabled() else "evaluation"
        self.split.arm(phase, str(error), place())
        return True

    def call(self, module: nn.Module, run: Any, args: tuple[Any, ...], kwargs: Any) -> Any:
        """Make a call of a model, in parts if need be."""
        if ranks() > 1 and _sharded(module):
            return run(module, *args, **kwargs)
        return self.split(module, run, args, kwargs)

    # ------------------------------------------------------------------ backward

    def backward_fails(self, error: BaseException, roots: object, place: Place) -> bool:
        """Whether the step can be skipped and made again; nothing is allocated here."""
        may = self._on and self._hooked and self._tries > 0 and ranks() == 1 and not self._within
        # Beyond the boundary smaller parts of the model's batch help no more.
        helps = not self.split.armed or self.split.whole > 0
        device = next((loss.device for loss in scalars(roots)), torch.device("cpu"))
        if not may or not helps or not split_batch.ran_out(error, device):
            return False
        self._tries -= 1
        self.lost = True
        self.split.arm("backward", str(error), place())
        return True

    def lose(self, roots: object) -> None:
        """Free the graph of a step that is skipped, and leave gradients for who reads them."""
        found = scalars(roots)
        split_batch.free_graph(found)
        split_batch.release(found[0].device if found else torch.device("cpu"))
        for parameter in self._training.parameters():
            # Scalers and norms of the script's own expect some; the step is skipped.
            if parameter.grad is not None:
                parameter.grad.detach().zero_()
            elif parameter.requires_grad:
                parameter.grad = torch.zeros_like(parameter)

    def in_pieces(
        self,
        batches: Sequence[Any],
        compute: Compute,
        step: int,
        undo: Callable[[str], None] | None,
        *,
        local: bool,
    ) -> None:
        """Forward and backward of the last of these batches, in pieces where it does not fit.

        Args:
            batches: those before it are computed again where memory runs out, after ``undo``.
            compute: computes a piece.
            step: its number, for the record.
            undo: takes back all gradients; None: those of before are set aside meanwhile.
            local: nothing in ``compute`` waits for another rank.
        """
        if not self._on or (ranks() > 1 and not local):
            samples = split_batch.count(batches[-1])
            compute(Piece(batches[-1], len(batches) - 1, 0, samples, samples))
            return
        if undo is not None:
            made = self._run(batches, compute, undo)
        else:
            leaves = [p for p in self._training.parameters() if p.requires_grad]
            with split_batch.set_aside(leaves) as clear:
                made = self._run(batches, compute, clear)
        if made is not None:
            models = self._training.models()
            name = type(models[0]).__name__ if models else "the model"
            samples, why = split_batch.count(batches[-1]), split_batch.why_not_exact(models)
            reported = Split(name, samples, "step", made.pieces, why, "", made.error, made.seconds)
            self.split.news.append(reported)
            self.tell(step)

    def _run(
        self, batches: Sequence[Any], compute: Compute, undo: Callable[[str], None]
    ) -> Made | None:
        self._within = True
        try:
            return self.pieces.run(batches, compute, self._device, undo)
        finally:
            self._within = False

    def _device(self) -> torch.device:
        return next((p.device for p in self._training.parameters()), torch.device("cpu"))

    def step_ends(self, step: int, batches: Sequence[Batch], source: Any) -> None:
        """The step that was lost is over: hand out its batches again, where that can be."""
        self.lost = False
        self.split.whole = 0
        held = [(b, b.content) for b in batches if b.content is not None]
        if not held or len(held) < len(batches):
            source = None
        self.again = held if source is not None else []
        self._source = weakref.ref(source) if self.again else None
        self.held = bool(self.again)
        lost = LostStep(batches=len(self.again), **vars(self.split.place))
        self._training.record_at(step, lost)

    def next_batch(self, iterator: Any) -> tuple[Batch, Any] | None:
        """A batch of a lost step; mostly None."""
        self.held = False
        if not self.again or self._source is None or self._source() is not iterator:
            return None
        return self.again.pop(0)

    @property
    def more(self) -> bool:
        """Whether a batch will be handed out again."""
        return bool(self.again)

    def state(self) -> dict[str, Any]:
        """How calls are made from here on, as plain data."""
        return {"tries": self._tries, "told": self._reported, "split": self.split.state()}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from what ``state`` gave."""
        self._tries, self._reported = state["tries"], state["told"]
        self.split.restore(state["split"])

    def tell(self, step: int) -> None:
        """Record what was split up to this step: the last of it, and all that it took."""
        news, self.split.news = self.split.news, []
        if not news:
            return
        split, first = news[-1].record(), news[0]
        if len(news) > 1:
            split = split.replace(
                error=first.error,
                phase=" and ".join(dict.fromkeys(one.phase for one in news)),
                seconds=round(sum(one.seconds for one in news), 3),
                **({} if first.place is None else vars(first.place)),
            )
        split = split.replace(first=not self._reported)
        self._training.record_at(step, split)
        self._reported = True


def _called(model: nn.Module) -> nn.Module | None:
    """The module whose call is taken over: inside of what reduces gradients between ranks."""
    name = type(model).__name__
    if name == "DistributedDataParallel" and isinstance(model.module, nn.Module):
        return model.module
    if name == "FullyShardedDataParallel" or isinstance(model, torch.jit.ScriptModule):
        return None
    return model


def _device(module: nn.Module) -> torch.device:
    first = next(module.parameters(), None)
    return torch.device("cpu") if first is None else first.device


def _sharded(module: nn.Module) -> bool:
    """Whether a call of a module waits for other ranks."""
    syncs = any(isinstance(m, nn.SyncBatchNorm) for m in module.modules())
    return syncs or any(map(is_sharded, module.parameters()))
