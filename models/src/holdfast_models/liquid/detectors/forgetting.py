"""LIQ005: earlier tasks are forgotten."""

from __future__ import annotations

from dataclasses import dataclass

from holdfast import Finding, Severity, Window

from ...recorded_numbers import RecordDetector, series


class Forgetting(RecordDetector):
    """Training on a task costs more of the earlier ones than the bound allows.

    What it detects:
        ``forgetting`` of the last validation (mean over earlier tasks of the best score minus the
        score now) is above ``bound``.

    Why it matters:
        Loss and accuracy of the task at hand do not show it: a run that ends well on its fifth task
        can be as good as untrained on the first.

    Evidence:
        ``forgetting`` now; ``ewc_penalty`` of the last training record, where there is one.

    Usual causes:
        - Neither replay nor consolidation, or a ``consolidation_strength`` too small to matter.
        - Tasks that contradict each other (permuted vocabularies) in a network without room.

    What to do:
        1. ``continual.replay=true``, or ``continual.consolidation_strength`` ten times higher.
        2. Compare with all tasks at once: what is lost there too is capacity, not forgetting.

    False alarms:
        Scores are shares of right answers, so ``bound = 0.1`` is ten points; those of robots are
        errors, of another size. It is a choice, not measured: set it to what your tasks may lose.

    Cost:
        None of its own: it reads the validations.

    Reproduce:
        ``holdfast train liquid --set continual.on=true --set continual.num_tasks=2 --set
        continual.tasks=permuted_vocabulary --set continual.consolidation=false --set
        train.epochs=4 --set train.steps=null``
    """

    code = "LIQ005"
    name = "forgetting"
    severity = Severity.WARNING
    within = 400
    kind = "validation"

    @dataclass(frozen=True, kw_only=True)
    class Options(RecordDetector.Options):
        """What may be lost of an earlier task."""

        bound: float = 0.1

    def check(self, window: Window) -> Finding | None:
        """Compare the last validation of a liquid network with the bound."""
        found = self.news(window, "loss", "forgetting")
        trained = series(window, "numbers", "tau_short", "spike_rate")
        if not found or not trained or found[-1]["forgetting"] <= self.options.bound:
            return None
        now = found[-1]["forgetting"]
        return self.finding(
            window,
            f"earlier tasks have lost {now:.3f} of their best score (bound {self.options.bound:g})",
            "set continual.replay=true or raise continual.consolidation_strength tenfold; "
            "tables/continual.json has the score of every task",
            severity=self.severity,
            evidence={"forgetting": now, "ewc_penalty": trained[-1].get("ewc_penalty")},
        )
