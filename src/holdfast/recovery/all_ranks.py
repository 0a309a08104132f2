"""What several ranks do as one: who asks, what each rank says, and what follows for all of them.

Ranks that train one model see the same reduced gradients, so that a bad step is skipped by all of
them without a word. Whatever depends on a loss, a clock or a loader of its own is agreed on first
(``agreement``): going back, stopping, lowering the learning rate, saving, clipping after an
explosion, whether finite outliers are skipped, how often snapshots are taken, and the end by a
signal.

That they train one model is not assumed but seen: their gradient norms are the same.
"""

from __future__ import annotations

import math
import os
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import torch

from ..probes.ranks import ranks
from ..records.recovery import OnlyObserved
from ..suspicion import Suspicion
from .agreement import PATIENCE, Accepted, Agreement, Facts, Proposal
from .damage import Damage
from .snapshots import Snapshot, Snapshots
from .training import Training
from .trial import clearly_better

ROLLBACK, STOP, LOWER, SAVE = "rollback", "stop", "lower_lr", "checkpoint"
END, BEST = "end", "restore_best"
CLIP, OUTLIERS, PACE = "clip", "outliers", "pace"

# Seconds that ranks have to answer when a signal ends the run: their threads look far more often.
_PROMPT = 2.0
# Rows that are compared. On a GPU the host of one rank may be some steps ahead of another's.
_RECENT = 64
# Steps until something that was refused is asked for again.
_AGAIN = 512
# Norms are equal to the last bits, in which sums on a GPU vary.
_SAME = 1e-6


