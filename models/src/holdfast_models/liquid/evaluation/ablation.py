"""What each feature is worth: the same runs with it and without it, over seeds."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from ..run_settings import LiquidSettings


class Measured(NamedTuple):
    """Of one run: validation loss, training speed, and the forgetting of a continual run."""

    loss: float
    tokens_per_second: float
    forgetting: float | None = None


class Feature(NamedTuple):
    """A setting that is True or False, and one that has to be True for it to mean anything."""

    name: str
    switch: str
    needs: str | None = None


FEATURES = (
    Feature("attention", "model.attention.on"),
    Feature("mamba", "model.mamba.on"),
    Feature("gate", "model.mamba.gate", "model.mamba.on"),
    Feature("cross-attention", "model.mamba.cross_attention", "model.mamba.on"),
    Feature("plasticity", "plasticity.on"),
    Feature("meta-plasticity", "plasticity.meta.on", "plasticity.on"),
    Feature("consolidation", "continual.consolidation", "continual.on"),
    Feature("replay", "continual.replay", "continual.on"),
)


class Ablation(NamedTuple):
    """By feature the runs with it and those without, one for each seed."""

    seeds: tuple[int, ...]
    runs: dict[str, dict[str, list[Measured]]]

    def plain(self) -> dict[str, Any]:
        """For JSON."""
        features = {
            name: {key: [one._asdict() for one in runs] for key, runs in both.items()}
            for name, both in self.runs.items()
        }
        return {"seeds": list(self.seeds), "features": features}

    def lines(self) -> list[str]:
        """For people: means over the seeds, and the difference in loss with its standard error."""
        columns = [(name, key) for name in Measured._fields for key in ("on", "off")]
        titles = [f"{name} {key}".replace("_per_second", "/s") for name, key in columns]
        table = [_row("", [*titles, "loss on - off"])]
        for feature, both in self.runs.items():
            cells = [_mean([getattr(one, name) for one in both[key]]) for name, key in columns]
            gains = [on.loss - off.loss for on, off in zip(both["on"], both["off"], strict=True)]
            error = statistics.stdev(gains) / len(gains) ** 0.5 if len(gains) > 1 else float("nan")
            table.append(_row(feature, [*cells, f"{statistics.fmean(gains):+.4f} ± {error:.4f}"]))
        return [*table, f"means of {len(self.seeds)} seeds; a negative difference is a gain"]


def ablate(
    settings: LiquidSettings,
    run: Callable[[LiquidSettings], Measured],
    *,
    features: Sequence[Feature] = FEATURES,
    seeds: Iterable[int] = (0, 1, 2),
) -> Ablation:
    """Run the settings with every feature on and off.

    Args:
        settings: everything else; what a feature needs is switched on.
        run: trains and measures; called once for equal settings.
        features: those of continual learning are skipped unless the settings are of such a run.
        seeds: of the runs.
    """
    known: dict[str, Measured] = {}
    table = Ablation(tuple(seeds), {})
    for feature in features:
        if feature.needs == "continual.on" and not settings.continual.on:
            continue
        # Without a feature those that need it are off too.
        off = {one.switch: False for one in FEATURES if one.needs == feature.switch}
        needed = {feature.needs: True} if feature.needs else {}
        both = {"on": {feature.switch: True}, "off": {feature.switch: False, **off}}
        runs = table.runs[feature.name] = {"on": [], "off": []}
        for key, switches in both.items():
            for seed in table.seeds:
                one = changed(settings, {**needed, **switches, "train.seed.seed": seed})
                if repr(one) not in known:
                    known[repr(one)] = run(one)
                runs[key].append(known[repr(one)])
    return table


def changed(section: Any, values: Mapping[str, Any]) -> Any:
    """Settings with other values, by dotted names; all of a section change at once."""
    new: dict[str, Any] = {name: value for name, value in values.items() if "." not in name}
    for head in dict.fromkeys(name.partition(".")[0] for name in values if "." in name):
        inner = {n.partition(".")[2]: v for n, v in values.items() if n.startswith(f"{head}.")}
        new[head] = changed(getattr(section, head), inner)
    return dataclasses.replace(section, **new)


def _row(name: str, cells: Sequence[str]) -> str:
    return f"{name:<16}" + "".join(f"{cell:>18}" for cell in cells)


def _mean(values: Sequence[float | None]) -> str:
    known = [value for value in values if value is not None]
    if not known:
        return "-"
    mean = statistics.fmean(known)
    return f"{mean:,.0f}" if mean >= 100 else f"{mean:.4f}"
