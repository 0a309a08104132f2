"""The memory of this machine that we may use, and what it looks like when that runs out."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import psutil
import torch

# Linux keeps the limits of a container here; elsewhere these files are missing.
_GROUP = Path("/sys/fs/cgroup")
# As devices say it, then torch on x86 processors, on others, the system, and libraries of CUDA.
_TEXTS = (
    "out of memory", "can't allocate memory", "not enough memory", "cannot allocate memory",
    "alloc_failed",
)  # fmt: skip


@dataclass(frozen=True)
class HostMemory:
    """Bytes of host memory: all of it, and what is free now."""

    total: float
    free: float


def host_memory(group: Path = _GROUP) -> HostMemory:
    """What the machine has, or its container where that allows less."""
    machine = psutil.virtual_memory()
    total, free = float(machine.total), float(machine.available)
    limit = _number(group / "memory.max")
    if limit is None or limit >= total:
        return HostMemory(total, free)
    used = _number(group / "memory.current") or 0.0
    # Files that were read once are counted as used, and given up when memory is asked for.
    return HostMemory(limit, max(0.0, min(free, limit - used + _files(group))))


def out_of_memory(error: BaseException) -> bool:
    """Whether an exception says that memory ran out, on a device or on the host."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    said = str(error).lower()
    return isinstance(error, RuntimeError) and any(text in said for text in _TEXTS)


def _number(path: Path) -> float | None:
    try:
        return float(path.read_text())
    except (OSError, ValueError):  # no such file, or the word "max": no limit
        return None


def _files(group: Path) -> float:
    try:
        lines = (group / "memory.stat").read_text().splitlines()
    except OSError:
        return 0.0
    return sum(float(line.split()[1]) for line in lines if line.startswith("inactive_file "))
