"""What feeds the loop: the batches that its loaders hand out, and the random state before them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ..diagnosis.nonfinite.investigation import Investigation
from ..probes.batches import Batch, LoaderBatches
from .training import GuardedTraining


class BatchSource:
    """The loader that is trained on, and what has come from it since the last step.

    Args:
        training: that it feeds.
        keeps_rng: whether a skipped step goes back to the random state from before it.
    """

    def __init__(self, training: GuardedTraining, *, keeps_rng: bool) -> None:
        self.loader_batches: LoaderBatches | None = None
        self.rng: Tensor | None = None
        self._training, self._keeps_rng = training, keeps_rng

    def let_go(self) -> None:
        """The batches of the last step are no longer ours to hold."""
        if self.loader_batches is not None:
            for batch in self.loader_batches.used:
                batch.content = None

    def keep_rng(self, passes: int) -> None:
        """A skipped step, or an exam of it, goes back to this random state."""
        if self._keeps_rng and (self.rng is None or not passes):
            self.rng = torch.random.default_generator.get_state()

    def comes_from(self, iterator: Any, investigation: Investigation) -> LoaderBatches:
        """Batches come from another iterator than before, or from one that carries no ledger."""
        training, loader_batches = self._training, LoaderBatches.of(iterator, self.loader_batches)
        if loader_batches is not self.loader_batches:
            training.comparability.feeds(iterator)
            training.origins.feeds(iterator)
        self.loader_batches = loader_batches
        training.bad_batches.feeds(iterator)
        investigation.came_from(iterator)
        return loader_batches

    def hand_out_again(self, batch: Batch, content: object) -> None:
        """A batch of before is given to the loop once more."""
        assert self.loader_batches is not None
        if self._keeps_rng:
            self.rng = torch.random.default_generator.get_state()
        self.loader_batches.hand_out_again(batch, content)

    @property
    def ahead(self) -> bool:
        """Whether the loop fetches batches before their step."""
        return self.loader_batches is not None and bool(self.loader_batches.ahead)

    def at_work(self) -> Sequence[Batch]:
        """The batches that the loop is working on."""
        return () if self.loader_batches is None else self.loader_batches.at_work()

    def here(self, passes: int) -> tuple[Sequence[Batch], Tensor | None]:
        """The batches of the losses so far, the current one last, and the random state before."""
        batches = self.at_work()
        if self.ahead:
            # Such a loop may have fetched all batches of an accumulation window at its beginning.
            batches = batches[: max(1, passes)]
        return batches, self.rng
