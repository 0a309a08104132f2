"""TPT003: torch.compile compiles the same function again and again."""

from __future__ import annotations

from ..types import Event, Severity
from ._timed import TimedDetector, code_of, word
from ._told import number


class Recompile(TimedDetector):
    """A compiled function is compiled again and again, mostly for the same reason.

    What it detects:
        ``torch.compile`` specialises on what it sees: sizes, Python numbers, flags. When one of
        them is different the function is compiled anew. Three compilations for the same guard,
        or six for different ones, are reported with the guard and the line that calls.

    Why it matters:
        A compilation takes seconds to minutes, the step waits for it, and after eight of them
        (``torch._dynamo.config.recompile_limit``) the function runs uncompiled for good.

    Evidence:
        ``times`` it was compiled again, ``same``: for the same guard, ``seconds`` spent,
        ``guard``: the one that failed last, ``name`` of the function and ``defined``: where;
        ``lost``: the same seconds, ``statement`` and ``key``.

    Usual causes:
        - A Python number that changes on each step is an argument or an attribute: a step
          counter, a temperature, a learning rate.
        - Batches of different sizes with ``dynamic=False``, or many different lengths.
        - A flag that is switched back and forth, as ``model.training`` or ``requires_grad``.

    What to do:
        1. Make the number a tensor: ``torch.tensor(k)`` is no guard.
        2. Pad to a few sizes, ``drop_last=True``, or ``torch.compile(..., dynamic=True)``;
           ``torch._dynamo.mark_dynamic(x, 0)`` for one dimension.

    False alarms:
        Two or three compilations (training, evaluation, a last batch that is smaller, dynamic
        shapes) are the rule and not reported.

    Cost:
        Nothing on a step without a compilation: dynamo itself tells when it compiles.

    Reproduce:
        ``holdfast run -m holdfast.faults.recompile`` names the guard that fails in
        ``python -m holdfast.faults.recompile``.
    """

    code = "TPT003"
    name = "recompile"
    kind = "recompile"

    def judge(self, event: Event) -> tuple[str, str, Severity, float] | None:
        """Name the guard and the line that calls."""
        guard, name = word(event, "guard")[:60], word(event, "name")
        said = (
            f"makes torch.compile compile {name or 'a function'} again: "
            f"{number(event, 'times'):.0f} times, {number(event, 'seconds'):.3g} s; "
            f"the guard that fails: {guard}"
        )
        if "size" in guard or "stride" in guard or "shape" in guard:
            cure = "give it few sizes (pad, drop_last=True) or compile with dynamic=True"
        else:
            cure = "pass the value that changes as a tensor, torch.tensor(value), or keep it fixed"
        return said, f"{cure}: {code_of(event)}", Severity.WARNING, 0.9
