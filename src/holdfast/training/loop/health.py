"""A look at the run every so many steps: is each number where it belongs?

A recipe knows where: norms of 10 to 20 are healthy for one model and the end of another. Where it
says nothing, loss and gradient norm are compared with this run's own median. Healthy runs hear
nothing. Looked at are rows whose numbers are on the host already.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Literal

from ...config import Section, bounded
from ...records.trainer import OutOfBand
from ...watching.watch import Watch
from .norms import Distribution, GradientNorms
from .step_numbers import figure

# Columns of a row that are looked at beside what the loss function and the trainer note.
_COLUMNS = ("loss", "grad_norm", "lr", "scale")
# Those that every run has a median of, and how far below it is too low; a guess.
_OWN: Mapping[str, float] = {"loss": 0.0, "grad_norm": 1e-4}
# Looks before a run has a median of its own.
_LOOKS = 4
HEALTHY: Literal["healthy"] = "healthy"


@dataclasses.dataclass(frozen=True, kw_only=True)
class BandSettings(Section):
    """Where a number belongs; null: no limit on that side."""

    low: float | None = None
    high: float | None = None
    critical: float | None = None  # far above: told as such

    def __post_init__(self) -> None:
        super().__post_init__()
        given = [value for value in (self.low, self.high, self.critical) if value is not None]
        if given != sorted(set(given)):
            raise ValueError("low, high and critical have to rise in this order")

    def judge(self, value: float) -> Literal["low", "healthy", "high", "critical", "non-finite"]:
        """One word.

        >>> band = BandSettings(low=0.5, high=5.0, critical=10.0)
        >>> [band.judge(value) for value in (0.1, 2.0, 7.0, 20.0, math.nan)]
        ['low', 'healthy', 'high', 'critical', 'non-finite']
        """
        if not math.isfinite(value):
            return "non-finite"
        if self.critical is not None and value > self.critical:
            return "critical"
        if self.high is not None and value > self.high:
            return "high"
        return "low" if self.low is not None and value < self.low else HEALTHY

    def __str__(self) -> str:
        low = f"from {figure(self.low)} " if self.low is not None else ""
        top = self.critical if self.high is None else self.high
        return f"{low}up to {figure(top)}" if top is not None else low.strip()


@dataclasses.dataclass(frozen=True, kw_only=True)
class HealthSettings(Section):
    """How often the numbers of a run are looked at, and where they belong."""

    every: int = bounded(50, 0)  # optimizer steps between two looks; 0: never
    bands: Mapping[str, BandSettings] = dataclasses.field(
        default_factory=dict[str, BandSettings]
    )  # by the name of a number: loss, grad_norm, lr, scale, or one of the event `numbers`
    factor: float = bounded(10.0, 1.0, above=True)  # without a band: so far above the run's median


class Health:
    """Looks at rows and numbers, says what is out of its band, sums up norms.

    Args:
        settings: bands and how often.
        clip: the largest gradient norm that is let through; None: any.
        watch: hands over each row, and records events.
        say: one line for people.
    """

    def __init__(
        self,
        settings: HealthSettings,
        clip: float | None,
        watch: Watch,
        say: Callable[[str], None],
    ) -> None:
        self._settings, self._clip, self._watch, self._say = settings, clip, watch, say
        self._rows: list[Mapping[str, float]] = []
        self._own = {name: Distribution() for name in _OWN}
        self._out: dict[str, int] = {}
        self._looks = 0
        self._summed = 0
        self._epoch, self._run = GradientNorms(clip), GradientNorms(clip)
        self._bands_epoch: Counter[str] = Counter()
        watch.each_row(self._rows.append)

    def stepped(self, step: int, numbers: Mapping[str, float]) -> None:
        """An optimizer step is over; ``numbers``: what was noted last beside the rows."""
        if not self._settings.every:
            self._sum_up()
            self._drop()
        elif step % self._settings.every == 0:
            self._sum_up()
            self._look(step, numbers)
            self._drop()

    def epoch_ends(self, epoch: int) -> GradientNorms:
        """Record the norms of the epoch, and hand them on.

        On a GPU the last steps may not have arrived: they count to the next epoch.
        """
        self._sum_up()
        norms, bands = self._epoch, self._bands_epoch
        self._epoch, self._bands_epoch = GradientNorms(self._clip), Counter()
        totals = norms.totals()
        if totals is not None:
            totals = totals.replace(epoch=epoch, bands=dict(bands) if bands else None)
            self._watch.note(totals.kind, totals.to_dict())
        return norms

    def run_ends(self) -> str:
        """Record the norms of the run; the same as a line for people, with advice."""
        self._watch.await_rows()
        self._sum_up()
        totals = self._run.totals()
        if totals is not None:
            self._watch.note(totals.kind, totals.to_dict())
        return "; ".join(filter(None, [self._run.line(), self._run.advice()]))

    def _sum_up(self) -> None:
        fresh = self._rows[self._summed :]
        self._summed = len(self._rows)
        self._epoch.add(fresh)
        self._run.add(fresh)
        band = self._settings.bands.get("grad_norm")
        if band is not None:
            self._bands_epoch.update(band.judge(row["grad_norm"]) for row in fresh)

    def _drop(self) -> None:
        self._rows.clear()
        self._summed = 0

    def _look(self, step: int, numbers: Mapping[str, float]) -> None:
        # A skipped step says nothing about the others; it is told of elsewhere.
        taken = [row for row in self._rows if not row["skipped"]]
        seen = dict(numbers)
        for name in _COLUMNS:
            values = [row[name] for row in taken if math.isfinite(row[name])]
            if values:
                seen[name] = statistics.median(values)
        for name, value in seen.items():
            band, whose = self._band(name)
            if band is not None:
                self._judge(step, name, value, band, whose)
        self._looks += 1
        for name, own in self._own.items():
            own.add(row[name] for row in taken)

    def _band(self, name: str) -> tuple[BandSettings | None, str]:
        given = self._settings.bands.get(name)
        if given is not None:
            return given, f"train.health.bands.{name}"
        own = self._own.get(name)
        if own is None or self._looks < _LOOKS:
            return None, ""
        usual = own.percentile(50)
        if math.isnan(usual):  # a loss that is not positive has no factor
            return None, ""
        band = BandSettings(low=_OWN[name] * usual or None, high=self._settings.factor * usual)
        return band, f"the median of this run is {figure(usual)}"

    def _judge(self, step: int, name: str, value: float, band: BandSettings, whose: str) -> None:
        state = band.judge(value)
        if state == HEALTHY:
            if self._out.pop(name, 0):
                self._say(f"step {step}: {name} {figure(value)} is healthy again ({band})")
            return
        found = OutOfBand(
            number=name,
            value=value,
            state=state,
            low=band.low,
            high=band.high,
            critical=band.critical,
            band=whose,
        )
        self._watch.note(found.kind, found.to_dict())
        self._out[name] = times = self._out.get(name, 0) + 1
        if times & (times - 1) == 0:  # the first, second, fourth, eighth: many are no news
            self._say(f"step {step}: {name} {figure(value)} is {state}; healthy {band} ({whose})")
