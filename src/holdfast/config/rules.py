"""Settings for one code in ``policy:``; part of config/__init__.py.

This module says which actions exist and which of them the guard can take for which finding, so
that an impossible action is refused when settings are read and not in the middle of a run. The
defaults and the counting are in policy.py.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Mapping
from typing import ClassVar, Literal

from holdfast.config.strict import Section, bounded

Action = Literal[
    "observe", "skip", "clip", "rollback", "restore_best", "lower_lr", "reset_moments",
    "quarantine", "checkpoint", "stop",
]  # fmt: skip

EVERY = "ALL"
"""Stands for every code, as in ``detectors.select``."""

_BACK: tuple[Action, ...] = ("rollback", "lower_lr", "reset_moments")

LATER: tuple[Action, ...] = ("checkpoint", "lower_lr", "stop")
"""Actions for any other finding, a plugin's too: taken between two steps, once known."""

_CODE = re.compile(r"[A-Z]{2,8}(\d{3})?")

# The codes that the guard itself detects while it trains, and its actions for each. A skip does not
# repair a bad weight; a loss that stays high is not the fault of one sample.
POSSIBLE: Mapping[str, tuple[Action, ...]] = {
    "NUM001": ("skip", "quarantine", *_BACK, "stop"),
    "NUM002": ("skip", "quarantine", *_BACK, "stop"),
    "NUM003": (*_BACK, "restore_best", "stop"),
    "NUM005": ("skip", "quarantine", "stop"),
    "OPT001": (*_BACK, "restore_best", "stop"),
    "OPT002": ("skip", "clip", "lower_lr", "stop"),
    "OPT003": (*_BACK, "restore_best", "stop"),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class RuleSettings(Section):
    """Action for a finding, and how often; None: the default.

    >>> RuleSettings(do="rollback", budget=5).do
    ('rollback',)
    """

    short: ClassVar[str] = "do"  # `OPT001: rollback` is `OPT001: {do: rollback}`

    do: tuple[Action, ...] | None = dataclasses.field(default=None, metadata={"one": True})
    cooldown: int | None = bounded(None, 0)  # steps before it may be done again
    budget: int | None = bounded(None, 1)  # times without `reset_after` between them; then: stop
    reset_after: int | None = bounded(None, 1)  # good steps after which counting starts anew

    def check_name(self, name: str) -> None:
        """Whether this may be asked for the code, or the beginning of codes, it stands under."""
        codes = tuple(codes_of(name))
        if not codes and not _CODE.fullmatch(name):
            raise ValueError(_unknown(name))
        if self.do is None:
            return
        if not self.do:
            raise ValueError("an empty list of actions; write observe to do nothing")
        for alone in ("observe", "stop"):
            if alone in self.do and len(self.do) > 1:
                raise ValueError(f"{alone} cannot be combined with another action; write it alone")
        if len(set(self.do)) < len(self.do):
            raise ValueError(f"an action appears twice in {', '.join(self.do)}; remove one")
        for code in codes or (name,):
            able = ("observe", *POSSIBLE.get(code, LATER))
            for action in self.do:
                if action not in able:
                    choice = ", ".join(able)
                    said = f"{action} is not possible for {code}; choose from {choice}"
                    meant = "" if code in POSSIBLE else _meant(code)
                    raise ValueError(f"{said}; {meant}" if meant else said)
        if "rollback" in self.do and "restore_best" in self.do:
            raise ValueError(
                "rollback and restore_best are two ways back; write one of them (after the last "
                "rollback rollback.best says how often the best state is restored)"
            )
        for action in _BACK[1:]:
            goes_back = any("rollback" in POSSIBLE[code] for code in codes)
            if goes_back and action in self.do and not {"rollback", "restore_best"} & {*self.do}:
                raise ValueError(
                    f"{action} needs a rollback; write [rollback, {action}] or remove it"
                )


def codes_of(name: str) -> Iterator[str]:
    """The codes that ``name`` stands for: one code, the beginning of some, or every one."""
    if name:
        yield from (code for code in POSSIBLE if name == EVERY or code.startswith(name))


def _unknown(name: str) -> str:
    hint = _meant(name) or f"a code is like OPT001, and {EVERY} stands for all of ours"
    return f"not a code of a finding, nor a prefix of one; {hint}"


def _meant(name: str) -> str:
    import difflib

    near = difflib.get_close_matches(name.upper(), [*POSSIBLE, EVERY], n=1)
    return f"did you mean {near[0]!r}?" if near else ""
