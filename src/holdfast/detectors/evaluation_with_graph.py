"""MEM004: evaluation builds autograd graphs that it never uses."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..records.memory import EvaluationGraphs
from ..source.diffs import decorated, wrapped
from ..types import Severity
from ._examples import rows
from ._memory import MemoryDetector, at, code_of
from .base import Detector

_BUILT = EvaluationGraphs(
    file="train.py", line=31, seen="trace", function="validate", nodes=40, evaluations=2, batches=5
)


class EvaluationWithGraph(MemoryDetector[EvaluationGraphs]):
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
    kinds = (EvaluationGraphs,)
    fires = rows(8, _BUILT)
    silent = rows(8, _BUILT.replace(nodes=2))

    @dataclass(frozen=True, kw_only=True)
    class Options(Detector.Options):
        """Guesses: a graph of a model, and more than one forward pass."""

        nodes: int = 3
        """Nodes of a graph below which no model made it."""
        forward: float = 0.5
        """Share of the nodes of a training step below which it was no forward pass of the model."""
        passes: int = 2
        """Forward passes or evaluations from which on it is a warning."""

    def believes(self, measured: EvaluationGraphs) -> bool:
        """Whether it is the graph of a model; a mean of some parameters is not."""
        # Records of earlier versions do not say what a step makes.
        least = self.options.forward * (measured.step_nodes or 0)
        return measured.nodes >= max(self.options.nodes, least)

    def about(self, measured: EvaluationGraphs) -> str:
        """Every evaluation counts as one case."""
        return f"{measured.evaluations}"

    def weight(self, measured: EvaluationGraphs) -> Severity:
        """One forward pass alone is not worth a warning."""
        passes = max(measured.evaluations, measured.batches)
        certain = passes >= self.options.passes and not _feeds_training(measured)
        return self.severity if certain else Severity.INFO

    def what(self, measured: EvaluationGraphs) -> str:
        """Where, and how much was built."""
        function = measured.function
        where = " at module level" if function == "<module>" else f" in {function}()"
        # What training goes on with is no evaluation: a rollout, targets, numbers for a plot.
        what = "a forward pass" if _feeds_training(measured) else "evaluation"
        return (
            f"{what}{where if function else ''} builds autograd graphs that it never uses, "
            f"{measured.nodes} nodes{at(measured)}"
        )

    def next_move(self, measured: EvaluationGraphs) -> str:
        """Where ``no_grad`` may stand without harm to the training."""
        line = code_of(measured)
        call = f"`{line}`" if line else "the call"
        if _feeds_training(measured):
            return (
                f"training goes on with what {call} gives: where these are numbers alone (a "
                "rollout, targets), put `with torch.no_grad():` around it; where a loss goes back "
                "through it, leave it as it is"
            )
        around = f"{call} and its loop" if measured.loop else call
        if measured.fix == "function":
            return (
                f"put `with torch.no_grad():` around {around}, or @torch.no_grad() on the function"
            )
        if measured.fix == "statement":
            return f"put `with torch.no_grad():` around {around}"
        return (
            f"put `with torch.no_grad():` around the evaluation that leads to {call}, not on what "
            "training calls"
        )

    def headline(self, measured: EvaluationGraphs) -> str:
        """What it lacks."""
        if _feeds_training(measured):
            return "graphs that no backward pass goes through"
        return "evaluation without no_grad"

    def diff(self, measured: EvaluationGraphs) -> str:
        """The decorator or the ``with``, where the source says that training does not come by."""
        fix, torch = measured.fix, measured.torch
        if not torch.isidentifier():
            return ""
        if fix == "function":
            return decorated(measured.to_dict(), f"@{torch}.no_grad()")
        return wrapped(measured.to_dict(), f"with {torch}.no_grad():") if fix == "statement" else ""

    def numbers(self, measured: EvaluationGraphs) -> Mapping[str, Any]:
        """How much and how often."""
        step = {} if measured.step_nodes is None else {"step_nodes": float(measured.step_nodes)}
        often = {"evaluations": float(measured.evaluations), "batches": float(measured.batches)}
        return {"nodes": float(measured.nodes), **step, **often}


def _feeds_training(measured: EvaluationGraphs) -> bool:
    """Whether training goes on with what the named line gives, so far as names tell."""
    return measured.fix == "shared"
