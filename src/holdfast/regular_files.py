"""Opening files that may come from anybody: regular ones only, and never waiting for one.

In the folder of a run, of a checkpoint or of settings a named pipe in place of a file would stop
its reader for ever, and a device would feed it without end. Whatever reads such a folder opens
its files here; what is no regular file is an ``OSError`` that says what stands there instead.

    >>> open_regular("/dev/null")
    Traceback (most recent call last):
    holdfast.regular_files.NotRegularError: [Errno 22] a device stands there: '/dev/null'
"""

from __future__ import annotations

import errno
import os
import stat
from io import BufferedReader
from pathlib import Path

# O_NONBLOCK answers at once where a pipe has no writer; of a regular file it changes nothing. What
# a platform lacks it has no need of. (Python closes every descriptor on exec by itself.)
_FLAGS: int = (
    getattr(os, "O_NONBLOCK", 0)
    | getattr(os, "O_NOCTTY", 0)
    | getattr(os, "O_CLOEXEC", 0)
    | getattr(os, "O_BINARY", 0)
)
NO_LINK: int = getattr(os, "O_NOFOLLOW", 0)
"""For what is written: a folder from somebody else may have a link to a file of the user's."""

_KINDS = (
    (stat.S_ISFIFO, "a named pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)
# What a socket or a pipe without a reader answers instead of being opened.
_CLOSED = (errno.ENXIO, getattr(errno, "EOPNOTSUPP", errno.ENXIO))


class NotRegularError(OSError):
    """What stands at a path is no regular file."""


def descriptor(path: str | os.PathLike[str], flags: int = os.O_RDONLY, mode: int = 0o600) -> int:
    """Open a regular file for ``os.read`` and its kin; also the ``opener`` of ``open``."""
    try:
        fd = os.open(path, flags | _FLAGS, mode)
    except OSError as error:
        if error.errno in _CLOSED:
            raise _refusal(path, os.stat(path).st_mode) from error
        raise
    kind = os.fstat(fd).st_mode
    if stat.S_ISREG(kind):
        return fd
    os.close(fd)
    if stat.S_ISDIR(kind):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    raise _refusal(path, kind)


def open_regular(path: str | os.PathLike[str]) -> BufferedReader:
    """Open a file to read its bytes; ``NotRegularError`` if it is something else."""
    return open(path, "rb", opener=descriptor)


def read_regular(path: str | os.PathLike[str], most: int) -> bytes:
    """The content of a file; a ``ValueError`` when it has more bytes than ``most``."""
    with open_regular(path) as file:
        data = file.read(most + 1)
    if len(data) > most:
        raise ValueError(f"larger than {most >> 20} MiB")
    return data


def remedy(error: OSError, otherwise: str = "check the permissions") -> str:
    """What to do about a file that could not be opened."""
    if isinstance(error, NotRegularError):
        return f"nothing of ours is that: remove {Path(str(error.filename)).name}"
    return otherwise


def _refusal(path: str | os.PathLike[str], kind: int) -> NotRegularError:
    what = next((name for is_one, name in _KINDS if is_one(kind)), "no regular file")
    return NotRegularError(errno.EINVAL, f"{what} stands there", str(path))
