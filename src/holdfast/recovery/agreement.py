"""Agreement of ranks on something that all of them do after the same step.

    a rank asks ─ each answers with a step that it will not pass unheard ─ the latest is named
    at that step: each says that it has arrived ─ go, or nobody does anything

All of it goes over the rendezvous store, by a thread of each rank with a connection of its own. A
collective could be missed by a rank and would wait for it for ever; here whoever waits does so for
a bounded time, and what is decided is whatever is written first, so that the one who gives up and
those who do not agree even so. A rank that does not answer ends agreements for the rest of the run.

Nothing is sent on a step: the thread asks the store now and then whether somebody has asked. The
process of the first rank may serve the store: before it ends it lets the others know, and waits a
moment for them to leave, or torch would complain in their name.
"""

from __future__ import annotations

import contextlib
import json
import math
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

Facts = dict[str, Any]

# Seconds between two looks; with many ranks fewer, since one server answers all of them.
_LOOK, _RANKS = 0.25, 256
# Seconds until a rank that says nothing is given up on, and between two looks meanwhile.
PATIENCE = 20.0
_SOON = 0.005
# At the step that was named ranks come together within a step; one that makes other steps does not.
_MEETING = 5.0
# A step that is named far ahead is another one on ranks that take different numbers of steps.
_AHEAD = 32
_GONE = "gone"
# Steps from a question to the earliest that can be named: the one at work, and one to be sure.
_LEAD = 2


class Store(Protocol):
    """What is used of a ``torch.distributed.Store``."""

    def set(self, key: str, value: str) -> None:
        """Write."""
        ...

    def get(self, key: str) -> bytes:
        """Read what is there."""
        ...

    def check(self, keys: list[str]) -> bool:
        """Whether all of them are there."""
        ...

    def compare_set(self, key: str, expected: str, value: str) -> bytes:
        """Write unless somebody has; what is there then."""
        ...


@dataclass(frozen=True, slots=True)
class Proposal:
    """What a rank wants all of them to do."""

    number: int
    kind: str
    rank: int
    facts: Facts
    blocks_training: bool = True
    """Whether ranks rather wait than go on in the meantime."""
    patience: float = PATIENCE
    """Seconds until a rank that does not answer is given up on."""


@dataclass(frozen=True, slots=True)
class Accepted:
    """What all ranks do after ``step``."""

    proposal: Proposal
    step: int
    facts: Facts


@dataclass(frozen=True, slots=True)
class Rejected:
    """What no rank does, and why; ``silent`` when ranks did not answer."""

    proposal: Proposal
    why: str
    silent: bool = False


class RankVoter(Protocol):
    """What the thread asks of the training of its rank; called beside it."""

    def there(self) -> bool:
        """Whether the process group is still the one of the store."""
        ...

    def step(self) -> int:
        """The step that was counted last."""
        ...

    def answer(self, proposal: Proposal) -> Facts:
        """What this rank has to say."""
        ...

    def decide(self, proposal: Proposal, answers: Sequence[Facts]) -> tuple[str, Facts]:
        """Why nothing is done, or "" and what is; asked of the first rank alone."""
        ...


@dataclass(slots=True)
class _Pace:
    """Seconds per step, as the thread sees them."""

    at: float = field(default_factory=time.monotonic)
    step: int = 0
    seconds: float = 0.0

    def look(self, step: int) -> None:
        now = time.monotonic()
        if step > self.step:
            self.seconds = (now - self.at) / (step - self.step)
            self.at, self.step = now, step


