"""How programs of the kernel that restores tensors share the work."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from holdfast.actions import _restore_kernel
from holdfast.actions._restore_kernel import _CHUNK, _CHUNKS, _address_table


@pytest.mark.parametrize(
    ("dtypes", "sizes", "word"),
    [
        ([torch.float32, torch.int64], [64, 1], 8),
        ([torch.float32, torch.int64], [3, 5], 4),
        ([torch.bfloat16], [3 * _CHUNK * _CHUNKS + 1], 2),
        ([torch.uint8, torch.float32], [5, 9], 1),
        ([torch.float64], [2 * _CHUNK * _CHUNKS], 8),
    ],
)
def test_every_word_is_copied_once_and_words_are_as_wide_as_they_can_be(
    dtypes: list[torch.dtype], sizes: list[int], word: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Tensor, "pin_memory", lambda self: self)
    both = [
        [torch.zeros(n, dtype=kind) for n, kind in zip(sizes, dtypes, strict=True)]
        for _ in range(2)
    ]
    pairs = list(zip(*both, strict=True))
    addresses = [tensor.data_ptr() for pair in pairs for tensor in pair]
    table, found = _address_table(pairs, addresses, torch.device("cpu"))
    live, saved, words, owner, offset = (column.tolist() for column in table)
    assert found == word and [*live, *saved] == [t.data_ptr() for some in both for t in some]
    copied = [0] * len(pairs)
    for which, start in zip(owner, offset, strict=True):
        assert start == copied[which]
        copied[which] += min(words[which] - start, _CHUNK * _CHUNKS)
    assert [n * word for n in copied] == [t.numel() * t.element_size() for t in both[0]]


def test_a_word_of_triton_is_asked_for_by_its_bytes() -> None:
    pytest.importorskip("triton")
    for size in _restore_kernel._WORDS:
        assert _restore_kernel._triton_integer(size).primitive_bitwidth == 8 * size
