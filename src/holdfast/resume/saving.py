"""Takes what goes with a checkpoint so that an unmodified script can be resumed from it.

Where that cannot be done the checkpoint is one without, and the reason is recorded.
"""

from __future__ import annotations

import multiprocessing
import os
import platform
import sys
import threading
import time
from collections.abc import Callable, Mapping
from types import FrameType
from typing import Any

import torch
from torch.utils.data import IterDataPipe

from ..checkpoint import optimizer_state, rng
from ..checkpoint.loader_pass import LASTING
from ..checkpoint.training_state import RNG, TrainingState
from ..records.resuming import ResumeCheck
from ..redaction import redact_command
from ..source.contents import loads_optimizer
from ..source.frames import user_line
from ..source.paths import from_here
from . import frames as frames_
from .counters import counters, counts
from .feeds import Feeds
from .outputs import Outputs
from .passes import Open, Passes, changes, check_targets, take_variables
from .phases import TrainingLoops
from .refusal import RefusedError
from .rounds import Rounds
from .standing import loops_around_a_question, places
from .streams import take_stream
from .training import DecisionState, Training
from .values.taking import Taking
from .values.tensors import SavedTensors

FORMAT = 3
_NO_LOADER = "no loop of the script is known to train: neither one over a DataLoader nor another"
_SOON = 40
"""Steps within which the loop that trains is found."""
DATASET = "loader/its dataset"
"""Where the dataset of the pass stands among what is taken."""


