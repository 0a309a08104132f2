"""Transformers: ``Trainer(callbacks=[HoldfastCallback()])`` is guarded as under ``holdfast run``.

    from holdfast.integrations.transformers import HoldfastCallback

    trainer = Trainer(model, arguments, train_dataset=data, callbacks=[HoldfastCallback()])
    trainer.train()

From the beginning of ``train`` to its end every step is guarded: a non-finite one is skipped
exactly, a spike is rolled back, the finding names the line and, where it can be told which batches
were in the step, the sample. Accumulation, clipping and mixed precision are the Trainer's own.

What it cannot do: the Trainer fetches batches ahead, so a poisoned one is not handed to the loop a
second time; on a GPU, where a bad step is known too late, the finding mostly has no line. There is
no event for an exception: one that ends the script is recorded when the process ends, one that is
caught leaves the guard in place until the next ``train``, ``close()`` or the end of the process.
It resumes from the Trainer's checkpoints, not from those of holdfast.
"""

from __future__ import annotations

from typing import Any

from ._framework import FrameworkGuard, missing

try:
    from transformers.trainer_callback import TrainerCallback
except ModuleNotFoundError as error:
    raise missing("transformers", "transformers", error) from None

__all__ = ["HoldfastCallback"]


class HoldfastCallback(FrameworkGuard, TrainerCallback):
    """Guards ``trainer.train``: skips, findings, rollback, and a report at its end."""

    def on_train_begin(
        self,
        args: Any,
        state: Any,
        control: Any,
        *,
        model: Any = None,
        optimizer: Any = None,
        **kwargs: Any,
    ) -> None:
        """The model and its optimizer are there, the first batch is not fetched yet."""
        self._begins(main=state.is_world_process_zero)
        self._knows([optimizer], [] if model is None else [model])

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """The end of ``train``."""
        self._ends()

    def close(self) -> None:
        """End the guard after an exception that was caught; at any other time it is not needed."""
        self._ends()
