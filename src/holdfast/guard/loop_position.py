"""Where the training loop stands: between which steps, and whether with a batch of before."""

from __future__ import annotations

from ..diagnosis.nonfinite.investigation import Investigation
from ..recovery.rollback import Recovery
from .fail_open import EnginePart, FailsOpen, fail_open
from .fast.door import FastSteps
from .step_window import StepWindow
from .step_writer import StepWriter


class LoopPosition(EnginePart):
    """Answers what can be asked about the position of the loop.

    Args:
        owner: of the switches and of the clock.
        writer: counts the steps.
        recovery: may try a batch again.
        investigation: may have a batch fed again.
        window: of the step at work.
        fast: knows steps that are not in the window.
    """

    def __init__(
        self,
        owner: FailsOpen,
        writer: StepWriter,
        recovery: Recovery,
        investigation: Investigation,
        window: StepWindow,
        fast: FastSteps,
    ) -> None:
        super().__init__(owner)
        self._training, self._writer = writer.training, writer
        self._recovery, self._investigation = recovery, investigation
        self._window, self._fast = window, fast

    @property
    def steps(self) -> int:
        """How many steps the run has made."""
        return self._training.iteration + bool(self._writer.stepped)

    @property
    def between(self) -> bool:
        """Whether no backward pass has come since the last step."""
        return not self._window.losses.passes and not (self._fast.waits and self._fast.passes)

    @property
    def replaying(self) -> bool:
        """Whether the current batch was fed before, for an investigation or a trial."""
        return self._investigation.replaying or self._recovery.replay.running

    @property
    def gives_again(self) -> bool:
        """Whether the loop will be handed a batch that it has had before."""
        return self._more_again or self._training.memory.more

    @property
    def last_replay(self) -> bool:
        """Whether the current batch was fed before and is the last one of its kind."""
        return self.replaying and not self._more_again

    @property
    def _more_again(self) -> bool:
        return self._investigation.more_again or self._recovery.replay.more

    @fail_open("resume")
    def asks_soon(self) -> bool:
        """Whether the loop is in a step after which its script can be resumed."""
        settled = self._recovery.settled and not (self.replaying or self.gives_again)
        return settled and self._recovery.checkpoints.script.may_resume

    def asks_now(self) -> bool:
        """Whether the loop, which asks for its next batch, can be resumed from there."""
        between = self.between and not self._recovery.checkpoints.script.waits()
        return between and bool(self.asks_soon())
