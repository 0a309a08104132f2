"""Host memory that a process may use: its limits, what of them is used, kills for lack of it.

Limits are those of the process itself (``ulimit -v``), of its control group (containers, SLURM,
systemd; cgroup version 1 and 2) and of the machine. The first makes an allocation fail, the others
have the kernel kill the process. What the system does not tell is missing.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import psutil

try:
    import resource
except ImportError:  # Windows: a run is read there, not limited
    resource = None

ADDRESSES, DATA, GROUP, SLURM, MACHINE = "ulimit -v", "ulimit -d", "cgroup", "slurm", "machine"

# As devices say it, then torch on x86 processors and on others, the system, libraries of CUDA.
_MEMORY = re.compile(
    r"out of memory|can.?t allocate memory|cannot allocate memory|not enough memory|bad_alloc"
    r"|alloc_failed",
    re.I,
)
# What oneDNN says when it gets no memory, and otherwise too; bytes that are next to none.
_NO_REASON = re.compile(r"could not (create|execute) a (primitive|memory)")
_FULL = 256 << 20
_PROC = Path("/proc")
_CGROUP = Path("/sys/fs/cgroup")


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryLimit:
    """One limit: which one, its bytes, and how many of them are used and cannot be reclaimed."""

    name: str
    """``ulimit -v``, ``ulimit -d``, ``cgroup``, ``slurm`` or ``machine``."""
    bytes: int
    used: int

    @property
    def free(self) -> int:
        """Bytes that are left."""
        return max(0, self.bytes - self.used)

    @property
    def share(self) -> float:
        """Used part."""
        return self.used / self.bytes if self.bytes > 0 else 0.0


def ran_out(found: BaseException | None) -> bool:
    """Whether an exception says that memory ran out, of a device or of the host."""
    if isinstance(found, MemoryError):
        return True
    if isinstance(found, OSError):
        return found.errno == errno.ENOMEM
    if not isinstance(found, RuntimeError):
        return False
    said = str(found)  # an OutOfMemoryError of torch says it too
    return bool(_MEMORY.search(said) or (_NO_REASON.search(said) and room() < _FULL))


def room() -> int:
    """Bytes of host memory that this process could still ask for."""
    limit = nearest([*own_limits(), *shared_limits()])
    return psutil.virtual_memory().available if limit is None else limit.free


def own_limits() -> list[MemoryLimit]:
    """Limits of this process alone, beyond which an allocation fails."""
    if resource is None:
        return []
    used = psutil.Process().memory_info()
    found: list[MemoryLimit] = []
    for name, kind, size in (
        (ADDRESSES, resource.RLIMIT_AS, used.vms),
        (DATA, resource.RLIMIT_DATA, getattr(used, "data", 0)),
    ):
        limit = resource.getrlimit(kind)[0]
        if limit != resource.RLIM_INFINITY:
            found.append(MemoryLimit(name=name, bytes=limit, used=size))
    return found


def shared_limits() -> list[MemoryLimit]:
    """Limits of the control groups of this process and of the machine: beyond them it is killed."""
    total, free = _machine()
    machine = MemoryLimit(name=MACHINE, bytes=total, used=max(0, total - free))
    return [*_group_limits(total), machine]


def nearest(limits: list[MemoryLimit]) -> MemoryLimit | None:
    """The limit that has the fewest bytes left."""
    return min(limits, key=lambda limit: limit.free, default=None)


def oom_kills() -> int | None:
    """Processes of this control group that the kernel killed for lack of memory, so far."""
    for folder, second in _groups():
        name = "memory.events" if second else "memory.oom_control"
        count = _fields(folder / name).get("oom_kill")
        if count is not None:
            return count
    return None


def machine_oom_kills() -> int | None:
    """The same of the whole machine, other containers included."""
    return _fields(_PROC / "vmstat").get("oom_kill")


def resident(pid: int) -> tuple[int, int]:
    """Bytes of memory that a process has, and the most it ever had; zeros where unknown."""
    found = _fields(_PROC / str(pid) / "status")
    return found.get("VmRSS", 0) * 1024, found.get("VmHWM", 0) * 1024


def _machine() -> tuple[int, int]:
    """Bytes of memory and swap, and how many of them are free or can be reclaimed."""
    found = _fields(_PROC / "meminfo")
    if "MemAvailable" not in found:
        memory = psutil.virtual_memory()
        return memory.total, memory.available
    total = found.get("MemTotal", 0) + found.get("SwapTotal", 0)
    return total * 1024, (found["MemAvailable"] + found.get("SwapFree", 0)) * 1024


def _group_limits(total: int) -> Iterator[MemoryLimit]:
    for folder, second in _groups():
        limit = _number(folder / ("memory.max" if second else "memory.limit_in_bytes"))
        used = _number(folder / ("memory.current" if second else "memory.usage_in_bytes"))
        if limit is None or used is None or not 0 < limit < total:
            continue  # none: version 1 writes the largest number there is
        # Pages of files that were read count as used, but the kernel takes them back first.
        prefix = "" if second else "total_"
        stat = _fields(folder / "memory.stat")
        cached = [stat.get(f"{prefix}{name}_file", 0) for name in ("inactive", "active")]
        slurm = "slurm" in str(folder) or "SLURM_JOB_ID" in os.environ
        name = SLURM if slurm else GROUP
        yield MemoryLimit(name=name, bytes=limit, used=max(0, used - sum(cached)))


@cache
def _groups() -> tuple[tuple[Path, bool], ...]:
    """Folders of this process' control group and those around it; whether each is version 2."""
    try:
        lines = (_PROC / "self" / "cgroup").read_text().splitlines()
    except OSError:
        return ()
    found: list[tuple[Path, bool]] = []
    for line in lines:
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        second = not controllers
        if not second and "memory" not in controllers.split(","):
            continue
        top = _CGROUP if second else _CGROUP / "memory"
        # A container may see the path of the host, of which it has only the end: its own root.
        inner = Path(path.lstrip("/"))
        for folder in (top / inner, *(top / parent for parent in inner.parents)):
            if folder.is_dir() and (folder / "cgroup.procs").exists():
                found.append((folder, second))
    return tuple(found)


def _number(path: Path) -> int | None:
    try:
        text = path.read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None


def _fields(path: Path) -> dict[str, int]:
    """Lines of a word and a number."""
    try:
        text = path.read_bytes()
    except OSError:
        return {}
    words = (line.split(maxsplit=2) for line in text.splitlines())
    return {
        line[0].decode(errors="replace").rstrip(":"): int(line[1])
        for line in words
        if len(line) > 1 and line[1].isdigit()
    }