class AllRanks:
    """Agreements about the training in this process; nothing at all where there is one rank."""

    def __init__(self, training: Training, snapshots: Snapshots, damage: Damage) -> None:
        self.ends_by: Callable[[str, Snapshot | None], None] = lambda signal, state: None
        """Saves a state that all ranks have, and ends this process by a signal."""
        self._training, self._snapshots, self._damage = training, snapshots, damage
        self._recent: deque[tuple[int, float, float]] = deque(maxlen=_RECENT)
        self._level = (math.nan, math.nan)
        self.agreement: Agreement | None = None
        """With the other ranks; None while there is nobody to talk to."""
        self._over = False
        self._of: object = None
        self._trial = 0
        self._refused: dict[str, int] = {}

    # ------------------------------------------------------------------ the training thread

    def begin(self) -> bool:
        """Whether there are several ranks; the first time they can talk from then on."""
        world = ranks()
        if world == 1:
            return False
        group = torch.distributed.group.WORLD
        if self._of is not group:
            self.close()
            self._of, self._over = group, False
            if self._training.uneven:
                self._give_up("ranks take different numbers of steps (Join)")
                return True
            try:
                store: Any = torch.distributed.distributed_c10d._get_default_store()
                own: Any = torch.distributed.PrefixStore("holdfast", store.clone())
            except Exception as error:  # a backend that has none, or one that cannot be shared
                self._give_up(f"their store cannot be used ({type(error).__name__}: {error})")
                return True
            agent = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
            rank = torch.distributed.get_rank()
            self.agreement = Agreement(own, rank, world, self, serves=not agent)
        return True

    def saw(self, step: int, row: Mapping[str, float]) -> None:
        """A row is known."""
        self._recent.append((step, row["loss"], row["grad_norm"]))
        if not math.isnan(row["loss_baseline"]):
            self._level = row["loss_baseline"], row["loss_limit"]

    def ask(self, kind: str, facts: Facts, *, blocks_training: bool = True) -> bool:
        """Ask all ranks; False where that is not possible."""
        if self.agreement is None or self._over or self.agreement.over:
            return False
        refused = self._refused.get(kind, -_AGAIN)
        if kind not in (STOP, END) and self._training.iteration - refused < _AGAIN:
            return False
        self.agreement.ask(
            kind, facts, blocks_training=blocks_training, patience=_PROMPT if kind == END else None
        )
        return True

    def withdraw(self, kind: str) -> None:
        """What was asked for is not wanted any more."""
        if self.agreement is not None:
            self.agreement.withdraw(kind)

    def due(self, step: int) -> bool:
        """Whether there is something to hear after this step: ``arrive``, then ``tell``."""
        agreement = self.agreement
        return agreement is not None and (step >= agreement.hold_at or bool(agreement.news))

    @property
    def busy(self) -> bool:
        """Whether something is being agreed on."""
        return self.agreement is not None and self.agreement.busy

    @property
    def why_over(self) -> str:
        """Why nothing can be agreed on any more; empty while it can."""
        return "" if self.agreement is None else self.agreement.why_over

    @property
    def goes_back(self) -> bool:
        """Whether ranks go back together, now."""
        agreed = None if self.agreement is None else self.agreement.agreed
        if agreed is None or agreed.proposal.kind != ROLLBACK:
            return False
        return self._training.iteration >= agreed.step

    def arrive(self, step: int, facts: Facts) -> tuple[Accepted, list[Facts]] | None:
        """What all ranks do now, and what each brings; None for nothing. May wait for others."""
        agreement = self.agreement
        if agreement is None:
            return None
        met = agreement.arrive(step, facts)
        if met is not None:
            self._trial = met[0].proposal.number
        return met

    def verdict(self, found: Suspicion, tried: float, before: float) -> tuple[bool, float, float]:
        """Whether old weights are kept, by the losses of all ranks; their means."""
        agreement = self.agreement
        own = {"tried": tried, "before": before}
        every = None if agreement is None else agreement.exchange(f"trial/{self._trial}", own)
        if every is None:
            return False, tried, before
        tried, before = (_mean([one[name] for one in every]) for name in ("tried", "before"))
        return clearly_better(found, tried, before), tried, before

    def same(self, name: str, value: object) -> bool:
        """Whether all ranks, which are at the same place, have the same; alike on all of them."""
        if not self.begin():
            return True
        agreement = self.agreement
        if agreement is None or agreement.over:
            return False
        # They may have read something large before they came here.
        every = agreement.exchange(name, {"value": value}, PATIENCE)
        return every is not None and all(one["value"] == value for one in every)

    def tell(self, step: int) -> list[Proposal]:
        """Record what was refused; the questions."""
        agreement = self.agreement
        if agreement is None or not agreement.news:
            return []
        news, agreement.news = agreement.news, []
        for refused in news:
            asked = refused.proposal
            self._refused[asked.kind] = step
            if refused.silent:
                self._give_up(refused.why)
            elif asked.kind == ROLLBACK:
                found, opt = suspicion_of(asked.facts), asked.facts["opt"]
                observed = only_observed(found, opt, refused.why, (ROLLBACK,), asked.rank)
                self._training.record_at(step, observed)
        return [refused.proposal for refused in news]

    def close(self) -> None:
        """The run or its process group ends."""
        agreement, self.agreement, self._of = self.agreement, None, None
        if agreement is not None:
            agreement.close()

    def _give_up(self, why: str) -> None:
        self._over = True
        self._training.not_covered("what ranks must agree on", why)

    # ------------------------------------------------------------------ beside the training

    def there(self) -> bool:
        """Whether the process group is still the one that was talked over."""
        return torch.distributed.group.WORLD is self._of

    def step(self) -> int:
        """The step that was counted last."""
        return self._training.iteration

    def answer(self, proposal: Proposal) -> Facts:
        """What this rank has to say."""
        facts: Facts = {
            "recent": list(self._recent),
            "usual": self._level[0],
            "limit": self._level[1],
            "comparable": self._training.comparability.holds,
            "why": self._training.comparability.why,
            "every": self._snapshots.pace.wanted,
        }
        if proposal.kind in (ROLLBACK, STOP):
            first, late = proposal.facts["first"], proposal.facts["code"] == "OPT003"
            facts["snapshots"] = [
                (one.step, one.level)
                for one in self._snapshots.taken()
                if (late or one.step < first - 1) and self._damage.good(one)
            ]
        return facts

    def decide(self, proposal: Proposal, answers: Sequence[Facts]) -> tuple[str, Facts]:
        """Why nothing is done, or "" and what is; for all ranks."""
        if proposal.kind in (SAVE, END):
            return "", proposal.facts
        if proposal.kind == STOP:
            return "", {**proposal.facts, "to": _common(proposal, answers)}
        apart = _apart([one["recent"] for one in answers])
        if apart:
            return apart, {}
        if proposal.kind == OUTLIERS:
            return "", {"skip": all(one["comparable"] for one in answers)}
        if proposal.kind == PACE:
            return "", {"every": max(one["every"] for one in answers)}
        if proposal.kind == ROLLBACK:
            return _whether_back(proposal, answers)
        return "", proposal.facts


