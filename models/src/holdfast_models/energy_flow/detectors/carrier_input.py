"""EFL003: inputs of the carrier are not finite or beyond what it is given."""

from __future__ import annotations

from dataclasses import dataclass

from holdfast import Finding, Severity, Window

from ...recorded_numbers import RecordDetector


class CarrierInput(RecordDetector):
    """Inputs of the carrier are out of range: they are cut off, and learn nothing there.

    What it detects:
        ``guarded`` above 0 in a record: entries of the GRU's input that were not finite or beyond
        ``carrier.input_clip`` (warning). Or, before that happens, the largest input from ``near``
        of the usual clip up to it in ``records`` records in a row (information).

    Why it matters:
        What is beyond the clip is cut off and has no gradient, so the neuron cannot learn to
        come back; what is not finite is replaced by 0 and hides the place it came from.

    Evidence:
        ``guarded``: entries per batch, the mean since the record before; ``gru_input_absmax``: the
        largest absolute input, and ``input_start`` in the first record; ``gru_hidden_absmax``: the
        largest state of the GRU, which cannot pass 1.

    Usual causes:
        - The neuron's weights grow: a learning rate that is too high, no weight decay.
        - ``carrier.input_clip`` was set below what the neuron answers from the start.
        - Embeddings that are not normalised (``data.normalise=false``) make large energies.
        - NaN or infinity in a weight or an input: then NUM003 or NUM005 say where.

    What to do:
        1. Look for NUM findings first: a value that is not finite has its cause elsewhere.
        2. Lower ``train.optimizer.lr`` or raise ``train.optimizer.weight_decay``.
        3. If ``gru_input_absmax`` was so large from the start, raise ``model.carrier.input_clip``.

    False alarms:
        Ten small runs had inputs of 2 to 3 and no guarded entry, at learning rates up to 3e-3.
        One broken batch in 50 steps is told too. The clip itself is not in the record: ``clip``
        is its default, and an input above it that was not guarded only shows a higher setting.

    Cost:
        None of its own: it reads what the trainer notes every 50 steps.

    Reproduce:
        ``holdfast train energy_flow --set model.carrier.input_clip=0.5 --set train.epochs=null
        --set train.steps=100``
    """

    code = "EFL003"
    name = "carrier_input"
    severity = Severity.WARNING
    within = 50

    @dataclass(frozen=True, kw_only=True)
    class Options(RecordDetector.Options):
        """What is near the clip; ``clip`` is the default of the settings, the others guesses."""

        clip: float = 10.0
        near: float = 0.9
        records: int = 2

    def check(self, window: Window) -> Finding | None:
        """Tell guarded entries, else inputs that come close."""
        found = self.news(window, "guarded", "completion_rate")
        if not found:
            return None
        now = found[-1]
        most, start = (record.get("gru_input_absmax") for record in (now, found[0]))
        evidence = {
            "guarded": now["guarded"],
            "gru_input_absmax": most,
            "input_start": start,
            "gru_hidden_absmax": now.get("gru_hidden_absmax"),
        }
        if now["guarded"] > 0:
            return self.finding(
                window,
                f"{now['guarded']:.4g} inputs of the carrier per batch were cut off; the largest "
                f"is {most:.4g}, {start:.4g} at the start",
                "lower train.optimizer.lr or raise its weight_decay; raise "
                "model.carrier.input_clip if the inputs were so large from the start",
                severity=self.severity,
                evidence=evidence,
            )
        low, high = self.options.near * self.options.clip, self.options.clip
        recent = found[-self.options.records :]
        close = all(low <= record.get("gru_input_absmax") <= high for record in recent)
        if not close or len(recent) < self.options.records:
            return None
        return self.finding(
            window,
            f"the largest input of the carrier is {most:.4g}, {start:.4g} at the start; beyond "
            f"{high:g} it would be cut off",
            "lower train.optimizer.lr or raise its weight_decay before inputs are cut off, or "
            "raise model.carrier.input_clip",
            severity=Severity.INFO,
            evidence=evidence,
        )
