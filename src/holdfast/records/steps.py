"""Steps of an optimizer: skipped, clipped, scaled, not covered."""

from __future__ import annotations

from typing import Any

from .base import Kind, Record


class GuardedOptimizer(Kind, kind="optimizer"):
    """An optimizer steps for the first time: how its bad steps are handled, and its names."""

    opt: int = 0
    """Its index among the optimizers of the run."""
    cls: str = ""
    """Name of its class."""
    layers: tuple[str, ...] = ()
    """Names of its parameters, in the order of the columns that hold one number for each."""
    buffers: tuple[str, ...] = ()
    """Names of the buffers that are restored with them."""
    how: str = ""
    """How a bad step is skipped, ``detect only`` where it is not."""
    why: str = ""
    """The reason for ``how``."""


class Switched(Kind):
    """An optimizer was given another form."""

    opt: int = 0
    """Index of the optimizer."""
    cls: str = ""
    """Name of its class."""
    why: str = ""
    """Why no better form can be used; empty where this is the best one."""


class SwitchedToFused(Switched, kind="switched_to_fused"):
    """An optimizer runs as its fused kernel, which can skip a step by itself."""


class SwitchedToForeach(Switched, kind="switched_to_foreach"):
    """An optimizer on a CPU runs as foreach: faster, to the same bits."""


class SwitchedToCapturable(Switched, kind="switched_to_capturable"):
    """The step counters of an optimizer were moved to the device."""


class Comparable(Kind, kind="comparable"):
    """Whether the losses of this run can be compared over time has changed."""

    holds: bool
    """They can."""
    why: str
    """Why they cannot; empty where they can."""


class LossPart(Record):
    """A line that calls backward."""

    name: str = ""
    """What the script calls the loss there; empty where it has no name."""
    file: str = ""
    line: int = 0
    kind: str = ""
    """The operation that made it, as autograd calls it."""


class NamedLosses(Kind, kind="losses"):
    """The losses that steps are about, told apart by the lines that call backward."""

    number: int
    """What the column ``losses`` holds on such steps."""
    opt: int = 0
    """Index of the optimizer."""
    parts: tuple[LossPart, ...] = ()
    """The lines, in order."""
    factor: float = 1.0
    """What the mean of the losses was multiplied by to be the loss that the script sees."""
    summed: int = 1
    """How many losses are added up: the gradients are those of their sum."""


class LossReplaced(Kind, kind="loss_replaced"):
    """From here on the script reads the last finite loss in place of one that is not."""

    opt: int = 0
    """Index of the optimizer."""


class ScalerChange(Kind, kind="scaler"):
    """The scaler policy has changed the scale of a GradScaler."""

    what: str
    """``policy`` for its first numbers, ``explosion`` or ``nonfinite`` for what came before it."""
    scale: float
    """The scale from then on."""
    opt: int | None = None
    """Index of the optimizer whose step it was."""


class Quarantined(Kind, kind="quarantine"):
    """A sample makes non-finite values; it stands in ``quarantine.rN.jsonl`` too."""

    index: Any
    """What the sampler has drawn."""
    reason: str = ""
    """What it has done."""
    file: str = ""
    """Path of the sample, where the dataset keeps a list of them."""
    opt: int = 0
    """Index of the optimizer whose step it was."""
    tensor: str = ""
    """Path of the tensor in the batch that holds the values; empty where a rerun blames it."""
    position: int = 0
    """Its row in the batch."""
    worker: int = -1
    """The loader worker that has read it, -1 for the main process."""
    dataset: str = ""
    """Class of the dataset that holds it, behind ``Subset`` and ``ConcatDataset``."""
    sample: Any = None
    """Its index there."""
    length: int | None = None
    """Samples of that dataset."""
    skip: bool = False
    """Whether it is skipped from now on."""


class QuarantineKeptOut(Kind, kind="quarantine_kept_out"):
    """How often quarantined samples were skipped in the whole run."""

    times: int
    """How often, each sample by itself."""


class SkippedBatch(Kind, kind="skipped_batch"):
    """A batch that has ended the run twice was skipped after a restart."""

    samples: tuple[Any, ...]
    """Indices of its samples."""


class Unreadable(Kind, kind="unreadable"):
    """A sample could not be read; it stands in ``quarantine.rN.jsonl`` too."""

    replaced: bool
    """Whether another sample was taken; False where reading it again has helped."""
    type: str = ""
    """Class of the exception."""
    message: str = ""
    file: str = ""
    """The script's line that has read it."""
    line: int = 0
    code: str | None = None
    """That line."""
    sample: Any = None
    """Index in the dataset that holds it, behind ``Subset`` and ``ConcatDataset``."""
    index: Any = None
    """What the sampler has drawn."""
    path: str = ""
    """Path of the sample, where the dataset keeps a list of them."""
    most: int | None = None
    """How many samples may be replaced in the whole run."""
