"""What ranks tell each other about one save: over the rendezvous store, and by files in its folder.

No rank waits for another, but for the one that writes the index, and that one only as long as
something moves. A rank that is done leaves its part in the folder; one that cannot write says so
in the store, which works with a full disk; one that died says nothing, and the wait ends.

The store is shared with the process group and its client has one lock, so nothing here waits
inside of it: every call is short.
"""

from __future__ import annotations

import contextlib
import time
import uuid
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import distributed

from ...errors import CheckpointError
from ...regular_files import read_regular
from ...run.durable import TEMPORARY
from ..record import LARGEST, decode_record, folder_name
from .index import part_name

PATIENCE = 60.0
"""Seconds for which nothing may move in the folder of a save before it is given up. A guess: ranks
take a state at one step and write equal shares, a disk that stalls longer than that is ill."""

# Ranks look every so many steps whether one was named, so that a step costs nothing; and one is
# named so many looks ahead: hosts run some steps before their devices, and before each other.
_LOOK, _AHEAD = 16, 2

_PREFIX = "holdfast/checkpoint"
_LONGEST_CAUSE = 500
_LONGEST_SLEEP = 0.25


@dataclass(eq=False)
class Ranks:
    """The ranks that save together, seen from one of them.

    Args:
        rank: of this process.
        world: how many there are.
        store: the rendezvous store; one process needs none.
    """

    rank: int = 0
    world: int = 1
    store: Any = None
    _token: str = ""
    _named: tuple[int, str] = (-1, "")
    _saves: Counter[int] = field(default_factory=Counter[int])

    @classmethod
    def live(cls) -> Ranks:
        """Those of the default process group."""
        if not (distributed.is_available() and distributed.is_initialized()):
            return cls()
        store = distributed.distributed_c10d._get_default_store()
        return cls(distributed.get_rank(), distributed.get_world_size(), store)

    def begin(self, step: int) -> Save:
        """Begin to save a step; every rank calls this for the same steps."""
        self._saves[step] += 1
        return Save(self, step, self._saves[step])

    def due(self, step: int, own: str) -> str:
        """Why all ranks save after this step; ``own`` is why this one would, by its own clock.

        Clocks differ: rank 0 names a step ahead, and the others look now and then for one.
        """
        if self.world == 1:
            return own
        if self.rank == 0:
            named, why = self._named
            if own and step > named:
                self._named = (step // _LOOK + _AHEAD) * _LOOK, own
                self.store.set(self._due_key(self._named[0]), own)
            return why if step == named else ""
        if step % _LOOK or not self.store.check([self._due_key(step)]):
            return ""
        return self.store.get(self._due_key(step)).decode()

    def _due_key(self, step: int) -> str:
        return f"{_PREFIX}/{self.token}/due-{step}"

    @property
    def token(self) -> str:
        """One word for this life of the run, the same on all ranks: an older save is not ours."""
        if not self._token:
            own = uuid.uuid4().hex[:12]
            if self.world > 1 and self.store is None:
                raise CheckpointError(
                    f"{self.world} ranks cannot save together without the store of their process "
                    "group; call torch.distributed.init_process_group first"
                )
            if self.store is not None:
                own = self.store.compare_set(f"{_PREFIX}/token", "", own).decode()
            self._token = own
        return self._token


@dataclass(frozen=True, slots=True)
class Save:
    """One save of all ranks; ``number`` counts those of the same step."""

    ranks: Ranks
    step: int
    number: int

    def temporary(self, folder: Path) -> Path:
        """Where the ranks write, among the checkpoints in ``folder``."""
        name = f"{folder_name(self.step)}.{self.ranks.token}-{self.number}{TEMPORARY}"
        return folder / name

    @property
    def _key(self) -> str:
        return f"{_PREFIX}/{self.ranks.token}/{self.step}-{self.number}"

    def fail(self, cause: str) -> None:
        """This rank cannot take part: tell the others. Never raises."""
        with contextlib.suppress(Exception):
            if self.ranks.store is not None:
                self.ranks.store.set(f"{self._key}/{self.ranks.rank}", cause[:_LONGEST_CAUSE])

    def failed(self, rank: int) -> str:
        """Why a rank cannot take part; empty as far as is known."""
        return self._said(str(rank))

    def given_up(self) -> bool:
        """Whether the rank that writes the index waits no longer."""
        return bool(self._said("given-up"))

    def _said(self, word: str) -> str:
        """What stands in the store; nothing where that cannot be asked: files go on counting."""
        store, key = self.ranks.store, f"{self._key}/{word}"
        with contextlib.suppress(RuntimeError):
            if store is not None and store.check([key]):
                return store.get(key).decode(errors="replace")
        return ""

    def give_up(self) -> None:
        """Tell the others that this save will not be finished. Never raises."""
        with contextlib.suppress(Exception):
            if self.ranks.store is not None:
                self.ranks.store.set(f"{self._key}/given-up", "1")

    def parts(self, temporary: Path, patience: float = PATIENCE) -> list[dict[str, Any]]:
        """Wait for the parts of all ranks; ``CheckpointError`` names the rank that has none."""
        parts: dict[int, dict[str, Any]] = {}
        moved, before, pause = time.monotonic(), _sizes(temporary), 0.01
        while True:
            for rank in range(self.ranks.world):
                if rank not in parts and (temporary / part_name(rank)).exists():
                    parts[rank] = decode_record(read_regular(temporary / part_name(rank), LARGEST))
            missing = [rank for rank in range(self.ranks.world) if rank not in parts]
            if not missing:
                return [parts[rank] for rank in sorted(parts)]
            for rank in missing:
                if cause := self.failed(rank):
                    raise CheckpointError(_given_up(self.step, rank, cause))
            now = _sizes(temporary)
            if now != before:
                moved, before = time.monotonic(), now
            elif time.monotonic() - moved > patience:
                cause = f"nothing was heard from it for {patience:.0f} s"
                raise CheckpointError(_given_up(self.step, missing[0], cause, len(missing) - 1))
            time.sleep(pause)
            pause = min(1.5 * pause, _LONGEST_SLEEP)


def _given_up(step: int, rank: int, cause: str, more: int = 0) -> str:
    others = f" and {more} more" if more else ""
    return (
        f"the checkpoint of step {step} is given up because of rank {rank}{others}: {cause}; "
        "the one before it stays the newest"
    )


def _sizes(folder: Path) -> dict[str, int]:
    sizes: dict[str, int] = {}
    with contextlib.suppress(OSError):
        for path in folder.iterdir():
            with contextlib.suppress(OSError):
                sizes[path.name] = path.stat().st_size
    return sizes
