"""Normal numbers that depend on nothing but their name, for exploration noise.

N flows. A number is named by seed, optimizer step, lattice step, flow and axis. The same name
gives the same number in every mode, order, chunk and on every device, so a step can be computed
again and the modes can be compared.

Each flow hashes its index with the finaliser of SplitMix64: two words of 64 bits, wrapped as
int64 does, some thirty cheap operations in all. Nothing is read back by the host.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

__all__ = ["Key", "noise_seed", "normal_N3", "normals_N3", "streams_T"]

_WORD = 1 << 64
_LOW = 0xFFFFFFFF
_GOLDEN = 0x9E3779B97F4A7C15
_FIRST = 0xBF58476D1CE4E5B9
_SECOND = 0x94D049BB133111EB


class Key(NamedTuple):
    """Names the noise of one training step.

    Attributes:
        seed: of the run.
        step: of the optimizer. A scalar tensor where a graph is captured or compiled once for
            all steps; it gives the same numbers as the int.
    """

    seed: int
    step: int | Tensor


def noise_seed(seed: int, rank: int) -> int:
    """The seed of a rank's noise: another one for each, and on the first rank the run's own.

    Args:
        seed: of the run, below 2**32 as the trainer wants it.
        rank: of this process.
    """
    return seed + (rank << 32)


def normal_N3(key: Key, flow_index_N: Tensor, step: int) -> Tensor:
    """Independent standard normal numbers in fp32, one for each flow and axis.

    Args:
        key: the run and its optimizer step.
        flow_index_N: whole numbers; no two flows of a step may share one, children included.
        step: of the lattice.
    """
    return normals_N3(_stream(key, step), flow_index_N)


def normals_N3(stream: int | Tensor, flow_index_N: Tensor) -> Tensor:
    """The same from where the numbers of a step begin, one of ``streams_T``."""
    pair_2N = torch.stack((2 * flow_index_N.long(), 2 * flow_index_N.long() + 1))
    word_2N = _mix(pair_2N * _signed(_GOLDEN) + stream)
    # Doubles, rounded once at the end: devices and vector units differ in the last bit of a
    # logarithm, and such a bit must not reach the result.
    share_2N = (((word_2N >> 32) & _LOW).double() + 0.5) / 2**32
    angle_2N = (word_2N & _LOW).double() * (2 * math.pi / 2**32)
    radius_2N = (-2 * share_2N.log()).sqrt()
    first_2N, second_2N = radius_2N * angle_2N.cos(), radius_2N * angle_2N.sin()
    return torch.stack((first_2N[0], second_2N[0], first_2N[1]), dim=-1).float()


def streams_T(key: Key, steps: int, device: torch.device) -> Tensor:
    """Where the numbers of each lattice step begin in the cycle of all words, int64."""
    # Made on the device: a copy from the host could not be captured.
    step = key.step if isinstance(key.step, Tensor) else torch.full((), key.step, device=device)
    begin = _mix(step.long() * _signed(_GOLDEN) + _signed(_mix_int(key.seed)))
    places = [torch.full((), _signed(_mix_int(~t)), device=device) for t in range(steps)]
    return torch.stack(places) + begin


def _stream(key: Key, step: int) -> int | Tensor:
    """Where the numbers of a lattice step begin in the cycle of all words."""
    run, place = _mix_int(key.seed), _mix_int(~step)
    if isinstance(key.step, Tensor):
        begin = _mix(key.step.long() * _signed(_GOLDEN) + _signed(run))
        return begin + _signed(place)
    return _signed(_mix_int(key.step * _GOLDEN + run) + place)


def _mix(word: Tensor) -> Tensor:
    """SplitMix64's finaliser on int64, which wraps."""
    word = (word ^ _shifted(word, 30)) * _signed(_FIRST)
    word = (word ^ _shifted(word, 27)) * _signed(_SECOND)
    return word ^ _shifted(word, 31)


def _shifted(word: Tensor, bits: int) -> Tensor:
    # int64 shifts its sign in from the left; the hash wants zeros there.
    return (word >> bits) & ((1 << (64 - bits)) - 1)


def _mix_int(word: int) -> int:
    """The same as ``_mix`` for a number of the host."""
    word %= _WORD
    word = (word ^ (word >> 30)) * _FIRST % _WORD
    word = (word ^ (word >> 27)) * _SECOND % _WORD
    return word ^ (word >> 31)


def _signed(word: int) -> int:
    return (word + _WORD // 2) % _WORD - _WORD // 2
