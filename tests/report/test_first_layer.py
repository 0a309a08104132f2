from __future__ import annotations

import numpy as np
import pytest

from holdfast.report import read_record
from holdfast.report.actions_taken import span
from holdfast.report.cause import cause_of
from holdfast.report.first_layer import stories
from holdfast.report.joined_findings import join_ranks
from holdfast.report.updates import updates_of
from holdfast.run import Run

NAN = np.nan


@pytest.fixture
def reported(tmp_path, add_lane, make_layers, make_rows, incident_finding):
    def tell(bad, *, layer="", change=None, names=("a", "b", "c"), **columns):
        layers = make_layers(range(404, 421), names, bad)
        if change is not None:
            change(layers)
        troubled = {step: len(which) for step, which in bad.items()}
        rows = make_rows(600, grad_bad=troubled, **columns)
        run = Run.create(tmp_path / "run", {})
        found = incident_finding(cause=None, code="NUM002", evidence={"layer": layer})
        add_lane(run, rows, tables={"layers0": layers}, findings=[found])
        run.update_meta(status="finished")
        (story,) = stories(read_record(run))
        return " ".join(story.sentences).replace("\N{NO-BREAK SPACE}", " "), story

    return tell


def test_the_only_bad_layer(reported):
    words, story = reported({412: [1]}, layer="b")
    assert "On step 412 b was first: the gradients of 1 of 3 layers were non-finite." in words
    assert "On step 411, the one before, every gradient was finite" in words
    assert "It came suddenly" in words
    assert "Everything was finite again in the 8 steps after it" in words
    assert (story.first, story.steps[0], story.steps[-1]) == ("b", 404, 420)


def test_the_layer_comes_from_the_row_when_the_finding_has_none(reported):
    words, story = reported({412: [0, 2]}, grad_layer={412: 2})
    assert story.first == "c" and "it is the one nearest to the loss" in words


def test_trouble_before_and_after(reported):
    words, _ = reported({410: [0], 412: [1], 413: [1]}, layer="b")
    assert "non-finite gradients before it, on step 410" in words
    assert "Of the 8 steps recorded after it, 1 had" in words


def test_a_bad_loss_blames_no_layer(reported):
    words, story = reported({412: [0, 1, 2]}, loss_bad={412: 1})
    assert story.first == "" and "the loss itself was non-finite" in words


def test_what_built_up_is_reported(reported):
    def grow(layers):
        layers["c"][layers["step"] == 411] = 4e5

    words, _ = reported({412: [1]}, layer="b", change=grow)
    assert "It built up: in the 8 steps before, the gradient of c grew from" in words
    assert "to 400 000." in words


def test_a_story_needs_its_step(incident):
    assert stories(read_record(incident(ranks=1, step=430))) == []
    assert stories(read_record(incident(ranks=1, step=450, name="lone"))) == []


def test_updates(incident):
    (updates,) = updates_of(read_record(incident(ranks=1)).lanes[0])
    assert updates.still == ("embed.weight",)
    assert updates.shown[0].layer == "head.bias"
    assert all(u.low <= u.median <= u.high for u in updates.shown)


def test_a_first_step_away_from_zero_is_no_update_size(make_rows, make_layers, add_lane, tmp_path):
    table = make_layers(range(4), ["a.bias", "b"], {})
    table["a.bias"] = [1.6e28, NAN, 0.01, 0.02]
    table["b"] = [np.inf, NAN, NAN, NAN]
    run = Run.create(tmp_path / "run", {})
    add_lane(run, make_rows(9), tables={"updates0": table})
    (updates,) = updates_of(read_record(run).lanes[0])
    assert [(u.layer, u.step) for u in updates.shown] == [("a.bias", 3)]
    assert updates.shown[0].high < 0.1 and updates.still == ()


def test_deeds_of_ranks_are_reported_once(incident):
    actions_taken = [action.what for action in read_record(incident(ranks=3)).summary.actions_taken]
    assert actions_taken == [
        "Skipped steps with non-finite values (ranks 0-2)",
        "Reran a bad batch to find the line (rank 2)",
    ]


def test_deeds_from_events(make_run, make_event):
    events = [
        make_event("switched_to_fused", 0, 0, cls="Adam"),
        make_event("switched_to_capturable", 0, 0, cls="NAdam", why="counters"),
        make_event("backed_off", 0, 127, why="the guard took 13 %"),
        make_event("backed_off", 0, 191, part="look-outs", why="the guard took 11 %"),
        make_event("backed_off", 0, 255, part="floor", why="the guard took 10 %"),
    ]
    actions_taken = read_record(make_run(events=events)).summary.actions_taken
    assert [action.what for action in actions_taken] == [
        "Switched Adam to its fused kernel",
        "Moved the step counters of NAdam to the device",
        "Reduced optional measurements",
        "Looked for leaks and lost time less often",
    ]
    assert [action.when for action in actions_taken[-2:]] == ["step 127", "step 191"]


def test_spans():
    assert span([5]) == "step 5"
    assert span([1, 2, 9]) == "steps 1, 2 and 9"
    assert span(list(range(9))) == "9 steps between 0 and 8"
    assert span([3, 9], 40) == "40 steps between 3 and 9"
    assert span([], 7) == "7 steps"


def test_the_rank_that_knows_the_cause_speaks_for_all(incident_finding):
    same = [("r0", incident_finding(cause=None)), ("r1", incident_finding(rank=1))]
    (group,) = join_ranks(same)
    assert group.ranks == (0, 1) and "cause" in group.finding.evidence


def test_causes(incident_finding, incident_cause):
    cause = cause_of(incident_finding())
    assert cause is not None
    assert (cause.where, cause.near) == ("src/project/model.py:88", "model.py:88")
    assert list(cause.guilty) == [88]
    assert cause.stats[0].cells[:4] == ("input", "float32 64×1", "0", "0.9931")
    assert cause_of(incident_finding(cause=None)) is None
    inside = cause_of(incident_finding(cause=incident_cause | {"library": "timm/layers.py:7"}))
    assert inside is not None and inside.place.endswith("encoder.gru, inside timm/layers.py:7")
    weight = incident_cause | {"phase": "parameter", "op": "", "layer": "head.bias", "file": "",
                               "line": 0, "function": "", "module": "", "inputs": []}  # fmt: skip
    reported = cause_of(incident_finding(cause=weight))
    assert reported is not None
    assert reported.place == "in a weight, before the step began, parameter head.bias"
    backward = cause_of(
        incident_finding(cause=incident_cause | {"phase": "backward", "op": "SqrtBackward0"})
    )
    assert backward is not None and backward.stats[0].name == "incoming gradient"
    assert backward.place.startswith("SqrtBackward0 of autograd in the backward pass")
