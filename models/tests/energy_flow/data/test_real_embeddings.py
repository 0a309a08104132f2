"""Embeddings of a real sentence encoder, shipped for tests, and the SNLI-shaped file they are of.

Both are written by ``benchmarks/energy_flow_real_embeddings.py``.
"""

from __future__ import annotations

import importlib.util
import json
from collections import Counter
from pathlib import Path

import pytest
import torch

from holdfast.training import resolve, run_recipe
from holdfast_models.energy_flow.data.minilm import PACKAGE, MiniLM
from holdfast_models.energy_flow.data.pairs import DataSettings, load_pairs
from holdfast_models.energy_flow.data.precomputed import read_precomputed
from holdfast_models.energy_flow.data.text_pairs import read_snli
from holdfast_models.energy_flow.evaluation.evaluate import evaluate
from holdfast_models.energy_flow.evaluation.loading import load_run
from holdfast_models.energy_flow.recipe import RECIPE

FILES = Path(__file__).parent / "files"
SNLI, EMBEDDED = FILES / "snli_shaped.jsonl", FILES / "snli_shaped_minilm.safetensors"


def test_only_entailments_of_the_file_are_read_each_with_its_embeddings() -> None:
    rows = [json.loads(line) for line in SNLI.read_text().splitlines()]
    labels = Counter(row["gold_label"] for row in rows)
    read = read_snli(SNLI)
    assert labels["entailment"] == len(read) == 500 and labels.total() == 600
    table = read_precomputed(EMBEDDED)
    x_NE, y_NE = table.x_NE, table.y_NE
    assert x_NE.dtype == torch.float16 and x_NE.shape == y_NE.shape == (500, 384)
    # Equal targets have equal rows, others do not: the rows are in the order of the pairs.
    distinct = torch.unique(y_NE, dim=0)
    assert len(distinct) == len({pair.target for pair in read})
    assert torch.unique(x_NE, dim=0).shape[0] == 500


def test_a_real_encoder_puts_a_premise_nearest_to_what_follows_from_it() -> None:
    """No word but the article is common to "riding a bicycle" and "moves on wheels"."""
    table = read_precomputed(EMBEDDED)
    x_NE, y_NE = table.x_NE.float(), table.y_NE.float()
    own = (x_NE * y_NE).sum(1).mean()
    other = (x_NE * y_NE.roll(1, 0)).sum(1).mean()
    assert own > other + 0.2


def test_snli_is_a_source_to_train_on() -> None:
    sets = load_pairs(DataSettings(source="snli", path=str(SNLI), split="pair", width=32))
    assert sum(map(len, sets[:3])) == 500 and min(map(len, sets[:3])) > 30
    texts = {sets.train.text(index).target for index in range(len(sets.train))}
    assert not any("does not" in text for text in texts)


def test_a_lattice_learns_from_the_shipped_embeddings(tmp_path: Path) -> None:
    given = (
        "data.source=precomputed", f"data.path={EMBEDDED}", "data.split=pair", "bridge.on=false",
        "model.lattice.width=6", "model.lattice.height=6", "model.lattice.depth=2",
        "model.carrier.hidden=8", "model.carrier.layers=1", "model.flows.spawn_most=0",
        "train.epochs=null", "train.steps=40", "train.data.batch=16", "train.optimizer.lr=3e-3",
        "train.data.workers=0", "train.device=cpu", "pictures=false",
    )  # fmt: skip
    settings = resolve(RECIPE, overrides=given, platform="none")
    assert run_recipe(RECIPE, settings, run_dir=tmp_path / "run", quiet=True) == 0
    found = evaluate(load_run(tmp_path / "run", device="cpu"))
    assert found.model.cosine > found.references["training mean"].cosine + 0.05
    assert found.references["ridge regression"].fvu < 0.25


@pytest.mark.skipif(importlib.util.find_spec(PACKAGE) is None, reason=f"{PACKAGE} not installed")
def test_the_shipped_embeddings_are_those_of_the_encoder() -> None:
    read = read_snli(SNLI)[:16]
    table = read_precomputed(EMBEDDED)
    x_NE, y_NE = table.x_NE, table.y_NE
    teacher = MiniLM()
    for texts, rows_NE in (
        ([pair.input for pair in read], x_NE),
        ([pair.target for pair in read], y_NE),
    ):
        torch.testing.assert_close(teacher.encode(texts), rows_NE[:16].float(), atol=1e-3, rtol=0)
