"""Rows of a validation: exact over batches and ranks, and one error on all ranks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from holdfast.config import from_dict
from holdfast.errors import UsageError
from holdfast.run import LaneReader, Run
from holdfast.training.device import Place
from holdfast.training.loop import sample_rows
from holdfast.training.loop.progress import Progress
from holdfast.training.loop.validation import validate
from holdfast.training.settings import TrainSettings
from holdfast.training.trainer import Trainer

ALONE = Place(torch.device("cpu"))
VALUES = torch.randn(101, generator=torch.Generator().manual_seed(0)).square()


def measure(model: nn.Module, batch: Tensor) -> Mapping[str, Tensor | float]:
    assert not torch.is_grad_enabled()
    return {"loss": batch.mean(), "x": batch, "pair": torch.stack((batch, -batch), 1)}


def summarize(rows: Mapping[str, Tensor]) -> Mapping[str, float]:
    assert all(not tensor.is_cuda for tensor in rows.values())
    ratio = rows["pair"][:, 0].double().sum() / rows["x"].double().square().sum()
    return {"p68": float(rows["x"].quantile(0.68)), "ratio": float(ratio), "rows": len(rows["x"])}


def run(batches: Any, how: Any = measure, **given: Any) -> dict[str, float]:
    prepare = lambda batch: (batch, len(batch))  # noqa: E731
    return validate(nn.Linear(1, 1), how, batches, ALONE, prepare=prepare, **given)


@pytest.mark.parametrize("size", [1, 7, 101])
def test_a_percentile_does_not_depend_on_how_samples_were_cut(size: int) -> None:
    found = run(VALUES.split(size), summarize=summarize)
    assert found["p68"] == float(VALUES.quantile(0.68)) and found["rows"] == 101
    doubled = VALUES.double()
    assert found["ratio"] == pytest.approx(float(doubled.sum() / doubled.square().sum()))
    assert found["loss"] == pytest.approx(float(VALUES.mean()), rel=1e-5)


def test_rows_are_copies_that_keep_neither_batch_nor_buffer() -> None:
    buffer = torch.zeros(4)
    batches = (buffer.copy_(part) for part in VALUES[:100].split(4))  # one buffer for all batches
    found = run(batches, summarize=lambda rows: {"sum": float(rows["x"].double().sum())})
    assert found["sum"] == pytest.approx(float(VALUES[:100].double().sum()))


def test_no_rows_give_no_summary() -> None:
    assert run([], summarize=summarize) == {}
    numbers = {"loss": 1.0}
    assert run([VALUES], lambda m, b: numbers, summarize=summarize) == {"loss": 1.0}


@pytest.mark.parametrize(
    ("how", "text"),
    [
        (lambda m, b: {"x": b[:3]}, "gave 3 rows of x for a batch of 50 samples"),
        (lambda m, b: {"x": b.expand(int(b[0] * 1e6) % 5 + 1, -1).mT}, "one shape"),
        (lambda m, b: {"x": b if len(b) == 50 else b.mean()}, "as a number of some batches"),
    ],
)
def test_rows_that_are_none_are_refused(how: Any, text: str) -> None:
    with pytest.raises(UsageError, match=text):
        run(VALUES.split(50), how, summarize=summarize)


def test_rows_without_a_summary_are_refused_in_one_line() -> None:
    with pytest.raises(UsageError, match=r"measure gave x of the shape \(101,\).*summarize"):
        run([VALUES])
    # A loss that was not reshaped is still a number.
    assert run([VALUES], lambda m, b: {"loss": b[:1]})["loss"] == pytest.approx(float(VALUES[0]))


def test_a_summary_stops_a_run_and_is_recorded(tmp_path: Path) -> None:
    x = torch.randn(24, 4, generator=torch.Generator().manual_seed(0))
    lines: list[Mapping[str, float]] = []

    class Seen(Progress):
        def validated(self, step: int, values: Mapping[str, float], best: bool) -> None:
            lines.append(values)

    given = {"device": "cpu", "epochs": 2, "data": {"batch": 8, "workers": 0}}
    given["stop"] = {"metric": "p90", "mode": "max"}
    result = Trainer(
        nn.Linear(4, 1),
        lambda model, batch: model(batch[0]).square().mean(),
        TensorDataset(x),
        TensorDataset(x[:10]),
        from_dict(given, kind=TrainSettings),
        measure=lambda model, batch: {"size": model(batch[0])[:, 0].abs()},
        summarize=lambda rows: {"p90": rows["size"].quantile(0.9), "rows": len(rows["size"])},
        run_dir=tmp_path / "run",
        progress=Seen(),
    ).fit()
    assert [line["rows"] for line in lines] == [10, 10]
    assert result.best == max(line["p90"] for line in lines) == lines[0]["p90"]
    assert result.run is not None
    events = LaneReader(Run.open(result.run), "r0").events()
    noted = [event.data["p90"] for event in events if event.kind == "validation"]
    assert noted == [line["p90"] for line in lines]


RANKS = """
import json, sys
import torch
from torch import nn
from holdfast.errors import UsageError
from holdfast.training import distributed
from holdfast.training.loop.validation import validate

