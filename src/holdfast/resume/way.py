"""The places that a resumed script comes to one after the other, the last of its checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from torch.optim.optimizer import register_optimizer_step_pre_hook

from ..source.paths import from_here


class Way:
    """Where a resumed script has yet to come to.

    Args:
        say: tells the user what takes time.
    """

    def __init__(self, say: Callable[[str], object]) -> None:
        self.stops: list[Path | None] = []
        """Checkpoints; None for the rest of a training loop, which is done again."""
        self.over: list[dict[str, Any]] = []
        """What is known of the training loops before the last."""
        self._say = say
        self._hook: Any = None

    def begins(self, path: Path, saved: Mapping[str, Any], stepped: Callable[..., None]) -> None:
        """Find the places before a checkpoint; ``stepped`` is called before each step."""
        self.over = list(saved.get("phases", ()))
        self.stops = [*_stops(path, self.over, self._say), path]
        self._hook = register_optimizer_step_pre_hook(stepped)

    def arrives(self) -> bool:
        """The first place is reached; whether it was the last."""
        self.stops.pop(0)
        if self.stops:
            self.stops.insert(0, None)
            return False
        self.leave()
        return True

    def leave(self) -> None:
        """Nothing is to be come to any more."""
        self.stops = []
        self._hook.remove()


def _stops(path: Path, over: Sequence[Any], say: Callable[[str], object]) -> list[Path | None]:
    """The last checkpoint of each training loop that was over; None for one to be begun anew."""
    found: list[Path | None] = []
    for one in over:
        there = Path(str(one["checkpoint"])) if one["checkpoint"] else None
        if there is not None and not there.exists():
            there = path.parent / there.name  # its folder was moved
            there = there if there.exists() else None
        where = f"the training loop at {from_here(str(one['at'][0]))}:{int(one['at'][1])}"
        since = f"its checkpoint {there.name}" if there is not None else "its beginning"
        say(f"{where} is done again from {since} to its end, as it was over before")
        found.append(there)
    return found
