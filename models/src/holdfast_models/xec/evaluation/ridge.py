"""What a network has to beat: a ridge regression on 22 hand-made numbers of an event.

Time is not learned: it is the median of what all lit sensors say, seen from the true place of the
interaction.

Shapes: B events, S sensors, N inner sensors, X features, Q targets.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from holdfast import HoldfastError

from ..data.normalization import NOT_AVAILABLE
from ..geometry import layout
from ..geometry.coordinates import xyz_of
from ..geometry.positions import positions, uvw_of
from ..model.fillings import NeighbourMean
from .regression_metrics import QUANTITIES, opening_angle, residual_of
from .resolution import SHARE

Floats = NDArray[Any]
Events = Mapping[str, Floats | Tensor]
"""As batches are: npho, time, energy, timing, uvwFI, angle."""

_FACES = layout.FACES[1:]
FEATURES = (
    "u", "v", "width", "log peak", "log inner", "log total",
    *(f"log {face}" for face in _FACES), "us", "ds", "top", "bottom",
    "u2", "v2", "width2", "log peak2", "log inner2", "log peak * log inner", "log peak * width",
)  # fmt: skip
_REACH = 6.0  # cm around the brightest inner sensor
_LEAST_SHARE = 1e-5  # of the light, on a face: less is noise
_SMOOTH = 1e-3  # of the ridge, on features of unit width
_FAR = 1.5  # of the residuals' 68 %, beyond which an event counts less
_ROUNDS = 5  # of fits that depend on the residuals of the one before
_TOGETHER = 256  # events

_SPEED = 12e9  # of light in xenon, cm/s
_LIT = 100.0  # photons below which a time means nothing


class Ridge(NamedTuple):
    """Energy, place and direction as linear functions of the features."""

    mean_X: Floats
    spread_X: Floats
    slope_XQ: Floats
    offset_Q: Floats
    delay: float
    """Mean of arrival time minus true time, s."""

    @classmethod
    def fit(cls, events: Events) -> Ridge:
        """Fit to the truth of events; the energy in its logarithm."""
        x_BX, target_BQ = features(events["npho"]), _targets(events)
        mean_X, spread_X = x_BX.mean(0), x_BX.std(0) + 1e-12
        scaled_BX = np.c_[(x_BX - mean_X) / spread_X, np.ones(len(x_BX))]
        slope_XQ = np.stack([_robust(scaled_BX, one_B) for one_B in target_BQ.T], axis=1)
        delay = float((arrival_times(events) - _array(events["timing"])).mean())
        return cls(mean_X, spread_X, slope_XQ[:-1], slope_XQ[-1], delay)

    def predict(self, events: Events) -> dict[str, Floats]:
        """Columns of predictions beside the truth."""
        scaled_BX = (features(events["npho"]) - self.mean_X) / self.spread_X
        predicted_BQ = scaled_BX @ self.slope_XQ + self.offset_Q
        columns = _columns(_targets(events), "true") | _columns(predicted_BQ, "pred")
        columns["pred_timing"] = arrival_times(events) - self.delay
        columns["true_timing"] = _array(events["timing"])
        return columns


class BaselineRow(NamedTuple):
    """68 % of the absolute residuals of one quantity."""

    quantity: str
    unit: str
    mean: float
    """Of whoever predicts the mean of the training events."""
    ridge: float


class RidgeTable(NamedTuple):
    """The table, and how many events it is from."""

    trained: int
    tested: int
    rows: tuple[BaselineRow, ...]

    def lines(self) -> list[str]:
        """A table for people."""
        lines = [
            f"68 % of absolute residuals; fitted to {self.trained:,} events, measured on "
            f"{self.tested:,} others",
            f"{'quantity':<28}{'predict the mean':>18}{'ridge':>12}",
        ]
        for row in self.rows:
            lines.append(f"{f'{row.quantity} [{row.unit}]':<28}{row.mean:>18.4g}{row.ridge:>12.4g}")
        return lines

    def plain(self) -> dict[str, Any]:
        """For JSON."""
        return {**self._asdict(), "rows": [row._asdict() for row in self.rows]}


def baseline(train: Events, test: Events) -> RidgeTable:
    """Fit on some events, measure on others."""
    columns = Ridge.fit(train).predict(test)
    known = _columns(_targets(train), "true") | {"true_timing": _array(train["timing"])}
    guess = {
        f"pred_{name}": np.full(len(columns["pred_u"]), known[f"true_{name}"].mean())
        for names in QUANTITIES.values()
        for name in names
    }
    both = {side: columns | given for side, given in (("mean", guess), ("ridge", {}))}
    bright = columns["true_energy"] > 0.045
    rows: list[BaselineRow] = []

    def add(quantity: str, unit: str, values: Mapping[str, Floats]) -> None:
        found = {side: float(np.quantile(np.abs(one), SHARE)) for side, one in values.items()}
        rows.append(BaselineRow(quantity, unit, **found))

    energy = {side: residual_of(one, "energy") for side, one in both.items()}
    relative = {side: 100 * one / columns["true_energy"] for side, one in energy.items()}
    add("energy", "MeV", {side: 1e3 * one for side, one in energy.items()})
    add("energy, relative", "%", relative)
    if bright.any():
        add("same above 45 MeV", "%", {side: one[bright] for side, one in relative.items()})
    for name, unit in (("u", "cm"), ("v", "cm"), ("w", "cm"), ("theta", "deg"), ("phi", "deg")):
        add(name, unit, {side: residual_of(one, name) for side, one in both.items()})
    add("opening angle", "deg", {side: opening_angle(one) for side, one in both.items()})
    timing = {side: 1e12 * residual_of(one, "timing") for side, one in both.items()}
    add("timing, true place known", "ps", timing)
    return RidgeTable(len(known["true_u"]), len(columns["pred_u"]), tuple(rows))


def features(npho: Floats | Tensor) -> Floats:
    """The numbers named in ``FEATURES``; dead sensors are filled from their neighbours."""
    fill = NeighbourMean()
    parts: list[Floats] = []
    for npho_BS in torch.as_tensor(npho).split(_TOGETHER):
        usable_BS = _usable(npho_BS)
        with torch.no_grad():
            filled_BS = torch.where(usable_BS, npho_BS.float(), fill(npho_BS, usable_BS))
        parts.append(_features(filled_BS.double().numpy()))
    return np.concatenate(parts) if parts else np.zeros((0, len(FEATURES)))


def arrival_times(events: Events) -> Floats:
    """When the photon interacted, s, plus a delay that is the same for all events.

    The median over lit sensors of their time less the way of the light from the true place: sensors
    that saw a later deposit first, or a wrong time, do not move it.
    """
    where_B3 = xyz_of(_array(events["uvwFI"]))
    npho, time = torch.as_tensor(events["npho"]), torch.as_tensor(events["time"]).double()
    place_S3 = torch.tensor(positions())
    found: list[Floats] = []
    for first in range(0, len(where_B3), _TOGETHER):
        some = slice(first, first + _TOGETHER)
        lit_BS = _usable(npho[some]) & _usable(time[some]) & (npho[some] >= _LIT)
        emitted_BS = time[some] - torch.cdist(where_B3[some], place_S3) / _SPEED
        emitted_BS = torch.where(lit_BS, emitted_BS, torch.nan)
        found.append(emitted_BS.nanmedian(1).values.nan_to_num(0.0).numpy())
    return np.concatenate(found) if found else np.zeros(0)


def _robust(x_BX: Floats, target_B: Floats) -> Floats:
    """Slopes of a ridge in which events far off count less: leaking ones would bend all others."""
    weight_B = np.ones(len(target_B))
    slope_X = np.zeros(x_BX.shape[1])
    for _ in range(_ROUNDS):
        weighted_BX = x_BX * weight_B[:, None]
        square_XX = weighted_BX.T @ x_BX + _SMOOTH * np.eye(x_BX.shape[1])
        slope_X = np.linalg.solve(square_XX, weighted_BX.T @ target_B)
        far_B = np.abs(target_B - x_BX @ slope_X)
        weight_B = np.minimum(1, _FAR * np.quantile(far_B, SHARE) / far_B.clip(min=1e-12))
    return slope_X


def _features(npho_BS: Floats) -> Floats:
    place_N2 = uvw_of(positions()[layout.sensors_of("inner")])[:, :2]
    inner_BN = npho_BS[:, : len(place_N2)]
    peak_B = inner_BN.argmax(1)
    near_BN = ((place_N2 - place_N2[peak_B][:, None]) ** 2).sum(-1) < _REACH**2
    light_BN = np.where(near_BN, inner_BN.clip(min=0), 0)
    light_BN = light_BN / light_BN.sum(1, keepdims=True).clip(min=1e-9)
    centre_B2 = light_BN @ place_N2
    spread_B = light_BN @ (place_N2**2).sum(-1) - (centre_B2**2).sum(-1)
    # Negative counts stay: noise has to average out of the sums.
    total_B = npho_BS.sum(1).clip(min=1)
    share = {face: npho_BS[:, layout.sensors_of(face)].sum(1) / total_B for face in layout.FACES}
    logs = {face: np.log(one.clip(min=_LEAST_SHARE)) for face, one in share.items()}
    (u, v), width, inner = centre_B2.T, np.sqrt(spread_B.clip(min=0)), logs["inner"]
    peak = np.log((inner_BN.max(1) / total_B).clip(min=_LEAST_SHARE))
    columns = [u, v, width, peak, inner, np.log(total_B), *(logs[face] for face in _FACES)]
    columns += [share[face] for face in ("us", "ds", "top", "bottom")]
    columns += [u**2, v**2, width**2, peak**2, inner**2, peak * inner, peak * width]
    return np.stack(columns, axis=1)


def _targets(events: Events) -> Floats:
    """Logarithm of the energy, place, direction."""
    energy_B = _array(events["energy"])
    if not (energy_B > 0).all():
        raise HoldfastError(
            f"the ridge needs energies above 0; {int((energy_B <= 0).sum())} of {len(energy_B)} "
            "events have none: choose files with truth"
        )
    parts = (np.log(energy_B)[:, None], _array(events["uvwFI"]), _array(events["angle"]))
    return np.concatenate(parts, axis=1)


def _columns(target_BQ: Floats, side: str) -> dict[str, Floats]:
    names = ("energy", "u", "v", "w", "theta", "phi")
    columns = {f"{side}_{name}": target_BQ[:, at] for at, name in enumerate(names)}
    columns[f"{side}_energy"] = np.exp(columns[f"{side}_energy"])
    return columns


def _array(values: Floats | Tensor) -> Floats:
    return torch.as_tensor(values).double().cpu().numpy()


def _usable(values: Tensor) -> Tensor:
    return values.isfinite() & (values.abs() < 0.9 * NOT_AVAILABLE)
