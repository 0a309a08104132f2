"""Settings under other names: a file that was written for another program is understood.

>>> reads = {
...     "training.lr": "train.optimizer.lr",
...     "training.amp": lambda on: {"train.precision": "bf16" if on else "fp32"},
...     "training.lr_min_factor": Deprecated("training.lr", "give the rate itself"),
...     "distributed": Ignored("torchrun says how many ranks there are"),
... }
>>> names = OtherNames(reads, print)
>>> names.split({"training": {"lr": 1e-3, "amp": False}, "distributed": {"num_gpus": 4}}, "f")
distributed is ignored: torchrun says how many ranks there are
({}, {'train': {'optimizer': {'lr': 0.001}, 'precision': 'fp32'}})
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, cast

from ..config import yaml_values
from ..config.strict import Word
from ..errors import SettingsError

# What other readers of YAML take for true and false, beside the words that ours does.
_SWITCHES = {"yes": True, "on": True, "no": False, "off": False}


@dataclass(frozen=True)
class Ignored:
    """A setting of another program that means nothing here; a line says why."""

    reason: str


@dataclass(frozen=True)
class Deprecated:
    """An old name of ``key``, which is one of ours or another of these names; a line says so."""

    key: str
    hint: str


Read = str | Callable[[Any], Mapping[str, Any]] | Ignored | Deprecated
"""What another name stands for: one of our keys, or what a function makes of its value."""


class OtherNames:
    """Translates one layer of settings after the other.

    Args:
        reads: what each name stands for; a name may be that of a whole section.
        say: called with a line for each name that is ignored or deprecated.
    """

    def __init__(self, reads: Mapping[str, Read], say: Callable[[str], None]) -> None:
        self._reads, self._say = reads, say
        self._written: dict[str, str] = {}
        self.sections = frozenset(
            name[:end] for name in reads for end, letter in enumerate(name) if letter == "."
        )
        """Names of sections that hold such names."""

    @property
    def all(self) -> list[str]:
        """Every name, for hints."""
        return [*self._reads, *self.sections]

    def split(self, data: Mapping[Any, Any], source: str) -> tuple[dict[Any, Any], dict[str, Any]]:
        """What has our names already, and what was translated to them; both nested."""
        translated: dict[str, Any] = {}
        own = self._rest(data, "", source, translated)
        return own, translated

    def _rest(
        self, data: Mapping[Any, Any], prefix: str, source: str, translated: dict[str, Any]
    ) -> dict[Any, Any]:
        rest: dict[Any, Any] = {}
        for name, value in data.items():
            key = f"{prefix}{name}"
            if key in self._reads:
                self._translate(key, value, source, translated)
                continue
            if isinstance(value, Mapping):
                inside = cast(Mapping[Any, Any], value)
                value = self._rest(inside, f"{key}.", source, translated)
            # Of a section that is not ours nothing is left, or what nobody knows.
            if value not in (None, {}) or key not in self.sections:
                rest[name] = value
        return rest

    def _translate(self, name: str, value: Any, source: str, translated: dict[str, Any]) -> None:
        meaning = self._reads[name]
        if isinstance(meaning, Ignored):
            self._say(f"{name} is ignored: {meaning.reason}")
        elif isinstance(meaning, Deprecated):
            self._say(f"{name} is an old name of {meaning.key}: {meaning.hint}")
            if meaning.key in self._reads:
                self._translate(meaning.key, value, source, translated)
            else:
                self._store(translated, meaning.key, value, name)
        elif isinstance(meaning, str):
            self._store(translated, meaning, value, name)
        else:
            try:
                found = dict(meaning(_plain(value)))
            except (TypeError, ValueError) as error:
                where = f"override {value.override!r}" if isinstance(value, Word) else source
                raise SettingsError(f"{where}: {name}: {error}") from None
            for key, one in found.items():
                self._store(translated, key, one, name)

    def _store(self, translated: dict[str, Any], key: str, value: Any, name: str) -> None:
        self._written[key] = name
        store(translated, key, value)

    def explain(self, message: str) -> str:
        """An error about one of our keys, with the name it was written under."""
        for key, name in self._written.items():
            if f": {key} must be" in message:
                return f"{message}; it was written as {name}"
        return message


def store(data: dict[Any, Any], key: str, value: Any) -> None:
    """Put a value under a dotted key into nested data; sections are made on the way."""
    *sections, last = key.split(".")
    for name in sections:
        if not isinstance(data.get(name), dict):
            data[name] = {}
        data = data[name]
    data[last] = value


def nested(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """Values with dotted keys as sections of sections."""
    found: dict[str, Any] = {}
    for key, value in pairs:
        store(found, key, value)
    return found


def _plain(value: Any) -> Any:
    """A value as the other program would read it: typed, wherever it was written."""
    if isinstance(value, Mapping):
        inside = cast(Mapping[Any, Any], value)
        return {key: _plain(one) for key, one in inside.items()}
    if isinstance(value, Word):
        value = yaml_values.parse(value)
    return _SWITCHES.get(value.lower(), value) if isinstance(value, str) else value
