"""What autoencoder and inpainter are worth on the sensors that were hidden from them.

Every event is a row of sums and counts per face (B, F): ``n_masked``, ``n_maskable``,
``n_time_valid``, and for each predicted channel ``count_npho``, ``abs_npho`` and ``square_npho``.
Rows of all ranks are added up before anything is divided, and every sum is divided by the count of
its own channel: a time counts in fewer sensors than a number of photons.
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from ..geometry.layout import FACES, SENSORS


def hidden_metrics(rows: Mapping[str, Tensor]) -> dict[str, float]:
    """Every number, in the scale of the errors; of a face without hidden sensors 0."""
    sums = {name: one.double().sum(0).tolist() for name, one in rows.items() if one.dim() == 2}
    found: dict[str, float] = {}
    for channel in ("npho", "time"):
        if f"count_{channel}" not in sums:
            continue
        count, absolute, square = (sums[f"{of}_{channel}"] for of in ("count", "abs", "square"))
        found[f"mae_{channel}"] = _mean(sum(absolute), sum(count))
        found[f"rmse_{channel}"] = _mean(sum(square), sum(count)) ** 0.5
        for code, face in enumerate(FACES):
            found[f"mae_{face}_{channel}"] = _mean(absolute[code], count[code])
            found[f"rmse_{face}_{channel}"] = _mean(square[code], count[code]) ** 0.5
    masked, events = sum(sums["n_masked"]), len(rows["n_masked"])
    return found | {
        "actual_mask_ratio": _mean(masked, sum(sums["n_maskable"])),
        "time_valid_ratio": _mean(sum(sums["n_time_valid"]), SENSORS * events),
        "n_masked_total": masked,
    }


def _mean(total: float, count: float) -> float:
    return total / max(count, 1.0)
