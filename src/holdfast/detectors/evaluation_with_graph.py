"""MEM004: evaluation builds autograd graphs that it never uses."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..types import Event, Severity
from ._events import number
from ._memory import MemoryDetector, at, code_of
from ._source_change import decorated, wrapped
from .base import Detector


class EvaluationWithGraph(MemoryDetector):
    """Evaluation without ``no_grad``: every batch builds an autograd graph that is never used.

    What it detects:
        Graphs built between ``model.eval()`` and ``model.train()``, or, where these are not called,
        between two steps (many more nodes than a step makes, in a line that calls one), and that
        no later loss uses.

    Why it matters:
        Each graph keeps all activations of its batch, so evaluation needs as much memory as
        training or more: the classic out-of-memory at the first validation. Where its results are
        collected, the graphs of all batches are alive at once. It is slower, too.

    Evidence:
        ``key``: line; ``nodes`` of the graphs built in the last such evaluation; ``step_nodes``:
        those of a training step, 0 where unknown; ``evaluations``: how many there were; ``batches``
        in the last one, where it took them from a DataLoader; ``headline``, ``source``, the
        statement and the lines around it, and ``diff``, the fix, where the source says that
        training does not come by.

    Usual causes:
        - ``model.eval()`` without ``torch.no_grad()``: ``eval()`` changes dropout and batch norm
          only; it does not turn gradients off.
        - ``torch.no_grad()`` written as a statement, without ``with``: it does nothing then.
        - A validation step that is the training step without ``backward``.

    What to do:
        1. ``with torch.no_grad():`` around the call in the evaluation, and around its loop where
           nothing trains in it; ``@torch.no_grad()`` only on a function that training does not
           call: on ``forward`` it ends the training. ``torch.inference_mode()`` is faster still
           where autograd never sees the results again.
        2. Collect numbers: ``loss.item()``, ``pred.cpu()``.

    False alarms:
        Attacks, saliency maps and penalties use the graph (``backward`` or ``autograd.grad``
        follows) and are not reported. Nor are evaluations that build fewer nodes than ``forward``
        of a training step: their model ran without gradients, and something beside it (a metric,
        a running mean) built the rest. Fewer than ``passes`` forward passes are information only.

    Cost:
        A number is compared when ``eval()``, ``train()`` or ``backward`` is called; lines are
        followed for a quarter of a second in the first evaluations.

    Reproduce:
        ``holdfast run -m holdfast.faults.evaluation_with_graph`` names the line that makes
        ``python -m holdfast.faults.evaluation_with_graph`` build unused graphs.
    """

    code = "MEM004"
    name = "evaluation_with_graph"
    other_severities = ((Severity.INFO, "of a single forward pass"),)
    names_a_variable = False
    kinds = ("evaluation_graphs",)

    @dataclass(frozen=True, kw_only=True)
    class Options(Detector.Options):
        """Guesses: a graph of a model, and more than one forward pass."""

        nodes: int = 3
        """Nodes of a graph below which no model made it."""
        forward: float = 0.5
        """Share of the nodes of a training step below which it was no forward pass of the model."""
        passes: int = 2
        """Forward passes or evaluations from which on it is a warning."""

    def believes(self, event: Event) -> bool:
        """Whether it is the graph of a model; a mean of some parameters is not."""
        nodes, step = number(event, "nodes"), number(event, "step_nodes")
        # Records of earlier versions do not say what a step makes.
        least = self.options.forward * step if step == step else 0.0
        return nodes >= max(self.options.nodes, least)

    def about(self, event: Event) -> str:
        """Every evaluation counts as one case."""
        return f"{number(event, 'evaluations')}"

    def weight(self, event: Event) -> Severity:
        """One forward pass alone is not worth a warning."""
        passes = max(number(event, "evaluations"), number(event, "batches"))
        certain = passes >= self.options.passes and not _feeds_training(event)
        return self.severity if certain else Severity.INFO

    def what(self, event: Event) -> str:
        """Where, and how much was built."""
        function = str(event.data.get("function") or "")
        where = " at module level" if function == "<module>" else f" in {function}()"
        # What training goes on with is no evaluation: a rollout, targets, numbers for a plot.
        what = "a forward pass" if _feeds_training(event) else "evaluation"
        return (
            f"{what}{where if function else ''} builds autograd graphs that it never uses, "
            f"{number(event, 'nodes'):.0f} nodes{at(event.data)}"
        )

    def next_move(self, event: Event) -> str:
        """Where ``no_grad`` may stand without harm to the training."""
        data, line = event.data, code_of(event.data)
        call = f"`{line}`" if line else "the call"
        if _feeds_training(event):
            return (
                f"training goes on with what {call} gives: where these are numbers alone (a "
                "rollout, targets), put `with torch.no_grad():` around it; where a loss goes back "
                "through it, leave it as it is"
            )
        around = f"{call} and its loop" if data.get("loop") else call
        if data.get("fix") == "function":
            return (
                f"put `with torch.no_grad():` around {around}, or @torch.no_grad() on the function"
            )
        if data.get("fix") == "statement":
            return f"put `with torch.no_grad():` around {around}"
        return (
            f"put `with torch.no_grad():` around the evaluation that leads to {call}, not on what "
            "training calls"
        )

    def headline(self, event: Event) -> str:
        """What it lacks."""
        if _feeds_training(event):
            return "graphs that no backward pass goes through"
        return "evaluation without no_grad"

    def diff(self, event: Event) -> str:
        """The decorator or the ``with``, where the source says that training does not come by."""
        # Records of earlier versions do not say what the file calls torch.
        fix, torch = event.data.get("fix"), event.data.get("torch", "torch")
        if not torch or not str(torch).isidentifier():
            return ""
        if fix == "function":
            return decorated(event.data, f"@{torch}.no_grad()")
        return wrapped(event.data, f"with {torch}.no_grad():") if fix == "statement" else ""

    def numbers(self, event: Event) -> Mapping[str, Any]:
        """How much and how often."""
        return {
            name: number(event, name) for name in ("nodes", "step_nodes", "evaluations", "batches")
        }


def _feeds_training(event: Event) -> bool:
    """Whether training goes on with what the named line gives, so far as names tell."""
    return event.data.get("fix") == "shared"
