"""TPT002: numbers are read out of tensors one by one in the loop."""

from __future__ import annotations

from ..types import Event, Severity
from ._timed import TimedDetector, code_of, word
from ._told import number


class HostSync(TimedDetector):
    """A line reads numbers out of tensors again and again, and the step waits for it.

    What it detects:
        ``.item()``, ``float(x)``, ``int(x)``, ``if x``, ``.tolist()``, ``.cpu()`` and
        ``.numpy()`` are counted per line on a few steps of a run. A line with at least 20 reads
        in a step that takes, with the loop around it, at least 12 % of the step is named.

    Why it matters:
        On a GPU every read waits until the device has done all that was asked of it, and then
        the device waits for the loop. On a CPU a tensor that is walked through element by
        element is about a hundred times slower than one operation on all of it.

    Evidence:
        ``read``: which way, ``reads`` per step, ``read_ms`` in the reads alone, ``line_ms`` with
        the work around them, ``share`` of the step, ``step_ms``; ``lost`` seconds so far;
        ``function``, ``statement`` and ``key``; ``consequence`` when the line has become slow;
        ``waits`` when a single read waits for a GPU.

    Usual causes:
        - A metric that walks over predictions and labels in Python.
        - A check of each parameter or gradient for NaN, on every step.
        - One-hot targets, masks or losses that are built element by element.

    What to do:
        1. One operation instead of the loop: ``(out.argmax(1) == y).sum()``.
        2. Read once, at the end: collect on the device, ``.item()`` every N steps.
        3. Checks of all gradients: ``torch.nn.utils.get_total_norm`` once instead of each.

    False alarms:
        One ``loss.item()`` per step is never reported on a CPU, and on a GPU it is information;
        reads that belong to a call of the model each, as the actions of an agent, are none.

    Cost:
        The reading methods are replaced on single steps: three of the first hundred, fewer
        later; about a microsecond per read on those.

    Reproduce:
        ``holdfast run -m holdfast.faults.host_sync`` names the line that
        ``python -m holdfast.faults.host_sync`` reads its tensors in.
    """

    code = "TPT002"
    name = "host_sync"
    kind = "host_reads"

    def judge(self, event: Event) -> tuple[str, str, Severity, float] | None:
        """Name the line that reads."""
        read = word(event, "read")
        how = {"__bool__": "if tensor", "__float__": "float(tensor)", "__int__": "int(tensor)"}
        if event.data.get("waits") is True:
            said = (
                f"waits for the device on every step ({how.get(read, read)}): "
                f"{number(event, 'line_ms'):.3g} ms, {number(event, 'share'):.0%} of the step"
            )
            advice = (
                f"keep {code_of(event)} as a tensor (.detach()) and read it every N steps: while "
                "the host waits it cannot prepare the next step"
            )
            return said, advice, Severity.INFO, 0.7
        said = (
            f"reads tensors {number(event, 'reads'):.0f} times per step ({how.get(read, read)}): "
            f"{number(event, 'line_ms'):.3g} ms, {number(event, 'share'):.0%} of the step"
        )
        advice = (
            f"replace the loop around {code_of(event)} by one operation on the whole tensor, and "
            "read its result once per step or every N steps"
        )
        return said, advice, Severity.WARNING, 0.9