class Saving:
    """Takes the place of the script, its variables and what else the next process needs.

    Args:
        training: of this process.
        state: the live models and optimizers.
        passes: over loaders, so far.
        rounds: of a loop without a loader.
        feeds: iterators over loaders that the script asks by hand.
        phases: training loops that were over.
        outputs: files that the script writes.
        why_not: why no run with these settings can be resumed; empty otherwise.
    """

    def __init__(
        self,
        training: Training,
        state: Callable[[], TrainingState],
        passes: Passes,
        rounds: Rounds,
        feeds: Feeds,
        phases: TrainingLoops,
        outputs: Outputs,
        why_not: str,
    ) -> None:
        self._rounds, self._feeds, self._phases = rounds, feeds, phases
        self._training, self._state, self._passes = training, state, passes
        self._outputs = outputs
        self._why_not = why_not
        self.began = time.time()
        """When the run began, in the first of its processes."""
        # Python and numpy begin with another state in every process.
        self._seeds = {key: one for key, one in rng.state().items() if key in ("python", "numpy")}
        self._reported: tuple[Any, ...] = ()

    def goes_on(self, saved: Mapping[str, Any]) -> None:
        """This process goes on with a run that another one has begun."""
        self.began, self._seeds = float(saved["began"]), saved["seeds"]
        rng.put_back({**rng.state(), **self._seeds})

    @property
    def hopeless(self) -> bool:
        """Whether no checkpoint from here on can be resumed from."""
        return bool(self._why_not) or self._passes.broken is not None

    def take(
        self, step: int, steps: int, frame: FrameType, guard: DecisionState | None
    ) -> dict[str, Any] | None:
        """What goes with a checkpoint so that it can be resumed from; None where it cannot.

        Args:
            step: of the checkpoint.
            steps: how many the run has made.
            frame: where the loop asks for its next batch.
            guard: what the guard decides by, which goes with it.
        """
        try:
            tree = self._take(steps, frame, guard)
        except RefusedError as refusal:
            self._tell_refusal(step, refusal)
            return None
        except Exception as error:
            self._passes.broken = RefusedError(f"{type(error).__name__}: {error}")
            self._training.failure("resume", error)
            self._tell(step, False, f"holdfast failed on it: {error}")
            return None
        self._tell(step, True, "")
        return tree

    def tell_hopeless(self, step: int, steps: int) -> None:
        """Say at once where no checkpoint from here on can be resumed from: a kill says nothing.

        Args:
            step: of the event.
            steps: how many the run has made.
        """
        try:
            self._check_hope(steps)
        except RefusedError as refusal:
            self._tell_refusal(step, refusal)

    def loop_is_here(self, frame: FrameType) -> bool:
        """Whether the end of the round at work will be told; a checkpoint is due."""
        try:
            self._rounds.check_here(frame)
        except RefusedError as refusal:
            self._tell_refusal(0, refusal)
            return False
        return True

    def _check_hope(self, steps: int) -> None:
        """Refuse what no later checkpoint could mend."""
        passes = self._passes
        if self._why_not:
            raise RefusedError(self._why_not)
        if passes.broken is not None:
            raise passes.broken.alone()
        unknown = self._rounds.key is None and not (passes.done or passes.open)
        if steps > _SOON and unknown:
            raise RefusedError(_NO_LOADER)

    def _tell_refusal(self, step: int, refusal: RefusedError) -> None:
        file = from_here(refusal.file) if refusal.file else ""
        self._tell(step, False, refusal.reason, file, refusal.line)

    def _tell(self, step: int, accepted: bool, reason: str, file: str = "", line: int = 0) -> None:
        reported = accepted, reason, file, line
        if reported == self._reported:
            return
        self._reported = reported
        script = os.path.abspath(sys.argv[0]) if sys.argv else ""
        own = loads_optimizer(script)
        check = ResumeCheck(accepted=accepted, reason=reason, file=file, line=line, own=own)
        self._training.record_at(step, check)

    def _take(self, steps: int, frame: FrameType, guard: DecisionState | None) -> dict[str, Any]:
        passes, base = self._passes, self._phases.base
        passes.settle(frame, steps - base)
        self._check_hope(steps - base)
        if multiprocessing.parent_process() is not None:
            raise RefusedError("the training runs in a child process of the script")
        if not in_main_thread():
            raise RefusedError("a thread of the script reads the loader")
        if int(os.environ.get("WORLD_SIZE", "1")) > 1:
            raise RefusedError("several ranks are not resumed")
        one = None if self._rounds.key is not None else self._the_pass(frame)
        iterator: Any = self._rounds if one is None else one.iterator()
        for optimizer, _ in self._training.guards():
            if isinstance(optimizer, torch.optim.LBFGS):
                raise RefusedError("LBFGS takes several looks at the model in one step")
        decisions = guard.state(iterator) if guard is not None else {}
        if decisions is None:
            raise RefusedError("something is suspected of having damaged the weights")
        frames = frames_.chain(frame)
        state = self._state()
        known = SavedTensors.of(state.models)
        feed = self._feeds.take if one is None else None
        about = {"feed": feed, "running": frames, "knows": passes.knows}
        taking = Taking(known, passes.baseline, changes, **about)
        values = take_variables(taking, frames)
        where = self._round(frame, taking) if one is None else self._batch(one, frame, taking)
        gradients = [
            {number: grad.clone() for number, grad in optimizer_state.gradients(one_).items()}
            for one_ in state.optimizers
        ]
        return {
            "format": FORMAT,
            "python": platform.python_version(),
            "torch": str(torch.__version__),
            "began": self.began,
            "trained": passes.began_at,
            "seeds": self._seeds,
            "argv": redact_command(sys.argv),
            "files": frames_.digests(),
            "steps": steps,
            "base": base,
            "phases": list(self._phases.over),
            **where,
            "values": values,
            "gradients": gradients,
            "decisions": decisions,
            "outputs": self._outputs.state(),
            RNG: rng.state(),
        }

    def _the_pass(self, frame: FrameType) -> Open:
        """The pass that feeds the loop."""
        opened = self._passes.open
        if not opened:
            at = self._passes.jumps or RefusedError("", *(user_line(frame) or ("", 0)))
            text = "the optimizer steps outside of a loop over a DataLoader"
            raise RefusedError(text, at.file, at.line)
        if len(opened) > 1:
            one = opened[-1]
            file = one.code.co_filename if one.code is not None else ""
            raise RefusedError("two loaders are read side by side", file, one.lines[0])
        _check_loader(opened[0])
        self._feeds.check(opened[0])
        frames_.check_reader(frame)
        return opened[0]

    def _batch(self, one: Open, frame: FrameType, taking: Taking) -> dict[str, Any]:
        """At which batch of which pass the script is."""
        frames, iterator = frames_.chain(frame), one.iterator()
        try:
            dataset = taking.take(getattr(iterator, "_dataset", None), DATASET)
        except RefusedError as refusal:
            raise refusal.at(frames[-1].f_code.co_filename, one.lines[0]) from None
        streams = one.loader["stream"] and not one.loader["workers"]
        stream = {"stream": take_stream(iterator, "stream", taking.take)} if streams else {}
        comes = self._passes.jumps_from(frame)
        jumps = self._passes.jumps is not None
        passes = {"passes": list(self._passes.done)}
        about = self._jump(one, frame, taking, comes) if jumps else passes
        first = {key: said for key, said in self._passes.first.items() if key != "refusal"}
        return {
            **about,
            **stream,
            "first": first,
            "pass": one.beginning.state(getattr(iterator, "_num_yielded", 0)),
            "loader": one.loader,
            "position": frames_.position(frames),
            "targets": {} if jumps else check_targets(one, frames),
            "counts": counts(counters(iterator, frame)),
            "dataset": dataset,
        }

    def _jump(self, one: Open, frame: FrameType, taking: Taking, comes: bool) -> dict[str, Any]:
        """Where the loops around are: a resumed script comes here from its first batch at once."""
        passes, frames = self._passes, frames_.chain(frame)
        assert passes.jumps is not None
        why = passes.cannot_jump(frame)
        if why is not None:
            raise why.alone()
        if not comes:
            raise passes.jumps.alone()
        if one.lasting and one.beginning.origin and one.beginning.origin["reused"]:
            file = passes.jumps.file or (one.code.co_filename if one.code else "")
            text = f"{passes.jumps.reason}, and {LASTING} (persistent_workers)"
            raise RefusedError(text, file, passes.jumps.line or one.lines[0])
        one.check_workers(passes.jumps)
        loops = loops_around_a_question(frames)
        found = places(loops, frames, taking.take)
        late = bool(one.loader["workers"] and one.own_code)
        return {"passes": [{"real": True}] * passes.first["passes"], "jump": found, "late": late}

    def _round(self, frame: FrameType, taking: Taking) -> dict[str, Any]:
        """Between which rounds of a loop without a loader it is."""
        if not self._rounds.at_head:
            file, _, line = self._rounds.key or ("", "", 0)
            raise RefusedError("the script is amid a round of its training loop", file, line)
        return {"round": self._rounds.taken(frame, taking.take)}


def in_main_thread() -> bool:
    """Whether the loop runs where the script began: its variables are on this stack."""
    return threading.current_thread() is threading.main_thread()


def _check_loader(one: Open) -> None:
    file, loader = one.code.co_filename if one.code is not None else "", one.loader
    dataset: Any = getattr(one.iterator(), "_dataset", None)
    own = loader["stream"] and any(hasattr(dataset, name) for name in ("state_dict", "__next__"))
    if own or isinstance(dataset, IterDataPipe):
        text = f"{loader['dataset']} is an iterable dataset that keeps its own place in the data"
        raise RefusedError(text, file, one.lines[0])
    if not loader["in_order"]:
        raise RefusedError("in_order=False hands out batches as they come", file, one.lines[0])
    origin = one.beginning.origin
    if origin is None:
        raise RefusedError("how its pass began is not known", file, one.lines[0])
