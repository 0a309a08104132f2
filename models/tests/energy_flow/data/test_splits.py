"""Splits: disjoint in what they promise to hold out, and the same for ever."""

from __future__ import annotations

import pytest
import torch

from holdfast import HoldfastError
from holdfast_models.energy_flow.data import grammar
from holdfast_models.energy_flow.data.splits import (
    HELD_TOGETHER,
    PARTS,
    SplitKind,
    part_of,
    possible_splits,
    split_pairs,
    split_rows,
)
from holdfast_models.energy_flow.data.tables import Embedded
from holdfast_models.energy_flow.data.text_pairs import TextPair

PAIRS = grammar.pairs(6000, 0)


@pytest.mark.parametrize("kind", ["compositional", "hard"])
def test_what_is_held_out_is_never_trained_on(kind: SplitKind) -> None:
    parts = split_pairs(PAIRS, kind)
    held = [
        {tuple(PAIRS[n].meta[name] for name in HELD_TOGETHER[kind]) for n in parts[part]}
        for part in PARTS
    ]
    assert all(held)
    assert not (held[0] & held[1] or held[0] & held[2] or held[1] & held[2])
    assert sorted(n for part in PARTS for n in parts[part]) == list(range(len(PAIRS)))


@pytest.mark.parametrize("kind", ["compositional", "hard", "pair"])
def test_four_fifths_are_trained_on_and_contain_every_word(kind: SplitKind) -> None:
    parts = split_pairs(PAIRS, kind)
    assert abs(len(parts["train"]) / len(PAIRS) - 0.8) < 0.03
    assert abs(len(parts["test"]) / len(PAIRS) - 0.1) < 0.03
    for name, size in (("subject", 20), ("activity", 24), ("place", 16)):
        assert len({PAIRS[n].meta[name] for n in parts["train"]}) == size


def test_the_part_of_a_pair_depends_on_it_alone() -> None:
    backwards = split_pairs(PAIRS[::-1], "hard")
    last = len(PAIRS) - 1
    assert (
        sorted(last - n for n in backwards["test"]) == split_pairs(PAIRS, "hard")["test"].tolist()
    )
    # Written down once: a model must never meet what it was tested on in another version.
    assert [part_of(bytes([n])) for n in range(14)].count("train") == 11
    assert split_pairs(PAIRS, "hard")["test"][:3].tolist() == [5, 15, 29]


def test_both_tasks_hold_out_the_same_scenes() -> None:
    other = grammar.pairs(6000, 0, "conditional")
    assert split_pairs(other, "hard") == split_pairs(PAIRS, "hard")


def test_equal_pairs_fall_into_the_same_part() -> None:
    twice = [TextPair(f"text {n % 50}", "same") for n in range(100)]
    parts = split_pairs(twice, "pair")
    for part in PARTS:
        assert {n % 50 for n in parts[part] if n < 50} == {n % 50 for n in parts[part] if n >= 50}


def test_pairs_that_are_not_of_the_grammar_can_only_be_split_by_pair() -> None:
    plain = [TextPair("a", "b")]
    assert possible_splits(plain) == ["pair"]
    assert possible_splits(PAIRS) == ["compositional", "hard", "pair"]
    assert possible_splits([*PAIRS, *plain]) == ["pair"]
    with pytest.raises(HoldfastError, match=r"pair 0 \('a'\) has no 'subject'.*split=pair"):
        split_pairs(plain, "hard")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_embeddings_without_texts_are_split_by_both_rows(dtype: torch.dtype) -> None:
    x_NE, y_NE = torch.randn(400, 3).to(dtype), torch.randn(400, 3).to(dtype)
    parts = split_rows([Embedded(x_NE, y_NE)])
    assert abs(len(parts["train"]) / 400 - 0.8) < 0.1
    order = torch.arange(399, -1, -1)
    swapped = split_rows([Embedded(x_NE[order], y_NE[order])])
    assert sorted(399 - n for n in swapped["test"]) == parts["test"].tolist()
    assert split_rows([Embedded(x_NE, x_NE)]) != parts
