"""Whether an exception says only that another rank is gone; asked by RUN001, RNK and reports."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

GONE = "another rank is gone"
"""The headline of such an exception."""

_WORDS = re.compile(
    r"Connection closed by peer|Connection reset by peer|Broken pipe|[Rr]emote (peer|process)|"
    r"NCCL communicator (was )?aborted|ncclRemoteError|"
    r"collective operation timeout|Timed out waiting \d+ms for (recv|send)|"
    r"[Ww]atchdog caught collective|gloo.*(timed out|closed)"
)
# What python itself raises of its own pipes and sockets; a collective raises none of these.
_OWN_PIPES = ("BrokenPipeError", "ConnectionResetError", "ConnectionAbortedError", "EOFError")
# torch.multiprocessing.spawn says by its type that a process it had started is gone.
ENDED_PROCESS = "ProcessExitedException"


_LATE = re.compile(r"[Tt]imed out|timeout")


def peer_is_late(exception: Mapping[str, Any]) -> bool:
    """Whether they tell of one that did not come for the time that a collective may take.

    >>> said = "gloo/unbound_buffer.cc:78] Timed out waiting 20000ms for recv"
    >>> peer_is_late({"message": said, "world": 2})
    True
    """
    return peer_is_gone(exception) and bool(_LATE.search(str(exception.get("message") or "")))


def peer_is_gone(exception: Mapping[str, Any]) -> bool:
    """Whether the data of an ``exception`` event tell of another rank's end.

    The words alone do not say it: one process that trains for itself has no other rank.

    >>> peer_is_gone({"message": "gloo/pair.cc:553] Connection closed by peer", "world": 2})
    True
    >>> peer_is_gone({"message": "[Errno 104] Connection reset by peer", "world": 1})
    False
    """
    if exception.get("type") == ENDED_PROCESS:
        return True
    if not many_ranks(exception) or exception.get("type") in _OWN_PIPES:
        return False
    return bool(_WORDS.search(str(exception.get("message") or "")))


def many_ranks(exception: Mapping[str, Any]) -> bool:
    """Whether the process trained together with others when it failed."""
    world = exception.get("world")
    return isinstance(world, int) and world > 1
