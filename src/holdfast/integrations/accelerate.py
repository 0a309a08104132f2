"""Accelerate: ``watch(accelerator)`` guards a loop of its own as ``holdfast run`` would.

    from holdfast.integrations.accelerate import watch

    accelerator = Accelerator()
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    with watch(accelerator):
        for x, y in loader:
            accelerator.backward(loss_function(model(x), y))
            optimizer.step()
            optimizer.zero_grad()

Nothing in the loop changes: every step is guarded, a non-finite one is skipped exactly, a spike is
rolled back, the finding names the line and the sample. ``accumulate``, clipping, mixed precision
and the scaler are Accelerate's own. Without the ``with`` block it ends with ``close()`` or with the
process.

What it cannot do: loaders of Accelerate fetch a batch ahead, so a poisoned one is not handed to the
loop a second time; on a GPU, where a bad step is known too late, the line is found when it comes
again. Optimizers of DeepSpeed and Megatron step by themselves and are not guarded. It resumes from
``accelerator.save_state``, not from checkpoints of holdfast.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING

from ..config import Settings
from ..errors import UsageError
from ._framework import missing

try:
    from accelerate import Accelerator
except ModuleNotFoundError as error:
    raise missing("accelerate", "accelerate", error) from None

if TYPE_CHECKING:
    from ..watching.process import WatchedProcess

__all__ = ["watch"]


def watch(
    accelerator: Accelerator,
    *,
    run_dir: str | os.PathLike[str] | None = None,
    name: str | None = None,
    settings: Settings | None = None,
    say: Callable[[str], None] | None = None,
    quiet: bool = False,
) -> WatchedProcess:
    """Guard the loop that follows, and record it; a context manager, and a card in a notebook.

    Args:
        accelerator: yours; call it before or after ``prepare``, and before the loop.
        run_dir: folder of the run; a new one under ``runs/`` by default.
        name: name of the run; the script's name by default.
        settings: see ``holdfast.Settings``.
        say: where live lines and the summary go; standard error of the main process by default.
        quiet: no live lines and no summary.
    """
    from ..watching.process import watch_process

    if not isinstance(accelerator, Accelerator):
        raise UsageError(
            f"watch needs an accelerate.Accelerator, got {type(accelerator).__name__}; "
            "for a loop without one there is holdfast.watch(model, optimizer)"
        )
    quiet = quiet or not accelerator.is_main_process
    watched = watch_process(run_dir=run_dir, name=name, settings=settings, say=say, quiet=quiet)
    models = [accelerator.unwrap_model(model) for model in accelerator._models]
    watched.knows(accelerator._optimizers, models)
    return watched
