"""Columns of a step's row: name, then one line of meaning with the unit, in the order on disk.

A value that was not measured on a step is NaN. ``step`` and ``time`` (seconds since 1970) stand
before them in every row. A new column goes to the end of its group.
"""

from __future__ import annotations

from collections.abc import Mapping

LOSS = {
    "loss": "mean of the losses of this step, before the script divides them for accumulation",
    "loss_bad": "1 when one of them was NaN or infinite",
    "backwards": "number of backward passes in this step",
    "losses": "number of the event `losses` that names them; of steps that were looked at",
}
GRADIENTS = {
    "grad_norm": "L2 norm over all gradients of the optimizer",
    "grad_max": "NaN or infinity, whichever the blamed gradient holds; measured on bad steps",
    "grad_bad": "number of non-finite gradient tensors",
    "grad_layer": "index of the layer to blame, -1 for none",
}
MODEL_STATE = {
    "param_bad": "number of non-finite parameter tensors; checked periodically",
    "param_layer": "index of the first of them, -1 for none",
    "buffer_bad": "number of non-finite module buffers",
    "buffer_layer": "index of the first of them, -1 for none",
}
LEARNING_RATE = {"lr": "learning rate of the first parameter group"}
BATCH = {
    "batch": "24-bit fingerprint of the batch",
    "worker": "loader worker that made it, -1 for the main process",
    "input_bad": "number of non-finite tensors of the batch; checked on bad steps",
}
TIMES = {
    "data_wait": "seconds waiting for the next batch",
    "h2d": "host seconds copying tensors to the device",
    "forward": "seconds from the batch to backward, loss code included; sampled on a GPU",
    "backward": "seconds in backward; sampled on a GPU",
    "optimizer": "seconds in optimizer.step; sampled on a GPU",
    "other": "seconds in everything else of the loop; sampled on a GPU",
    "collective": "host seconds waiting for other ranks outside of backward",
}
DEVICE_MEMORY = {
    "mem_allocated": "bytes in live tensors on the device; sampled",
    "mem_reserved": "bytes the allocator holds from the driver; sampled",
    "mem_retries": "allocator retries so far (it emptied its cache and tried again); sampled",
}
HOST_MEMORY = {"rss": "resident memory of the process in bytes; sampled, NaN in between"}
GUARD = {
    "opt": "index of the optimizer that stepped",
    "skipped": "1 when holdfast skipped this step",
    "scaler_skipped": "1 when the user's GradScaler skipped it",
    "scale": "scale of the user's GradScaler, NaN without one",
    "guard": "host seconds spent in holdfast during this step",
    "guard_device": "device seconds of holdfast's own kernels beyond the host's, sampled",
    "guard_hidden": "1 when the device was behind, so that host seconds cost nothing; sampled",
}
BASELINE = {
    "loss_baseline": "median of the recent losses, NaN until there are enough",
    "loss_limit": "threshold above which a loss is an outlier",
    "norm_baseline": "median of the recent gradient norms, NaN until there are enough",
    "norm_limit": "threshold above which a gradient norm is an outlier",
    "outlier": "1 when the gradient norm is an outlier, 2 for the loss, 3 for both",
    "clip": "clipping factor on the gradients before the step; 1 when they were not clipped",
}

COLUMNS: Mapping[str, str] = {
    **LOSS, **GRADIENTS, **MODEL_STATE, **LEARNING_RATE, **BATCH, **TIMES,
    **DEVICE_MEMORY, **HOST_MEMORY, **GUARD, **BASELINE,
}  # fmt: skip
"""All of them. Files on disk name theirs, so that runs of other versions stay readable."""

EARLIER: dict[str, str] = {"loss_usual": "loss_baseline", "norm_usual": "norm_baseline"}
"""Names that columns had before, each with today's: rows that were recorded with them are read
under today's name."""
