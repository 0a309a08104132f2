"""Which process records a run, so that others can tell whether it is still there.

A process id alone says little: ids come round again, after a reboot and in every container. With
the time at which the process started, counted by the kernel from its boot, and with the boot, the
PID namespace and the host, "still running" is never said of a stranger.
"""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any, Self, cast

import psutil

_PROC = Path("/proc")
# Elsewhere than on Linux start times are wall-clock times, which move when a clock is set.
_CLOCK_SET = 5_000
_PACKED = struct.Struct("@QQQ64s")
PACKED_SIZE = _PACKED.size


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessMark:
    """A process, told apart from all others of this and other machines."""

    pid: int
    started: int
    """Clock ticks from the boot to its start; milliseconds since 1970 where there is no /proc."""
    boot: str
    """Which boot of the machine, 16 hex digits; empty where the system does not tell."""
    namespace: int
    """PID namespace, in which the id counts; 0 where the system does not tell."""
    host: str

    @classmethod
    def of(cls, pid: int | None = None) -> Self:
        """A process of this machine, this very one by default."""
        pid = os.getpid() if pid is None else pid
        return cls(
            pid=pid, started=_start_of(pid) or 0, boot=_boot(), namespace=_namespace(), host=_host()
        )

    @classmethod
    def from_dict(cls, data: object) -> Self | None:
        """Read back what ``run.json`` has; None for anything that is no mark."""
        match data:
            case {"pid": int(), "started": int(), "boot": str(), "namespace": int(), "host": str()}:
                known = cast("Mapping[str, Any]", data)
                return cls(**{key: known[key] for key in cls.__dataclass_fields__})
            case _:
                return None

    def to_dict(self) -> dict[str, Any]:
        """Plain data for ``run.json``."""
        return asdict(self)

    def pack(self) -> bytes:
        """The mark without its id, in the fixed width that the header of a ring has for it."""
        boot = int(self.boot or "0", 16)
        return _PACKED.pack(self.started, boot, self.namespace, self.host.encode())

    @classmethod
    def unpack(cls, pid: int, data: bytes) -> Self | None:
        """Read back what ``pack`` made; None where an older version left it blank."""
        started, boot, namespace, host = _PACKED.unpack(data)
        name = host.rstrip(b"\0").decode("utf-8", "replace")
        digits = f"{boot:016x}" if boot else ""
        if not name:
            return None
        return cls(pid=pid, started=started, boot=digits, namespace=namespace, host=name)

    def is_alive(self) -> bool | None:
        """Whether it still runs; None where that cannot be seen from here."""
        if self.host != _host():
            return None
        if self.boot != _boot():
            return False
        if self.namespace != _namespace():
            return None
        started = _start_of(self.pid)
        if started is None:
            return False
        return abs(started - self.started) <= (0 if self.boot else _CLOCK_SET)


def _start_of(pid: int) -> int | None:
    """When a process started; None when there is none, or only what is left of one that ended."""
    if not (_PROC / "self" / "stat").exists():
        try:
            return round(psutil.Process(pid).create_time() * 1000)
        except psutil.Error:
            return None
    try:
        # The name of the program may hold anything, spaces and brackets too: read behind it.
        fields = (_PROC / str(pid) / "stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return None
    return None if fields[0] in b"ZX" else int(fields[19])


@cache
def _boot() -> str:
    try:
        text = (_PROC / "sys/kernel/random/boot_id").read_text()
    except OSError:
        return ""
    return text.replace("-", "").strip()[:16]


@cache
def _namespace() -> int:
    try:
        return (_PROC / "self/ns/pid").stat().st_ino
    except OSError:
        return 0


@cache
def _host() -> str:
    return socket.gethostname()[:64]
