"""Whether a process that left no word was killed for lack of memory; asked by MEM008 and reports.

A process that gets SIGKILL says nothing. What is left are the readings that were taken beside it:
how much of the nearest limit was used, and how many processes of its control group the kernel
had killed for lack of memory.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..records.crash import Died
from ._memory import amount

DIED = Died.kind
"""Event: a process was gone without a word."""

_LIMITS = {
    "ulimit -v": ("the limit of its address space (ulimit -v)", "raise it (ulimit -v unlimited)"),
    "ulimit -d": ("the limit of its data (ulimit -d)", "raise it (ulimit -d unlimited)"),
    "cgroup": (
        "the memory limit of its container or control group (memory.max)",
        "give it more (docker run --memory, limits.memory in Kubernetes, MemoryMax in systemd)",
    ),
    "slurm": ("the memory of its SLURM job", "ask for more (sbatch --mem)"),
    "machine": ("the memory of the machine", "use a machine with more"),
}


@dataclass(frozen=True, kw_only=True)
class Options:
    """When a SIGKILL counts as one for lack of memory.

    Attributes:
        near: used part of the limit in the last reading. A guess: readings are up to 0.4 s old,
            in which a process fills a few GiB at most.
        perhaps: from here on it is called possible.
        part: of the used memory of a machine that the process must have had: the kernel kills a
            large one, and others may have filled the machine. A guess.
    """

    near: float = 0.9
    perhaps: float = 0.75
    part: float = 0.05


@dataclass(frozen=True, kw_only=True)
class Kill:
    """The last reading before a process was gone."""

    data: Died
    options: Options = Options()

    @property
    def counted(self) -> bool:
        """Whether the kernel counted a kill for lack of memory that can only be this one."""
        own = self.data.oom_kills > 0
        machine = self.data.machine_oom_kills > 0 and self.data.signal == "SIGKILL"
        return (own or machine) and not self._otherwise

    @property
    def ran_out(self) -> bool:
        """Whether it was killed for lack of memory, as far as that can be reported."""
        # Where holdfast was killed with it, nobody saw the signal.
        seen = self.data.together or self.data.signal == "SIGKILL"
        small = (self.data.process or 0.0) < self.options.part * (self.data.used or 0.0)
        small = small and self.data.limit == "machine"
        full = self.share >= self.options.near and not small
        return self.counted or (bool(seen) and full)

    @property
    def perhaps(self) -> bool:
        """Whether it cannot be excluded: much was used, or nothing was read."""
        return not self.data.bytes or self.share >= self.options.perhaps

    @property
    def share(self) -> float:
        """Used part of the limit."""
        limit = self.data.bytes or 0.0
        return (self.data.used or 0.0) / limit if limit > 0 else 0.0

    @property
    def used(self) -> str:
        """``23.1 GiB of 24.0 GiB were used (the memory of the machine)``; empty where unknown."""
        limit = self.data.bytes or 0.0
        if not limit > 0:
            return ""
        used = amount(min(self.data.used or 0.0, limit))
        return f"{used} of {amount(limit)} were used ({limit_words(self.data.limit or '')})"

    @property
    def process(self) -> str:
        """How much the process had, and had in the beginning; empty where unknown."""
        now, first = self.data.process or 0.0, self.data.first or 0.0
        if not now > 0:
            return ""
        grown = f", {amount(first)} in the beginning" if 0 < first < 0.9 * now else ""
        return f"this process had {amount(now)}{grown}"

    @property
    def _otherwise(self) -> bool:
        """Whether another signal ended it: a worker may have been the one that was killed."""
        return self.data.signal not in ("", "SIGKILL")


def limit_words(limit: str) -> str:
    """A limit in words."""
    return _LIMITS.get(limit, _LIMITS["machine"])[0]


def limit_advice(limit: str) -> str:
    """How to get more of it."""
    return _LIMITS.get(limit, _LIMITS["machine"])[1]
