"""Takes snapshots of the live run, and finds the one to go back to."""

from __future__ import annotations

from torch.optim import Optimizer

from ..checkpoint.training_state import TrainingState
from ..config import Settings
from ..suspicion import Suspicion
from .all_ranks import PACE, AllRanks
from .damage import Damage
from .live_state import LiveState
from .open_incidents import OpenIncidents
from .snapshots import Snapshot, Snapshots
from .training import Training


class LiveSnapshots:
    """Snapshots of what belongs to the run at present.

    Args:
        settings: whether a run that ends early leaves its last state.
        training: of this process.
        live: what belongs to the run.
        snapshots: those that were taken.
        all_ranks: what is agreed on with other ranks.
        open_incidents: how high the loss is.
        damage: what a state to go back to must not hold.
    """

    def __init__(
        self,
        settings: Settings,
        training: Training,
        live: LiveState,
        snapshots: Snapshots,
        all_ranks: AllRanks,
        open_incidents: OpenIncidents,
        damage: Damage,
    ) -> None:
        self.epoch = 0
        """Counts how often a loader started over: an older RNG state would repeat its order."""
        self._training, self._live, self._snapshots = training, live, snapshots
        self._all_ranks, self._open_incidents, self._damage = all_ranks, open_incidents, damage
        self._at_end = settings.checkpoint.at_end

    def take(self, step: int) -> Snapshot | None:
        """Take one after this step, if there is memory for it."""
        self._forget_others()
        taken = self._take(self._live.training_state(), step)
        if self._snapshots.why_not:
            self._training.not_covered("rolling back", self._snapshots.why_not)
        if self._snapshots.pace.too_often:
            self._all_ranks.ask(PACE, {}, blocks_training=False)
        return taken

    def take_leaving(self, optimizer: Optimizer, step: int) -> None:
        """Take one with an optimizer that is about to be freed, which took part in the last step.

        Its state cannot be had any more when the run ends with an error later.
        """
        newest = self._snapshots.newest()
        taken = newest is not None and newest.step >= step
        if taken or not self._at_end or self._live.many_stages:
            return
        state = self._live.leaving(optimizer)
        if state is not None:
            snapshot = self._take(state, step)
            if snapshot is not None:
                snapshot.wait()  # its memory will be somebody else's in a moment

    def aside(self, step: int) -> Snapshot:
        """The present state, kept apart from the others."""
        return self._snapshots.aside(self._live.training_state(), step)

    def before(self, found: Suspicion) -> Snapshot | None:
        """The snapshot to go back to; None where no good one was taken."""
        self._forget_others()
        if found.code == "OPT003":
            target = self._snapshots.best()
        else:
            target = self._snapshots.before(found.first - 1)
        return target if target is not None and self._damage.good(target) else None

    def _forget_others(self) -> None:
        """Discard those of other models and optimizers."""
        if self._live.changed():
            self._snapshots.clear()
            self._damage.forget()

    def _take(self, state: TrainingState, step: int) -> Snapshot | None:
        self._damage.settle()
        taken = self._snapshots.take(state, step, self._open_incidents.level, self.epoch)
        if taken is not None:
            self._damage.saw(taken, state)
        return taken
