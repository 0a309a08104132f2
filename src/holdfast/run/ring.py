"""A byte ring in shared memory: training writes, another process reads, neither waits.

The ring is a file mapped by both. What the writer has stored is in the page cache, not in
the process, so it outlives ``kill -9`` of the writer (it does not outlive a power cut: the
ring is never synced). ``put`` makes no system call, takes no lock and waits for nobody;
when the reader is behind by the whole ring, the record is dropped and counted.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "ring.r0.bin"
    >>> ring = Ring.create(path, 4096, owner="train.py")
    >>> ring.put(1, b"hello")
    True
    >>> Ring.attach(path).drain()
    [(1, b'hello')]

Layout: a header of 16 KiB, then ``capacity`` bytes of records. Positions (head, tail) count
bytes since the beginning and never wrap; position modulo capacity is the place. A record is
kind (u4), length (u4), seq (u8), payload, padded to 8 bytes, where seq is the position of
the record itself: a reader that has gone astray notices at the first record. A record never
straddles the end; kind 0 fills up what is left there (fewer than 16 bytes are left as is).

Why a kill at any instant leaves whole records: head is one aligned 8-byte store and is the
last store of a ``put``. Before it nothing is visible, after it all is. The tail and the
reader's note (see ``commit``) change together, likewise by one 8-byte store.

The header has room for one message the other way (``post``, ``message``): the reader's side asks
the training for something, which looks at one number per step and acknowledges what it took.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import struct
import sys
import weakref
from collections import deque
from collections.abc import Sequence
from pathlib import Path

from holdfast.errors import RunFolderError
from holdfast.regular_files import NO_LINK, descriptor, remedy
from holdfast.run.durable import TEMPORARY, mode_in
from holdfast.run.process import PACKED_SIZE, ProcessMark

CAPACITY = 8 * 1024 * 1024
"""Room for records: some 50 000 steps, minutes of training without a reader."""

MAGIC = b"HOLDRING"
VERSION = 1
HEADER = 16 * 1024

# Native byte order and sizes on purpose: "<" packs byte by byte, and a kill in between
# would leave half a number. The layout is the same.
_STATIC = struct.Struct("@8sIIQQQ")  # magic, version, header, capacity, pid, length of owner
_RECORD = struct.Struct("@IIQ")
_OWNER_AT, _OWNER_MAX = 64, 256
_PROCESS_AT = 320
# Indices of 8-byte words; writer and reader each write to cache lines of their own.
_HEAD, _DROPPED, _CLOSED, _RECEIVED, _BEATS = 64, 65, 66, 67, 68
_TAIL, _POSTED = 80, 81
_MESSAGE_AT, _MESSAGE_ROOM = 1024, 3072
MESSAGE_MAX = _MESSAGE_ROOM - 8
_NOTES_AT, _NOTE_ROOM = (4096, 10240), 6144
NOTE_MAX = _NOTE_ROOM - 8

Record = tuple[int, bytes]


class Ring:
    """One ring file; made with ``create`` by its only writer, read after ``attach``."""

    def __init__(self, path: Path, mapping: mmap.mmap, capacity: int, *, writer: bool) -> None:
        """Wrap a checked mapping; use ``create`` or ``attach``."""
        self.path = path
        self.capacity = capacity
        self.corrupt = False
        """True once a damaged record has stopped the reader."""
        self._map = mapping
        self._page = memoryview(mapping)[:HEADER]
        self._words = self._page.cast("Q")
        self._writer = writer
        self._busy = False
        self._waiting: deque[Record] = deque()
        self._head = self._words[_HEAD]
        self._cursor = self._tail = self._words[_TAIL] & ~7
        if writer:
            _written_here.add(self)
        else:
            self._stop_writing()

    @classmethod
    def create(
        cls, path: Path, capacity: int = CAPACITY, owner: str = "", pid: int | None = None
    ) -> Ring:
        """Make the ring file for this process to write; an empty file there is a claim.

        The blocks are reserved now, because a page the disk has no room for would end the
        training with SIGBUS later. A process whose files may not be that large (``ulimit -f``)
        gets a smaller ring. Failure is a ``RunFolderError``.
        """
        capacity = max(min(capacity, _largest_file() - HEADER), 256) & ~7
        name = owner.encode("utf-8", "replace")[:_OWNER_MAX]
        temp = path.with_name(path.name + TEMPORARY)
        try:
            if path.exists() and path.stat().st_size:
                raise FileExistsError(errno.EEXIST, "there is a ring already")
            flags = os.O_RDWR | os.O_CREAT | os.O_TRUNC | NO_LINK
            fd = descriptor(temp, flags, mode_in(path.parent))
            try:
                _reserve(fd, HEADER + capacity)
                mapping = mmap.mmap(fd, HEADER + capacity)
            finally:
                os.close(fd)
            process = os.getpid() if pid is None else pid
            _STATIC.pack_into(mapping, 0, MAGIC, VERSION, HEADER, capacity, process, len(name))
            mapping[_OWNER_AT : _OWNER_AT + len(name)] = name
            mapping[_PROCESS_AT : _PROCESS_AT + PACKED_SIZE] = ProcessMark.of(process).pack()
            # Renamed when it is whole: a reader meets no ring or a good one.
            os.replace(temp, path)
        except OSError as error:
            with contextlib.suppress(OSError):
                temp.unlink()
            raise RunFolderError(
                f"cannot make the ring {path.name} ({capacity} bytes): {error.strerror}, "
                f"in {path.parent}; free some space or choose another folder with --run-dir"
            ) from error
        return cls(path, mapping, capacity, writer=True)

    @classmethod
    def attach(cls, path: Path, *, readonly: bool = False) -> Ring:
        """Open an existing ring to read it; ``readonly`` also works in a foreign folder.

        A file that is no ring, or says impossible things, is a ``RunFolderError``.
        """
        access = mmap.ACCESS_READ if readonly else mmap.ACCESS_WRITE
        try:
            fd = descriptor(path, os.O_RDONLY if readonly else os.O_RDWR)
            try:
                size = os.fstat(fd).st_size
                if size <= HEADER:
                    raise _bad_ring(path, f"it has {size} bytes")
                mapping = mmap.mmap(fd, size, access=access)
            finally:
                os.close(fd)
        except OSError as error:
            raise RunFolderError(
                f"cannot open the ring {path.name}: {error.strerror}, in {path.parent}; "
                f"{remedy(error, 'check that the run folder is whole and readable')}"
            ) from error
        magic, version, header, capacity, _, owner = _STATIC.unpack_from(mapping, 0)
        fault = ""
        if magic != MAGIC or header != HEADER:
            fault = f"it begins with {magic!r}"
        elif version != VERSION:
            fault = f"its version is {version}, this holdfast knows {VERSION}"
        elif capacity != size - HEADER or capacity % 8 or owner > _OWNER_MAX:
            fault = f"it says {capacity} bytes of records and has {size - HEADER}"
        if not fault:
            ring = cls(path, mapping, capacity, writer=False)
            behind = ring._words[_HEAD] - ring._cursor
            if 0 <= behind <= capacity and ring._words[_HEAD] % 8 == 0:
                return ring
            fault = f"its head is {behind} bytes from its tail"
            ring.detach()
        else:
            mapping.close()
        raise _bad_ring(path, fault)

    # The writer's side.

    def put(self, kind: int, payload: bytes) -> bool:
        """Add one record; False when it was dropped. Never waits.

        A record of up to half the capacity always fits into an empty ring. Safe to call
        from a signal handler or another thread that breaks into a running ``put``: the
        second record is then written by the first call. (Flag and check are not one step,
        but the interpreter switches threads and runs handlers only at calls and jumps
        back, and there is none between the two.)
        """
        if self._busy:
            self._waiting.append((kind, payload))
            return True
        self._busy = True
        try:
            done = self._write(kind, payload)
            while self._waiting:
                self._write(*self._waiting.popleft())
            return done
        finally:
            self._busy = False

    def put_all(self, kind: int, payloads: Sequence[bytes]) -> None:
        """Add several records of a kind: by one store, where they fit as they are."""
        if self._busy:
            self._waiting.extend((kind, payload) for payload in payloads)
            return
        self._busy = True
        try:
            if not self._write_together(kind, payloads):
                for payload in payloads:
                    self._write(kind, payload)
            while self._waiting:
                self._write(*self._waiting.popleft())
        finally:
            self._busy = False

    @property
    def has_message(self) -> bool:
        """Whether the other side has posted something that was not taken yet."""
        return self._words[_POSTED] != self._words[_RECEIVED]

    def message(self) -> bytes:
        """Take what the other side has posted; empty when there is nothing."""
        if not self._writer or not self.has_message:
            return b""
        length = min(self._words[_MESSAGE_AT // 8], MESSAGE_MAX)
        text = self._map[_MESSAGE_AT + 8 : _MESSAGE_AT + 8 + length]
        self._words[_RECEIVED] = self._words[_POSTED]
        return text

    def heartbeat(self) -> None:
        """Say that the training goes on, where there is nothing to record: one 8-byte store."""
        if self._writer:
            self._words[_BEATS] += 1

    def close_writer(self) -> None:
        """Say that nothing more will come."""
        if self._writer:
            self._words[_CLOSED] = 1

    def _write(self, kind: int, payload: bytes) -> bool:
        capacity = self.capacity
        head = self._head
        at = head % capacity
        length = len(payload)
        size = (length + 23) & -8
        skip = capacity - at
        if size <= skip:
            skip = 0
        if head + skip + size - self._tail > capacity and not self._has_room(skip + size):
            return False
        if skip:
            if skip >= 16:
                _RECORD.pack_into(self._map, HEADER + at, 0, skip - 16, head)
            head += skip
            at = 0
        at += HEADER
        _RECORD.pack_into(self._map, at, kind, length, head)
        at += 16
        self._map[at : at + length] = payload
        self._head = self._words[_HEAD] = head + size
        return True

    def _write_together(self, kind: int, payloads: Sequence[bytes]) -> bool:
        """False where they would go around the end, or the reader is far behind."""
        head, capacity = self._head, self.capacity
        position, parts = head, list[bytes]()
        for payload in payloads:
            length = len(payload)
            size = (length + 23) & -8
            parts += (_RECORD.pack(kind, length, position), payload, bytes(size - 16 - length))
            position += size
        at = head % capacity
        if at + position - head > capacity or position - self._tail > capacity:
            return False
        at += HEADER
        self._map[at : at + position - head] = b"".join(parts)
        self._head = self._words[_HEAD] = position
        return True

    def _has_room(self, need: int) -> bool:
        if not self._writer:
            return False
        self._tail = self._words[_TAIL] & ~7
        if self._head + need - self._tail <= self.capacity:
            return True
        self._words[_DROPPED] += 1
        return False

    # The reader's side.

    def peek(self, limit: int | None = None) -> list[Record]:
        """The records not committed yet, left where they are; for readers of a dead run."""
        return self._walk(self._words[_TAIL] & ~7, limit)[0]

    def fetch(self, limit: int | None = None) -> list[Record]:
        """The records not fetched yet by this reader; they stay in the ring until ``commit``."""
        records, self._cursor = self._walk(self._cursor, limit)
        return records

    def commit(self, note: bytes = b"") -> None:
        """Free what was fetched, and leave a note on what became of it, both in one step."""
        if len(note) > NOTE_MAX:
            raise ValueError(f"a note of {len(note)} bytes, at most {NOTE_MAX} fit")
        slot = ~self._words[_TAIL] & 1
        at = _NOTES_AT[slot]
        self._words[at // 8] = len(note)
        self._map[at + 8 : at + 8 + len(note)] = note
        # Positions are multiples of 8, which leaves a bit to say which note is meant.
        self._words[_TAIL] = self._cursor | slot

    def post(self, message: bytes) -> bool:
        """Ask the training process for something; False while the last message is not taken."""
        if len(message) > MESSAGE_MAX:
            raise ValueError(f"a message of {len(message)} bytes, at most {MESSAGE_MAX} fit")
        if self.has_message:
            return False
        self._words[_MESSAGE_AT // 8] = len(message)
        self._map[_MESSAGE_AT + 8 : _MESSAGE_AT + 8 + len(message)] = message
        self._words[_POSTED] += 1
        return True

    def drain(self, limit: int | None = None) -> list[Record]:
        """Fetch and commit at once: the caller answers for the records from here on."""
        records = self.fetch(limit)
        self.commit()
        return records

    def snapshot(self) -> tuple[bytes, list[Record]]:
        """The note and the records behind it, of one instant, while another process drains."""
        while True:
            before = self._words[_TAIL]
            note, records = self.note, self.peek()
            # Only what lies before the tail is ever overwritten, so an unmoved tail means
            # that all of this was still there.
            if self._words[_TAIL] == before:
                return note, records
            self.corrupt = False

    def _walk(self, position: int, limit: int | None) -> tuple[list[Record], int]:
        head = self._words[_HEAD]
        capacity = self.capacity
        records: list[Record] = []
        while position < head and (limit is None or len(records) < limit):
            at = position % capacity
            left = min(capacity - at, head - position)
            if capacity - at < 16:
                position += capacity - at
                continue
            kind, length, seq = _RECORD.unpack_from(self._map, HEADER + at)
            size = (length + 23) & -8
            if seq != position or size > left:
                self.corrupt = True
                break
            if kind:
                records.append((kind, self._map[HEADER + at + 16 : HEADER + at + 16 + length]))
            position += size
        return records, position

    # What both sides may ask.

    @property
    def note(self) -> bytes:
        """What the last ``commit`` said; empty before the first."""
        at = _NOTES_AT[self._words[_TAIL] & 1]
        return self._map[at + 8 : at + 8 + min(self._words[at // 8], NOTE_MAX)]

    @property
    def dropped(self) -> int:
        """How many records found the ring full."""
        return self._words[_DROPPED]

    @property
    def progress(self) -> tuple[int, int]:
        """Two numbers that stay as they are while the writer records nothing and does not beat."""
        return self._words[_HEAD], self._words[_BEATS]

    @property
    def pid(self) -> int:
        """The process that writes."""
        return _STATIC.unpack_from(self._map, 0)[4]

    @property
    def process(self) -> ProcessMark | None:
        """The same so that it cannot be taken for another; None in a ring of an older version."""
        return ProcessMark.unpack(self.pid, self._map[_PROCESS_AT : _PROCESS_AT + PACKED_SIZE])

    @property
    def owner(self) -> str:
        """Who writes, in the writer's words."""
        length = _STATIC.unpack_from(self._map, 0)[5]
        return self._map[_OWNER_AT : _OWNER_AT + length].decode("utf-8", "replace")

    @property
    def closed(self) -> bool:
        """Whether the writer has said that nothing more will come."""
        return bool(self._words[_CLOSED])

    def detach(self) -> None:
        """Let go of the mapping; the file stays."""
        self._stop_writing()
        for view in (self._words, self._page):
            view.release()
        self._map.close()

    def _stop_writing(self) -> None:
        self._writer = False
        # So far back that every put takes the slow path of a full ring, where the flag is
        # looked at; the fast path needs no check of its own.
        self._tail = -(1 << 64)


_written_here: weakref.WeakSet[Ring] = weakref.WeakSet()


def _disown() -> None:
    # A forked child shares the mapping; two writers would tear each other's records.
    for ring in _written_here:
        ring._stop_writing()  # pyright: ignore[reportPrivateUsage]


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_disown)


def _largest_file() -> int:
    """Bytes that a file of this process may have."""
    try:
        import resource
    except ImportError:  # Windows has no such limit
        return sys.maxsize
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
    return sys.maxsize if limit == resource.RLIM_INFINITY else limit


def _reserve(fd: int, size: int) -> None:
    if hasattr(os, "posix_fallocate"):
        try:
            os.posix_fallocate(fd, 0, size)
            return
        except OSError as error:
            if error.errno not in (errno.EINVAL, errno.EOPNOTSUPP):
                raise
    while size > 0:
        size -= os.write(fd, bytes(min(size, 1 << 20)))


def _bad_ring(path: Path, fault: str) -> RunFolderError:
    return RunFolderError(
        f"{path.name} is not a ring of holdfast ({fault}), in {path.parent}; "
        "move the file away to read the rest of the run"
    )
