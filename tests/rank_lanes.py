"""Lanes of ranks that train together, made up for detectors that compare them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from holdfast.detectors._ranks import RankLane
from holdfast.types import Event, Finding, Severity

LAYERS = ["0.weight", "0.bias", "2.weight"]
FACTS = {
    "opt": 0, "group": 2, "backend": "gloo", "wrapper": "ddp", "model": "aa11bb22", "cls": "SGD",
    "dtype": "float32", "source": "cc33dd44", "find_unused": False, "static_graph": False,
    "join": False, "sampler": True, "batch_size": 8,
}  # fmt: skip
# Milliseconds of a typical step of the rank, in the order of the columns.
PHASES = {"data_wait": 1.0, "h2d": 0.0, "forward": 4.0, "backward": 8.0, "optimizer": 1.0,
          "other": 1.0}  # fmt: skip
_COLUMNS = ("loss", "grad_norm", "lr", "batch", "opt", "collective", *PHASES)


def event(rank: int, kind: str, step: int = 0, /, time: float = 1.7e9, **data: Any) -> Event:
    return Event(time=time, rank=rank, step=step, kind=kind, data=data)


def found(code: str, rank: int, **more: Any) -> Finding:
    return Finding(
        code=code, name="x", severity=Severity.ERROR, step=9, message="step 9: x", advice="",
        rank=rank, **more,
    )  # fmt: skip


def table(steps: Sequence[int], values: Any) -> Any:
    """Rows of a table with a column for each layer."""
    rows = np.zeros(len(steps), dtype=[("step", "<i8"), ("time", "<f8"),
                                       *((name, "<f4") for name in LAYERS)])  # fmt: skip
    rows["step"] = steps
    for i, name in enumerate(LAYERS):
        rows[name] = np.asarray(values)[..., i]
    return rows


def lane(
    rank: int,
    count: int = 200,
    *,
    columns: Mapping[str, Any] | None = None,
    facts: Mapping[str, Any] | None = None,
    events: Sequence[Event] = (),
    findings: Sequence[Finding] = (),
    weights: Any = None,
    layers: Any = None,
) -> RankLane:
    """A healthy rank under DDP: data of its own, gradients and weights of all."""
    noise = np.random.default_rng(rank)
    rows = np.zeros(count, dtype=[("step", "<i8"), ("time", "<f8"),
                                  *((name, "<f4") for name in _COLUMNS)])  # fmt: skip
    rows["step"] = np.arange(count)
    rows["time"] = 1.7e9 + 0.015 * np.arange(count)
    rows["loss"] = 1 + noise.random(count)
    rows["grad_norm"] = 1 + np.random.default_rng(99).random(count)
    rows["lr"], rows["collective"] = 0.01, np.nan
    rows["batch"] = noise.integers(0, 1 << 24, count)
    for name, ms in PHASES.items():
        rows[name] = ms * 1e-3 * noise.lognormal(0, 0.1, count)
    for name, values in (columns or {}).items():
        rows[name] = values
    steps = range(0, count, 64)
    sums = np.random.default_rng(5).integers(0, 1 << 24, (len(steps), len(LAYERS)))
    return RankLane(
        name=f"r{rank}",
        rank=rank,
        rows=rows,
        tables={
            "weights0": table(steps, sums if weights is None else weights(sums.copy())),
            "layers0": table(steps, np.ones((len(steps), 3)) if layers is None else layers),
        },
        events=[
            event(rank, "start", pid=rank, rank=rank, world=2, torch="2.13.0", python="3.11.7"),
            event(rank, "optimizer", opt=0, layers=LAYERS),
            event(rank, "parallel", **{**FACTS, **(facts or {})}),
            *events,
        ],
        findings=findings,
    )
