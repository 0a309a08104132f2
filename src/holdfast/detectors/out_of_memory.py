"""MEM008: out of memory; model and batch do not fit, or the kernel killed the process."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, TypeAlias

from ..records.crash import Died
from ..records.memory import BatchSplit, LostStep, MemoryRanOut
from ..types import Event, Severity
from ._examples import rows
from ._memory import MemoryDetector, amount, at, code_of, place_of
from .base import Detector
from .kills import Kill, limit_advice, limit_words

Case: TypeAlias = MemoryRanOut | BatchSplit | LostStep | Kill

_RAN_OUT = MemoryRanOut(asked=2e9, parts={"weights": 1e6}, needs={}, modules={}, capacity=4e9)


class OutOfMemory(MemoryDetector[Case]):
    """Out of memory: model and batch are too big for the device or the host.

    What it detects:
        An out-of-memory error that ended the script, with the limit that was met: of the device,
        of the process (``ulimit -v``), of the machine. One in the model's forward or backward pass
        that was survived: from then on batches are split into parts, with the same gradients; a
        warning. And a process that the kernel killed for
        lack of memory, which leaves no error: SIGKILL while nearly all of its container, SLURM job
        or machine was used, or while the kernel counted such a kill. A leak before it, if there
        was one, is the cause and is listed above this finding.

    Why it matters:
        The run is over, or it goes on more slowly: a batch in parts computes its forward pass
        twice. Which part of the memory is the largest decides what helps.

    Evidence:
        ``key``: line; ``asked``: bytes of the failed allocation; ``parts``: bytes of weights,
        gradients, optimizer state and the rest at that time; ``needs``: bytes of weights,
        gradients, optimizer state and activations of a whole step, including what was not yet
        allocated; ``modules``: the same for each of the largest modules, equal ones of a stack
        together (``layers.*.mlp``); ``capacity``: bytes of the device or host; ``within``: the
        module that was running; ``batch``: samples in the batch, ``fits``: how many would have
        fitted, if activations grow with them; ``largest``: the module with the most weights;
        ``expression``: the expression whose result did not fit, with the shapes of its parts;
        ``phase``: ``loss`` where it was the script's own code after the call of the model;
        ``not_counted``: why activations are missing; ``what``: ``error``, or ``kill``. ``limit``
        and ``limit_bytes``: which limit was met on the host. Of a kill: ``used``: bytes of it in
        the last reading, ``process`` and ``first``: bytes of the process then and in the beginning,
        ``oom_kills``: kills that the kernel counted meanwhile; ``headline`` and ``source``, the
        statement and the lines around it.

    Usual causes:
        - The batch, the image or the sequence is too large: activations grow with all of them.
        - Adam keeps two more numbers per weight, often in fp32 even where the weights are half.
        - Another process on the same device.

    What to do:
        1. Activations the largest part: a smaller batch with accumulation, mixed precision,
           ``torch.utils.checkpoint``.
        2. Optimizer state the largest part: a leaner optimizer, or sharding (FSDP).
        3. One module with most of the weights (an embedding, a head): make it smaller.
        4. One expression that makes a large tensor of small ones (all pairs by broadcasting):
           compute it in parts, or by a function that does not build it (``torch.cdist``).
        5. Killed by the kernel: fewer loader workers and a smaller ``prefetch_factor``, data
           that is read when it is needed, or a higher limit.
        6. In the script's own loss code: its lines cannot be run again in parts from outside. Hand
           model and loss over as one function, ``watch.run_step`` splits both together.
        7. Survived, and the steps are too slow now: a smaller batch with accumulation, which is
           the same without a second forward pass. ``--no-split-batches`` lets the error through.

    False alarms:
        None known of errors: there is no finding without one. A ``kill -9`` by
        somebody else counts as one by the kernel if nine tenths of the limit were used.

    Cost:
        None until the error: then sums over parameters and optimizer state, and one more call of
        the model on meta tensors, which have a shape and no data (seconds). The host's memory is
        read every 2 s, near a limit every 0.4 s, beside the training (0.3 ms each).

    Reproduce:
        ``holdfast run -m holdfast.faults.out_of_memory`` breaks down the memory that
        ``python -m holdfast.faults.out_of_memory`` needs and does not get.
    """

    code = "MEM008"
    name = "out_of_memory"
    also_called = ("too big",)
    severity = Severity.ERROR
    other_severities = ((Severity.WARNING, "where the step was survived"),)
    kinds = (MemoryRanOut, BatchSplit, LostStep)
    follows: ClassVar[Mapping[str, str]] = {
        "error": "MEM003 MEM002 MEM001 MEM005 MEM006 MEM004",
        "kill": "MEM003 MEM002 MEM001 MEM005 MEM006 MEM004",
    }
    fires = rows(8, _RAN_OUT)
    silent = rows(8, mem_allocated=3.9e9)

    @dataclass(frozen=True, kw_only=True)
    class Options(Detector.Options):
        """Constants for the batch that would have fitted; guesses that its tests support.

        Attributes:
            filled: share of the memory that can be used: contexts, libraries and fragments take the
                rest.
            backward: factor on the activations: backward needs some of what forward
                keeps once more for a moment.
            loss: factor on the outputs: a loss copies its inputs.
            blown_up: how many times as large as its parts the result of an expression is, when
                the expression is to blame and not the batch.
            small: share of the capacity below which weights, gradients and optimizer state are
                not what filled it.
        """

        filled: float = 0.92
        backward: float = 1.3
        loss: float = 3.0
        blown_up: float = 4.0
        small: float = 0.1

    def read(self, event: Event) -> Case | None:
        """Its records; of processes that were gone without a word what was read of the memory."""
        died = Died.of(event)
        return super().read(event) if died is None else Kill(data=died)

    def believes(self, measured: Case) -> bool:
        """Any error; of processes that were gone without a word those that lacked memory."""
        if isinstance(measured, BatchSplit):
            return measured.parts > 1  # otherwise the error has gone through
        if isinstance(measured, LostStep):
            return not measured.batches  # otherwise it was made again, in parts
        return not isinstance(measured, Kill) or measured.ran_out

    def about(self, measured: Case) -> str:
        """A batch that was split is reported once, whatever happens later."""
        return type(measured).__name__

    def done(self, measured: Case) -> str:
        """Split the batch, skipped the step, or nothing."""
        if isinstance(measured, BatchSplit):
            return "split_batch"
        return "skip_update" if isinstance(measured, LostStep) else ""

    def weight(self, measured: Case) -> Severity:
        """Survived, it is a warning."""
        survived = isinstance(measured, BatchSplit | LostStep)
        return Severity.WARNING if survived else self.severity

    def what(self, measured: Case) -> str:
        """The failed allocation, and what a step needs; of a kill what was used."""
        if isinstance(measured, Kill):
            return _killed(measured)
        if isinstance(measured, BatchSplit):
            return _split(measured)
        if isinstance(measured, LostStep):
            return (
                f"out of memory in a backward pass; the step was skipped, and its batch is lost "
                f"(no DataLoader that could hand it out again){at(measured)}"
            )
        asked = measured.asked
        wanted = "an allocation failed" if asked is None else f"allocating {amount(asked)} failed"
        where = f" in {measured.within}" if measured.within else ""
        if measured.phase == "loss":
            where = " in the script's own code after the call of the model, which cannot be split"
        if _limited(measured):
            size = math.nan if measured.limit_bytes is None else measured.limit_bytes
            wanted += f" at {limit_words(measured.limit or '')}, {amount(size)}"
        said = [f"out of memory{where}, {wanted}"]
        said += [made] if (made := self._made(measured)) else []
        said.append(_needed(measured) or _sum(measured.parts))
        largest = [
            f"{name} {amount(sum(needs.values()))}" for name, needs in measured.modules.items()
        ]
        if _needed(measured) and len(largest) > 1:
            said.append(f"largest: {', '.join(largest[:3])}")
        return f"{'; '.join(said)}{at(measured)}"

    def next_move(self, measured: Case) -> str:
        """Advice for the largest part."""
        if isinstance(measured, Kill):
            return (
                "fewer loader workers, a smaller prefetch_factor or batch, data that is read when "
                f"it is needed; or {limit_advice(measured.data.limit or '')}"
            )
        if isinstance(measured, LostStep):
            return (
                "a smaller batch with accumulation, bf16 autocast, or torch.utils.checkpoint; the "
                "next batches are split into parts"
            )
        if isinstance(measured, BatchSplit):
            samples, parts = measured.samples, measured.parts
            twice = "parts compute their forward pass twice. Faster with the same gradients: "
            return (
                f"{'' if measured.phase == 'step' else twice}batches of "
                f"{samples // parts} and accumulation over {parts}, bf16 autocast, or "
                "torch.utils.checkpoint; --no-split-batches (guard.split=false) lets the error go "
                "through"
            )
        own = measured.phase == "loss" and not self._made(measured)
        move = _LOSS if own else self._fitting(measured)
        # Whoever set a limit may have had a reason: it comes last.
        if not _limited(measured):
            return move
        return f"{move}; or {limit_advice(measured.limit or '')}"

    def headline(self, measured: Case) -> str:
        """What ran out."""
        return "out of memory"

    def _fitting(self, error: MemoryRanOut) -> str:
        """What makes a step fit."""
        parts = error.needs if _needed(error) else error.parts
        largest = max(parts, key=lambda name: parts[name], default="")
        fits, batch = self._fits(error), error.batch or 0
        if fits and largest not in ("weights", "gradients"):
            turns = -(-batch // fits)
            return (
                f"about {fits} of the {batch} samples would have fitted: accumulate "
                f"over {turns} smaller ones, use bf16 autocast, or checkpoint activations "
                "(torch.utils.checkpoint)"
            )
        if self._made(error):
            return (
                "this one tensor is too large, whatever the batch: compute it in parts (for part "
                "in x.split(256): ...) and keep only what is needed of each, or without building "
                "it: torch.cdist for distances, @ or einsum where a dimension is summed afterwards"
            )
        asked, used, capacity = error.asked, sum(parts.values()), error.capacity
        if not asked and used < self.options.small * capacity:
            return _elsewhere(parts)
        if asked is not None and _own_code(error):
            if asked + used < self.options.filled * capacity / 2:
                return _elsewhere(parts)
            if asked > used:
                return (
                    f"`{code_of(error)}` asks for {amount(asked)} at once, whatever the model "
                    "needs: look at the sizes it is given; make it in parts and keep what is needed"
                )
        if asked is not None and asked > used:
            largest = "one tensor"
        if largest == "optimizer state":
            return "shard the optimizer state or use a leaner optimizer; then a smaller batch"
        if largest in ("weights", "gradients"):
            return "make the model smaller, or load it in bf16" + (
                f"; most weights are in {error.largest}" if error.largest else ""
            )
        return (
            "halve the batch and accumulate over two, use bf16 autocast, or checkpoint activations "
            "(torch.utils.checkpoint)"
        )

    def numbers(self, measured: Case) -> Mapping[str, Any]:
        """The arithmetic."""
        if isinstance(measured, Kill):
            return _numbers_of_kill(measured)
        if isinstance(measured, LostStep):
            return {"what": "lost", "key": f"lost {place_of(measured)}"}
        if isinstance(measured, BatchSplit):
            return {
                "what": "split",
                # Not one with an error on the same line that ends the run later.
                "key": f"split {place_of(measured)}",
                "exact": measured.exact,
                "phase": measured.phase,
                "module": measured.module,
                "why": measured.why,
                "samples": float(measured.samples),
                "parts": float(measured.parts),
                "seconds": measured.seconds,
            }
        return {
            "asked": _nan(measured.asked),
            "parts": dict(measured.parts),
            "needs": dict(measured.needs),
            "modules": {name: dict(needs) for name, needs in measured.modules.items()},
            "capacity": measured.capacity,
            "batch": _nan(measured.batch),
            "limit_bytes": _nan(measured.limit_bytes),
            "limit": measured.limit or "",
            **({"fits": fits} if (fits := self._fits(measured)) else {}),
            "what": "error",
            "largest": measured.largest,
            "within": measured.within,
            "phase": measured.phase,
            "not_counted": measured.not_counted,
            "expression": measured.expression,
        }

    def _made(self, error: MemoryRanOut) -> str:
        """The expression that makes a large tensor of small ones; empty where none does."""
        size, of = error.result_bytes, error.made_of_bytes
        if size is None or of is None or size <= self.options.blown_up * of:
            return ""
        parts = " and ".join(f"{text} {shape}" for text, shape in error.made_of)
        result = f"{error.result} {error.result_dtype}"
        return f"`{error.expression}` makes {result}, {amount(size)}, of {parts}"

    def _fits(self, error: MemoryRanOut) -> int:
        """Samples that would have fitted, or 0: activations grow with them, the rest does not."""
        options, needs, batch = self.options, dict(error.needs), error.batch or 0
        activations = needs.pop("activations", 0.0)
        free = options.filled * error.capacity - sum(needs.values())
        if not batch or not activations or not free > 0:
            return 0
        kept = options.backward * activations + options.loss * (error.outputs or 0.0)
        fits = int(batch * free / kept)
        return fits if fits < batch else 0


_LOSS = (
    "hand model and loss over as one function, then both are split together, with the same "
    "gradients: watch = holdfast.watch(model, optimizer), and in the loop "
    "watch.run_step(lambda batch: loss_of(model(batch[0]), batch[1]), batch) in place of forward, "
    "backward and step; or a smaller batch with accumulation, or bf16 autocast"
)


def _elsewhere(parts: Mapping[str, float]) -> str:
    return (
        f"model and optimizer take only {amount(sum(parts.values()))}: look at what this "
        "line makes and what the script keeps (lists, caches, data read at once)"
    )


def _nan(size: float | None) -> float:
    """What was not measured is no evidence."""
    return math.nan if size is None else float(size)


def _limited(error: MemoryRanOut) -> bool:
    """Whether a limit was met that somebody has set."""
    return error.limit not in ("machine", None)


def _own_code(error: MemoryRanOut) -> bool:
    """Whether the script's own line ran out, with no call of a model, backward or step in it."""
    code = code_of(error)
    called = error.batch is not None or error.phase or error.within
    return bool(code) and not called and not re.search(r"\.(backward|step)\(", code)


