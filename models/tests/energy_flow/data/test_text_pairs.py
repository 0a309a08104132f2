"""Files of sentence pairs: read back as written, or refused by file and line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from holdfast import HoldfastError
from holdfast_models.energy_flow.data.text_pairs import (
    TextPair,
    read_pairs,
    read_snli,
    scan_pairs,
    write_pairs,
)


def lines(path: Path, *rows: Any) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def test_pairs_come_back_as_they_were_written(tmp_path: Path) -> None:
    pairs = [TextPair("Ein Täter.", "line\nbreak"), TextPair("a", "b", {"source": "me", "n": 3})]
    assert write_pairs(tmp_path / "deep" / "set.jsonl", iter(pairs)) == 2
    assert read_pairs(tmp_path / "deep" / "set.jsonl") == pairs
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["set.jsonl"]


def test_the_digest_is_of_both_texts_and_nothing_else() -> None:
    assert TextPair("ab", "c").digest != TextPair("a", "bc").digest
    assert TextPair("a", "b").digest != TextPair("b", "a").digest
    assert TextPair("a", "b", {"n": 1}).digest == TextPair("a", "b").digest


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("{", r"set.jsonl:2: not JSON"),
        ("[1]", r"set.jsonl:2: a list, no JSON object"),
        ('{"input": "a"}', r"set.jsonl:2: no pair; a line is"),
        ('{"input": "a", "target": " "}', r"set.jsonl:2: an empty text"),
        ('{"input": "a", "target": "b", "meta": 3}', r"set.jsonl:2: no pair"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, line: str, problem: str) -> None:
    path = lines(tmp_path / "set.jsonl", {"input": "a", "target": "b"})
    path.write_text(path.read_text() + line + "\n")
    with pytest.raises(HoldfastError, match=problem):
        read_pairs(path)
    (_, good), (number, bad) = scan_pairs(path)
    assert good == TextPair("a", "b") and number == 2 and isinstance(bad, str)


def test_a_file_that_is_missing_or_no_text_is_named(tmp_path: Path) -> None:
    with pytest.raises(HoldfastError, match=r"none.jsonl: No such file"):
        read_pairs(tmp_path / "none.jsonl")
    (tmp_path / "raw.jsonl").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(HoldfastError, match=r"raw.jsonl:1: not UTF-8"):
        read_pairs(tmp_path / "raw.jsonl")


def test_snli_gives_long_enough_entailments_once_in_both_spellings(tmp_path: Path) -> None:
    first = {"sentence1": "A man  rides a horse.", "sentence2": "A man is outside."}
    second = {"premise": "A dog runs in the snow.", "hypothesis": "An animal moves."}
    path = lines(
        tmp_path / "snli.jsonl",
        {**first, "gold_label": "entailment"},
        {**first, "gold_label": "entailment"},
        {**first, "sentence2": "A man sleeps now.", "gold_label": "contradiction"},
        {**first, "sentence2": "It moves.", "gold_label": "entailment"},
        {**first, "sentence2": "The annotators differ.", "gold_label": "-"},
        {**second, "label": 0},
        {**second, "label": 2},
    )
    found = read_snli(path)
    assert [(pair.input, pair.target) for pair in found] == [
        ("A man rides a horse.", "A man is outside."),
        ("A dog runs in the snow.", "An animal moves."),
    ]
    with pytest.raises(HoldfastError, match=r"other.jsonl:1: no line of SNLI"):
        read_snli(lines(tmp_path / "other.jsonl", {"input": "a", "target": "b"}))
    with pytest.raises(HoldfastError, match=r"no entailment pair"):
        read_snli(lines(tmp_path / "none.jsonl", {**second, "label": 1}))
