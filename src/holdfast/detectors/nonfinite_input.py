"""NUM005: the input batch holds NaN or infinity, and so does the step."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, cast

from ..types import Finding, Severity
from ._examples import rows
from ._symptoms import Blame, blame
from ._window import Mask, Window, column
from .base import SKIPPED, Detector

_NAMED = 8


class NonfiniteInput(Detector):
    """The input batch holds NaN or infinity, and so do loss, gradients or buffers.

    What it detects:
        At least one tensor of the batch held non-finite values on a step whose loss, gradients
        or buffers were bad. The batch is the cause of all of them, so only this code counts the
        step.

    Why it matters:
        One poisoned sample comes back every epoch. With shuffling it hits another step each
        time and looks like bad luck; without a guard it ends the run each time.

    Evidence:
        ``samples``: dataset indices of the bad rows (from ``batches.*.jsonl``, when the loader
        draws indices); ``fields``: where in the batch; ``columns`` of a table, where few hold all
        of the bad values; ``worker`` that made it; ``tensors_bad``.

    Usual causes:
        - Files: broken or truncated records, missing values that a reader turns into NaN,
          sensor gaps, 16-bit overflow while converting.
        - Transforms: normalising by a standard deviation of zero (a constant image or
          channel), log of zero, resampling at the edge, augmentation of an empty crop.
        - A collate function that pads with NaN or with uninitialised memory.

    What to do:
        1. Load the named sample, ``dataset[index]``, and look at it: finite there means that
           the collate function or a later transform is at fault.
        2. Repair or drop these samples, and guard the division: ``(x - m) / (s + 1e-6)``.
        3. Search the whole dataset once:
           ``[i for i in range(len(d)) if not torch.isfinite(d[i][0]).all()]``.

    False alarms:
        Models that take NaN as "missing" and mask it: a step that is bad for another reason is
        blamed on its batch.

    Cost:
        The batch is searched only after a bad step.

    Reproduce:
        ``holdfast run -m holdfast.faults.nonfinite_input`` names the sample that
        ``python -m holdfast.faults.nonfinite_input`` dies of.
    """

    code = "NUM005"
    name = "nonfinite_input"
    severity = Severity.ERROR
    other_severities = SKIPPED
    needs = ("input_bad",)
    since = "0.1"
    fires = rows(8, input_bad={-1: 1}, loss_bad={-1: 1}, loss={-1: math.nan})
    silent = rows(8, input_bad={-1: 1})

    def suspects(self, window: Window) -> Mask:
        """Rows with a bad batch."""
        return column(window.new, "input_bad") > 0

    def check(self, window: Window) -> Finding | None:
        """Blame the batch and name the samples."""
        if blame(window) is not Blame.INPUT:
            return None
        bad = window.count("input_bad") or 1
        culprits = _culprits(window.batch)
        samples, fields = culprits["samples"], culprits["fields"]
        what = (
            f"{bad} tensor{'s' * (bad != 1)} of the input batch hold{'s' * (bad == 1)} NaN or inf"
        )
        if fields:
            what += f" in {', '.join(fields)}"
        if culprits["columns"]:
            what += f", {', '.join(culprits['columns'])}"
        if samples:
            numbers = ", ".join(str(s) for s in samples[:_NAMED])
            more = ", …" if len(samples) > _NAMED else ""
            what += f": dataset ind{'ices' if len(samples) > 1 else 'ex'} {numbers}{more}"
            advice = (
                f"look at dataset[{samples[0]!r}]: if it is finite there, the collate function or "
                "a later transform is at fault; else repair or drop the sample"
            )
        else:
            what += " (dataset index not recorded)"
            advice = (
                "search the dataset once for non-finite samples, and guard divisions in "
                "its transforms; indices are recorded for loaders that draw them from a sampler"
            )
        return self.finding(window, what, advice, evidence={"tensors_bad": bad, **culprits})


def _culprits(batch: Mapping[str, Any]) -> dict[str, Any]:
    """Dataset indices and fields of the bad rows of a recorded batch.

    ``bad`` holds ``[path, positions, indices]`` per tensor; the file may be of another version,
    so anything unexpected is ignored.
    """
    bad = [entry for entry in map(_list, _list(batch.get("bad"))) if len(entry) == 3]
    found: dict[str, Any] = {
        "samples": list(dict.fromkeys(index for entry in bad for index in _list(entry[2]))),
        "fields": [str(entry[0]) for entry in bad],
        "columns": _columns(batch.get("columns")),
    }
    if isinstance(batch.get("worker"), int):
        found["worker"] = batch["worker"]
    return found


def _columns(given: object) -> list[str]:
    """The bad columns of the tables of a batch, in words."""
    known = cast("Mapping[str, Any]", given if isinstance(given, Mapping) else {})
    several = len(known) > 1
    return [
        f"column {column}{f' of {path}' if several else ''}"
        for path, columns in known.items()
        for column in _list(columns)
    ]


def _list(value: object) -> list[Any]:
    return list(cast("list[Any]", value)) if isinstance(value, list | tuple) else []
