"""TPT004: steps become slower and slower."""

from __future__ import annotations

from typing import ClassVar

from ..types import Event, Severity
from ._timed import TimedDetector, code_of, word
from ._told import number

_MEANT = {
    "bigger_batches": "the model is given more than before",
    "more_parameters": "more parameters have gradients than before",
}


class SlowDown(TimedDetector):
    """Steps take longer than they did at the beginning, and one line of the loop has grown.

    What it detects:
        The median step of the last blocks takes clearly longer than the fastest block of the
        run. The lines of the loop are timed again and compared with their times at the
        beginning: a line that has grown while the rest has not is the cause, unless the device's
        allocator ran out while it was timed: then that is. Where no line has grown, the device is
        asked too: its allocator may have run out again and again, its clock may have fallen. A
        host that has become slower makes all lines slower, and is not reported.

    Why it matters:
        What grows with the number of steps costs the square of it in the end: a run that is a
        fifth slower after a thousand steps is unusable after a hundred thousand.

    Evidence:
        ``before_ms`` and ``now_ms`` of a step, ``line_before_ms`` and ``line_now_ms`` of the
        line, ``explains``: its share of the growth, ``counted``: by how often it is passed and not
        by its time, ``mark``: within which part of a step,
        ``what``: ``work``, ``history``, ``hooks``, ``graph``, ``nested``, ``drawn``; ``retries``
        (so many of the allocator) with the line that allocates, where one stands out; ``clocks``
        (``clock_before`` and ``clock_now`` in MHz) without a line;
        or what is mostly meant: ``bigger_batches``, ``more_parameters``;
        ``spent``: the line that takes the time, where the cause is another one;
        ``lost`` seconds so far; ``function``, ``statement`` and ``key``; ``consequence`` when
        memory is the cause.

    Usual causes:
        - A list that is searched, averaged, sorted, joined or written anew on every step.
        - ``register_forward_hook`` or ``register_parametrization`` again and again, in the loop or
          at the start of each epoch: every pass runs one more of them.
        - The graph of earlier steps hangs on the loss: backward reaches further and further.
        - A loop whose end grows with the step.
        - A plot into axes that nobody clears: each picture draws all that came before.
        - A ``Subset`` or ``ConcatDataset`` of the one before: each sample is handed through all.
        - Memory of the device that is nearly full: the allocator gives its cache back and begins
          anew (MEM007).
        - A device that is too hot, above its power limit or shared with another job.

    What to do:
        1. Change the line: keep a running sum instead of the history, a set instead of a list,
           a deque with ``maxlen``, append to the file instead of writing it anew.
        2. Register hooks once, before the loop, or remove their handles.
        3. Clocks: ``nvidia-smi -q -d PERFORMANCE`` says what holds them down.

    False alarms:
        Curricula are meant to grow: where the model is given larger tensors or more parameters
        have gradients it is information, unless the loop itself joins a history. A loop that
        counts and calls the model up to 2.5 times as often is left alone.

    Cost:
        A microsecond per step; lines are timed on three to eight steps at the beginning and
        again when steps have become slower, six times at most.

    Reproduce:
        ``holdfast run -m holdfast.faults.slow_down`` names the line that makes
        ``python -m holdfast.faults.slow_down`` slower and slower.
    """

    code = "TPT004"
    name = "slow_down"
    kind = "slow_down"
    # What gets worse with every step comes before what is as bad each time.
    precedes = "MEM004"
    explains_line = True
    explains_growth = "hooks"
    follows: ClassVar = {"graph": "MEM003 MEM002"}

    def judge(self, event: Event) -> tuple[str, str, Severity, float] | None:
        """Name the line that has grown."""
        what = word(event, "what")
        before, now = number(event, "before_ms"), number(event, "now_ms")
        steps = f"steps take {now:.3g} ms, {before:.3g} ms at first"
        if what in _MEANT:
            said = f"has become slower: {steps}; {_MEANT[what]}"
            return said, _advice(event, what), Severity.INFO, 0.5
        if what == "retries":
            count = number(event, "retries")
            waits = "waits for memory: " if number(event, "line") > 0 else ""
            said = f"{waits}{steps}, and the allocator ran out of memory {count:.0f} times since"
            return said, _advice(event, what), Severity.WARNING, 0.8
        if what == "clocks":
            fell = f"{number(event, 'clock_before'):.0f} to {number(event, 'clock_now'):.0f} MHz"
            said = f"{steps}: the clock of the GPU fell from {fell}"
            return said, _advice(event, what), Severity.WARNING, 0.8
        line = f"{number(event, 'line_before_ms'):.3g} -> {number(event, 'line_now_ms'):.3g} ms"
        if what == "hooks":
            said = f"registers one more again and again: {steps}"
        elif what == "nested":
            said = f"wraps a dataset into another one again and again: {steps}"
        elif what == "drawn":
            said = f"adds to a picture that is drawn whole each time: {steps}"
        elif what == "history":
            said = f"joins a history that grows: {steps}"
        else:
            said = f"has grown with the steps ({line} per step): {steps}"
        sure = number(event, "explains")
        return said, _advice(event, what), Severity.WARNING, max(0.5, min(0.95, sure))


def _advice(event: Event, what: str) -> str:
    code = code_of(event)
    if what in _MEANT:
        return "nothing if that is meant (a curriculum, unfreezing); otherwise look what grows here"
    if what == "hooks":
        return f"do {code} once, in front of the loop, or remove what it registered before"
    if what == "drawn":
        return (
            f"clear the axes (ax.cla()) before {code}, or change what is there with set_data(...)"
        )
    if what == "nested":
        return (
            f"keep indices instead of datasets in {code}, and make one Subset of the first dataset"
        )
    if what == "retries":
        return (
            "leave memory free: a smaller batch, PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"
        )
    if what == "clocks":
        return "ask `nvidia-smi -q -d PERFORMANCE` for the reason: heat, power, another job"
    if what == "graph":
        return f"detach what is kept from step to step: backward at {code} reaches further back"
    return (
        f"let {code} not go over all that was collected: keep a running value, "
        "a deque(maxlen=...), a set for searching, or do it every N steps"
    )
