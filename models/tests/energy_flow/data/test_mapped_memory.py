"""Data larger than memory: what is trained on stays on disk, and so do its texts."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
import tracemalloc
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch.nn import functional

from holdfast.training import Place, TensorWriter, resolve, write_tensors
from holdfast_models.energy_flow.assembly import make_vocabulary
from holdfast_models.energy_flow.data.dataset_tool import dedup, info, make, validate
from holdfast_models.energy_flow.data.pairs import DataSettings, Pairs, load_pairs
from holdfast_models.energy_flow.data.precomputed import read_precomputed
from holdfast_models.energy_flow.data.tables import Embedded, Tables
from holdfast_models.energy_flow.data.targets import (
    mean_target,
    spread_of_targets,
    unit_targets,
)
from holdfast_models.energy_flow.data.teachers import HashTeacher
from holdfast_models.energy_flow.data.text_pairs import TextFile, TextPair, write_pairs
from holdfast_models.energy_flow.recipe import RECIPE, build

WIDTH = 1024
SIZE = 300e6  # bytes of the large set
# Bytes more at any time than after a run on a small set: 55e6 were measured, of which a second run
# on a small set takes 29e6, too.
ALLOWED = 80e6

# Trains on a small set, so that all that a run needs but its data is there, then on a large one.
# Anonymous memory: the pages of a map belong to the cache of the system, which takes them back.
TRAIN = """
import json, sys, threading, time, torch
from holdfast.training import Place, Trainer, resolve
from holdfast.training.loop.progress import Progress
from holdfast_models.energy_flow.recipe import RECIPE, build

def used():
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith("RssAnon"))

def watch():
    global most
    while True:
        most = max(most, used())
        time.sleep(0.005)

def train(name):
    settings = resolve(RECIPE, None, None, [*options, f"data.path={folder}/{name}"], "none")
    task = build(settings, Place(torch.device("cpu"), rank=1))
    Trainer.of(task, settings.train, run_dir=f"{folder}/{name}_run", progress=Progress()).fit()

