"""Which finding earns which action, how often, and when enough is enough.

A policy is data: one rule for each code. The guard asks it before it acts, and the policy counts;
a budget that is spent ends the run, so that no run is saved for ever in vain.

    >>> policy = Policy.of(Settings(policy={"OPT001": {"do": "rollback", "budget": 1}}))
    >>> policy.allow("OPT001", step=977)
    Decision(do=('rollback',), stop=False, left=0, why='')
    >>> policy.allow("OPT001", step=1300).why
    'the budget of OPT001 is spent: rollback 1 time without 1000 good steps between'
    >>> policy.allow("MEM001", step=1301).do
    ()
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from .config import Settings
from .config.rules import EVERY, POSSIBLE, codes_of

OBSERVE = ("observe",)
_RESTORE_OLDER = frozenset({"rollback", "restore_best", "lower_lr", "reset_moments"})
_LAST_RESORT = ("restore_best", "lower_lr")


@dataclass(frozen=True, kw_only=True, slots=True)
class Rule:
    """What is done about a code, or about all codes that begin so.

    ``budget`` times, then ``best`` times the best state by validation with a lower learning rate,
    then the run is stopped; ``reset_after`` good steps in between start the count anew. Within
    ``cooldown`` steps of one time nothing but a skip is done. ``why`` says what takes an action
    away that the rule would have. ``asked`` says that the user chose the actions: they are taken
    even where losses cannot be compared over time.
    """

    on: str
    do: tuple[str, ...] = OBSERVE
    cooldown: int = 0
    budget: int = 1000
    reset_after: int = 1
    best: int = 0
    why: str = ""
    asked: bool = False

    @property
    def acts(self) -> bool:
        """Whether anything is done at all."""
        return self.do != OBSERVE

    @property
    def text(self) -> str:
        """The rule without its code: what, and in brackets how often."""
        what = " + ".join(self.do)
        if not self.acts or "stop" in self.do:
            return f"{what} ({self.why})" if self.why else what
        often = _times(self.budget, self.reset_after)
        last = f"then {' + '.join(_LAST_RESORT)} {_count(self.best)}, then stop"
        limit = f"{often}, {last}" if self.best else f"stop after {often}"
        parts = [limit, f"{self.cooldown} steps apart" if self.cooldown else "", self.why]
        return f"{what} ({'; '.join(filter(None, parts))})"


# A thousand bad batches in a row are no accident. Of rollbacks that return within a thousand
# steps three are tries and a fourth is a loop. These are choices, no measurements.
_TRIES, _RESET_AFTER = 3, 1000
DEFAULTS: tuple[Rule, ...] = (
    Rule(on="NUM001", do=("skip",)),
    Rule(on="NUM002", do=("skip",)),
    Rule(on="NUM003", do=("rollback",), budget=_TRIES, reset_after=_RESET_AFTER),
    Rule(on="NUM005", do=("skip", "quarantine")),
    Rule(on="OPT001", do=("rollback",), cooldown=20, budget=_TRIES, reset_after=_RESET_AFTER),
    Rule(on="OPT002", do=("skip", "clip")),
    Rule(
        on="OPT003",
        do=("rollback", "lower_lr"),
        cooldown=20,
        budget=_TRIES,
        reset_after=_RESET_AFTER,
    ),
)
_OTHER = Rule(on="")


@dataclass(frozen=True, kw_only=True, slots=True)
class Decision:
    """The answer to one finding: what to do now, and whether the run has to end.

    ``do`` is empty when nothing is to be done; ``left`` is how many more times are allowed;
    ``why`` says why the run ends.
    """

    do: tuple[str, ...] = ()
    stop: bool = False
    left: int = 0
    why: str = ""


@dataclass(slots=True)
class _Use:
    step: int
    troubled: int
    count: int
    decision: Decision


class Policy:
    """The rules of one run and how often each was used.

    Args:
        rules: the longest ``on`` that a code begins with wins; a code without a rule is
            observed.
    """

    def __init__(self, rules: Iterable[Rule] = DEFAULTS) -> None:
        self.rules = tuple(rules)
        self._uses: dict[str, _Use] = {}
        self._last = -1
        self._troubled = 0

    @classmethod
    def of(cls, settings: Settings) -> Policy:
        """The defaults, changed by what the settings say, and rules for other codes."""
        known = [_resolved(rule, settings) for rule in DEFAULTS]
        others = [name for name in settings.policy if not any(codes_of(name))]
        return cls([*known, *(_resolved(Rule(on=name), settings) for name in others)])

    def rule(self, code: str) -> Rule:
        """The rule for a code."""
        fitting = [rule for rule in self.rules if code.startswith(rule.on)]
        return max(fitting, key=lambda rule: len(rule.on), default=_OTHER)

    def does(self, code: str, action: str) -> bool:
        """Whether an action belongs to the rule of a code: what has to be armed beforehand."""
        return action in self.rule(code).do

    def order(self, code: str, step: int) -> Decision:
        """What the training is asked to do between two steps about a finding that came later.

        Findings that the guard acts on at their own step are none of this.
        """
        if self.rule(code).on in POSSIBLE:
            return Decision()
        return self.allow(code, step)

    def rests(self, code: str, step: int) -> bool:
        """Whether a code is within its cooldown, so that asking would change nothing."""
        use = self._uses.get(code)
        return use is not None and step - use.step < self.rule(code).cooldown

    def passes_over(self, step: int) -> None:
        """A step that was made to look at something: it costs no budget and is no good step."""
        if step > self._last:
            self._last, self._troubled = step, self._troubled + 1

    def allow(self, code: str, step: int) -> Decision:
        """Ask once for each finding; steps come in order, but for two optimizers in one step.

        A step on which something was asked is no good step, whatever the code: two faults that
        take turns would otherwise reset each other for ever.
        """
        self.passes_over(step)
        rule, use = self.rule(code), self._uses.get(code)
        if not rule.acts:
            return Decision()
        if use is not None and (use.step == step or use.decision.stop):
            return use.decision
        if use is not None and step - use.step < rule.cooldown:
            always = tuple(action for action in rule.do if action == "skip")
            return Decision(do=always, left=use.decision.left)
        count = 0 if use is None else use.count
        if (
            use is not None
            and (step - use.step) - (self._troubled - use.troubled) >= rule.reset_after
        ):
            count = 0
        decision = _decided(rule, code, count)
        reached = step if use is None else max(step, use.step)
        self._uses[code] = _Use(reached, self._troubled, count + 1, decision)
        return decision

    def state(self) -> dict[str, Any]:
        """How often each rule was used, as plain data."""
        uses = {code: asdict(use) for code, use in self._uses.items()}
        return {"uses": uses, "last": self._last, "troubled": self._troubled}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from what ``state`` gave."""
        self._last, self._troubled = state["last"], state["troubled"]
        self._uses = {
            code: _Use(**{**use, "decision": Decision(**use["decision"])})
            for code, use in state["uses"].items()
        }

    def lines(self) -> list[str]:
        """Every rule with its budget, one line for codes that have the same."""
        groups: dict[str, list[str]] = {}
        for rule in self.rules:
            groups.setdefault(rule.text, []).append(rule.on)
        lines = [f"{', '.join(codes)}: {text}" for text, codes in groups.items()]
        return [*lines, "everything else: observe"]


