"""Lightning: ``Trainer(callbacks=[HoldfastCallback()])`` is guarded as under ``holdfast run``.

    from holdfast.integrations.lightning import HoldfastCallback

    trainer = lightning.Trainer(max_epochs=3, callbacks=[HoldfastCallback()])
    trainer.fit(model, loader)

From the setup of ``fit`` to its end every step is guarded: a non-finite one is skipped exactly, a
spike is rolled back, the finding names the line and, where the loader has a sampler, the sample.
Manual optimization, several optimizers, accumulation, clipping and ``precision`` are Lightning's
own. ``validate``, ``test`` and ``predict`` are left alone.

What it cannot do: on a GPU a poisoned batch is handed out once more to find its line, and because
Lightning counts batches the last one of that epoch is not used (``guard.replay`` turns it off). The
loss that Lightning logs is a copy made before the backward pass and stays NaN. It resumes from
Lightning's checkpoints, not from those of holdfast. Processes that Lightning starts itself
(``devices=2`` without torchrun) record a folder each; ``torchrun`` or ``holdfast run`` give one.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from ._framework import FrameworkGuard, missing

try:
    if TYPE_CHECKING or "pytorch_lightning" not in sys.modules:
        from lightning.pytorch.callbacks import Callback
    else:  # the same under its older name, which is another class
        from pytorch_lightning.callbacks import Callback
except ModuleNotFoundError as error:
    raise missing("lightning", "lightning", error) from None

__all__ = ["HoldfastCallback"]


class HoldfastCallback(FrameworkGuard, Callback):
    """Guards ``trainer.fit``: skips, findings, rollback, and a report at its end."""

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Before optimizers and loaders are made."""
        if stage == "fit":
            self._begins(main=trainer.is_global_zero)

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        """The optimizers are there."""
        self._knows(trainer.optimizers, [pl_module])

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """The end of ``fit``."""
        if stage == "fit":
            self._ends()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """The end of ``fit`` by an exception, which Lightning raises again."""
        self._ends(exception)
