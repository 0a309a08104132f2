"""Findings by the words that users have for them."""

from __future__ import annotations

import pytest

from holdfast.detectors import ALL
from holdfast.detectors.nonfinite_loss import NonfiniteLoss
from holdfast.detectors.search import is_about, search


def codes(text: str) -> list[str]:
    return [detector.code for detector in search(text, ALL)]


@pytest.mark.parametrize(
    ("text", "first"),
    [
        ("NUM002", "NUM002"),
        ("nonfinite_gradient", "NUM002"),
        ("out of memory", "MEM008"),
        ("OOM", "MEM008"),
        ("CUDA out of memory", "MEM008"),
        ("slow", "TPT004"),
        ("data loader slow", "TPT001"),
        ("spike", "OPT001"),
        ("loss spikes", "OPT001"),
        ("exploding gradients", "OPT002"),
        ("diverge", "OPT003"),
        ("stuck", "RUN004"),
        ("crash", "RUN001"),
        ("fragmentation", "MEM007"),
        ("recompile", "TPT003"),
        ("no_grad", "MEM004"),
        ("freezes", "RUN004"),
        ("cuda oom", "MEM008"),
    ],
)
def test_the_best_fit_comes_first(text, first):
    assert codes(text)[0] == first


@pytest.mark.parametrize(
    ("text", "about"),
    [
        ("out of memory", True),
        ("cuda oom", True),
        ("exploding gradients", True),
        ("evaluation", True),
        ("cuda error", False),
        ("gradient accumulation", False),
        ("checkpoint", False),
    ],
)
def test_a_word_on_a_page_is_not_what_the_page_is_about(text, about):
    assert is_about(text, search(text, ALL)[0]) is about


def test_what_else_it_is_called_counts_as_its_name(monkeypatch):
    assert codes("quokka") == []
    monkeypatch.setattr(NonfiniteLoss, "also_called", ("quokka",))
    assert codes("quokka") == ["NUM001"] and is_about("quokka", NonfiniteLoss)


def test_nan_is_several_findings():
    assert codes("nan")[:2] == ["NUM001", "NUM002"]
    assert {"NUM003", "NUM004", "NUM005"} <= set(codes("nan"))


def test_leaks_are_leaks():
    assert set(codes("leak")[:4]) == {"MEM001", "MEM002", "MEM005", "MEM006"}


def test_a_family_of_codes():
    assert codes("tpt") == [f"TPT00{i}" for i in range(1, 6)]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "the of",
        "xyzzy",
        "...",
        "NUM01",
        "NUM999",
        "overfitting",
        "my loss does not go down",
        "loss not decreasing",
        "my loss doesn't go down",
        "frozen",
        "ctrl-c",
    ],
)
def test_nothing_fits(text):
    assert codes(text) == []
