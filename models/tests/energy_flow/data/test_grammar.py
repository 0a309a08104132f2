"""The grammar: as many sentences as it promises, drawn the same way every time."""

from __future__ import annotations

import pytest

from holdfast import HoldfastError
from holdfast_models.energy_flow.data import grammar


def test_the_tables_have_the_sizes_of_the_specification() -> None:
    tables = grammar.SUBJECTS, grammar.DETAILS, grammar.ACTIVITIES, grammar.PLACES
    assert [len(table) for table in tables] == [20, 8, 24, 16]
    assert grammar.PREMISES == 61_440
    assert sum(place.indoors for place in grammar.PLACES) == 8


def test_every_premise_is_different_and_targets_are_a_few_thousand() -> None:
    scenes = [grammar.scene(number) for number in range(grammar.PREMISES)]
    assert len({scene.premise for scene in scenes}) == grammar.PREMISES
    assert len({scene.target("rewrite") for scene in scenes}) == 10 * 20 * 13


def test_no_general_place_has_both_a_roof_and_the_sky() -> None:
    roofs = {place.general for place in grammar.PLACES if place.indoors}
    assert not roofs & {place.general for place in grammar.PLACES if not place.indoors}


def test_the_conditional_task_negates_outdoors_only() -> None:
    for pair in grammar.pairs(500, 3, "conditional"):
        scene = grammar.Scene(*(pair.meta[name] for name in grammar.Scene._fields))
        outdoors = not grammar.PLACES[scene.place].indoors
        assert (" does not " in pair.target) == outdoors
        assert (pair.target == scene.target("rewrite")) != outdoors


def test_pairs_differ_by_seed_and_a_larger_draw_begins_with_the_smaller() -> None:
    drawn = grammar.pairs(300, 5)
    assert drawn == grammar.pairs(900, 5)[:300]
    assert drawn != grammar.pairs(300, 6)
    assert len({pair.input for pair in drawn}) == 300
    # Written down once: the draw must not change with versions of anything.
    assert [pair.meta["place"] for pair in grammar.pairs(6, 0)] == [8, 8, 2, 11, 7, 1]


def test_a_count_it_cannot_make_is_refused_with_the_count_it_can() -> None:
    with pytest.raises(HoldfastError, match=r"61441 pairs asked for; it makes from 1 to 61440"):
        grammar.pairs(61_441, 0)
    with pytest.raises(HoldfastError, match="no premise -1"):
        grammar.scene(-1)
