"""Runs with an incident whose cause is known, built with the writer API as training would."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from holdfast.records.nonfinite import Cause, TensorStats
from holdfast.run import (
    DECLARATION,
    EVENT,
    FIRST_ROW,
    LaneWriter,
    Run,
    encode,
    rank_of,
)
from holdfast.types import Event, Finding, Severity

LAYERS = [
    "embed.weight", "encoder.gru.weight_ih_l0", "encoder.gru.weight_hh_l0",
    "encoder.gru.bias_ih_l0", "encoder.norm.weight", "encoder.norm.bias", "head.weight",
    "head.bias",
]  # fmt: skip

EXCERPT = [
    (84, "def loss_fn(p, target):"),
    (85, '    """Cross entropy by hand: expects <probabilities>."""'),
    (86, "    p = p.clamp(0, 1)"),
    (87, "    picked = p.gather(1, target[:, None])"),
    (88, "    loss = -torch.log(picked).mean()"),
    (89, "    return loss"),
    (90, ""),
    (91, ""),
    (92, "def evaluate(model, loader):"),
]


def stat(low: float, high: float, mean: float, **counts: int) -> TensorStats:
    return TensorStats(
        shape=(64, 1), dtype="float32", min=low, max=high, mean=mean, numel=64, **counts
    )


CAUSE: dict[str, Any] = Cause(
    how="replay",
    observed=413,
    phase="forward",
    op="log",
    file="src/project/model.py",
    line=88,
    function="loss_fn",
    code="loss = -torch.log(picked).mean()",
    start=88,
    excerpt=tuple(EXCERPT),
    module="encoder.gru",
    inputs=(stat(0.0, 0.9931, 0.1312, zeros=1),),
    output=stat(-6.2, -0.0069, -2.4, negative=64, inf=1),
    dtype="float32",
    sample=20817,
    row=5,
    samples_bad=1,
).to_dict()

REMEDY = {
    "headline": "log of 0",
    "diff": "@@ src/project/model.py:88 @@\n"
    "-    loss = -torch.log(picked).mean()\n"
    "+    loss = -torch.log(picked.clamp_min(1e-12)).mean()",
}


def finding(step: int = 412, *, rank: int = 0, cause: Any = CAUSE, **given: Any) -> Finding:
    """A finding as the judge leaves it: with its cause, or without where there is none."""
    evidence: dict[str, Any] = {"count": 1, "skipped": 1, "steps": [step], "opt": 0, "layer": ""}
    evidence |= {} if cause is None else {"cause": cause, **REMEDY}
    evidence |= given.pop("evidence", {})
    values: dict[str, Any] = {
        "code": "NUM001", "name": "nonfinite_loss", "severity": Severity.WARNING, "step": step,
        "last_step": step, "rank": rank, "action": "skip_update", "confidence": 0.95,
        "message": f"step {step} skipped: loss is inf (last finite loss 0.61 at step {step - 1})",
        "advice": "keep the argument of log above zero: clamp it, or use F.cross_entropy on logits",
        "file": (cause or {}).get("file", ""),
    }  # fmt: skip
    line = (cause or {}).get("line", 0)
    values["line"] = line if isinstance(line, int) else 0
    return Finding(**(values | given), evidence=evidence)


def layer_rows(
    steps: Sequence[int], names: Sequence[str], bad: Mapping[int, Sequence[int]], seed: int = 1
) -> Any:
    """Norms of every layer; ``bad`` says which of them are NaN on which step."""
    noise = np.random.default_rng(seed)
    form = [("step", "<i8"), ("time", "<f8"), *((name, "<f4") for name in names)]
    rows = np.zeros(len(steps), dtype=form)
    rows["step"] = steps
    rows["time"] = 1.7e9 + np.asarray(steps) * 0.01
    for i, name in enumerate(names):
        rows[name] = 10 ** (i % 8 / 3 - 1) * np.exp(0.3 * noise.standard_normal(len(steps)))
        for step, which in bad.items():
            if i in which:
                rows[name][rows["step"] == step] = np.nan if i % 2 == 0 else np.inf
    return rows


def write_lane(
    run: Run, rows: Any, *, lane: str = "r0", tables: Mapping[str, Any] | None = None,
    events: Sequence[Event] = (), findings: Sequence[Finding] = (), world: int = 1,
    end: bool = True,
) -> None:  # fmt: skip
    """Write a lane: steps, further tables, events and findings just as given."""
    rank = rank_of(lane)
    start = {"pid": 1, "rank": rank, "world": world, "torch": "2.13.0", "python": "3.11.7",
             "device": "NVIDIA H200", "script": "train.py"}  # fmt: skip
    optimizer = {"opt": 0, "cls": "AdamW", "how": "fused", "why": "it can", "layers": LAYERS}
    reported = [_event("start", rank, start), _event("optimizer", rank, optimizer), *events]
    if end:
        counts = {"steps": len(rows), "skipped": int((rows["skipped"] > 0).sum())}
        reported.append(_event("end", rank, counts))
    records = [(EVENT, encode(event.to_dict())) for event in reported]
    for number, (name, table) in enumerate({"steps": rows, **(tables or {})}.items(), FIRST_ROW):
        form = [[column, table.dtype[column].str] for column in table.dtype.names]
        records.append((DECLARATION, encode({"id": number, "table": name, "dtype": form})))
        records += [(number, row.tobytes()) for row in table]
    writer = LaneWriter(run, lane)
    writer.take(records)
    writer.write_findings(findings)
    writer.close()


def _event(kind: str, rank: int, data: Mapping[str, Any], step: int = 0) -> Event:
    return Event(time=1.7e9, rank=rank, step=step, kind=kind, data=data)


@pytest.fixture(scope="session")
def incident_finding() -> Callable[..., Finding]:
    """``incident_finding(cause=None, code="NUM002", ...)``."""
    return finding


@pytest.fixture(scope="session")
def add_lane() -> Callable[..., None]:
    """``add_lane(run, rows, lane="r1", tables={...}, findings=[...])``."""
    return write_lane


@pytest.fixture(scope="session")
def make_layers() -> Callable[..., Any]:
    """``make_layers(steps, names, {412: [2, 3]})``: norms of layers with bad ones."""
    return layer_rows


@pytest.fixture
def incident(tmp_path: Any, make_rows: Any) -> Callable[..., Run]:
    """A run of two ranks: log(0) on rank 1 at step 412, seen as NaN gradients on rank 0.

    ``incident(ranks=1, cause={...}, name="other", exit_code=-9)`` makes others.
    """

    def make(
        *, name: str = "incident", ranks: int = 2, cause: Any = CAUSE, exit_code: int | None = 0,
        meta: Mapping[str, Any] | None = None, **changes: Any,
    ) -> Run:  # fmt: skip
        command = ["train.py", "--epochs", "3", "--hf-token", "***"]
        facts = {"script": "train.py", "command": command, "holdfast": "0.1.0", "python": "3.11.7"}
        run = Run.create(tmp_path / name, facts | dict(meta or {}))
        build(run, make_rows, ranks=ranks, cause=cause, **changes)
        if exit_code is not None:
            run.update_meta(status="finished", exit_code=exit_code)
        return run

    return make


def build(run: Run, make_rows: Any, *, ranks: int = 2, cause: Any = CAUSE, **changes: Any) -> None:
    """Fill a run: the last rank is the one at fault."""
    near = [*range(0, 400, 50), *range(404, 421), *range(450, 600, 50)]
    for rank in range(ranks):
        guilty = rank == ranks - 1
        loss = (
            2.4 * np.exp(-np.arange(600) / 180)
            + 0.15
            + 0.05 * np.random.default_rng(rank).random(600)
        )
        rows = make_rows(600, seed=rank, loss=loss, skipped={412: 1}, grad_bad={412: 8},
                         grad_layer={412: 7}, grad_norm={412: np.nan})  # fmt: skip
        rows["mem_allocated"] = 6e9 + 2e6 * np.arange(600)
        rows["mem_reserved"] = 9e9
        if guilty:
            rows["loss"][412], rows["loss_bad"][412] = np.inf, 1
        updates = layer_rows(range(0, 600, 50), LAYERS, {}, seed=3)
        for column in LAYERS:
            updates[column] *= 1e-3
        updates["embed.weight"] = 0
        tables = {
            "layers0": layer_rows(near, LAYERS, {412: range(8)}),
            "updates0": updates,
        }
        seen = finding(rank=rank, cause=cause, **changes) if guilty else finding(
            rank=rank, cause=None, code="NUM002", name="nonfinite_gradient",
            message="step 412 skipped: gradient of head.bias is NaN in 8 of 8 tensors",
            evidence={"layer": "head.bias"},
        )  # fmt: skip
        events = [_event("cause", rank, cause, 412)] if guilty and cause else []
        write_lane(run, rows, lane=f"r{rank}", tables=tables, events=events, findings=[seen],
                   world=ranks)  # fmt: skip


@pytest.fixture
def incident_cause() -> dict[str, Any]:
    """The data of the ``cause`` event, to be changed."""
    return dict(CAUSE)
