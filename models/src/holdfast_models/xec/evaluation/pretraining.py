"""Regressors that begin with the encoder of an autoencoder, beside those that begin anew."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import statistics
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch.utils.data import Dataset, Subset

from holdfast import HoldfastError
from holdfast.training import Place, Trainer

from ..data.events import open_events
from ..data.synth_files import ensure_synth
from ..recipes import task_of
from ..run_settings import RegressorRun

WAYS = ("from scratch", "pretrained")


class PretrainingComparison(NamedTuple):
    """Validation numbers of every run: by labels and way, one for each seed."""

    runs: dict[tuple[int, str], list[dict[str, float]]]

    def numbers(self) -> dict[tuple[int, str], dict[str, tuple[float, float]]]:
        """Mean and spread over the seeds, of losses and resolutions."""
        found: dict[tuple[int, str], dict[str, tuple[float, float]]] = {}
        for key, seeds in self.runs.items():
            names = [name for name in seeds[0] if _reported(name)]
            columns = {name: [one.get(name, math.nan) for one in seeds] for name in names}
            found[key] = {
                name: (statistics.fmean(v), statistics.stdev(v) if len(v) > 1 else 0.0)
                for name, v in columns.items()
            }
        return found

    def lines(self) -> list[str]:
        """Both ways side by side, for people."""
        numbers = self.numbers()
        head = f"{'labels':>8}  {'number':<28}"
        lines = [head + "".join(f"{way:>26}" for way in WAYS) + f"{'change':>10}"]
        for labels in dict.fromkeys(labels for labels, _ in numbers):
            before, after = (numbers[labels, way] for way in WAYS)
            for name, (mean, spread) in before.items():
                other, wide = after[name]
                change = (other - mean) / abs(mean) if mean else math.nan
                lines.append(
                    f"{labels:>8}  {name:<28}{f'{mean:.4g} +- {spread:.2g}':>26}"
                    f"{f'{other:.4g} +- {wide:.2g}':>26}{change:>+10.1%}"
                )
        return lines

    def plain(self) -> list[dict[str, Any]]:
        """For programs."""
        numbers = self.numbers()
        return [
            {"labels": labels, "way": way, "runs": runs,
             "mean": {n: v[0] for n, v in numbers[labels, way].items()},
             "spread": {n: v[1] for n, v in numbers[labels, way].items()}}
            for (labels, way), runs in self.runs.items()
        ]  # fmt: skip


def compare_pretraining(
    settings: RegressorRun,
    labels: Sequence[int | None],
    seeds: Sequence[int],
    out: str,
    say: Callable[[str], None],
) -> PretrainingComparison:
    """Train both ways for each number of labels and each seed, as long as the settings say.

    Args:
        settings: of the regressor, ``init.encoder`` among them.
        labels: events to learn from, the first ones; None: all there are.
        seeds: of weights and the order of events.
        out: folder of the runs.
        say: told what is trained.
    """
    data = settings.data
    if data.cache == "none":  # random access to the first events
        data = dataclasses.replace(data, cache="ram")
    settings = dataclasses.replace(settings, data=data)
    train, validation = _events(settings, say)
    found: dict[tuple[int, str], list[dict[str, float]]] = {}
    for count in labels:
        events = _first(train, count)
        for way in WAYS:
            for seed in seeds:
                say(f"{len(events)} labels, {way}, seed {seed}")
                folder = Path(out) / f"{len(events)}_{way.replace(' ', '_')}_{seed}"
                numbers = _trained(settings, events, validation, way, seed, folder)
                found.setdefault((len(events), way), []).append(numbers)
    return PretrainingComparison(found)


def _events(settings: RegressorRun, say: Callable[[str], None]) -> list[Any]:
    """What is trained and measured on."""
    data = settings.data
    paths = data.train_path, data.val_path
    if not data.train_path and data.synth.events:
        paths = ensure_synth(data.synth, say=say)
    if not all(paths):
        raise HoldfastError(
            f"compare-pretrain: data.train_path is {paths[0]!r}, data.val_path {paths[1]!r}; give "
            "both, or data.synth.events=4096"
        )
    truths = tuple(settings.tasks.active())
    return [open_events(data, settings.normalization, one, truths, say=say) for one in paths]


def _first(events: Any, count: int | None) -> Any:
    if count is None or count == len(events):
        return events
    if count > len(events):
        raise HoldfastError(f"--labels {count}: there are {len(events)} events; give fewer")
    return Subset(events, range(count))


def _trained(
    settings: RegressorRun,
    events: Dataset[Any],
    validation: Dataset[Any],
    way: str,
    seed: int,
    folder: Path,
) -> dict[str, float]:
    """The last validation of one run."""
    init = settings.init if way == WAYS[1] else dataclasses.replace(settings.init, encoder=None)
    train = dataclasses.replace(
        settings.train, seed=dataclasses.replace(settings.train.seed, seed=seed)
    )
    settings = dataclasses.replace(settings, init=init, train=train)
    # What a run prints is not the answer.
    with contextlib.redirect_stdout(sys.stderr), torch.random.fork_rng():
        torch.manual_seed(seed)
        task = task_of(settings, Place(torch.device("cpu")), events, validation)
        task = dataclasses.replace(task, improved=None, ended=None)
        result = Trainer.of(task, train, run_dir=folder, name="xec.reg").fit()
    if result.interrupted:
        raise KeyboardInterrupt
    return dict(result.validation)


def _reported(name: str) -> bool:
    return name == "loss" or "res_68" in name or "resolution" in name or name.endswith("_68pct")
