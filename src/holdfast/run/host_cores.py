"""How many cores this process may use: the machine, its container and its ranks decide."""

from __future__ import annotations

import os
from pathlib import Path


def cores_here() -> int:
    """Cores this rank may use: its share of what the container and the scheduler allow."""
    try:
        cores = len(os.sched_getaffinity(0))
    except AttributeError:  # not on this system
        cores = os.cpu_count() or 1
    quota = _quota(Path("/sys/fs/cgroup/cpu.max"))
    if quota is not None:
        cores = min(cores, max(1, round(quota)))
    return max(1, cores // max(1, int(os.environ.get("LOCAL_WORLD_SIZE", "1"))))


def _quota(path: Path) -> float | None:
    """Cores a container may use, which the number of cores does not show; None: no limit."""
    try:
        allowed, period = path.read_text(encoding="ascii").split()
        return int(allowed) / int(period)
    except (OSError, ValueError, ZeroDivisionError):  # "max", or no such file
        return None
