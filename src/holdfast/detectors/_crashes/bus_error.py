"""A process that died of a bus error: no room for shared memory, or a file that became shorter."""

from __future__ import annotations

from .._memory import amount
from .facts import Crash, CrashCause, base_name

# Less free shared memory than this, or than a twentieth of it, was too little. What the dead worker
# held is free again, so that a container with its 64 MiB has mostly more than nothing left.
_FULL = 64 << 20


def bus_error(crash: Crash, who: str) -> CrashCause:
    """A worker that read or wrote a page of memory with nothing behind it."""
    shared, needed = crash.data.shared_memory, crash.data.shared_memory_needed
    size, free = (shared.bytes, shared.free) if shared is not None else (None, None)
    room = f"{amount(free)} of {amount(size)} of /dev/shm" if size and free is not None else ""
    more = (
        "give the container more (docker run --shm-size=8g), use fewer workers or a smaller "
        "prefetch_factor, or set_sharing_strategy('file_system')"
    )
    full = bool(room) and _full(size or 0, free or 0, needed or 0)
    if crash.data.shorter_files:
        first = crash.data.shorter_files[0]
        name = base_name(first.file)
        hint = f"; shared memory is no matter, {room} are free" if room and not full else ""
        return CrashCause(
            headline=f"{who} died of a bus error (SIGBUS): {name} became shorter than its memory "
            "map",
            advice=f"it has {amount(first.bytes)}, {amount(first.mapped)} are mapped, and what is "
            "behind its end cannot be read: write the new file beside it and os.replace() the old "
            f"one, then make dataset and loader anew{hint}",
        )
    if full:
        asked = f", the batches on their way need {amount(needed)}" if needed else ""
        return CrashCause(
            headline=f"{who} died of too little shared memory (SIGBUS)",
            advice=f"{room} are free afterwards{asked}: {more}",
        )
    if room and needed:
        return CrashCause(
            headline=f"{who} died of a bus error (SIGBUS), not for lack of shared memory",
            advice="a file that a memory map reads became shorter, or its disk failed: look at "
            "what else writes the files of the dataset (np.memmap, torch.from_file); torch's hint "
            f"about shared memory does not fit, {room} are free",
        )
    return CrashCause(
        headline=f"{who} died of a bus error (SIGBUS)",
        advice=f"either shared memory ran out{f' ({room} are free afterwards)' if room else ''}: "
        f"{more}; or a file that a memory map reads became shorter, or its disk failed",
    )


def _full(size: float, free: float, needed: float) -> bool:
    return free <= max(_FULL, size // 20) or free < needed
