"""Whether an exception says only that another rank is gone; asked by RUN001, RNK and reports."""

from __future__ import annotations

import re

from ..records.crash import RaisedException

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


def peer_is_late(raised: RaisedException | None) -> bool:
    """Whether they tell of one that did not come for the time that a collective may take.

    >>> said = "gloo/unbound_buffer.cc:78] Timed out waiting 20000ms for recv"
    >>> peer_is_late(RaisedException(message=said, world=2))
    True
    """
    return raised is not None and peer_is_gone(raised) and bool(_LATE.search(raised.message))


def peer_is_gone(raised: RaisedException | None) -> bool:
    """Whether an exception tells of another rank's end; False for what could not be read.

    The words alone do not say it: one process that trains for itself has no other rank.

    >>> gone = "gloo/pair.cc:553] Connection closed by peer"
    >>> peer_is_gone(RaisedException(message=gone, world=2))
    True
    >>> reset = "[Errno 104] Connection reset by peer"
    >>> peer_is_gone(RaisedException(message=reset, world=1))
    False
    """
    if raised is None:
        return False
    if raised.type == ENDED_PROCESS:
        return True
    if not many_ranks(raised) or raised.type in _OWN_PIPES:
        return False
    return bool(_WORDS.search(raised.message))


def many_ranks(raised: RaisedException) -> bool:
    """Whether the process trained together with others when it failed."""
    return (raised.world or 1) > 1
