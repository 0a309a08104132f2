"""What happens between optimizer steps: slopes, plasticity, consolidation, replay, tasks that end.

Everything here changes what is saved, so ``Course`` is part of every checkpoint; and nothing here
happens after a step that was skipped: whether the weights moved is asked on the device.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.data import Dataset

from holdfast import HoldfastError

from .continual.consolidation import Consolidation
from .continual.fisher import fisher_of
from .continual.replay import Replay
from .continual.scores import TaskScores
from .data.sequences import TaskData, TaskSequence
from .data.tensor_rows import batches
from .model.block import Inside
from .model.model import LiquidNet, inputs_of
from .plasticity.meta import MetaController
from .plasticity.plasticity import Plasticity
from .plasticity.timing import RuleParameters
from .run_settings import LiquidSettings
from .self_check import SelfCheck

_TAU_EVERY = 50  # steps between two looks at the time constants
_SHORT = 0.05  # of a step: such a time constant forgets at once
_SCORED, _TOKENS_SCORED = 64, 4096  # samples and tokens that a score is measured on at once
_MOST_SCORED = 512  # samples of a task, at most
_REFRESHED = 4  # samples of a running estimate of importance
_TAUGHT = 25  # updates of plasticity by which its controller has taken a step

Score = Callable[[nn.Module, Mapping[str, Tensor]], Tensor]
"""``score(net, batch)``: of each sample, higher is better."""


class Course:
    """The run between its steps.

    Args:
        settings: of the run.
        net: what is trained.
        tasks: in their order; one where learning is not continual.
        train: what is loaded; a ``TaskSequence`` says whose turn it is.
        steps_of_epoch: optimizer steps in one epoch; None where no task ends.
    """

    def __init__(
        self,
        settings: LiquidSettings,
        net: LiquidNet,
        tasks: Sequence[TaskData],
        train: Dataset[Any],
        steps_of_epoch: int | None,
    ) -> None:
        self._settings, self._net, self._tasks = settings, net, tuple(tasks)
        self._sequence = train if isinstance(train, TaskSequence) else None
        self._steps_of_epoch = steps_of_epoch
        self._optimizer: Optimizer | None = None
        self._score: Score | None = None
        self._batch: Mapping[str, Tensor] = {}
        self._loss: Tensor | None = None
        self._driven: list[Tensor] = []
        self._reported: dict[str, Tensor] = {}
        # One vector that every step moves: a step that was skipped leaves it as it is.
        self._watched = next(net.blocks.parameters())
        self._before: Tensor | None = None
        self.task = 0
        """Whose turn it is; as many as there are when all are over."""
        self.plasticity = _plasticity(settings, net)
        continual = settings.continual
        several = self._sequence is not None
        self.consolidation = (
            Consolidation(
                net,
                continual.consolidation_strength,
                continual.plasticity_decay,
                continual.normalise,
            )
            if several and continual.consolidation
            else None
        )
        self.replay = (
            Replay(continual.replay_buffer_size, continual.replay_strategy, settings.data.seed)
            if several and continual.replay
            else None
        )
        self.scores = TaskScores([task.name for task in self._tasks])
        # Fast weights begin at 0: until they have moved their share has no gradient.
        exempt = ("*.synapses.alpha",) if self.plasticity is not None else ()
        self._self_check = SelfCheck(net, exempt) if settings.self_check else None

    # ------------------------------------------------- what the trainer and the loss call

    def prepared(self, optimizer: Optimizer) -> None:
        """The optimizer, whose learning rate consolidation goes by; the net is in its place."""
        self._optimizer = optimizer
        self._before = self._watched.detach().clone()

    def score_by(self, score: Score) -> None:
        """How a sample is scored, for the matrix of tasks."""
        self._score = score

    def with_replay(
        self, batch: Mapping[str, Tensor]
    ) -> tuple[Mapping[str, Tensor], Tensor | None]:
        """The batch with examples of earlier tasks behind it, and the slots they came from."""
        if self.replay is None or not torch.is_grad_enabled():
            return batch, None
        return self.replay.joined(batch, self.task)

    def seen(
        self,
        batch: Mapping[str, Tensor],
        loss_B: Tensor,
        inside: Sequence[Inside],
        fresh: int,
        slots: Tensor | None,
    ) -> None:
        """A batch and the loss of its samples, of which the first ``fresh`` are new."""
        if not torch.is_grad_enabled():
            return
        self._driven = [one.driven_BTU.detach()[:1] for one in inside]
        self._batch = {name: value[:fresh] for name, value in batch.items()}
        self._loss = loss_B.detach()[:fresh]
        if self.replay is not None and slots is not None:
            self.replay.update(slots, loss_B[fresh:])

    def reported(self) -> dict[str, Tensor]:
        """Numbers of the last step, on the device."""
        return dict(self._reported)

    def measured(self) -> dict[str, float]:
        """What validations say of the tasks so far: what the last one cost those before it."""
        if self.task < 2 or self._sequence is None:
            return {}
        lost = self.scores.lost(self.task)
        return {"forgetting": float(lost.mean())} if bool(lost.isfinite().all()) else {}

    def hidden_classes(self, device: torch.device) -> Tensor | None:
        """Classes that no task so far has shown; None where every class may be said."""
        shown = [task.classes for task in self._tasks[: self.task + 1]]
        if self._sequence is None or any(one is None for one in shown):
            return None
        hidden_V = torch.ones(self._net.sizes.outputs, dtype=torch.bool, device="cpu")
        hidden_V[[label for one in shown for label in one or ()]] = False
        return hidden_V.to(device, non_blocking=True)

    def stepped(self, step: int) -> bool:
        """An optimizer step is over; True where another task begins."""
        if self._self_check is not None:
            self._self_check.stepped(step)
        moved = self._moved()
        self._anneal(step)
        if self.plasticity is not None:
            loss = None if self._loss is None else self._loss.mean()
            self.plasticity.step(step, moved, loss=loss)
        if self.consolidation is not None and self._optimizer is not None:
            self.consolidation.step(self._optimizer.param_groups[0]["lr"], moved)
        if self.replay is not None and self._batch:
            self.replay.add(self._batch, self.task, self._loss)
        self._look(step, moved)
        self._importance(step)
        if self._sequence is None or not self._steps_of_epoch:
            return False
        epoch, inside = divmod(step, self._steps_of_epoch)
        if inside or epoch not in self._sequence.ends:
            return False
        self._task_ends(self._sequence.ends.index(epoch))
        return self.task < len(self._tasks)

    # ------------------------------------------------------------------------------ after a step

    def _moved(self) -> Tensor:
        """Whether the last step changed the weights, without asking the host."""
        now = self._watched.detach()
        moved = (
            torch.ones((), dtype=torch.bool, device=now.device)
            if self._before is None or self._before.device != now.device
            else (now != self._before).any()
        )
        self._before = now.clone()
        return moved

    def _anneal(self, step: int) -> None:
        spikes = self._settings.model.spikes
        if spikes.slope_from is None or step > spikes.anneal:
            return
        share = step / spikes.anneal
        self._net.set_slope(spikes.slope_from + share * (spikes.slope - spikes.slope_from))

    @torch.no_grad()
    def _look(self, step: int, moved: Tensor) -> None:
        self._reported["weights_moved"] = moved.float()
        if self.plasticity is not None:
            self._look_at_plasticity(step, self.plasticity)
        if self.consolidation is not None and self.consolidation.tasks:
            self._reported["ewc_penalty"] = self.consolidation.penalty()
        if self._driven and (step % _TAU_EVERY == 0 or "tau_short" not in self._reported):
            taus = self._net.time_constants(self._driven)
            self._reported["tau_short"] = torch.stack(
                [(tau < _SHORT).float().mean() for tau in taus]
            ).mean()

    def _look_at_plasticity(self, step: int, plasticity: Plasticity) -> None:
        """An update or a lesson that is overdue counts as one that changed nothing."""
        updates = step // plasticity.interval
        nothing = torch.zeros_like(self._reported["weights_moved"])
        if updates > 1 or plasticity.last:
            self._reported["fast_change"] = plasticity.last.get("change", nothing)
            self._reported["fast_at_bound"] = plasticity.last.get("at_bound", nothing)
        if step % plasticity.interval == 0:
            fast = [synapse.fast for synapse in self._net.synapses]
            self._reported["fast_norm"] = torch.stack(torch._foreach_norm(fast)).norm()
        if plasticity.controller is not None and updates >= _TAUGHT:
            moved = plasticity.now_PL.ne(plasticity.start_PL).any()
            self._reported["controller_moved"] = moved.float()

    def _importance(self, step: int) -> None:
        """A running estimate within a task; its end always gets a full one."""
        every = self._settings.continual.importance_interval
        if self.consolidation is not None and every and step % every == 0 and self._batch:
            self.consolidation.refresh(self._fisher([self._batch], _REFRESHED))

    # ------------------------------------------------------------------------- when a task ends

    def _task_ends(self, task: int) -> None:
        # Only data that lag: after a rollback the loop goes on with the next data, never older.
        if self._sequence is not None and self._sequence.task < task:
            raise HoldfastError(
                f"task {task + 1} should be over, and the data are those of task "
                f"{self._sequence.task + 1}: they do not follow the epochs, so that every task is "
                "the same; see that the loader calls set_epoch"
            )
        if self.consolidation is not None:
            most = self._settings.continual.importance_samples
            batches = self._batches(self._tasks[task].train, most)
            self.consolidation.task_ends(self._fisher(batches, most))
            if self.plasticity is not None:
                self.plasticity.protect(
                    [
                        self.consolidation.protection(f"blocks.{number}.synapses.weight")
                        for number in range(len(self._net.blocks))
                    ]
                )
        for number in range(len(self._tasks)):
            self.scores.set(task, number, self._scored(number))
        self.task = task + 1

    def score_untrained(self) -> None:
        """The scores of the weights as they are drawn: what forward transfer is measured from."""
        for number in range(len(self._tasks)):
            self.scores.set(None, number, self._scored(number))

    @torch.no_grad()
    def _scored(self, task: int) -> float:
        if self._score is None:
            return float("nan")
        training = self._net.training
        self._net.eval()
        found = [
            self._score(self._net, batch)
            for batch in self._batches(self._tasks[task].validation, _MOST_SCORED)
        ]
        self._net.train(training)
        return float(torch.cat(found).mean())

    def _batches(self, data: Dataset[Any], most: int) -> Iterator[Mapping[str, Tensor]]:
        together = max(1, min(_SCORED, _TOKENS_SCORED // self._settings.data.sequence_length))
        return batches(data, together, most=most, device=self._watched.device)

    def _fisher(self, batches: Iterable[Mapping[str, Tensor]], most: int) -> dict[str, Tensor]:
        task = self._net.sizes.task
        return fisher_of(
            self._net,
            lambda net, batch: net(*inputs_of(task, batch)).y_BTV,
            batches,
            most,
            target={"llm": "targets", "vision": "label", "robotics": "y"}[task],
            gaussian=task == "robotics",
            empirical=self._settings.continual.importance_labels == "given",
            seed=self._settings.data.seed,
        )

    # --------------------------------------------------------------------------------- checkpoints

    def state_dict(self) -> dict[str, Any]:
        """Everything that a resumed run needs; the model holds the fast weights."""
        found = {name: part.state_dict() for name, part in self._parts().items()}
        return found | {"task": self.task, "scores": self.scores.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from there."""
        self.task = int(state["task"])
        self.scores.load_state_dict(state["scores"])
        for name, part in self._parts().items():
            if name in state:
                part.load_state_dict(state[name])

    def _parts(self) -> dict[str, Any]:
        parts = {
            "plasticity": self.plasticity,
            "consolidation": self.consolidation,
            "replay": self.replay,
        }
        return {name: part for name, part in parts.items() if part is not None}


def _plasticity(settings: LiquidSettings, net: LiquidNet) -> Plasticity | None:
    wanted = settings.plasticity
    if not wanted.on:
        return None
    start = RuleParameters()._replace(
        eta=wanted.lr, tau_plus=wanted.tau_plus, tau_minus=wanted.tau_minus
    )
    meta = wanted.meta
    controller = (
        MetaController(
            len(net.synapses), meta.history_length, meta.hidden_dim, meta.lr, start=start
        )
        if meta.on
        else None
    )
    options = {"target_rate": wanted.target_rate} if wanted.rule == "homeostatic" else {}
    return Plasticity(
        net.synapses,
        wanted.rule,
        wanted.interval,
        start=start,
        max_norm=wanted.cap,
        controller=controller,
        **options,
    )
