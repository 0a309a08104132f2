"""Options of detectors as settings: ``detectors.TPT004.grew=2``, by code or by name.

``config`` reads them without knowing any detector; here they are checked against the ``Options``
of the class, wherever detectors are made.

    >>> from holdfast.detectors.slow_down import SlowDown
    >>> check_options({"slow_down": {"grew": 2}}, [SlowDown])
    {'TPT004': {'grew': 2.0}}
    >>> configured([SlowDown], {"TPT004": {"grew": 2.0}})[0].options.grew
    2.0
"""

from __future__ import annotations

import ast
import dataclasses
import difflib
import inspect
import re
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, cast

from ..config import Settings
from ..config.strict import build, describe_unknown, origin
from ..errors import SettingsError
from .base import Detector

_ATTRIBUTE = re.compile(r"^( *)(\w+): (.+(?:\n\1 +.+)*)", re.M)
_ATTRIBUTES = "Attributes:\n"

Given = Mapping[str, Mapping[str, Any]]
"""Values of options by the code or the name of their detector."""


def check_options(
    given: Given, among: Sequence[type[Detector]], source: str = "settings"
) -> dict[str, dict[str, Any]]:
    """Options by code, each value of the type that it must have; ``SettingsError`` otherwise."""
    by_label = {label.lower(): d for d in among for label in (d.code, d.name)}
    found: dict[str, dict[str, Any]] = {}
    for label, values in given.items():
        detector = by_label.get(label.lower())
        if detector is None:
            near = difflib.get_close_matches(label.lower(), by_label, n=1)
            hint = f"did you mean {near[0].upper()!r}?" if near and near[0][-1].isdigit() else ""
            hint = hint or (f"did you mean {near[0]!r}?" if near else "")
            raise SettingsError(
                f"{origin(values, source)}: detectors.{label}: no detector has this code or name; "
                + (hint or "`holdfast explain` lists all of them")
            )
        found.setdefault(detector.code, {}).update(_checked(detector, label, values, source))
    return found


def with_options(settings: Settings, among: Sequence[type[Detector]]) -> Settings:
    """The settings with these options as they were checked, which is how a run records them."""
    options = check_options(settings.detectors.options, among)
    detectors = dataclasses.replace(settings.detectors, options=options)
    return dataclasses.replace(settings, detectors=detectors)


def recorded_options(meta: Mapping[str, Any], among: Sequence[type[Detector]]) -> Given:
    """Options that a run was judged with; what this version does not have any more is left."""
    place: Any = meta
    for name in ("settings", "detectors", "options"):
        place = cast("dict[str, Any]", place).get(name) if isinstance(place, Mapping) else None
    found: dict[str, dict[str, Any]] = {}
    for code, values in cast("dict[str, Any]", place or {}).items():
        for name, value in cast("dict[str, Any]", values).items():
            try:
                one = check_options({code: {name: value}}, among)
            except SettingsError:
                continue
            for known, options in one.items():
                found.setdefault(known, {}).update(options)
    return found


def configured(detectors: Iterable[type[Detector] | Detector], given: Given) -> list[Detector]:
    """An instance of each detector, with the options that were given for it."""
    return [_made(detector, given) for detector in detectors]


def _made(detector: type[Detector] | Detector, given: Given) -> Detector:
    if isinstance(detector, Detector):
        return detector
    values = {**given.get(detector.name, {}), **given.get(detector.code, {})}
    return detector(detector.Options(**_checked(detector, detector.code, values, "settings")))


def _checked(
    detector: type[Detector], label: str, values: Mapping[str, Any], source: str
) -> dict[str, Any]:
    """The values as the fields of ``Options`` want them."""
    names = [field.name for field in dataclasses.fields(detector.Options)]
    prefix = f"detectors.{label}."
    for name, value in values.items():
        if name not in names:
            others = [f"{prefix}{known}" for known in names]
            if not names:
                raise SettingsError(f"{origin(value, source)}: {prefix[:-1]} has no options")
            raise SettingsError(
                describe_unknown(f"{prefix}{name}", value, detector.Options, source, others)
            )
    options = build(detector.Options, values, source, prefix)
    return {name: getattr(options, name) for name in values}


class Described(NamedTuple):
    """One option of a detector, as its class describes it."""

    name: str
    default: float
    meaning: str


def describe_options(detector: type[Detector]) -> list[Described]:
    """The options of a detector, each with its default and meaning."""
    options = detector.Options()
    meanings: dict[str, str] = {}
    for cls in reversed(_classes(detector)):
        meanings |= _meanings(cls)
    return [
        Described(field.name, getattr(options, field.name), meanings.get(field.name, ""))
        for field in dataclasses.fields(options)
    ]


def where_from(detector: type[Detector]) -> list[str]:
    """What is said about where these values come from, each sentence once."""
    texts = (inspect.cleandoc(cls.__doc__ or "") for cls in _classes(detector))
    return list(dict.fromkeys(text.partition(f"\n\n{_ATTRIBUTES}")[0] for text in texts))


def _classes(detector: type[Detector]) -> list[type]:
    mro = detector.Options.__mro__
    return [cls for cls in mro if cls not in (Detector.Options, object)]


def _meanings(options: type) -> dict[str, str]:
    """What a class says about its fields: its `Attributes:`, or the text below each field."""
    documented = inspect.cleandoc(options.__doc__ or "").partition(f"\n{_ATTRIBUTES}")[2]
    found = {name: " ".join(said.split()) for _, name, said in _ATTRIBUTE.findall(documented)}
    (tree,) = ast.parse(textwrap.dedent(inspect.getsource(options))).body
    assert isinstance(tree, ast.ClassDef)
    for field, below in zip(tree.body, tree.body[1:], strict=False):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
            match below:
                case ast.Expr(value=ast.Constant(value=str(said))):
                    found[field.target.id] = " ".join(said.split())
                case _:
                    pass
    return found
