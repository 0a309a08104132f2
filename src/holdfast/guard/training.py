"""The training in this process: its optimizers, the step it is at, and its lane in the run folder.

The lane is opened on first use: a script that never trains leaves nothing behind, and one whose
folder cannot be written is guarded all the same. Recovery, watchers and investigations see the
training through this.
"""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ..config import QuarantineSettings
from ..diagnosis.nonfinite.provenance import StepContext, addresses
from ..diagnosis.origins import Origins
from ..probes.batches import Batch, LoaderBatches
from ..probes.comparable import Comparability
from ..probes.host_norms import plain, read_on_host
from ..probes.model_state import clean
from ..probes.ranks import ranks
from ..records import Kind
from ..records.columns import COLUMNS
from ..records.nonfinite import Cause
from ..records.ranks import PassEnds
from ..records.run import NotCovered, PartFailed, PolicyRules, Start
from ..recovery.out_of_memory import OutOfMemoryRecovery
from ..run import Recorder, RowTable
from .bad_batches import BadBatches
from .followed_losses import FollowedLosses
from .optimizer_guard import OptimizerGuard, parameters_of
from .registry import OptimizerRegistry

# Ends of passes that are recorded.
_PASSES = 16


class GuardedTraining:
    """The training in this process.

    Args:
        registry: of its optimizers.
        quarantine: what becomes of bad samples.
        open_recorder: makes the recorder.
        policy: the rules, for the start of the record.
        split: whether batches may be split where memory runs out.
    """

    def __init__(
        self,
        registry: OptimizerRegistry,
        quarantine: QuarantineSettings,
        open_recorder: Callable[[], Recorder],
        policy: Sequence[str],
        *,
        split: bool = False,
    ) -> None:
        self.iteration = 0
        """The step that was counted last."""
        self.yet_to_step: set[int] = set()
        """The optimizers that have not stepped in this iteration, and did in the last one."""
        self.registry = registry
        self.bad_batches = BadBatches(quarantine)
        self.memory = OutOfMemoryRecovery(self, on=split)
        self.origins = Origins()
        self.followed = FollowedLosses()
        self.uneven = False
        """Whether other ranks may take more steps than this one, or fewer."""
        self.recorder: Recorder | None = None
        self.steps: RowTable | None = None
        """The table of steps, once it is open."""
        self._open_recorder = open_recorder
        self._policy = policy
        self._dead = False
        self._not_covered: set[str] = set()
        self._passes = 0

    # ------------------------------------------------------------------ the record

    def opened(self, *, acts: bool = True) -> Recorder | None:
        """The recorder, opened with its first use; None when that failed.

        ``acts`` is False where nothing can be done any more, so that no policy need be told.
        """
        if self.recorder is None and not self._dead:
            try:
                self.recorder = self._open_recorder()
            except Exception:
                # Cannot write: guarding goes on, the parent reports the empty lane.
                self._dead = True
                raise
            self.steps = self.recorder.table("steps", list(COLUMNS))
            self.recorder.event(0, _environment(self.recorder.rank))
            if acts:
                self.recorder.event(0, PolicyRules(rules=tuple(self._policy)))
        return self.recorder

    @property
    def rank(self) -> int:
        """The rank of this process."""
        return 0 if self.recorder is None else self.recorder.rank

    @property
    def comparability(self) -> Comparability:
        """Whether its losses can be compared over time."""
        return self.registry.comparability

    @property
    def has_orders(self) -> bool:
        """Whether the process that judges asks for an action; one comparison per step."""
        return self.recorder is not None and self.recorder.ring.has_message

    def orders(self) -> list[dict[str, Any]]:
        """The actions it asks for."""
        return [] if self.recorder is None else self.recorder.orders()

    def run_folder(self) -> Path | None:
        """The folder of the run; None while it is not open."""
        return None if self.recorder is None else self.recorder.run.path

    def record(self, record: Kind) -> None:
        """Write a measurement down as an Event of the next step: this one's row is written."""
        self.record_at(self.iteration + 1, record)

    def record_at(self, step: int, record: Kind) -> None:
        """Write an Event of a step."""
        recorder = self.opened()
        if recorder is not None:
            recorder.event(step, record)

    def explained(self, step: int, cause: Cause) -> None:
        """Write the cause of a bad step; samples that it names may be quarantined."""
        self.record_at(step, cause)
        if self.recorder is not None:
            self.bad_batches.explained(self.recorder, step, cause)

    def not_covered(self, what: str, why: str) -> None:
        """Report, once, what the guard cannot do for this run."""
        if why not in self._not_covered and self.opened() is not None:
            self._not_covered.add(why)
            self.record_at(self.iteration, NotCovered(what=what, why=why))

    def failure(self, where: str, error: Exception) -> None:
        """Record that a part of holdfast failed and was switched off."""
        text = f"{type(error).__name__}: {error}"
        at = error.__traceback__
        while at is not None and at.tb_next is not None:
            at = at.tb_next
        if at is not None:
            text += f" ({os.path.basename(at.tb_frame.f_code.co_filename)}:{at.tb_lineno})"
        try:
            self.record_at(self.iteration, PartFailed(where=where, error=text))
        except Exception:
            self._dead = True

    def pass_ends(self, loader_batches: LoaderBatches) -> None:
        """A pass over the training data ended; of the first ones it is compared between ranks."""
        if loader_batches.used and self._passes < _PASSES:
            self._passes += 1
            drawn = loader_batches.used[-1].indices
            samples = None if drawn is None else len(drawn)
            self.record(PassEnds(number=self._passes, samples=samples))

    # ------------------------------------------------------------------ the optimizers

    def guards(self) -> list[tuple[Optimizer, OptimizerGuard]]:
        """Every optimizer still alive, with its guard."""
        return self.registry.all()

    def optimizers(self) -> list[tuple[Optimizer, Sequence[str]]]:
        """Every optimizer still alive, with the names of its parameters in their order."""
        return [(optimizer, guard.layers) for optimizer, guard in self.guards()]

    def models(self) -> list[nn.Module]:
        """The models behind all optimizers."""
        return self.registry.models_of(self.parameters())

    def known_models(self) -> list[nn.Module]:
        """Those of them that need no search among all live objects."""
        return self.registry.known_models_of(self.parameters())

    def parameters(self) -> list[nn.Parameter]:
        """What all optimizers hold."""
        return [p for optimizer, _ in self.guards() for p in parameters_of(optimizer)]

    def restored(self) -> None:
        """Weights, state and buffers were restored: discard what was cached about them."""
        for _, guard in self.guards():
            guard.skip.forget()
        self.registry.buffers.look()
        self.registry.buffers.keep()

    def has_bad_gradient(self) -> bool:
        """Whether any gradient on the CPU is non-finite."""
        grads = [p.grad for p in self.parameters() if p.grad is not None and p.is_cpu]
        return bool(grads) and bool(read_on_host(plain(grads)).bad)

    def step_context(
        self, batches: Sequence[Batch], rng: Tensor | None, loss: Tensor | None
    ) -> StepContext:
        """Inputs of an investigation of a bad step."""
        named: list[tuple[str, Tensor]] = []
        for optimizer, layers in self.optimizers():
            named += zip(layers, parameters_of(optimizer), strict=False)
        roots = self.models()
        return StepContext(
            modules={
                id(module): clean(path) or type(root).__name__
                for root in reversed(roots)
                for path, module in root.named_modules()
            },
            parameters=addresses(named),
            buffers=addresses([(n, b) for r in roots for n, b in r.named_buffers()]),
            batch=batches[-1] if batches else None,
            owners=[module for root in roots for module in root.modules()],
            loss=loss,
            rng=rng,
        )


def _environment(rank: int) -> Start:
    return Start(
        pid=os.getpid(),
        rank=rank,
        world=max(int(os.environ.get("WORLD_SIZE", "1")), ranks()),
        torch=str(torch.__version__),
        python=platform.python_version(),
        device=torch.cuda.get_device_name() if torch.cuda.is_initialized() else "cpu",
        script=os.path.basename(sys.argv[0]) if sys.argv else "",
    )
