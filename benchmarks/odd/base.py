"""A small run folder that holds every kind of event and finding; see ``base.json``."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from holdfast.run import jsonl
from holdfast.run.table import Declaration, write_segment

ROWS = 60
EVENTS, FINDINGS, BATCHES = "events.r0.jsonl", "findings.r0.jsonl", "batches.r0.jsonl"
QUARANTINE, META = "quarantine.r0.jsonl", "run.json"
RECORD = "checkpoints/step-0000000004.r0.json"
STEPS, LAYERS = "steps.r0.000000.bin", "layers0.r0.000000.bin"
LINES = {"events": EVENTS, "findings": FINDINGS, "batches": BATCHES, "quarantine": QUARANTINE}
OBJECTS = {"meta": META, "checkpoint": RECORD}


@cache
def recorded() -> dict[str, Any]:
    """What the files hold, by their names in ``LINES`` and ``OBJECTS``."""
    return json.loads(Path(__file__).with_name("base.json").read_bytes())


def write_base(run: Path, rows: int = ROWS) -> Path:
    """Write the run folder."""
    (run / "checkpoints").mkdir(parents=True)
    for name, file in LINES.items():
        write_lines(run / file, recorded()[name])
    for name, file in OBJECTS.items():
        write_object(run / file, recorded()[name])
    (run / RECORD).with_suffix(".safetensors").write_bytes(b"abc")
    write_table(run / STEPS, 16, "steps", recorded()["steps"], rows)
    write_table(run / LAYERS, 18, "layers0", recorded()["layers"], rows)
    return run


def write_lines(path: Path, items: list[Any]) -> None:
    """JSON lines, of anything."""
    path.write_bytes(b"".join(text(item) + b"\n" for item in items))


def write_object(path: Path, item: Any) -> None:
    """One JSON text."""
    path.write_bytes(text(item))


def text(item: Any) -> bytes:
    """JSON without spaces, as holdfast writes it; NaN is left to be refused."""
    return json.dumps(item, separators=(",", ":")).encode()


# Columns that are not measured on a CPU without a scaler.
_UNKNOWN = (
    "grad_layer", "param_layer", "buffer_layer", "worker", "h2d", "collective", "mem_allocated",
    "mem_reserved", "mem_retries", "scale", "scaler_skipped", "guard_device", "clip", "input_bad",
)  # fmt: skip


def write_table(path: Path, number: int, table: str, columns: list[str], rows: int) -> None:
    """A table whose loss falls, with a spike and a skipped step."""
    named = [["step", "<i8"], ["time", "<f8"], *([name, "<f4"] for name in columns)]
    declaration = Declaration.from_dict({"id": number, "table": table, "dtype": named})
    values = np.zeros(rows, declaration.dtype)
    steps = np.arange(rows)
    chance = np.random.default_rng(0)
    seconds = 0.01 * chance.lognormal(0, 0.2, rows)
    values["step"], values["time"] = steps, 1.7e9 + np.cumsum(seconds)
    for name in columns:
        values[name] = np.nan if name in _UNKNOWN else 0.1 if name == "lr" else 0.0
    if "loss" in columns:
        level = 2.0 / (1 + steps / 100) + 0.1
        values["loss"] = level + 0.05 * chance.standard_normal(rows)
        values["grad_norm"] = values["grad_max"] = chance.lognormal(0, 0.1, rows)
        values["loss_baseline"], values["loss_limit"] = level, level + 1
        values["norm_baseline"], values["norm_limit"] = 1.0, 5.0
        for phase in ("forward", "backward", "optimizer", "data_wait", "other"):
            values[phase] = seconds / 5
        values["rss"], values["backwards"], values["batch"] = 1e9, 1, 32
        values["loss"][rows // 2], values["loss_bad"][rows // 2] = np.nan, 1
        values["skipped"][rows // 2] = 1
    write_segment(path, declaration, "r0", number=0, start=0, rows=values)


def header(path: Path) -> dict[str, Any]:
    """The header of a table."""
    with path.open("rb") as file:
        return jsonl.decode(file.readline())