def _split(split: BatchSplit) -> str:
    """A batch that was split, and whether that is exact."""
    same = f"approximately: {split.why}" if split.why else "with the same gradients"
    return (
        f"out of memory in {split.phase or 'a pass'} of {split.module or 'the model'} with "
        f"{split.samples:,} samples; batches are split into {split.parts} parts, {same}{at(split)}"
    )


def _numbers_of_kill(kill: Kill) -> dict[str, Any]:
    died = kill.data
    return {
        "what": "kill",
        "limit": died.limit or "",
        "limit_bytes": _known(died.bytes),
        "used": _known(died.used),
        "process": _known(died.process),
        "first": _known(died.first),
        "oom_kills": float(died.oom_kills),
    }


def _known(number: float | None) -> float:
    return math.nan if number is None else float(number)


def _killed(kill: Kill) -> str:
    who = "killed by the OOM killer" if kill.counted else "killed, most likely out of memory"
    return "; ".join(filter(None, [f"{who} (SIGKILL)", kill.used, kill.process]))


def _needed(error: MemoryRanOut) -> str:
    """What a step needs and the capacity; "" where its activations could not be counted."""
    needs = error.needs
    if not needs.get("activations"):
        return ""
    of = f" of {error.batch} samples" if error.batch else ""
    return (
        f"a step{of} needs at least {amount(sum(needs.values()))} ({_sum(needs)}), capacity "
        f"{amount(error.capacity)}"
    )


def _sum(parts: Mapping[str, float]) -> str:
    sizes = [f"{name} {amount(size)}" for name, size in parts.items() if size > 0]
    return ", ".join(sizes) or "breakdown unknown (0 parameters seen)"
