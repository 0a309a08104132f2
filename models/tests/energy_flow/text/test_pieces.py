"""Texts as numbers, packed: the same batches as filled rows in a fraction of their memory."""

from __future__ import annotations

import pickle

import torch

from holdfast_models.energy_flow.data import grammar
from holdfast_models.energy_flow.text.pieces import PackedPieces
from holdfast_models.energy_flow.text.tokens import Vocabulary

TEXTS = [pair.input for pair in grammar.pairs(3000, 0)] + ["A dog. " * 100, "\u0301", "end"]


def test_rows_are_what_the_vocabulary_makes_of_all_texts() -> None:
    words = Vocabulary.build(TEXTS)
    ids_NP = words.encode(TEXTS).ids_BP
    pieces = PackedPieces(iter(TEXTS), words)
    index_B = torch.tensor([3002, 0, 3000, 17, 3001, 17])
    rows_BP = pieces.rows(index_B)
    assert rows_BP.dtype == torch.int64 and torch.equal(rows_BP, ids_NP[index_B])
    assert torch.equal(pieces.rows(torch.arange(len(TEXTS))), ids_NP)


def test_a_long_text_does_not_make_all_others_long() -> None:
    words = Vocabulary.build(TEXTS)
    filled = words.encode(TEXTS).ids_BP.nbytes
    assert len(pickle.dumps(PackedPieces(TEXTS, words))) < filled / 15
    many = Vocabulary([*(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "empty"]), *map(str, range(40_000))])
    last = PackedPieces(["39999"], many).rows(torch.tensor([0]))
    assert last.tolist() == many.encode(["39999"]).ids_BP.tolist()
