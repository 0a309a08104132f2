"""Stops a run that nothing saves, after its last good state was saved."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from ..errors import Stopped
from ..records.recovery import RunStopped
from .all_ranks import STOP, AllRanks
from .checkpoints import AutomaticCheckpoints
from .open_incidents import OpenIncidents
from .snapshots import Snapshot, Snapshots
from .training import Training


@dataclass(frozen=True, slots=True)
class StopReason:
    """Why a run is to be stopped: which finding, and after which step."""

    code: str
    why: str
    step: int


class Stopping:
    """Stops the run; several ranks together where they can.

    Args:
        training: of this process.
        checkpoints: where the last good state goes.
        snapshots: states that it is chosen from.
        all_ranks: what is agreed on with other ranks.
        open_incidents: when the present trouble began.
    """

    def __init__(
        self,
        training: Training,
        checkpoints: AutomaticCheckpoints,
        snapshots: Snapshots,
        all_ranks: AllRanks,
        open_incidents: OpenIncidents,
    ) -> None:
        self._training, self._checkpoints, self._snapshots = training, checkpoints, snapshots
        self._all_ranks, self._open_incidents = all_ranks, open_incidents

    def end(self, ending: StopReason) -> None:
        """Stop the run, or ask all ranks to."""
        first = self._open_incidents.began(ending.step)
        proposal = {"code": ending.code, "why": ending.why, "first": first}
        if not self._all_ranks.begin() or not self._all_ranks.ask(STOP, proposal):
            self.stop(ending)

    def agreed(self, facts: Mapping[str, Any], step: int, asked_by: int) -> NoReturn:
        """All ranks stop after this step, and save a state that all of them have."""
        why = f"{facts['why']} (asked for by rank {asked_by})"
        self._stop(StopReason(facts["code"], why, step), self._snapshots.of(facts["to"]))

    def stop(self, ending: StopReason) -> NoReturn:
        """Stop the run at once."""
        self._stop(ending, self._last_good(ending.code))

    def _stop(self, ending: StopReason, good: Snapshot | None) -> NoReturn:
        saved = ""
        try:
            saved = self._checkpoints.save_now(good, "stop") if good is not None else ""
        except Exception as error:
            self._training.failure("saving the last good state", error)
        stopped = RunStopped(code=ending.code, why=ending.why, checkpoint=saved)
        self._training.record_at(ending.step, stopped)
        place = f"; the last good state is in {saved}" if saved else ""
        raise Stopped(f"holdfast: stopped at step {ending.step}: {ending.why}{place}")

    def _last_good(self, code: str) -> Snapshot | None:
        """The newest state from before the trouble; of a run that diverges the best one."""
        if code == "OPT003":
            return self._snapshots.best()
        before = self._open_incidents.began(1 << 62) - 1
        return self._snapshots.before(before) or self._snapshots.newest()