folder, *options = sys.argv[1:]
most = 0
threading.Thread(target=watch, daemon=True).start()
train("small")
most = before = used()
train("large")
print(json.dumps(most - before))
"""
OPTIONS = [
    "model.lattice.width=4", "model.lattice.height=4", "model.lattice.depth=4",
    "model.carrier.hidden=8", "model.flows.spawn_most=0", "model.mapper.form=linear",
    f"model.width={WIDTH}", f"data.width={WIDTH}", "data.source=precomputed", "data.split=pair",
    "train.device=cpu", "train.epochs=null", "train.steps=8", "train.data.batch=16",
    "train.data.workers=0", "train.validation.batches=4", "pictures=false",
]  # fmt: skip


@pytest.mark.slow
def test_training_on_a_mapped_set_takes_a_fraction_of_its_size(tmp_path: Path) -> None:
    block_NE = torch.randn(1024, WIDTH, generator=torch.Generator().manual_seed(1))
    for name, size in (("small", 20e6), ("large", SIZE)):
        with TensorWriter(tmp_path / name) as writer:
            for number in range(int(size / (2 * block_NE.nbytes))):
                block_NE[:, 0] = number  # no two pairs alike
                writer.append({"x": block_NE, "y": block_NE.flip(1)})
    done = subprocess.run(
        [sys.executable, "-c", TRAIN, str(tmp_path), *OPTIONS],
        capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    grown = json.loads(done.stdout.splitlines()[-1])
    assert grown < ALLOWED, f"{grown / 1e6:.0f} MB for a set of {SIZE / 1e6:.0f} MB"


def save_npy(path: Path, x_NE: torch.Tensor) -> None:
    np.save(path, x_NE.numpy())


def save_both(path: Path, x_NE: torch.Tensor) -> None:
    save_file({"x": x_NE, "y": 2 * x_NE}, path)


@pytest.mark.parametrize(
    ("name", "write"),
    [
        ("set.npy", save_npy),
        ("set.safetensors", save_both),
        ("set.pt", lambda path, x_NE: torch.save(x_NE, path)),
        ("set", lambda path, x_NE: write_tensors(path, {"x": x_NE, "y": 2 * x_NE})),
    ],
)
def test_every_format_is_opened_again_by_a_process_it_is_sent_to(
    tmp_path: Path, name: str, write: Callable[[Path, torch.Tensor], None]
) -> None:
    x_NE = torch.randn(4000, 64, generator=torch.Generator().manual_seed(1))
    write(tmp_path / name, x_NE)
    train = Pairs(Tables([read_precomputed(tmp_path / name)], unit=True), range(3000))
    sent = pickle.dumps(train)
    # Numbers of rows, no rows.
    assert len(sent) < 3000 * 8 + 10_000 < x_NE.nbytes / 10
    assert torch.equal(pickle.loads(sent)[7][1], train[7][1])


@pytest.mark.parametrize("sent", [False, True])
def test_the_system_knows_when_rows_are_read_in_no_order(tmp_path: Path, sent: bool) -> None:
    write_tensors(tmp_path / "set", {"x": torch.randn(500, WIDTH), "y": torch.randn(500, WIDTH)})
    options = [*OPTIONS, f"data.path={tmp_path / 'set'}"]
    settings: Any = resolve(RECIPE, None, None, options, "none")
    sets = load_pairs(settings.data)
    assert "rr" not in advice(tmp_path / "set" / "y.bin")
    del sets
    train: Any = build(settings, Place(torch.device("cpu"), rank=1)).train
    if sent:
        train = pickle.loads(pickle.dumps(train))
    train.__getitems__([3, 1])
    assert "rr" in advice(tmp_path / "set" / "x.bin") & advice(tmp_path / "set" / "y.bin")


def advice(path: Path) -> set[str]:
    """What was advised for all maps of a file in this process."""
    found: list[set[str]] = []
    inside = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if "-" in line.split()[0]:
            inside = line.endswith(str(path))
        elif inside and line.startswith("VmFlags:"):
            found.append(set(line.split()[1:]))
    return set.intersection(*found)


def test_mean_spread_and_candidates_are_those_of_the_whole_part() -> None:
    x_NE = torch.randn(5000, 300, generator=torch.Generator().manual_seed(1))
    y_NE = x_NE[torch.arange(5000) % 4500]  # 500 targets are there twice
    pairs = Pairs(Tables([Embedded(x_NE, y_NE)]))
    mean_E = mean_target(pairs)
    assert torch.allclose(mean_E, y_NE.mean(0), atol=1e-6)
    spread = float((y_NE - mean_E).square().sum(1).mean())
    assert spread_of_targets(pairs, mean_E) == pytest.approx(spread, rel=1e-5)
    unit_NE = functional.normalize(x_NE, dim=1)
    assert torch.equal(unit_targets(pairs), unit_NE[:4500])
    # Of too many, every n-th: from all over the set, however long it is.
    assert torch.equal(unit_targets(pairs, most=1000), unit_NE[:4500:5])


def peak_of(call: Callable[[], object]) -> int:
    tracemalloc.start()
    try:
        call()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_texts_stay_in_their_file(tmp_path: Path) -> None:
    path = tmp_path / "set.jsonl"
    write_pairs(path, (TextPair(f"{n} " + "words " * 50, f"to {n // 2}") for n in range(4000)))
    texts = TextFile(path, "here")
    assert texts[3999] == TextPair("3999 " + "words " * 50, "to 1999", {"source": "here"})
    assert [pair.target for pair in texts] == [f"to {n // 2}" for n in range(4000)]
    size = path.stat().st_size
    assert peak_of(lambda: TextFile(path)) < size / 10
    sent = pickle.dumps(texts)
    assert len(sent) < size / 10 and pickle.loads(sent)[17] == texts[17]


def test_the_vocabulary_is_made_of_texts_one_by_one(tmp_path: Path) -> None:
    path = tmp_path / "set.jsonl"
    write_pairs(path, (TextPair("many words " * 20, f"to {n % 9}") for n in range(1500)))
    rows_NE = torch.ones(1500, 2)
    pairs = Pairs(Tables([Embedded(rows_NE, rows_NE)]), texts=TextFile(path))
    make_vocabulary(pairs)
    assert peak_of(lambda: make_vocabulary(pairs)) < path.stat().st_size / 10


def test_a_file_of_nothing_but_problems_is_reported_in_few_words(tmp_path: Path) -> None:
    path = tmp_path / "set.jsonl"
    path.write_text("[]\n" * 20_000)
    assert peak_of(lambda: validate(path)) < 200_000
    assert "and 19990 lines more" in validate(path).lines[10]


@pytest.mark.slow
@pytest.mark.parametrize("tool", [info, dedup])
def test_tools_keep_digests_of_a_set_and_not_its_texts(
    tmp_path: Path, tool: Callable[[Path], object]
) -> None:
    path = tmp_path / "set.jsonl"
    write_pairs(path, (TextPair(f"{n} " + "words " * 100, f"to {n}") for n in range(5000)))
    tool(path)
    assert peak_of(lambda: tool(path)) < path.stat().st_size / 3


def test_a_set_is_embedded_in_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    together: list[int] = []

    def encode(self: HashTeacher, texts: Sequence[str]) -> torch.Tensor:
        together.append(len(texts))
        return real(self, texts)

    real = HashTeacher.encode
    monkeypatch.setattr(HashTeacher, "encode", encode)
    path = tmp_path / "set.jsonl"
    write_pairs(path, (TextPair(f"number {n}", f"to {n}") for n in range(3000)))
    settings = DataSettings(source="pairs", path=str(path), split="pair", width=64)
    make(tmp_path / "sets", settings, embedded=True)
    assert max(together) <= 2048 and sum(together) == 6000
    (folder,) = (tmp_path / "sets").iterdir()
    ready = load_pairs(DataSettings(source="precomputed", path=str(folder), split="pair", width=64))
    for ours, theirs in zip(ready[:3], load_pairs(settings)[:3], strict=True):
        assert torch.equal(ours.tensors()[0], theirs.tensors()[0])
        assert torch.equal(ours.tensors()[1], theirs.tensors()[1])
