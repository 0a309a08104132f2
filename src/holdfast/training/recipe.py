"""A recipe: something that can be trained, under a name."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from ..config import Section
from ..config.strict import knows
from ..errors import UsageError
from .differences import Compare
from .other_names import Deprecated, Read

if TYPE_CHECKING:
    from .device import Place
    from .forecast import Forecast
    from .task import Task


@dataclasses.dataclass(frozen=True)
class Recipe:
    """Something that can be trained.

    Args:
        name: one word, for the command line; a dot joins a family and its member, "text.small".
        summary: one line, for ``holdfast train --list``.
        settings: everything that can be set: a ``Section`` with a field ``train:
            TrainSettings`` beside its own sections.
        build: makes model, loss and data from the settings, for one process.
        forecast: what a run of these settings takes, asked before ``build``; None: nobody knows.
        presets: settings under a name: ``{"small": {"train.data.batch": 8}}``.
        platforms: settings for kinds of machines, by the names of ``holdfast.training.platforms``
            or names of its own: ``{"h200": {"train.data.batch": 512}}``.
        reads: settings under other names, so that a file for another program is understood:
            ``{"training.lr": "train.optimizer.lr"}``, or a function of the value that gives
            settings by our names, or ``Ignored`` or ``Deprecated``.
        may_change: settings that do not shape what is saved, so that a run may be resumed with
            others: names or patterns, ``("pictures", "data.path")``. All other settings outside
            ``train`` have to stay as they were.
        compare: instead of that, a function of two settings, the run's first, that says what
            differs and how much it matters.
    """

    name: str
    summary: str
    settings: type[Section]
    build: Callable[[Any, Place], Task]
    forecast: Callable[[Any, Place], Forecast] | None = None
    presets: Mapping[str, Mapping[str, Any]] = dataclasses.field(
        default_factory=dict[str, Mapping[str, Any]]
    )
    platforms: Mapping[str, Mapping[str, Any]] = dataclasses.field(
        default_factory=dict[str, Mapping[str, Any]]
    )
    reads: Mapping[str, Read] = dataclasses.field(default_factory=dict[str, Read])
    may_change: tuple[str, ...] = ()
    compare: Compare | None = None

    def __post_init__(self) -> None:
        plain = re.fullmatch(r"[A-Za-z0-9_][\w-]*(\.[\w-]+)*", self.name)
        if not plain or self.name.endswith(".py"):  # that would be a file
            raise UsageError(
                f"a recipe cannot be called {self.name!r}; use letters, digits, - and _, "
                "and dots between them"
            )
        kind: Any = self.settings
        if not (isinstance(kind, type) and issubclass(kind, Section)):
            raise UsageError(f"recipe {self.name}: settings is {kind!r}; give a class of Section")
        fields = dataclasses.fields(kind) if dataclasses.is_dataclass(kind) else ()
        if "train" not in {field.name for field in fields}:
            raise UsageError(
                f"recipe {self.name}: {kind.__name__} has no field train; "
                "add `train: TrainSettings = TrainSettings()`"
            )
        self._check_reads()

    def _check_reads(self) -> None:
        for name, meaning in self.reads.items():
            if knows(self.settings, name):
                raise UsageError(f"recipe {self.name}: reads has {name!r}, a setting of its own")
            key = meaning.key if isinstance(meaning, Deprecated) else meaning
            if isinstance(key, str) and key not in self.reads and not knows(self.settings, key):
                raise UsageError(
                    f"recipe {self.name}: reads[{name!r}] stands for {key!r}, no setting of it"
                )
