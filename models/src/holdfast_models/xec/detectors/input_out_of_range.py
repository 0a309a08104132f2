"""XEC002: the normalisation does not fit the data, or not the encoder."""

from __future__ import annotations

from dataclasses import dataclass

from holdfast import Finding, Severity, Window

from ...recorded_numbers import RecordDetector


class InputOutOfRange(RecordDetector):
    """Normalised inputs are far from one: the normalisation is meant for other data.

    What it detects:
        ``input_npho_top``, the brightest sensor of an event as the network sees it, below
        ``faint`` or above ``bright``; or ``input_time_level``, the mean size of a normalised
        time, above ``late``. Or ``norm_mismatch``: the encoder came from a run with another
        normalisation and ``init.allow_norm_mismatch`` let it pass (information).

    Why it matters:
        The network sees one scale only. Inputs of thousands make the first steps explode, inputs
        of a thousandth are lost beside the sentinel of -1, and an encoder that was trained on
        other units has to unlearn what it knows.

    Evidence:
        ``input_npho_top`` and ``input_time_level``; ``how``: ``bright``, ``faint``, ``late`` or
        ``foreign``.

    Usual causes:
        - ``normalization`` of another preset than the data: photoelectrons for photons, ns for s.
        - ``npho_scheme=linear`` with the scale of another scheme.
        - ``time_branch`` is absolute and the scale is meant for relative times.

    What to do:
        1. ``holdfast xec check-data FILES`` shows the ranges and suggests scales.
        2. Set ``normalization`` accordingly, or take the preset that belongs to the data.
        3. After an encoder of another normalisation: train it again, or use its settings.

    False alarms:
        The four presets put the brightest of some 3e3 to 2e5 photons between 0.3 and 13; the
        limits are three to six times wider. Nothing in a run with other events than photons of
        some 10 MeV was tried.

    Cost:
        None of its own: it reads what the trainer notes every 50 steps.

    Reproduce:
        ``holdfast train xec.reg --preset small --set data.synth.events=512
        --set normalization.npho_scheme=linear --set normalization.npho_scale=1``
    """

    code = "XEC002"
    name = "input_out_of_range"
    severity = Severity.WARNING
    within = 50

    @dataclass(frozen=True, kw_only=True)
    class Options(RecordDetector.Options):
        """What no preset gives; see *False alarms*."""

        faint: float = 0.05
        bright: float = 50.0
        late: float = 20.0

    def check(self, window: Window) -> Finding | None:
        """Look at the newest record."""
        found = self.news(window, "input_npho_top", "input_time_level")
        if not found:
            return None
        top, late = found[-1]["input_npho_top"], found[-1]["input_time_level"]
        limits = self.options
        if top > limits.bright or top < limits.faint:
            how = "bright" if top > limits.bright else "faint"
            what = f"the brightest sensor of an event is {top:.3g} after normalisation, not near 1"
        elif late > limits.late:
            how, what = "late", f"times are {late:.3g} on average after normalisation, not near 1"
        elif found[-1].get("norm_mismatch") > 0:
            how, what = "foreign", "the encoder was trained with another normalisation than this"
        else:
            return None
        advice = (
            "train the encoder again with this normalisation, or take that of its run"
            if how == "foreign"
            else "set normalization.* for these data; `holdfast xec check-data FILES` shows ranges"
        )
        return self.finding(
            window,
            what,
            advice,
            severity=Severity.INFO if how == "foreign" else self.severity,
            evidence={"input_npho_top": top, "input_time_level": late, "how": how},
        )
