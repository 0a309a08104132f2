"""From defaults, machine, preset, file and command line to the settings of a run, and back."""

from __future__ import annotations

import dataclasses
import difflib
import json
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from ..config import Section, from_dict, to_dict, yaml_values
from ..config.strict import Word, describe_unknown, put, unknown
from ..errors import RunFolderError, SettingsError, UsageError
from ..run import Run
from . import platforms
from .differences import flat
from .other_names import OtherNames, nested
from .recipe import Recipe

CONFIG = "train.yaml"
"""The settings of a run as ``to_yaml`` writes them, in its folder."""

_PLAIN = re.compile(r"[A-Za-z_][\w./-]*", re.ASCII)


def resolve(
    recipe: Recipe,
    config: str | None = None,
    preset: str | None = None,
    overrides: Sequence[str] = (),
    platform: str = platforms.AUTO,
    *,
    lenient: bool = False,
    say: Callable[[str], None] | None = None,
) -> Any:
    """The settings of a run: an object of ``recipe.settings``, checked like any other.

    Each beats the ones before it: defaults, platform, preset, file, overrides. In each of them
    our own names beat those that ``recipe.reads`` translates.

    Args:
        recipe: whose settings.
        config: a YAML file.
        preset: a name in ``recipe.presets``.
        overrides: ``train.optimizer.lr=1e-4`` each; the last one wins.
        platform: see ``holdfast.training.platforms``.
        lenient: what nobody knows in the file is a line, not an error.
        say: called with a line about each setting that is ignored; standard error by default.
    """
    kind, say = recipe.settings, say or _to_stderr
    names = OtherNames(recipe.reads, say)
    data: dict[str, Any] = {}
    for one in suggested(recipe, platform):
        _put(kind, data, one.key, one.value, f"{one.key}={one.value} (platform)")
    if preset is not None:
        own, translated = names.split(nested(flat(_preset(recipe, preset))), f"preset {preset}")
        for key, value in (*flat(translated), *flat(own)):
            written = value if isinstance(value, str) else _written(value)
            _put(kind, data, key, written, f"{key}={written} (preset {preset})")
    if config is not None:
        own, translated = names.split(_mapping(config), config)
        if lenient:
            own = _known(kind, own, names, config, say)
        data = _laid_over(_laid_over(data, translated), own)
    for key, value, text in _overrides(overrides, names):
        _put(kind, data, key, value, text)
    source = config or "settings"
    for key, value in unknown(kind, data, names.sections):
        raise SettingsError(describe_unknown(key, value, kind, source, names.all))
    try:
        return from_dict(_laid_over(_defaults(kind), data), kind=kind, source=source)
    except SettingsError as error:
        raise SettingsError(names.explain(str(error))) from None


def _overrides(texts: Sequence[str], names: OtherNames) -> list[tuple[str, str, str]]:
    """Key, value and the text of every override, under our names; those that had them last."""
    ours: list[tuple[str, str, str]] = []
    others: list[tuple[str, str, str]] = []
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not key.strip():
            raise SettingsError(f"override {text!r}: no value; write it as section.key=value")
        own, translated = names.split(nested([(key.strip(), _word(value.strip(), text))]), text)
        ours += [(key, value, text) for key, value in flat(own)]
        for key, value in flat(translated):
            others.append((key, value if isinstance(value, str) else _written(value), text))
    return [*others, *ours]


def _known(
    kind: type[Section],
    data: Mapping[Any, Any],
    names: OtherNames,
    source: str,
    say: Callable[[str], None],
) -> dict[Any, Any]:
    """The settings of a file without those that nobody knows; a line says each of them."""
    missing: set[str] = set()
    for key, value in unknown(kind, data, names.sections):
        say(f"{describe_unknown(key, value, kind, source, names.all)} (ignored: --lenient)")
        missing.add(key)
    return _without(data, missing)


def _without(data: Mapping[Any, Any], keys: set[str], prefix: str = "") -> dict[Any, Any]:
    kept: dict[Any, Any] = {}
    for name, value in data.items():
        key = f"{prefix}{name}"
        if isinstance(value, Mapping) and any(one.startswith(f"{key}.") for one in keys):
            value = _without(cast(Mapping[Any, Any], value), keys, f"{key}.") or None
            if value is None:
                continue
        if key not in keys:
            kept[name] = value
    return kept


def suggested(recipe: Recipe, platform: str = platforms.AUTO) -> list[platforms.Suggestion]:
    """What a kind of machine sets of a recipe's settings: holdfast's own, then the recipe's."""
    known = dict(flat(_defaults(recipe.settings)))
    found: dict[str, platforms.Suggestion] = {}
    for kind in platforms.kinds(platforms.named(platform, recipe.platforms)):
        # A recipe with settings of its own may have nothing of the kind.
        found |= {one.key: one for one in kind.suggestions if one.key in known}
        for key, value in flat(recipe.platforms.get(kind.name, {})):
            written = value if isinstance(value, str) else _written(value)
            why = f"recipe {recipe.name} for {kind.name}"
            found[key] = platforms.Suggestion(key=key, value=written, why=why)
    return list(found.values())


