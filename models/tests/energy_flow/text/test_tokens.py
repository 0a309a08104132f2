from __future__ import annotations

import random

import pytest
import torch

from holdfast import HoldfastError
from holdfast_models.energy_flow.text.tokens import Vocabulary

TEXTS = [
    "A young man in a red shirt is riding a bicycle on a busy city street.",
    "A person moves on wheels in town.",
    "The old woman (my neighbour) isn't well-known: she's 87!",
]


def test_a_text_comes_back_in_lower_case():
    words = Vocabulary.build(TEXTS)
    assert words.decode(words.encode(TEXTS).ids_BP) == [text.lower() for text in TEXTS]


def test_rows_have_begin_and_end_and_are_filled_with_zero():
    words = Vocabulary.build(TEXTS)
    ids_BP, mask_BP = words.encode(["A man.", "A"])
    assert ids_BP.dtype == torch.int64 and ids_BP.shape == (2, 5)
    assert mask_BP.tolist() == [[True] * 5, [True] * 3 + [False] * 2]
    assert ids_BP[:, 0].tolist() == [words.begin] * 2
    assert ids_BP[0, 4] == ids_BP[1, 2] == words.end
    assert ids_BP[1, 3:].tolist() == [0, 0]


def test_a_long_text_is_cut_and_keeps_its_end():
    words = Vocabulary.build(TEXTS)
    ids_BP, _ = words.encode(["man " * 500])
    assert ids_BP.shape == (1, 128) and ids_BP[0, -1] == words.end
    assert words.encode(["man " * 500], length=5).ids_BP.shape == (1, 5)
    with pytest.raises(HoldfastError, match="length is 2"):
        words.encode(["man"], length=2)


@pytest.mark.parametrize("text", ["", " \n\t", "\x00"])
def test_a_text_without_words_is_read_as_a_placeholder(text: str):
    words = Vocabulary.build(TEXTS)
    assert words.decode(words.encode([text]).ids_BP) == ["empty"]


def test_no_text_at_all_is_an_empty_batch():
    assert Vocabulary.build(TEXTS).encode([]).ids_BP.shape == (0, 0)


def test_the_order_of_the_texts_does_not_change_the_vocabulary(tmp_path):
    first, second = Vocabulary.build(TEXTS), Vocabulary.build(reversed(TEXTS))
    assert first.fingerprint == second.fingerprint
    first.save(tmp_path / "words.txt")
    assert Vocabulary.load(tmp_path / "words.txt").fingerprint == first.fingerprint
    assert Vocabulary.build(TEXTS[:2]).fingerprint != first.fingerprint


def test_a_word_that_does_not_fit_is_written_in_pieces():
    texts = ["run running runner jump jumping jumper"] * 3 + ["walking talking stalking"]
    full, small = Vocabulary.build(texts), Vocabulary.build(texts, size=43)
    assert len(small) == 43 < len(full)
    assert full.pieces("walking") == ["walking"]
    assert small.pieces("walking") == ["w", "##alking"]
    assert small.decode(small.encode(["stalking walking"]).ids_BP) == ["stalking walking"]


def test_characters_are_kept_even_where_they_take_more_room():
    words = Vocabulary.build(TEXTS, size=1)
    assert words.pieces("man") == ["m", "##a", "##n"]


def test_what_looks_like_a_mark_in_a_text_is_ordinary_text():
    words = Vocabulary.build(["[SEP] is a word"])
    row = words.encode(["[SEP] is"]).ids_BP[0].tolist()
    assert row.count(words.end) == 1 and row[-1] == words.end


def test_a_very_long_word_is_unknown():
    assert Vocabulary.build(TEXTS).pieces("a" * 101) == ["[UNK]"]


@pytest.mark.parametrize(
    ("lines", "problem"),
    [
        ("", "starts with ''"),
        ("a\n[PAD]\n", "starts with 'a'"),
        ("[PAD]\n[UNK]\n[SEP]\n", r"has no \[CLS\]"),
        ("[PAD]\n[UNK]\n[CLS]\n[SEP]\na\na\n", "'a' is there twice"),
    ],
)
def test_a_file_that_is_no_vocabulary_is_one_line(tmp_path, lines: str, problem: str):
    path = tmp_path / "words.txt"
    path.write_text(lines)
    with pytest.raises(HoldfastError, match=problem) as error:
        Vocabulary.load(path)
    assert str(path) in str(error.value)


def test_a_file_that_is_not_there_is_one_line(tmp_path):
    with pytest.raises(HoldfastError, match="cannot be read"):
        Vocabulary.load(tmp_path / "none.txt")


def test_pieces_are_those_of_the_reference_tokenizer(tmp_path):
    tokenizers = pytest.importorskip("tokenizers")
    mixed = "Ünïcode café naïve İstanbul 東京 tower — “quoted” it's 3.5% a_b #tag ½ straße ﬁ"
    small = Vocabulary.build([*TEXTS, mixed, "walking walker"], size=110)
    small.save(tmp_path / "words.txt")
    reference = tokenizers.BertWordPieceTokenizer(str(tmp_path / "words.txt"), lowercase=True)
    rng = random.Random(0)
    alphabet = list(mixed + "".join(TEXTS)) + list("\t\n\r\x0b\x85\u2028\u00a0\u200b\ufffd\x00zq$~")
    strange = ["".join(rng.choices(alphabet, k=40)) for _ in range(300)]
    for text in [*TEXTS, mixed, *strange]:
        assert small.pieces(text) == reference.encode(text, add_special_tokens=False).tokens, text