def _whether_back(proposal: Proposal, answers: Sequence[Facts]) -> tuple[str, Facts]:
    """Whether the weights are suspected by all ranks together, and which state they go back to."""
    found = suspicion_of(proposal.facts)
    against = [one["why"] for one in answers if not one["comparable"]]
    if found.why == "loss" and against and not proposal.facts["asked"]:
        return against[0], {}
    facts = dict(proposal.facts)
    if found.why == "loss":
        loss = _mean_loss([one["recent"] for one in answers], found.first)
        if found.code != "OPT003":
            facts["usual"], facts["limit"] = (
                _mean([one[name] for one in answers]) for name in ("usual", "limit")
            )
        if not loss > facts["limit"]:
            high = f"the loss of rank {proposal.rank} is high and that of all ranks is not"
            return f"{high}: it is the data of that rank", {}
        facts["loss"] = loss
    to = _common(proposal, answers)
    if to is None:
        return f"no good snapshot was taken by all ranks before step {found.first}", {}
    return "", {**facts, "to": to}


def _common(proposal: Proposal, answers: Sequence[Facts]) -> int | None:
    """The step of a snapshot that all ranks have: the newest, of a run that diverges the best."""
    levels = [{step: level for step, level in one["snapshots"]} for one in answers]
    common = set.intersection(*map(set, levels))
    if proposal.facts["code"] != "OPT003":
        return max(common, default=None)
    mean = {step: _mean([one[step] for one in levels]) for step in common}
    return min(common, key=lambda step: (mean[step], -step), default=None)


def _apart(recent: Sequence[Sequence[tuple[int, float, float]]]) -> str:
    """Why ranks do not train one model; empty where their gradients are the same."""
    norms = [{step: norm for step, _, norm in one} for one in recent]
    shared = set.intersection(*map(set, norms))
    finite = [s for s in shared if all(math.isfinite(one[s]) for one in norms)]
    if not finite:
        return "ranks have no step in common by which to see that they train one model"
    first = norms[0]
    same = (abs(one[s] - first[s]) <= _SAME * abs(first[s]) for one in norms for s in finite)
    return "" if all(same) else "ranks have different gradients: each trains by itself"


def _mean_loss(recent: Sequence[Sequence[tuple[int, float, float]]], first: int) -> float:
    """Mean over ranks and the steps since the trouble began that all of them know."""
    losses = [{step: loss for step, loss, _ in one if step >= first} for one in recent]
    shared = set.intersection(*map(set, losses))
    return _mean([one[step] for one in losses for step in shared])


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else math.nan


def asked_for(found: Suspicion, opt: int, *, asked: bool) -> Facts:
    """A suspicion as a question to all ranks."""
    return {**asdict(found), "opt": opt, "asked": asked}


def suspicion_of(facts: Mapping[str, Any]) -> Suspicion:
    """The suspicion that all ranks were asked about."""
    return Suspicion(**{name: facts[name] for name in Suspicion.__dataclass_fields__})


def only_observed(
    found: Suspicion, opt: int, why: str, instead: tuple[str, ...], asked_by: int | None = None
) -> OnlyObserved:
    """A suspicion that nothing follows from, as it is recorded; ``instead``: what would have."""
    return OnlyObserved(
        opt=opt,
        code=found.code,
        first=found.first,
        loss=found.loss,
        usual=found.usual,
        why=why,
        instead=instead,
        asked_by=asked_by,
    )
