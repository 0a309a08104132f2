"""What ``holdfast xec check-data`` finds in files: non-finite values, dead sensors, scales; and the
scales that a sample of events suggests (``normalization: fit``).

One pass in bounded memory. Nothing here is an error: a file that cannot be read is one, on
opening.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from holdfast import HoldfastError

from ..geometry.layout import SENSORS
from ..settings import DataSettings, NormalizationSettings
from .branches import BRANCHES
from .events import open_roots
from .normalization import normalise
from .root_files import scan

_LARGEST = 9e9
_WORST = 10  # sensors that are named
_SENSIBLE = {"npho": (-1.0, 5.0), "time": (-5.0, 5.0)}  # normalised; networks like values near one
_MUCH = 0.001  # share of values outside that is worth a word
_FLAT = 0.02  # spread of normalised values below which a network hardly sees them
_FITTED = 2000  # events, some from every file
_BRIGHT = 0.9999  # of photon counts, becomes 1
_TIMES = (0.005, 0.995)  # of times, become 0 and 1


@dataclasses.dataclass
class BranchCheck:
    """Counts of the values of a branch, and the range of the good ones."""

    branch: str
    values: int = 0
    nan: int = 0
    inf: int = 0
    not_available: int = 0
    low: float | None = None
    high: float | None = None

    def add(self, values: Tensor) -> None:
        """Count these too."""
        nan, inf = values.isnan(), values.isinf()
        missing = (values.abs() > _LARGEST) & ~inf
        good = values[~(nan | inf | missing)]
        self.values += values.numel()
        self.nan += int(nan.sum())
        self.inf += int(inf.sum())
        self.not_available += int(missing.sum())
        if len(good):
            low, high = float(good.min()), float(good.max())
            self.low = low if self.low is None else min(self.low, low)
            self.high = high if self.high is None else max(self.high, high)

    def line(self) -> str:
        """A row of the table."""
        span = "nothing" if self.low is None else f"{self.low:.4g} to {self.high:.4g}"
        counts = (self.values, self.nan, self.inf, self.not_available)
        return f"{self.branch:<16}{''.join(f'{count:>15}' for count in counts)}  {span}"


@dataclasses.dataclass
class DataCheck:
    """What was found."""

    path: str
    files: int
    events: int
    branches: list[BranchCheck]
    dead: list[int]
    """Sensors without a single photon count."""
    worst: list[tuple[int, int]]
    """Sensors with non-finite photon counts, and how many; most first."""
    normalised: dict[str, dict[str, float]]
    """Of each channel the ``valid`` values, the share ``outside`` and the ``spread``."""
    advice: list[str] = dataclasses.field(default_factory=list)

    def lines(self) -> list[str]:
        """For the terminal."""
        titles = ("values", "NaN", "Inf", "not available")
        lines = [
            f"{self.path}: {self.files} files, {self.events} events looked at",
            f"{'branch':<16}{''.join(f'{title:>15}' for title in titles)}  range",
            *(branch.line() for branch in self.branches),
        ]
        dead = ", ".join(map(str, self.dead)) or "none"
        lines.append(f"dead sensors ({len(self.dead)}): {dead}")
        if self.worst:
            worst = ", ".join(f"{sensor} ({count})" for sensor, count in self.worst)
            lines.append(f"sensors with most NaN or Inf: {worst}")
        for name, one in self.normalised.items():
            low, high = _SENSIBLE[name]
            lines.append(
                f"normalised {name}: {one['outside']:.2%} of {one['valid']:.0f} valid values "
                f"outside {low:g} to {high:g}, spread {one['spread']:.3g}"
            )
        return lines + [f"advice: {text}" for text in self.advice]

    def plain(self) -> dict[str, Any]:
        """For JSON."""
        return dataclasses.asdict(self)


def check_data(
    settings: DataSettings,
    normalization: NormalizationSettings,
    path: str,
    events: int | None = None,
) -> DataCheck:
    """Look at files.

    Args:
        settings: branches and tree.
        normalization: to be judged with these values.
        path: a file, a folder or a pattern.
        events: how many to look at; all by default.
    """
    roots = open_roots(settings, path, optional=[*BRANCHES])
    names = [name for name in roots[0].branches if all(name in root.branches for root in roots)]
    branches = {name: BranchCheck(roots[0].branches[name]) for name in names}
    totals = {name: torch.zeros(4, dtype=torch.float64) for name in _SENSIBLE}
    good_S, wrong_S, seen = torch.zeros(SENSORS), torch.zeros(SENSORS), 0
    for block in scan(roots, names, events):
        for name, values in block.items():
            branches[name].add(values.float())
        inputs = normalise(block["npho"], block["time"], normalization)
        good_S += inputs.npho_valid_BS.sum(0)
        wrong_S += (~block["npho"].isfinite()).sum(0)
        for channel, name in enumerate(_SENSIBLE):
            valid_BS = inputs[1 + channel]
            totals[name] += _sums(inputs.x_BSC[..., channel], valid_BS, *_SENSIBLE[name])
        seen += len(block["npho"])
    counts, sensors = wrong_S.sort(descending=True)
    worst = [(int(s), int(n)) for s, n in zip(sensors[:_WORST], counts[:_WORST], strict=True) if n]
    dead = (good_S == 0).nonzero()[:, 0].tolist()
    normalised = {name: _judged(*total.tolist()) for name, total in totals.items()}
    found = DataCheck(path, len(roots), seen, [*branches.values()], dead, worst, normalised)
    found.advice += _advice(found, settings)
    return found


def _sums(values: Tensor, valid: Tensor, low: float, high: float) -> Tensor:
    """Valid values, those outside, their sum and the sum of their squares."""
    known = torch.where(valid, values, 0.0).double()
    outside = valid & ((values < low) | (values > high))
    return torch.stack((valid.sum(), outside.sum(), known.sum(), known.square().sum())).double()


def _judged(valid: float, outside: float, total: float, squares: float) -> dict[str, float]:
    count = max(1.0, valid)
    spread = math.sqrt(max(0.0, squares / count - (total / count) ** 2))
    return {"valid": valid, "outside": outside / count, "spread": spread}


def _advice(found: DataCheck, settings: DataSettings) -> list[str]:
    advice = []
    wrong = [one for one in found.branches if one.nan + one.inf]
    if wrong:
        shown = ", ".join(f"{one.nan + one.inf} in {one.branch}" for one in wrong)
        advice.append(f"non-finite values ({shown}) count as dead; find their cause")
    for name, one in found.normalised.items():
        if not one["valid"]:
            advice.append(f"no valid {name} at all; look at data.{name}_branch and npho_threshold")
        elif one["outside"] > _MUCH or one["spread"] < _FLAT:
            advice.append(
                f"normalised {name} does not suit a network; `normalization: fit` suggests scales"
            )
    if len(found.dead) > SENSORS // 10:
        advice.append(f"{len(found.dead)} of {SENSORS} sensors are dead; is this the right file?")
    truth = any(one.branch == BRANCHES["timing"] for one in found.branches)
    if truth and settings.time_branch == "relative_time":
        advice.append("relative_time has no event time: to train timing set data.time_branch=time")
    return advice


class Fitted(NamedTuple):
    """Suggested settings, and what they come from."""

    settings: NormalizationSettings
    lines: list[str]


def fit_normalization(
    settings: DataSettings, normalization: NormalizationSettings, path: str, events: int = _FITTED
) -> Fitted:
    """Scales with which the brightest sensors and the span of times become one.

    Args:
        settings: branches and tree.
        normalization: its scheme, threshold and sentinels are kept.
        path: a file, a folder or a pattern.
        events: how many to look at, some from every file.
    """
    photons, times = [], []
    for block in scan(open_roots(settings, path), ["npho", "time"], events):
        inputs = normalise(block["npho"], block["time"], normalization)
        photons.append(block["npho"][inputs.npho_valid_BS])
        times.append(block["time"][inputs.time_valid_BS])
    npho_N, time_N = torch.cat(photons).numpy(), torch.cat(times).numpy()
    lit_N = npho_N[npho_N >= normalization.npho_threshold]
    if not len(lit_N) or not len(time_N):
        raise HoldfastError(
            f"{path}: no sensor has a time and {normalization.npho_threshold:g} photons; lower "
            "normalization.npho_threshold, or look with `holdfast xec check-data`"
        )
    bright, middle = float(np.quantile(npho_N, _BRIGHT)), float(np.median(lit_N))
    early, late = (float(np.quantile(time_N, q)) for q in _TIMES)
    span = max(late - early, 1e-12)
    given = {"npho_scale": _rounded(bright), "npho_scale2": 1.0}
    if normalization.npho_scheme == "log1p":
        # The logarithm bends where half of the sensors that count are brighter.
        given = {"npho_scale": _rounded(middle), "npho_scale2": _rounded(np.log1p(bright / middle))}
    given |= {"time_scale": _rounded(span), "time_shift": _rounded(early / span)}
    lines = [
        f"photons: {_BRIGHT:.2%} of {len(npho_N)} counts are below {bright:.4g}, half of those "
        f"with a time below {middle:.4g}",
        f"times: {early:.3g} to {late:.3g} s hold {_TIMES[1] - _TIMES[0]:.0%} of {len(time_N)}",
        "normalization:",
        f"  npho_scheme: {normalization.npho_scheme}",
        *(f"  {key}: {value:g}" for key, value in given.items()),
    ]
    return Fitted(dataclasses.replace(normalization, **given), lines)


def _rounded(value: float) -> float:
    return float(f"{value:.3g}")
