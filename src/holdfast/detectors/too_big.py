"""MEM008: out of memory; model and batch do not fit, or the kernel killed the process."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, cast

from ..records.crash import Died
from ..types import Event, Severity
from ._events import number
from ._memory import MemoryDetector, amount, at, code_of, place_of
from .base import Detector
from .kills import DIED, Kill, limit_advice, limit_words

SPLIT, LOST = "batch_split", "lost_step"


class TooBig(MemoryDetector):
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
        ``holdfast run -m holdfast.faults.too_big`` breaks down the memory that
        ``python -m holdfast.faults.too_big`` needs and does not get.
    """

    code = "MEM008"
    name = "too_big"
    severity = Severity.ERROR
    other_severities = ((Severity.WARNING, "where the step was survived"),)
    names_a_variable = False
    kinds = ("out_of_memory", SPLIT, LOST, DIED)
    follows: ClassVar[Mapping[str, str]] = {
        "error": "MEM003 MEM002 MEM001 MEM005 MEM006 MEM004",
        "kill": "MEM003 MEM002 MEM001 MEM005 MEM006 MEM004",
    }

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

    def believes(self, event: Event) -> bool:
        """Any error; of processes that were gone without a word those that lacked memory."""
        if event.kind == SPLIT:
            return number(event, "parts") > 1  # otherwise the error has gone through
        if event.kind == LOST:
            return not number(event, "batches") > 0  # otherwise it was made again, in parts
        return event.kind != DIED or _kill(event).ran_out

    def about(self, event: Event) -> str:
        """A batch that was split is told once, whatever happens later."""
        return event.kind

    def done(self, event: Event) -> str:
        """Split the batch, skipped the step, or nothing."""
        return {SPLIT: "split_batch", LOST: "skip_update"}.get(event.kind, "")

    def weight(self, event: Event) -> Severity:
        """Survived, it is a warning."""
        return Severity.WARNING if event.kind in (SPLIT, LOST) else self.severity

    def what(self, event: Event) -> str:
        """The failed allocation, and what a step needs; of a kill what was used."""
        if event.kind == DIED:
            return _killed(_kill(event))
        if event.kind == SPLIT:
            return _split(event)
        if event.kind == LOST:
            return (
                f"out of memory in a backward pass; the step was skipped, and its batch is lost "
                f"(no DataLoader that could hand it out again){at(event.data)}"
            )
        asked = number(event, "asked")
        wanted = f"allocating {amount(asked)} failed" if asked == asked else "an allocation failed"
        within = str(event.data.get("within") or "")
        where = f" in {within}" if within else ""
        if _in_loss(event):
            where = " in the script's own code after the call of the model, which cannot be split"
        if event.data.get("limit") not in ("machine", None):
            limit = limit_words(str(event.data["limit"]))
            wanted += f" at {limit}, {amount(number(event, 'limit_bytes'))}"
        told = [f"out of memory{where}, {wanted}"]
        told += [made] if (made := self._made(event)) else []
        told.append(_needed(event) or _sum(_parts(event)))
        largest = [
            f"{name} {amount(sum(_sizes(needs).values()))}"
            for name, needs in _mapping(event.data.get("modules")).items()
        ]
        if _needed(event) and len(largest) > 1:
            told.append(f"largest: {', '.join(largest[:3])}")
        return f"{'; '.join(told)}{at(event.data)}"

    def next_move(self, event: Event) -> str:
        """Advice for the largest part."""
        limit = str(event.data.get("limit"))
        if event.kind == DIED:
            return (
                "fewer loader workers, a smaller prefetch_factor or batch, data that is read when "
                f"it is needed; or {limit_advice(limit)}"
            )
        if event.kind == LOST:
            return (
                "a smaller batch with accumulation, bf16 autocast, or torch.utils.checkpoint; the "
                "next batches are split into parts"
            )
        if event.kind == SPLIT:
            samples, parts = number(event, "samples"), number(event, "parts")
            twice = "parts compute their forward pass twice. Faster with the same gradients: "
            return (
                f"{'' if event.data.get('phase') == 'step' else twice}batches of "
                f"{samples // parts:.0f} and accumulation over {parts:.0f}, bf16 autocast, or "
                "torch.utils.checkpoint; --no-split-batches (guard.split=false) lets the error go "
                "through"
            )
        move = _LOSS if _in_loss(event) and not self._made(event) else self._fitting(event)
        # Whoever set a limit may have had a reason: it comes last.
        limited = event.data.get("limit") not in ("machine", None)
        return f"{move}; or {limit_advice(limit)}" if limited else move

    def headline(self, event: Event) -> str:
        """What ran out."""
        return "out of memory"

    def _fitting(self, event: Event) -> str:
        """What makes a step fit."""
        parts = _sizes(event.data.get("needs")) if _needed(event) else _parts(event)
        largest = max(parts, key=lambda name: parts[name], default="")
        fits, batch = self._fits(event), number(event, "batch")
        if fits and largest not in ("weights", "gradients"):
            turns = -(-batch // fits)
            return (
                f"about {fits:.0f} of the {batch:.0f} samples would have fitted: accumulate "
                f"over {turns:.0f} smaller ones, use bf16 autocast, or checkpoint activations "
                "(torch.utils.checkpoint)"
            )
        if self._made(event):
            return (
                "this one tensor is too large, whatever the batch: compute it in parts (for part "
                "in x.split(256): ...) and keep only what is needed of each, or without building "
                "it: torch.cdist for distances, @ or einsum where a dimension is summed afterwards"
            )
        asked, capacity = number(event, "asked"), number(event, "capacity")
        if not asked > 0 and sum(parts.values()) < self.options.small * capacity:
            return _elsewhere(parts)
        if _own_code(event) and asked + sum(parts.values()) < self.options.filled * capacity / 2:
            return _elsewhere(parts)
        if _own_code(event) and asked > sum(parts.values()):
            return (
                f"`{code_of(event.data)}` asks for {amount(asked)} at once, whatever the model "
                "needs: look at the sizes it is given; make it in parts and keep what is needed"
            )
        if asked > sum(parts.values()):
            largest = "one tensor"
        if largest == "optimizer state":
            return "shard the optimizer state or use a leaner optimizer; then a smaller batch"
        if largest in ("weights", "gradients"):
            module = event.data.get("largest")
            return "make the model smaller, or load it in bf16" + (
                f"; most weights are in {module}" if module else ""
            )
        return (
            "halve the batch and accumulate over two, use bf16 autocast, or checkpoint activations "
            "(torch.utils.checkpoint)"
        )

    def numbers(self, event: Event) -> Mapping[str, Any]:
        """The arithmetic."""
        limit = {"limit": str(event.data.get("limit") or "")}
        if event.kind == DIED:
            names = ("used", "process", "first", "oom_kills")
            size = {"limit_bytes": number(event, "bytes")}
            return {"what": "kill", **limit, **size, **{n: number(event, n) for n in names}}
        if event.kind == LOST:
            return {"what": "lost", "key": f"lost {place_of(event.data)}"}
        if event.kind == SPLIT:
            names = ("samples", "parts", "seconds")
            words = {name: str(event.data.get(name) or "") for name in ("phase", "module", "why")}
            exact = event.data.get("exact") is True
            # Not one with an error on the same line that ends the run later.
            key = f"split {place_of(event.data)}"
            numbers = {name: number(event, name) for name in names}
            return {"what": "split", "key": key, "exact": exact, **words, **numbers}
        modules = _mapping(event.data.get("modules"))
        return {
            "asked": number(event, "asked"),
            "parts": _parts(event),
            "needs": _sizes(event.data.get("needs")),
            "modules": {name: _sizes(needs) for name, needs in modules.items()},
            **{name: number(event, name) for name in ("capacity", "batch", "limit_bytes")},
            **limit,
            **({"fits": fits} if (fits := self._fits(event)) else {}),
            "what": "error",
            **{
                name: str(event.data.get(name) or "")
                for name in ("largest", "within", "phase", "not_counted", "expression")
            },
        }

    def _made(self, event: Event) -> str:
        """The expression that makes a large tensor of small ones; empty where none does."""
        size, of = number(event, "result_bytes"), number(event, "made_of_bytes")
        if not size > self.options.blown_up * of:
            return ""
        pairs = [pair for pair in _lists(event.data.get("made_of")) if len(pair) == 2]
        parts = " and ".join(f"{text} {_shape(shape)}" for text, shape in pairs)
        result = f"{_shape(event.data.get('result'))} {event.data.get('result_dtype')}"
        return f"`{event.data.get('expression')}` makes {result}, {amount(size)}, of {parts}"

    def _fits(self, event: Event) -> int:
        """Samples that would have fitted, or 0: activations grow with them, the rest does not."""
        options, needs = self.options, _sizes(event.data.get("needs"))
        batch, outputs = number(event, "batch"), number(event, "outputs")
        activations = needs.pop("activations", 0.0)
        free = options.filled * number(event, "capacity") - sum(needs.values())
        if not batch > 0 or not activations or not free > 0:
            return 0
        outputs = outputs if outputs == outputs else 0.0
        fits = int(batch * free / (options.backward * activations + options.loss * outputs))
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


def _own_code(event: Event) -> bool:
    """Whether the script's own line ran out, with no call of a model, backward or step in it."""
    code = code_of(event.data)
    called = "batch" in event.data or event.data.get("phase") or event.data.get("within")
    return bool(code) and not called and not re.search(r"\.(backward|step)\(", code)


def _in_loss(event: Event) -> bool:
    return event.data.get("phase") == "loss"


def _split(event: Event) -> str:
    """A batch that was split, and whether that is exact."""
    data, samples, parts = event.data, number(event, "samples"), number(event, "parts")
    why = str(data.get("why") or "")
    same = f"approximately: {why}" if why else "with the same gradients"
    return (
        f"out of memory in {data.get('phase') or 'a pass'} of {data.get('module') or 'the model'} "
        f"with {samples:,.0f} samples; batches are split into {parts:.0f} parts, {same}{at(data)}"
    )


def _kill(event: Event) -> Kill:
    return Kill(data=Died.of(event) or Died())


def _killed(kill: Kill) -> str:
    who = "killed by the OOM killer" if kill.counted else "killed, most likely out of memory"
    return "; ".join(filter(None, [f"{who} (SIGKILL)", kill.used, kill.process]))


def _mapping(given: object) -> Mapping[str, object]:
    if not isinstance(given, Mapping):
        return {}
    named = cast("Mapping[object, object]", given)
    return {str(name): value for name, value in named.items()}


def _lists(given: object) -> list[list[object]]:
    listed = cast("list[object]", given) if isinstance(given, list) else []
    return [cast("list[object]", each) for each in listed if isinstance(each, list)]


def _shape(given: object) -> str:
    return str(tuple(cast("list[object]", given))) if isinstance(given, list) else "?"


def _sizes(given: object) -> dict[str, float]:
    return {k: float(v) for k, v in _mapping(given).items() if isinstance(v, int | float)}


def _parts(event: Event) -> dict[str, float]:
    return _sizes(event.data.get("parts"))


def _needed(event: Event) -> str:
    """What a step needs and the capacity; "" where its activations could not be counted."""
    needs, batch = _sizes(event.data.get("needs")), number(event, "batch")
    if not needs.get("activations"):
        return ""
    of = f" of {batch:.0f} samples" if batch > 0 else ""
    return (
        f"a step{of} needs at least {amount(sum(needs.values()))} ({_sum(needs)}), capacity "
        f"{amount(number(event, 'capacity'))}"
    )


def _sum(parts: Mapping[str, float]) -> str:
    told = [f"{name} {amount(size)}" for name, size in parts.items() if size > 0]
    return ", ".join(told) or "breakdown unknown (0 parameters seen)"
