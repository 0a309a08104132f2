"""What ``holdfast xec check-data`` finds in files: non-finite values, dead sensors, scales.

One pass in bounded memory. Nothing here is an error: a file that cannot be read is one, on
opening.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

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


@dataclasses.dataclass
class BranchCheck:
    """Counts of one branch."""

    branch: str
    values: int = 0
    nan: int = 0
    inf: int = 0
    not_available: int = 0
    low: float = math.inf
    high: float = -math.inf

    def add(self, values: Tensor) -> Tensor:
        """Count these, and say which are good."""
        nan, inf = values.isnan(), values.isinf()
        missing = (values.abs() > _LARGEST) & ~inf
        good = ~(nan | inf | missing)
        self.values += values.numel()
        self.nan += int(nan.sum())
        self.inf += int(inf.sum())
        self.not_available += int(missing.sum())
        if bool(good.any()):
            self.low = min(self.low, float(torch.where(good, values, math.inf).min()))
            self.high = max(self.high, float(torch.where(good, values, -math.inf).max()))
        return good

    def line(self) -> str:
        """One row of the table."""
        shown = f"{self.low:.4g} to {self.high:.4g}" if self.low <= self.high else "nothing"
        return (
            f"{self.branch:<16} {self.values:>12} {self.nan:>8} {self.inf:>8} "
            f"{self.not_available:>13}  {shown}"
        )


@dataclasses.dataclass
class NormalisedCheck:
    """Values of one channel as the network would see them."""

    low: float
    high: float
    count: int = 0
    outside: int = 0
    total: float = 0.0
    squares: float = 0.0

    def add(self, values: Tensor, valid: Tensor) -> None:
        """Count the valid ones."""
        known = torch.where(valid, values, 0.0).double()
        self.count += int(valid.sum())
        self.outside += int((valid & ((values < self.low) | (values > self.high))).sum())
        self.total += float(known.sum())
        self.squares += float(known.square().sum())

    @property
    def share_outside(self) -> float:
        """Of valid values, outside the range that suits a network."""
        return self.outside / max(1, self.count)

    @property
    def spread(self) -> float:
        """Standard deviation of valid values."""
        mean = self.total / max(1, self.count)
        return math.sqrt(max(0.0, self.squares / max(1, self.count) - mean * mean))


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
    """Sensors with non-finite counts, and how many; most first."""
    normalised: Mapping[str, NormalisedCheck]
    advice: list[str]

    def lines(self) -> list[str]:
        """For the terminal."""
        head = f"{'branch':<16} {'values':>12} {'NaN':>8} {'Inf':>8} {'not available':>13}  range"
        dead = ", ".join(map(str, self.dead)) or "none"
        lines = [
            f"{self.path}: {self.files} files, {self.events} events looked at",
            head,
            *(branch.line() for branch in self.branches),
            f"dead sensors ({len(self.dead)}): {dead}",
        ]
        if self.worst:
            worst = ", ".join(f"{sensor} ({count})" for sensor, count in self.worst)
            lines.append(f"sensors with most NaN or Inf: {worst}")
        for name, one in self.normalised.items():
            lines.append(
                f"normalised {name}: {one.share_outside:.2%} of {one.count} valid values outside "
                f"{one.low:g} to {one.high:g}, spread {one.spread:.3g}"
            )
        return lines + [f"advice: {text}" for text in self.advice]

    def plain(self) -> dict[str, Any]:
        """For JSON."""
        found = dataclasses.asdict(self)
        for branch in found["branches"]:
            for end in ("low", "high"):
                branch[end] = branch[end] if math.isfinite(branch[end]) else None
        for name, one in self.normalised.items():
            more = {"share_outside": one.share_outside, "spread": one.spread}
            found["normalised"][name] |= more
        return found


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
    checks = {name: BranchCheck(roots[0].branches[name]) for name in names}
    normalised = {name: NormalisedCheck(*ends) for name, ends in _SENSIBLE.items()}
    good_S, wrong_S, seen = torch.zeros(SENSORS), torch.zeros(SENSORS), 0
    for block in scan(roots, names, events):
        for name, values in block.items():
            good = checks[name].add(values.float())
            if name == "npho":
                good_S += good.sum(0)
                wrong_S += (~values.isfinite()).sum(0)
        inputs = normalise(block["npho"], block["time"], normalization)
        normalised["npho"].add(inputs.x_BSC[..., 0], inputs.npho_valid_BS)
        normalised["time"].add(inputs.x_BSC[..., 1], inputs.time_valid_BS)
        seen += len(block["npho"])
    counts, sensors = wrong_S.sort(descending=True)
    worst = [(int(s), int(n)) for s, n in zip(sensors[:_WORST], counts[:_WORST], strict=True) if n]
    dead = (good_S == 0).nonzero()[:, 0].tolist()
    found = DataCheck(path, len(roots), seen, [*checks.values()], dead, worst, normalised, [])
    found.advice += _advice(found, settings, len(roots[0].branches) > 4)
    return found


def _advice(found: DataCheck, settings: DataSettings, truth: bool) -> list[str]:
    advice = []
    wrong = {one.branch: one.nan + one.inf for one in found.branches if one.nan + one.inf}
    if wrong:
        shown = ", ".join(f"{count} in {branch}" for branch, count in wrong.items())
        advice.append(f"non-finite values ({shown}) count as dead; find their cause")
    for name, one in found.normalised.items():
        if not one.count:
            advice.append(f"no valid {name} at all; look at data.{name}_branch and npho_threshold")
        elif one.share_outside > _MUCH or one.spread < _FLAT:
            advice.append(
                f"normalised {name} does not suit a network; `normalization: fit` suggests scales"
            )
    if len(found.dead) > SENSORS // 10:
        advice.append(
            f"{len(found.dead)} of {SENSORS} sensors are dead; are these the right files?"
        )
    if truth and settings.time_branch == "relative_time":
        advice.append(
            "relative_time holds no event time: to train timing set data.time_branch=time"
        )
    return advice
