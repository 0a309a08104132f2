from __future__ import annotations

import math
from dataclasses import replace

import pytest

from holdfast.report import words
from holdfast.report.cause import cause_of, title_of
from holdfast.types import Finding, Severity


def shown(text):
    return text.replace(words.NBSP, " ")


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (2e-5, "20 µs"), (0.0123, "12.3 ms"), (3.14159, "3.14 s"), (192, "3 min 12 s"),
        (7500, "2 h 05 min"), (59.99, "60 s"), (math.nan, "unknown"), (0, "0 µs"),
    ],
)  # fmt: skip
def test_durations(seconds, text):
    assert shown(words.duration(seconds)) == text


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (3 * 2**40, "3 TiB")]
)
def test_sizes(count, text):
    assert shown(words.size(count)) == text


def test_counts():
    assert words.plural(1, "step") == "1 step"
    assert words.plural(0, "step") == "no steps"
    assert shown(words.plural(1234567, "step")) == "1,234,567 steps"
    assert words.plural(2, "process", "es") == "2 processes"


@pytest.mark.parametrize(("share", "text"), [(0.006, "0.6 %"), (0.0999, "10 %"), (0.5, "50 %")])
def test_shares(share, text):
    assert shown(words.percent(share)) == text


@pytest.mark.parametrize(
    ("numbers", "text"), [([3], "rank 3"), ([0, 1, 2, 5], "ranks 0-2, 5"), ([4, 4], "rank 4")]
)
def test_ranks(numbers, text):
    assert words.ranks(numbers) == text


def test_a_loss_never_seen_is_not_told():
    assert words.loss_change(math.nan, 1.0) == ""
    assert words.loss_change(2.0, 1.0) == "loss 2 → 1"


def test_a_name_of_the_script_keeps_its_case():
    code = "history.append((net(x) ** 2).mean())"
    found = Finding(
        code="MEM002", name="graph_leak", severity=Severity.WARNING, step=1, message="", advice="",
        evidence={"headline": "history keeps the graphs alive", "source": {"code": code}},
    )  # fmt: skip
    assert title_of(found, cause_of(found)) == "history keeps the graphs alive"
    other = replace(found, evidence={"headline": "net of equal values", "source": {"code": code}})
    assert title_of(other, cause_of(other)) == "Net of equal values"  # it is called here
