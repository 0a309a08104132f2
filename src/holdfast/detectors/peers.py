"""Whether an exception says only that another rank is gone; asked by RUN001, RNK and reports."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

GONE = "another rank is gone"
"""The headline of such an exception."""

_WORDS = re.compile(
    r"Connection closed by peer|Connection reset by peer|Broken pipe|[Rr]emote (peer|process)|"
    r"[Pp]rocess \d+ terminated with|NCCL communicator (was )?aborted|ncclRemoteError|"
    r"collective operation timeout|Timed out waiting \d+ms for (recv|send)|"
    r"[Ww]atchdog caught collective|gloo.*(timed out|closed)"
)


_LATE = re.compile(r"[Tt]imed out|timeout")


def peer_is_late(exception: Mapping[str, Any]) -> bool:
    """Whether they tell of one that did not come for the time that a collective may take.

    >>> peer_is_late({"message": "gloo/unbound_buffer.cc:78] Timed out waiting 20000ms for recv"})
    True
    """
    return peer_is_gone(exception) and bool(_LATE.search(str(exception.get("message") or "")))


def peer_is_gone(exception: Mapping[str, Any]) -> bool:
    """Whether the data of an ``exception`` event tell of another rank's end.

    >>> peer_is_gone({"message": "gloo/pair.cc:553] Connection closed by peer"})
    True
    """
    return bool(_WORDS.search(str(exception.get("message") or "")))