def in_force(recipe: Recipe, platform: str, settings: Any) -> list[platforms.Suggestion]:
    """What of the settings of a kind of machine nobody has set otherwise."""
    found: list[platforms.Suggestion] = []
    for one in suggested(recipe, platform):
        value = settings
        for part in one.key.split("."):
            value = getattr(value, part, None)
        if (value if isinstance(value, str) else _written(value)) == one.value:
            found.append(one)
    return found


def former_run(path: str) -> Path:
    """The run folder that ``--resume`` means: itself, or the one a checkpoint lies in."""
    given = Path(path)
    for folder in (given, *given.parents[:2]):  # the run, its checkpoints, one of them
        try:
            return Run.open(folder).path
        except RunFolderError:
            continue
    return Run.open(given).path  # raises, and says why the path itself is none


def saved_config(run: Path) -> str:
    """The file with the settings a run was started with; ``UsageError`` where there is none."""
    path = run / CONFIG
    if not path.is_file():
        raise UsageError(
            f"{run} has no {CONFIG}: it was not made by holdfast train, or ended before its first "
            "step; name another run, or give the settings: holdfast train --config or --preset"
        )
    return str(path)


def to_yaml(settings: Section) -> str:
    """Every setting as YAML that ``resolve`` reads back to the same settings.

    >>> from holdfast.config import ClipSettings
    >>> print(to_yaml(ClipSettings(norm=1e-5)), end="")
    norm: 1e-05
    per_parameter: null
    value: null
    adaptive: false
    """
    return "\n".join([*_lines(to_dict(settings), ""), ""])


def _lines(data: Mapping[str, Any], indent: str) -> Iterator[str]:
    for key, value in data.items():
        if isinstance(value, dict) and value:
            yield f"{indent}{_written(key)}:"
            yield from _lines(cast(dict[str, Any], value), f"{indent}  ")
        else:
            yield f"{indent}{_written(key)}: {_written(value)}"


def _written(value: Any) -> str:
    """A value as YAML on one line."""
    if isinstance(value, list | tuple):
        return f"[{', '.join(_written(item) for item in cast(Sequence[Any], value))}]"
    if isinstance(value, float) and value in (float("inf"), float("-inf")):
        return ".inf" if value > 0 else "-.inf"
    if not isinstance(value, str):
        return json.dumps(value)
    if _PLAIN.fullmatch(value) and yaml_values.parse(value) == value:
        return value
    # Everything that is no visible character as an escape: YAML refuses or folds some of them.
    quoted = value.replace("\\", "\\\\").replace('"', '\\"')
    visible = [c if c.isprintable() else rf"\U{ord(c):08x}" for c in quoted]
    return f'"{"".join(visible)}"'


def _defaults(kind: type[Section]) -> dict[str, Any]:
    """What a recipe's settings say by default.

    A section that is given in part keeps the rest of the recipe's own default for it, which need
    not be the default of the section's class.
    """
    found: dict[str, Any] = {}
    for field in dataclasses.fields(cast(Any, kind)):
        default: Any = field.default
        if field.default_factory is not dataclasses.MISSING:
            default = field.default_factory()
        if isinstance(default, Section):
            found[field.name] = to_dict(default)
    return found


def _put(kind: type[Section], data: dict[str, Any], key: str, value: str, source: str) -> None:
    put(kind, data, key.split("."), _word(value, source))


def _word(value: str, source: str) -> Word:
    word = Word(value)
    word.override = source
    return word


def _preset(recipe: Recipe, name: str) -> Mapping[str, Any]:
    if name in recipe.presets:
        return recipe.presets[name]
    near = difflib.get_close_matches(name, recipe.presets, n=1)
    known = ", ".join(recipe.presets)
    hint = (
        f"did you mean {near[0]!r}?" if near else f"there are {known}" if known else "it has none"
    )
    raise UsageError(f"recipe {recipe.name} has no preset {name!r}; {hint}")


def _mapping(path: str) -> Mapping[Any, Any]:
    data = yaml_values.read(Path(path))
    if data is not None and not isinstance(data, Mapping):
        raise SettingsError(f"{path}: holds no settings; write `section:` lines")
    return cast(Mapping[Any, Any], data or {})


def _laid_over(lower: Mapping[Any, Any], upper: Mapping[Any, Any]) -> dict[Any, Any]:
    """Both, section by section; an empty section of the upper one hides nothing."""
    result = dict(lower)
    for key, value in upper.items():
        below = result.get(key)
        if isinstance(below, Mapping) and isinstance(value, Mapping | None):
            inside = cast(Mapping[Any, Any], below)
            result[key] = _laid_over(inside, cast(Mapping[Any, Any], value or {}))
        else:
            result[key] = value
    return result


def _to_stderr(line: str) -> None:
    print(f"holdfast: {line}", file=sys.stderr)