def _decided(rule: Rule, code: str, count: int) -> Decision:
    if "stop" in rule.do:
        return Decision(do=rule.do, stop=True, why=f"the policy says stop on {code}")
    if count < rule.budget:
        return Decision(do=rule.do, left=rule.budget - count - 1)
    if count < rule.budget + rule.best:
        return Decision(do=_LAST_RESORT, left=rule.budget + rule.best - count - 1)
    often = _times(rule.budget, rule.reset_after)
    why = f"the budget of {code} is spent: {' + '.join(rule.do)} {often}"
    if rule.best:
        why += f", then {' + '.join(_LAST_RESORT)} {_count(rule.best)}"
    return Decision(do=("stop",), stop=True, why=why)


def _count(times: int) -> str:
    return f"{times} time{'s' * (times > 1)}"


def _times(budget: int, reset_after: int) -> str:
    times = _count(budget)
    return (
        f"{times} in a row"
        if reset_after == 1
        else f"{times} without {reset_after} good steps between"
    )


def _resolved(rule: Rule, settings: Settings) -> Rule:
    """One default rule with what was said about its code, the longest name last."""
    given = [name for name in settings.policy if rule.on in (*codes_of(name), name)]
    for name in sorted(given, key=lambda name: 0 if name == EVERY else len(name)):
        said = settings.policy[name]
        if _back(said.do or ()) and not _back(rule.do):
            # A thousand skips are cheap; a thousand times back to the same place is no training.
            rule = replace(rule, budget=_TRIES, reset_after=_RESET_AFTER)
        changes = {
            field: value
            for field in ("do", "cooldown", "budget", "reset_after")
            if (value := getattr(said, field)) is not None
        }
        rule = replace(rule, **changes, asked=rule.asked or said.do is not None)
    if settings.rollback.reset_moments and "rollback" in rule.do:
        rule = replace(rule, do=tuple(dict.fromkeys((*rule.do, "reset_moments"))))
    rule = _possible(rule, settings)
    able = "restore_best" in POSSIBLE.get(rule.on, ())
    if able and "rollback" in rule.do and _validated(settings):
        rule = replace(rule, best=settings.rollback.best)
    return rule


def _back(do: Iterable[str]) -> bool:
    return not {"rollback", "restore_best"}.isdisjoint(do)


def _validated(settings: Settings) -> bool:
    """Whether the best checkpoint is one by validation; the loss of the last steps is none."""
    return settings.checkpoint.metric != "loss" and settings.checkpoint.best > 0


def _possible(rule: Rule, settings: Settings) -> Rule:
    """The rule without what other settings have switched off; says which."""
    off: dict[str, frozenset[str]] = {}
    if not settings.guard.skip:
        off["guard.skip is false"] = frozenset({"skip"})
    if not settings.rollback.snapshots:
        off["rollback.snapshots is 0"] = _RESTORE_OLDER
    if "restore_best" in rule.do and not _validated(settings):
        off["checkpoint.metric names no validation"] = _RESTORE_OLDER
    if not settings.quarantine.write:
        off["quarantine.write is false"] = frozenset({"quarantine"})
    if not settings.spike.detect and rule.on.startswith("OPT"):
        off["spike.detect is false"] = frozenset(rule.do) - {"observe"}
    taken = {why: gone for why, gone in off.items() if gone & set(rule.do)}
    left = tuple(action for action in rule.do if not any(action in gone for gone in taken.values()))
    return replace(rule, do=left or OBSERVE, why=", ".join(taken))
