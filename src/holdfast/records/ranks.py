"""What ranks have in common."""

from __future__ import annotations

from collections.abc import Mapping

from .base import Kind, Record


class MadeAt(Record):
    """The line of the script that made something; no file and line 0 where it is not known."""

    file: str = ""
    line: int = 0


class Parallel(Kind, kind="parallel"):
    """How an optimizer of a rank trains together with those of other ranks."""

    opt: int = 0
    """Index of the optimizer."""
    cls: str = ""
    """Name of its class."""
    group: int = 1
    """Ranks of the process group."""
    backend: str = ""
    """What ranks talk by: ``nccl``, ``gloo``."""
    wrapper: str = ""
    """``ddp`` or ``fsdp``; empty where no wrapper of torch is known."""
    model: str = ""
    """Digest of the names and shapes of its parameters."""
    dtype: str = ""
    """Their dtypes."""
    source: str = ""
    """Digest of the script; empty where it is no file."""
    find_unused: bool | None = None
    """``find_unused_parameters`` of DDP; None without DDP."""
    static_graph: bool | None = None
    """The same argument of DDP; None without DDP."""
    join: bool | None = None
    """Whether ranks may finish one by one, by ``model.join()``; None without DDP."""
    sampler: bool = False
    """Whether there is a ``DistributedSampler`` that shuffles."""
    settings: Mapping[str, str] = {}
    """Settings of its first parameter group, but for the learning rate."""
    batch_size: int | None = None
    """Samples of the first batch; None where no indices are drawn."""
    made: MadeAt = MadeAt()
    """Where the optimizer was made."""
    loader: MadeAt = MadeAt()
    """Where the loader was made."""
    parts: tuple[MadeAt, ...] = ()
    """Where the part of the model of each parameter was made; of DDP with ``find_unused``."""


class PassEnds(Kind, kind="pass_ends"):
    """A pass over the training data ended; the first ones of a run."""

    number: int
    """Of the pass, from 1 on."""
    samples: int | None = None
    """Samples of its last batch; None where no indices are drawn."""
