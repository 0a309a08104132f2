"""MEM003: state carried into the next step is not detached from its graph."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..records.memory import GraphChain
from ..types import Severity
from ._growth import weight_of
from ._memory import VariableDetector, at, code_of
from ._source_change import carried_together, followed_by, target_in


class StateNotDetached(VariableDetector[GraphChain]):
    """State carried from step to step is not detached: the next loss reaches back through it.

    What it detects:
        The loss passed to ``backward`` reaches graph nodes of past steps through a tensor that was
        carried over: a hidden state, a memory, a running baseline. Also where that ends the run
        with an error: "Trying to backward through the graph a second time", or weights that
        were "modified by an inplace operation".

    Why it matters:
        Backward reaches further back with every step: each step is slower and larger than the one
        before, until memory is full. ``retain_graph=True`` hides the error and keeps the growth.

    Evidence:
        ``key``: line and variable; ``variable``: the tensor that carries the graph; ``age``: steps
        the loss reaches back; ``depth``: past steps whose graphs it goes through; ``grown_for``,
        ``bytes_per_step`` and ``heap_slope``; ``headline``, ``source``, the statement and the lines
        around it, and ``diff``, the fix where it is one line that runs in every step, and no
        gradient of the state itself is asked for.

    Usual causes:
        - ``out, hidden = rnn(x, hidden)`` in a loop without ``hidden = hidden.detach()``.
        - ``self.memory = new`` in a module's ``forward``.
        - A baseline or target made of earlier predictions: ``b = 0.9 * b + 0.1 * value``.
        - ``retain_graph=True`` written to silence the error.

    What to do:
        1. Detach what is carried at the end (or the beginning) of each step:
           ``hidden = hidden.detach()``, for a tuple ``tuple(h.detach() for h in hidden)``.
        2. Remove ``retain_graph=True``; the error then shows where a detach is still missing.

    False alarms:
        Truncated backpropagation with overlapping windows reaches back on purpose, but not
        further and further: a state is reported when it still reaches back to the same step some
        steps later, that step lies six steps back, and each step in between has added its graph.
        A tensor made once, before the training (``torch.tensor(...).float()`` with a gradient, as
        in physics-informed networks), gets no longer and is none.

    Cost:
        None of its own: it uses the measurements made for MEM002.

    Reproduce:
        ``holdfast run -m holdfast.faults.state_not_detached`` names the state that makes
        ``python -m holdfast.faults.state_not_detached`` slower with each step.
    """

    code = "MEM003"
    name = "state_not_detached"
    kinds = (GraphChain,)

    def believes(self, measured: GraphChain) -> bool:
        """Whether a state carries its graph on into the loss."""
        return measured.fed

    def weight(self, measured: GraphChain) -> Severity:
        """An error where it has ended the run."""
        return weight_of(measured, self.severity)

    def what(self, measured: GraphChain) -> str:
        """The state, and how far back the loss reaches."""
        age = measured.age
        return f"{measured.path} carries its graph into the next step: it reaches back {age} " + (
            f"step{'s' * (age != 1)}{at(measured)}"
        )

    def next_move(self, measured: GraphChain) -> str:
        """Where to detach."""
        line = code_of(measured)
        then = "; then remove retain_graph" if measured.retains else ""
        if not measured.again:
            # Behind a line that runs more often, it would cut within the step.
            cut = _cut(measured, (measured.path or "the state").split("[")[0])
            return f"add `{cut}` once in a step, after its backward pass and nowhere else{then}"
        after = f" after `{line}`" if line else ""
        return f"add `{_cut(measured)}`{after}, before the next step uses it{then}"

    def headline(self, measured: GraphChain) -> str:
        """The state that carries it."""
        return f"{measured.path or 'a state'} carries its graph into the next step"

    def diff(self, measured: GraphChain) -> str:
        """The line that cuts the graph, behind the one that makes the state in every step."""
        if measured.differentiated or not measured.again:
            return ""  # its own gradient is asked for, or the line does not run once in each step
        return followed_by(measured.to_dict(), _cut(measured))

    def numbers(self, measured: GraphChain) -> Mapping[str, Any]:
        """How far back, and the growth of the process."""
        depth = {} if measured.depth is None else {"depth": float(measured.depth)}
        return {"age": float(measured.age), **depth, "heap_slope": measured.heap_slope}


def _cut(chain: GraphChain, name: str = "") -> str:
    """``h = h.detach()``, for a tuple of states each of them."""
    data = chain.to_dict()
    if beside := carried_together(data):
        return f"{', '.join(beside)} = {', '.join(f'{one}.detach()' for one in beside)}"
    name = name or target_in(data) or "the state"
    many = "[" in chain.path
    return f"{name} = " + (f"tuple(s.detach() for s in {name})" if many else f"{name}.detach()")