values = torch.randn(101, generator=torch.Generator().manual_seed(0)).square()
told = {}

def run(name, batches, measure, summarize):
    prepare = lambda batch: (batch, len(batch))
    try:
        told[name] = validate(nn.Linear(1, 1), measure, batches, place, prepare=prepare,
                              summarize=summarize)
    except UsageError as error:
        told[name] = str(error)

def rows(model, batch):
    return {"x": batch, "bright": batch > 1, "half": batch.bfloat16()[:, None]}

def numbers(rows):
    assert rows["bright"].dtype is torch.bool and rows["half"].dtype is torch.bfloat16
    assert {len(tensor) for tensor in rows.values()} == {101}
    both = rows["x"][rows["bright"]].double().sum() / rows["x"].double().sum()
    return {"p68": rows["x"].quantile(0.68), "ratio": both, "wide": rows["half"].shape[1]}

with distributed.joined("cpu") as place:
    first = place.rank == 0
    run("uneven", (values[:17] if first else values[17:]).split(8), rows, numbers)
    run("none", values.split(40) if first else [], rows, numbers)
    run("keys", [values[:4]], lambda m, b: {"b" if first else "a": b},
        lambda rows: {name: float(len(one)) for name, one in rows.items()})
    run("count", [values[:4]], lambda m, b: {"a": b if first else b[:1]}, dict)
    run("shape", [values[:4]], lambda m, b: {"a": b if first else b[:, None]}, dict)
    run("kind", [values[:4]], lambda m, b: {"a": b if first else b.mean()}, dict)
    with open(f"{sys.argv[1]}.{place.rank}", "w") as file:
        json.dump(told, file)
"""


@pytest.mark.slow
@pytest.mark.ranks(2)
def test_ranks_with_other_rows_agree_on_all_of_them(tmp_path: Path) -> None:
    script = tmp_path / "ranks.py"
    script.write_text(RANKS)
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    done = subprocess.run(
        [sys.executable, *launcher, str(script), str(tmp_path / "told")],
        env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True, timeout=100,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    first, second = (json.loads((tmp_path / f"told.{rank}").read_text()) for rank in (0, 1))
    assert first == second
    whole = VALUES.double()
    for name in ("uneven", "none"):
        assert first[name]["p68"] == float(VALUES.quantile(0.68)) and first[name]["wide"] == 1
        expected = float(whole[VALUES > 1].sum() / whole.sum())
        assert first[name]["ratio"] == pytest.approx(expected, rel=1e-12)
    assert first["keys"] == {"a": 4.0, "b": 4.0}
    assert "gave 1 rows of a for a batch of 4" in first["count"]
    assert "of the shapes () and (1,)" in first["shape"]
    assert "as a number of some batches" in first["kind"]


@pytest.mark.gpu
def test_rows_of_a_gpu_move_to_the_host_without_a_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sample_rows, "_PIECE", 64)
    rows, values = sample_rows.SampleRows(), VALUES.cuda()
    torch.cuda.set_sync_debug_mode("error")
    try:
        for part in values.split(10):
            rows.add("x", part * 2, len(part))
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert torch.equal(rows.gathered(ALONE)["x"], VALUES * 2)
