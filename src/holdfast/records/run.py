"""The run as a whole: its start, its end, its policy, failures of holdfast itself."""

from __future__ import annotations

from .base import Kind


class Start(Kind, kind="start"):
    """A process begins to record."""

    pid: int = 0
    rank: int = 0
    world: int | None = None
    """Number of ranks; None for a script that never imported torch."""
    torch: str = ""
    """Version of torch."""
    python: str = ""
    """Version of Python."""
    device: str = ""
    """Name of the GPU, ``cpu`` where none is in use."""
    script: str = ""
    """File name of the script."""


class PolicyRules(Kind, kind="policy"):
    """Which finding earns which action in this run."""

    rules: tuple[str, ...]
    """One line for each rule."""


class End(Kind, kind="end"):
    """A process has recorded all of its steps."""

    steps: int = 0
    """Rows that were written."""
    skipped: int = 0
    """Steps among them that were skipped."""


class Dropped(Kind, kind="dropped"):
    """Something was not recorded, because it came faster than it could be written."""

    readings: int = 0
    """Numbers of steps that were still on a device, so far."""
    records: int = 0
    """Rows and events that the ring had no room for, so far."""


class Truncated(Kind, kind="truncated"):
    """A file of the run folder is full: what came after is not there."""

    stream: str
    """Which file."""
    left_out: int
    """Lines that are missing in it so far."""


class NotCovered(Kind, kind="not_covered"):
    """What the guard cannot do for this run."""

    what: str
    why: str


class BackedOff(Kind, kind="backed_off"):
    """The guard is above its budget and drops a part of its work."""

    part: str = "measurements"
    """``measurements``, ``look-outs``, or ``floor`` where nothing else can be dropped."""
    cost: float | None = None
    """Share of the time of the last steps that the guard took."""
    per_step: float | None = None
    """Seconds that it took in a step."""
    budget: float = 0.0
    """Share of the time that it may take."""
    why: str = ""


class PartFailed(Kind, kind="holdfast_error"):
    """A part of holdfast failed and was switched off; the training went on."""

    where: str
    error: str
