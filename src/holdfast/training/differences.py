"""What differs between the settings of a run and those it is to be resumed with.

Three levels: an *error* where the saved state would not fit or would mean something else, a
*warning* where it fits but the run will not be what it was, a *note* for the rest.

    >>> Difference("error", "model.width", 64, 32).line
    'error: model.width was 64, is 32'
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from fnmatch import fnmatchcase
from typing import Any, Literal, NamedTuple, cast

from ..config import Section, to_dict
from ..errors import UsageError

Level = Literal["error", "warning", "note"]


class Difference(NamedTuple):
    """One setting that is not as it was in the run."""

    level: Level
    key: str
    saved: Any
    wanted: Any

    @property
    def was(self) -> str:
        """The saved value as one writes it in a settings file."""
        return _shown(self.saved)

    @property
    def now(self) -> str:
        """The other value, likewise."""
        return _shown(self.wanted)

    @property
    def change(self) -> str:
        """For people: the setting, its old and its new value."""
        return f"{self.key} {self.was} -> {self.now}"

    @property
    def line(self) -> str:
        """For people, with the level."""
        return f"{self.level}: {self.key} was {self.was}, is {self.now}"


Compare = Callable[[Any, Any], Iterable[Difference]]
"""Of two settings of a recipe, those of the run first."""

# What the checkpoint of a training is made of, and what decides which data comes next.
_SHAPES = ("train.optimizer.name", "train.optimizer.decay_all")
_ORDERS = (
    "train.accumulate",
    "train.data.batch",
    "train.data.shuffle",
    "train.data.drop_last",
    "train.seed.seed",
)


def all_differences(saved: Section, wanted: Section) -> list[Difference]:
    """Every setting that differs, as a note."""
    was, now = dict(flat(to_dict(saved))), dict(flat(to_dict(wanted)))
    keys = dict.fromkeys((*was, *now))
    return [
        Difference("note", key, was.get(key), now.get(key))
        for key in keys
        if was.get(key) != now.get(key)
    ]


def graded(
    saved: Section, wanted: Section, may_change: Iterable[str] = (), compare: Compare | None = None
) -> list[Difference]:
    """Every difference with its level: those under ``train.`` by us, the recipe's by the recipe.

    Args:
        saved: of the run.
        wanted: to go on with.
        may_change: patterns of settings that do not shape the state.
        compare: says it instead, for a recipe whose settings depend on each other.
    """
    found = all_differences(saved, wanted)
    of_recipe = [one for one in found if not one.key.startswith("train.")]
    if compare is not None:
        said = [one for one in compare(saved, wanted) if not one.key.startswith("train.")]
        keys = {one.key for one in said}
        of_recipe = [*said, *(one for one in of_recipe if one.key not in keys)]
    else:
        free = tuple(may_change)
        of_recipe = [
            one
            if any(fnmatchcase(one.key, pattern) for pattern in free)
            else one._replace(level="error")
            for one in of_recipe
        ]
    ours = [one._replace(level=_level(one)) for one in found if one.key.startswith("train.")]
    return [*of_recipe, *ours]


def refuse_errors(found: Iterable[Difference], source: str) -> None:
    """Raise one line that names every setting with which ``source`` cannot go on."""
    wrong = [one for one in found if one.level == "error"]
    if wrong:
        listed = ", ".join(f"{one.key} was {one.was}, is {one.now}" for one in wrong)
        raise UsageError(
            f"{source} cannot go on with these settings: {listed}; "
            f"leave {'it as it was' if len(wrong) == 1 else 'them as they were'}, "
            "or start a new run without --resume"
        )


def flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Every setting with its dotted name."""
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from flat(cast(Mapping[str, Any], value), f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _shown(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return f"{value:g}" if isinstance(value, float) else str(value)


def _level(one: Difference) -> Level:
    """How much a setting of the trainer's own matters to a saved state."""
    if one.key in _SHAPES:
        return "error"
    if one.key == "train.average.decay" and 0 in (one.saved, one.wanted):
        return "error"  # with an average there is one more set of weights
    if one.key == "train.precision" and "fp16" in (one.saved, one.wanted):
        return "error"  # only fp16 has a loss scale
    return "warning" if one.key in _ORDERS else "note"
