"""MEM008: the run died of memory without anything having grown."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from ..types import Event, Severity
from ._memory import MemoryDetector, amount, at
from ._told import number


class TooBig(MemoryDetector):
    """The run ended because memory could not be had: model and batch are too big for it.

    What it detects:
        An out-of-memory error that left the script. What had been growing before it, if anything,
        is the cause and stands above this finding.

    Why it matters:
        The run is over. Which part of the memory is the largest decides what helps.

    Evidence:
        ``key``: line; ``asked``: bytes that could not be had; ``parts``: bytes of weights,
        gradients, optimizer state and the rest, as far as known; ``largest``: the module with the
        most weights.

    Usual causes:
        - The batch, the image or the sequence is too large: activations grow with all of them.
        - Adam needs two more numbers for every weight, in fp32 even where the weights are half.
        - Another process on the same device.

    What to do:
        1. Activations the largest part: a smaller batch with accumulation, mixed precision,
           ``torch.utils.checkpoint``.
        2. Optimizer state the largest part: a leaner optimizer, or sharding (FSDP).
        3. One module with most of the weights (an embedding, a head): make that smaller.

    False alarms:
        None known: without an error of that kind that ends the script there is no finding.

    Cost:
        None until the error: sums over parameters and optimizer state, once.

    Reproduce:
        ``holdfast run -m holdfast.faults.too_big`` does the arithmetic that
        ``python -m holdfast.faults.too_big`` leaves to you.
    """

    code = "MEM008"
    name = "too_big"
    severity = Severity.ERROR
    names_a_variable = False

    def what(self, event: Event) -> str:
        """What was asked for, and what is there."""
        asked = number(event, "asked")
        wanted = f"{amount(asked)} could not be had" if asked == asked else "memory ran out"
        return f"out of memory, {wanted}; {_sum(_parts(event))}{at(event.data)}"

    def next_move(self, event: Event) -> str:
        """By the largest part."""
        parts = _parts(event)
        largest = max(parts, key=lambda name: parts[name], default="")
        if number(event, "asked") > sum(parts.values()):
            largest = "one tensor"
        if largest == "optimizer state":
            return "shard the optimizer's state or take a leaner one; then a smaller batch"
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
        return {
            "asked": number(event, "asked"),
            "parts": dict(_parts(event)),
            "largest": str(event.data.get("largest") or ""),
        }


def _parts(event: Event) -> dict[str, float]:
    given: object = event.data.get("parts")
    if not isinstance(given, Mapping):
        return {}
    named = cast("Mapping[object, object]", given)
    return {str(k): float(v) for k, v in named.items() if isinstance(v, int | float)}


def _sum(parts: Mapping[str, float]) -> str:
    told = [f"{name} {amount(size)}" for name, size in parts.items() if size > 0]
    return ", ".join(told) or "its parts are not known (0 parameters seen)"
