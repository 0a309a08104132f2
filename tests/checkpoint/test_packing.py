from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.checkpoint import packing


@given(st.binary(max_size=200), st.sampled_from([1, 2, 4, 8, 16]))
def test_what_was_packed_comes_back(data, width):
    data = data * width
    packed = b"".join(packing.pack(data, width))
    assert packing.unpack(packed, width, len(data)) == data


@pytest.mark.parametrize("width", [1, 2, 4])
def test_several_parts(monkeypatch, width):
    monkeypatch.setattr(packing, "_PART", 1000)
    data = np.random.default_rng(0).bytes(1234 * width)
    packed = b"".join(packing.pack(data, width))
    assert packing.unpack(packed, width, len(data)) == data


def test_weights_shrink_and_noise_does_not_grow():
    weights = np.random.default_rng(0).normal(0, 0.02, 1 << 18).astype("<f4").tobytes()
    noise = np.random.default_rng(0).bytes(1 << 20)
    zeros = bytes(1 << 20)
    assert len(b"".join(packing.pack(weights, 4))) < 0.87 * len(weights)
    assert len(b"".join(packing.pack(noise, 4))) < 1.001 * len(noise)
    assert len(b"".join(packing.pack(zeros, 4))) < 0.01 * len(zeros)


@pytest.mark.parametrize("spoil", [lambda p: p[:-1], lambda p: p + b"x", lambda p: b"\0" + p[1:]])
def test_what_was_not_packed_is_refused(spoil):
    packed = b"".join(packing.pack(bytes(range(200)) * 4, 4))
    with pytest.raises(ValueError):
        packing.unpack(spoil(packed), 4, 800)
