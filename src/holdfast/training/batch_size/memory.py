"""The memory of this machine that we may use."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import psutil
import torch

# Linux keeps the limits of a container here; elsewhere these files are missing.
_GROUP = Path("/sys/fs/cgroup")


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
    if limit is not None and limit < total:
        used = _number(group / "memory.current") or 0.0
        # Files that were read once are counted as used, and given up when memory is asked for.
        total, free = limit, max(0.0, min(free, limit - used + _files(group)))
    if (addresses := _address_space()) is not None:
        limit, used = addresses
        total, free = min(total, limit), max(0.0, min(free, limit - used))
    return HostMemory(total, free)


def free_memory(device: torch.device) -> float:
    """Bytes that this process could still take: of a GPU, what it set aside and does not use, too.

    A pass through the memory of the host is no different: what its container, or the limit of
    the process on its address space, leaves is all there is.
    """
    if device.type != "cuda":
        return host_memory().free
    free, _ = torch.cuda.mem_get_info(device)
    return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)


def _address_space() -> tuple[float, float] | None:
    """The limit on this process's addresses (``ulimit -v``), and how many it has; None: none."""
    try:
        import resource  # not on every system
    except ImportError:
        return None
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit == resource.RLIM_INFINITY:
        return None
    return float(limit), float(psutil.Process().memory_info().vms)


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