class Agreement:
    """Agreements of the ranks of a run, one at a time.

    Args:
        store: a connection that nobody else uses.
        rank: of this process.
        world: how many there are.
        voter: the training of this rank.
        patience: seconds until a silent rank is given up on.
        serves: whether the process of the first rank serves the store.
    """

    def __init__(
        self,
        store: Store,
        rank: int,
        world: int,
        voter: RankVoter,
        patience: float = PATIENCE,
        *,
        serves: bool = True,
    ) -> None:
        self.hold_at: float = math.inf
        """The step after which the training thread must ask ``arrive``; mostly infinite."""
        self.news: list[Rejected] = []
        """What was refused, for the training thread to tell."""
        self.why_over = ""
        """Who did not answer, where that ended agreements."""
        self._store, self._rank, self._world = store, rank, world
        self._voter, self._patience, self._serves = voter, patience, serves
        self._look = _LOOK * max(1.0, world / _RANKS)
        self._wanted: dict[str, tuple[Facts, bool, float]] = {}
        self._agreed: Accepted | None = None
        self._number = 0
        self._pace = _Pace()
        self._changed = threading.Condition()
        self._over = False
        self._thread = threading.Thread(target=self._run, name="holdfast-ranks", daemon=True)
        self._thread.start()

    # ------------------------------------------------------------------ the training thread

    def ask(
        self,
        kind: str,
        facts: Facts,
        *,
        blocks_training: bool = True,
        patience: float | None = None,
    ) -> None:
        """Ask all ranks to do something; returns at once. One question of a kind waits at most.

        ``patience``: seconds that they have to answer.
        """
        with self._changed:
            if not self._over:
                patience = self._patience if patience is None else patience
                self._wanted[kind] = facts, blocks_training, patience
                self._changed.notify_all()

    def withdraw(self, kind: str) -> None:
        """What was asked for is not wanted any more."""
        with self._changed:
            self._wanted.pop(kind, None)

    @property
    def agreed(self) -> Accepted | None:
        """What is to be done after a step to come."""
        return self._agreed

    @property
    def busy(self) -> bool:
        """Whether something is being agreed on, or waits for its step."""
        return self.hold_at < math.inf

    def arrive(self, step: int, facts: Facts) -> tuple[Accepted, list[Facts]] | None:
        """After ``hold_at``: wait for what was named; what to do now and what each rank brings.

        None: nothing, or not yet.
        """
        with self._changed:
            self._changed.wait_for(
                lambda: self._agreed is not None or not self.busy or self._over,
                timeout=2 * self._patience,
            )
            agreed = self._agreed
            if agreed is None:
                self.hold_at = math.inf
                return None
            if step < agreed.step:
                self.hold_at = agreed.step
                return None
        try:
            return self._meet(agreed, step, facts)
        finally:
            with self._changed:
                self._agreed, self.hold_at = None, math.inf
                self._number += 1
                self._changed.notify_all()

    def exchange(self, name: str, own: Facts, patience: float | None = None) -> list[Facts] | None:
        """What each rank brings to something that all of them are at; None where one is missing.

        ``patience``: seconds that it may come later than others.
        """
        limit = self._limit() if patience is None else patience
        common = f"{name}/all"
        self._put(f"{name}/{self._rank}", own)
        keys = [f"{name}/{rank}" for rank in range(self._world)]
        if self._rank == 0:
            there = self._await(keys, limit)
            every = [self._get(key) for key in keys] if there else None
            return self._first(common, {"every": every})["every"]
        if self._await([common], 2 * limit):  # the first may come last
            return self._get(common)["every"]
        return self._first(common, {"every": None})["every"]

    @property
    def over(self) -> bool:
        """Whether nothing can be agreed on any more."""
        return self._over

    def close(self) -> None:
        """The run, or its process group, ends."""
        with self._changed:
            over, self._over = self._over, True
            self.hold_at = math.inf
            self._changed.notify_all()
        if threading.current_thread() is not self._thread:
            self._thread.join(timeout=2.0)
        if not over:
            with contextlib.suppress(Exception):  # the store may be gone already
                self._leave()

    def _leave(self) -> None:
        """Nothing can be agreed on from here on: nobody shall wait for this rank."""
        self._store.set(_GONE, str(self._rank))
        self._store.set(f"left/{self._rank}", "")
        if self._rank == 0 and self._serves:
            others = [f"left/{rank}" for rank in range(1, self._world)]
            end = time.monotonic() + 2.0 * self._look
            while not self._store.check(others) and time.monotonic() < end:
                time.sleep(_SOON)

    def _meet(
        self, agreed: Accepted, step: int, facts: Facts
    ) -> tuple[Accepted, list[Facts]] | None:
        every = self.exchange(f"meet/{agreed.proposal.number}", {**facts, "step": step})
        if every is None:
            self._refuse(agreed.proposal, "a rank did not come to its step", silent=True)
            return None
        if len({one["step"] for one in every}) > 1:
            self._refuse(agreed.proposal, "ranks do not take the same steps", silent=True)
            return None
        return agreed, every

    def _limit(self) -> float:
        """Ranks may be a step apart, and a step may take minutes."""
        return max(min(self._patience, _MEETING), 3.0 * self._pace.seconds)

    # ------------------------------------------------------------------ the thread

    def _run(self) -> None:
        try:
            while not self._over and self._voter.there():
                if self._store.check([_GONE]):
                    self._store.set(f"left/{self._rank}", "")
                    with self._changed:
                        self._over, self.hold_at = True, math.inf
                        self._changed.notify_all()
                    return
                self._pace.look(self._voter.step())
                number = self._number
                if self._agreed is None and self._asked(number):
                    self._answer(self._proposal(number))
                with self._changed:
                    waits = self._agreed is not None or not self._wanted
                    if waits and not self._over:
                        self._changed.wait(self._look)
        except Exception as error:  # the store is gone, or its server
            if not self._over:
                proposal = Proposal(self._number, "", self._rank, {})
                why = f"the store of the ranks cannot be reached ({type(error).__name__}: {error})"
                self._refuse(proposal, why, silent=True)

    def _asked(self, number: int) -> bool:
        """Whether there is a question of this number, perhaps by us just now."""
        key = f"ask/{number}"
        if self._store.check([key]):
            return True
        with self._changed:
            kind = next(iter(self._wanted), None)
            if kind is None:
                return False
            facts, blocks_training, patience = self._wanted[kind]
        own = {"kind": kind, "rank": self._rank, "facts": facts, "blocks_training": blocks_training}
        own["patience"] = patience
        self._first(key, own)
        return True

    def _proposal(self, number: int) -> Proposal:
        return Proposal(number, **self._get(f"ask/{number}"))

    def _answer(self, proposal: Proposal) -> None:
        """Promise not to pass a step, and hear what was named."""
        number = proposal.number
        self.withdraw(proposal.kind)
        hold = self._voter.step() + self._lead(proposal)
        with self._changed:
            self.hold_at = hold
        facts = self._voter.answer(proposal)
        self._put(f"answer/{number}/{self._rank}", {"hold": hold, "facts": facts})
        named = f"named/{number}"
        if self._rank == 0:
            reported = self._first(named, self._named(proposal))
        elif self._await([named], 2 * proposal.patience):
            reported = self._get(named)
        else:
            reported = self._first(named, {"why": "rank 0 did not answer", "silent": True})
        if reported["why"]:
            self._refuse(proposal, reported["why"], silent=reported["silent"])
            return
        with self._changed:
            self._agreed = Accepted(proposal, reported["step"], reported["facts"])
            self._changed.notify_all()

    def _named(self, proposal: Proposal) -> dict[str, Any]:
        keys = [f"answer/{proposal.number}/{rank}" for rank in range(self._world)]
        if not self._await(keys, proposal.patience):
            if self._store.check([_GONE]):
                return {"why": f"rank {self._store.get(_GONE).decode()} has ended", "silent": True}
            silent = [rank for rank, key in enumerate(keys) if not self._store.check([key])]
            return {"why": f"no answer of rank {_list(silent)}", "silent": True}
        answers = [self._get(key) for key in keys]
        why, facts = self._voter.decide(proposal, [one["facts"] for one in answers])
        step = max(one["hold"] for one in answers)
        return {"why": why, "silent": False, "step": step, "facts": facts}

    def _lead(self, proposal: Proposal) -> int:
        """Steps until the earliest that may be named."""
        if proposal.blocks_training or not self._pace.seconds:
            return _LEAD
        return max(_LEAD, min(math.ceil(3.0 * self._look / self._pace.seconds), _AHEAD))

    def _refuse(self, proposal: Proposal, why: str, *, silent: bool = False) -> None:
        with self._changed:
            self.news.append(Rejected(proposal, why, silent))
            self.hold_at = math.inf
            if silent:
                self._over, self.why_over = True, why
            elif self._agreed is None:
                self._number += 1
            self._changed.notify_all()

    # ------------------------------------------------------------------ the store

    def _await(self, keys: list[str], seconds: float) -> bool:
        """Wait until all keys are there; False when that takes too long or the run ends."""
        end = time.monotonic() + seconds
        pause = _SOON
        while not self._store.check(keys):
            if time.monotonic() > end or self._over or self._store.check([_GONE]):
                return False
            time.sleep(pause)
            pause = min(2 * pause, 20 * _SOON)
        return True

    def _put(self, key: str, value: Mapping[str, Any]) -> None:
        self._store.set(key, json.dumps(value))

    def _get(self, key: str) -> Any:
        return json.loads(self._store.get(key))

    def _first(self, key: str, value: Mapping[str, Any]) -> Any:
        """Write unless somebody has; what is there."""
        return json.loads(self._store.compare_set(key, "", json.dumps(value)))


def _list(ranks: Sequence[int]) -> str:
    return ", ".join(map(str, ranks))
