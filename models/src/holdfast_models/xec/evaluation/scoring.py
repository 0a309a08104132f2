"""Predictors of hidden sensors side by side: error by face and by photon count.

Shapes: B, E events, S sensors, R hidden sensors, G groups of sensors, A the sums of one group.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from ...answers import finite_only
from ..geometry.layout import FACES, face_of_sensor
from .resolution import bootstrap_error

Floats = NDArray[Any]

_EDGES = (1.0, 10.0, 100.0, 1e3, 1e4)
DECADES = ("< 1", "1 - 10", "10 - 100", "100 - 1 k", "1 k - 10 k", "> 10 k")
"""Of true photons."""


class Score(NamedTuple):
    """Errors of one predictor on one group of sensors, in photons; NaN where there are none."""

    predictor: str
    group: str
    sensors: int
    mae: float
    rmse: float
    bias: float
    errors: tuple[float, ...]
    """Statistical, of the three numbers before."""


class PredictorScores(NamedTuple):
    """Every predictor on every group."""

    rows: tuple[Score, ...]

    def of(self, predictor: str) -> dict[str, Score]:
        """One predictor, by group."""
        return {row.group: row for row in self.rows if row.predictor == predictor}

    def predictors(self) -> list[str]:
        """Their names, in the order they were given in."""
        return list(dict.fromkeys(row.predictor for row in self.rows))

    def lines(self) -> list[str]:
        """A table for people."""
        wide = max([len(name) for name in self.predictors()] + [9])
        head = f"{'predictor':<{wide}}  {'sensors':<16}{'count':>9}"
        lines = [head + "".join(f"{name:>21}" for name in ("MAE", "RMSE", "bias"))]
        for row in self.rows:
            numbers = zip((row.mae, row.rmse, row.bias), row.errors, strict=True)
            reported = "".join(f"{value:>11.4g} +- {error:<6.2g}" for value, error in numbers)
            lines.append(f"{row.predictor:<{wide}}  {row.group:<16}{row.sensors:>9,}{reported}")
        return lines

    def plain(self) -> list[dict[str, Any]]:
        """For JSON: what is no number is null."""
        keys = ("mae_error", "rmse_error", "bias_error")
        rows = [row._asdict() for row in self.rows]
        reported = [row | dict(zip(keys, row.pop("errors"), strict=True)) for row in rows]
        return finite_only(reported)


def score(
    truth_R: Floats,
    predictions: Mapping[str, Floats],
    face_R: NDArray[np.integer[Any]],
    event_R: NDArray[np.integer[Any]],
) -> PredictorScores:
    """Compare predictors on the same hidden sensors.

    Args:
        truth_R: photons.
        predictions: photons, by name of the predictor.
        face_R: codes of faces.
        event_R: which event a sensor belongs to. Whole events are drawn for the statistical
            errors: the sensors of one share its light.
    """
    truth_R = np.asarray(truth_R, dtype=np.float64)
    _, at_R = np.unique(event_R, return_inverse=True)
    decade_R = np.searchsorted(_EDGES, truth_R, side="right")
    groups = {"all": np.zeros(len(truth_R), dtype=np.int64), "face": face_R, "decade": decade_R}
    names = {"all": ("all",), "face": FACES, "decade": tuple(f"npho {one}" for one in DECADES)}
    rows: list[Score] = []
    for predictor, values_R in predictions.items():
        error_R = np.asarray(values_R, dtype=np.float64) - truth_R
        for kind, group_R in groups.items():
            sums_EGA = _sums(error_R, at_R, np.asarray(group_R), len(names[kind]))
            count_G = sums_EGA[..., 0].sum(0)
            mean_G3, error_G3 = _means(sums_EGA), bootstrap_error(sums_EGA, _means)
            for g, name in enumerate(names[kind]):
                mae, rmse, bias = mean_G3[g].tolist()
                errors = tuple(error_G3[g].tolist())
                rows.append(Score(predictor, name, int(count_G[g]), mae, rmse, bias, errors))
    return PredictorScores(tuple(rows))


def score_hidden(
    truth_BS: Tensor, hidden_BS: Tensor, predictions: Mapping[str, Tensor]
) -> PredictorScores:
    """The same of values of all sensors, on those that were hidden."""
    event_R, sensor_R = (one.cpu().numpy() for one in hidden_BS.nonzero(as_tuple=True))
    truth_R, *said = (
        one_BS[hidden_BS].float().cpu().numpy() for one_BS in (truth_BS, *predictions.values())
    )
    named = dict(zip(predictions, said, strict=True))
    return score(truth_R, named, face_of_sensor()[sensor_R], event_R)


def _sums(error_R: Floats, event_R: Floats, group_R: Floats, groups: int) -> Floats:
    """Count, absolute, squared and signed error of each event and group."""
    events = int(event_R.max(initial=-1)) + 1
    cell_R = event_R * groups + group_R
    weights = (np.ones_like(error_R), np.abs(error_R), error_R**2, error_R)
    columns = [np.bincount(cell_R, weights=one, minlength=events * groups) for one in weights]
    return np.stack(columns, axis=-1).reshape(events, groups, len(weights))


def _means(sums_EGA: Floats) -> Floats:
    """MAE, RMSE and bias of each group."""
    count, absolute, square, signed = np.moveaxis(sums_EGA.sum(-3), -1, 0)
    with np.errstate(invalid="ignore"):
        per = np.where(count > 0, count, np.nan)
        return np.stack((absolute / per, np.sqrt(square / per), signed / per), axis=-1)
