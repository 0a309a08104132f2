"""What is done to save a run: snapshots, rollbacks, lower rates, stops, the last state.

Kinds about one optimizer have ``opt``, its number; the others are about all of them.
"""

from __future__ import annotations

import math
from typing import ClassVar, Literal

from .base import Kind


class RolledBack(Kind, kind="rollback"):
    """An older state was put in place for good."""

    opt: int
    """Index of the optimizer."""
    code: str
    """The finding it was done for; empty where the loop asked for it."""
    why: str
    """``loss``, ``nonfinite`` or ``weights``: what was suspected; else what the loop said."""
    to: int
    """Step of the state that was put in place."""
    steps: int
    """Steps that were undone."""
    loss: float
    """The loss that was suspected."""
    usual: float
    """Its baseline."""
    first: int | None = None
    """Step at which the trouble began."""
    tried: float = math.nan
    """Loss with the older weights; NaN without a trial."""
    before: float = math.nan
    """Loss of the same data with the present weights; NaN where the trial had other data."""
    replayed: int | None = None
    """Step that its batch was handed out for a second time."""
    asked_by: int | None = None
    """Rank that asked for it, where several do it together."""
    validation: float | None = None
    """The best value of the validation, where its state was put in place."""
    lr_factor: float = 1.0
    """What the learning rate was multiplied by."""
    moments_reset: bool = False
    """Whether the state of the optimizer was cleared."""
    ms: float = math.nan
    """Milliseconds that it took."""
    left: int | None = None
    """How many more rollbacks are allowed."""


class TrialResult(Kind, kind="trial"):
    """Older weights were tried on one batch, and undone."""

    opt: int
    """Index of the optimizer."""
    verdict: Literal["data", "nonfinite", "no better", "weights"]
    """What it has shown: the data has changed, values are not finite with older weights either,
    nothing; ``weights``, in early records, that they were damaged."""
    loss: float
    """The loss that was suspected."""
    usual: float
    """Its baseline."""
    tried: float
    """Loss with the older weights."""
    why: str = ""
    """``loss``, ``nonfinite`` or ``weights``: what was suspected."""
    cause: str = ""
    """Code of the finding that steps which are not finite belong to."""
    before: float = math.nan
    """Loss of the same data with the present weights; NaN where the trial had other data."""
    replayed: int | None = None
    """Step that its batch was handed out for a second time."""
    asked_by: int | None = None
    """Rank that asked for it, where several do it together."""


class OnlyObserved(Kind, kind="observed"):
    """Weights were suspected, and nothing was done."""

    opt: int
    """Index of the optimizer."""
    code: str
    """The finding that it would have been done for."""
    first: int
    """Step at which the trouble began."""
    loss: float
    """The loss that was suspicious."""
    usual: float
    """The baseline of the loss."""
    why: str
    """Why nothing was done."""
    instead: tuple[str, ...] = ()
    """The actions that the policy has for it."""
    asked_by: int | None = None
    """Rank that asked for a rollback, which the ranks refused together."""

    # In early records of what ranks have refused.
    earlier: ClassVar = {"step": "", "limit": "", "cause": "", "asked": ""}


class NewLossLevel(Kind, kind="level"):
    """The data has changed: the loss has another level from here on."""

    opt: int
    """Index of the optimizer."""
    before: float
    """The level until then."""
    after: float
    """The level from here on."""


class NewTask(Kind, kind="new_task"):
    """The loop says that something else is learned from here on."""


class ClippingSwitched(Kind, kind="clipping"):
    """Gradients are clipped since a norm exploded, or no longer."""

    opt: int
    """Index of the optimizer."""
    on: bool
    limit: float
    """The gradient norm that is let through."""
    why: str
    asked_by: int | None = None
    """Rank that asked for it, where several do it together."""


class LoweredRate(Kind, kind="lowered_lr"):
    """The learning rates of all optimizers were multiplied."""

    factor: float
    """What each rate was multiplied by."""
    opt: int | None = None
    """Optimizer whose gradient norm was the reason."""
    norm: float = math.nan
    """Gradient norm that was the reason."""
    usual: float = math.nan
    """Its baseline."""
    asked_by: int | None = None
    """Rank that asked for it, where several do it together."""

    # In early records of what the judging process had asked of several ranks.
    earlier: ClassVar = {"kind": ""}


class RunStopped(Kind, kind="stop"):
    """The run was stopped by the policy."""

    code: str
    """The finding it was done for."""
    why: str
    checkpoint: str = ""
    """File of the last good state; empty where none could be saved."""
    action: str = "stop"
    """What the policy asked for."""


class OrderedAction(Kind, kind="action"):
    """What the judging process asked for, between two steps."""

    action: str
    """As the policy calls it, such as ``checkpoint`` or ``lower_lr``."""
    code: str
    """The finding it was done for."""
    found: int | None = None
    """Step of the finding."""
    done: bool = True
    """Whether it was done."""
    checkpoint: str = ""
    """File that is being written."""
    why: str = ""
    """Why it was not done."""


class SnapshotTotals(Kind, kind="snapshots"):
    """What keeping snapshots of the state took, at the end of a run."""

    count: int
    """Snapshots taken."""
    every: int
    """Steps between the last ones."""
    ms: float
    """Mean time of one in milliseconds."""
    bytes: int
    """Host memory they took at the end."""
    dropped: int
    """How many were due and not taken, for lack of memory."""


class SavingLastState(Kind, kind="saving_last_state"):
    """A large state is about to be written at the end of a run."""

    bytes: int
    """Size in bytes."""
    expected: float | None = None
    """Seconds that it takes, going by the last checkpoint; None before the first."""


class LastStateResult(Kind, kind="last_state"):
    """The last state of a run that ended early was written, or why it was not."""

    why: str
    """What ended the run: a signal, or the class of an exception."""
    failed: str = ""
    """Why nothing was written; empty where something was."""
    source: Literal["", "live", "snapshot"] = ""
    """Whether it is the state after the last complete step, or a snapshot from before."""
    note: str = ""
    """Why it is a snapshot."""
    file: str = ""
    bytes: int = 0
    """Size in bytes."""
    seconds: float | None = None
    """How long writing took; None where a checkpoint of that step was there already."""
    models: tuple[str, ...] = ()
    """Names of the models in it."""
    optimizers: int = 1
    """How many optimizers it holds."""
    counted: bool = False
    """Whether its file has the count of steps for a name (``watch``), not the last step."""
    good: bool = True
    """False: something was suspected of having damaged the weights when it was saved."""
