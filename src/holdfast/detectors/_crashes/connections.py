"""Pipes, sockets, ports and downloads of one process; the ends of other ranks: ``workers``."""

from __future__ import annotations

from ..peers import many_ranks
from .facts import Crash, CrashCause

_LOST = ("BrokenPipeError", "ConnectionResetError", "ConnectionAbortedError", "RemoteDisconnected")


def reader(crash: Crash) -> CrashCause | None:
    """Nobody reads the output any more, as after ``| head``."""
    gone = crash.data.output_gone
    if crash.type != "BrokenPipeError" or not gone:
        return None
    return CrashCause(
        headline=f"the reader of the output went away ({gone})",
        advice=f"what read {gone} ended before the script did (head, a pager that was closed, a "
        "lost terminal): nothing is wrong with the training; write the output to a file, "
        "> log.txt, or through tee -a log.txt",
    )


def lost(crash: Crash) -> CrashCause | None:
    """A connection of this process that the other side closed."""
    if crash.type not in _LOST:
        return None
    return CrashCause(
        headline="a connection was lost",
        advice="the other side closed it (a server, a database, a tracker, a process of the "
        f"script's own); why is not known here: look there, and connect "
        f"again{crash.place.reported()}",
    )


def refused(crash: Crash) -> CrashCause | None:
    """Nobody listens where the script connects to."""
    if crash.type != "ConnectionRefusedError":
        return None
    return CrashCause(
        headline="a connection was refused: nobody listens there",
        advice="start the server first, and check host and port"
        + (" (MASTER_ADDR and MASTER_PORT for ranks)" if many_ranks(crash.data) else ""),
    )


def port(crash: Crash) -> CrashCause | None:
    """A port that another process has."""
    if not crash.find(r"EADDRINUSE|[Aa]ddress already in use"):
        return None
    group = (
        many_ranks(crash.data)
        or "distributed/" in crash.library
        or crash.type == "DistNetworkError"
    )
    return CrashCause(
        headline="the port is already used",
        advice="another run has it, perhaps a dead one: choose another MASTER_PORT (torchrun "
        "--rdzv-endpoint=localhost:0 finds a free one)"
        if group
        else "another process listens on it (ss -ltnp names it): choose another port, or 0 for any "
        "that is free",
    )
