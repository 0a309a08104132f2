"""Noise depends on its name alone, and is normal."""

from __future__ import annotations

import itertools
import math

import pytest
import torch

from holdfast_models.energy_flow.model.noise import Key, normal_N3

MANY = torch.arange(100_000)
WORD, GOLDEN = 2**64, 0x9E3779B97F4A7C15


def test_numbers_are_the_same_in_every_order_and_chunk():
    key = Key(seed=7, step=31)
    whole_N3 = normal_N3(key, MANY[:1001], 4)
    order_N = torch.randperm(1001, generator=torch.Generator().manual_seed(0))
    assert torch.equal(normal_N3(key, order_N, 4), whole_N3[order_N])
    chunks = [normal_N3(key, part_N, 4) for part_N in MANY[:1001].split(13)]
    assert torch.equal(torch.cat(chunks), whole_N3)
    strided_N = MANY[:2002].view(-1, 2)[:, 0] // 2
    assert torch.equal(normal_N3(key, strided_N, 4), whole_N3)


@pytest.mark.parametrize("step", [0, 1, 31, 10**6])
def test_a_step_on_the_device_gives_the_numbers_of_the_int(step):
    on_host_N3 = normal_N3(Key(5, step), MANY[:50], 2)
    assert torch.equal(normal_N3(Key(5, torch.tensor(step)), MANY[:50], 2), on_host_N3)
    short = torch.tensor(step, dtype=torch.int32)
    assert torch.equal(normal_N3(Key(5, short), MANY[:50], 2), on_host_N3)


def mix(z: int) -> int:
    """The finaliser of SplitMix64 in Python's whole numbers."""
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 % WORD
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB % WORD
    return z ^ (z >> 31)


def unmix(z: int) -> int:
    """What ``mix`` makes ``z`` of."""
    z = (z ^ (z >> 31) ^ (z >> 62)) * pow(0x94D049BB133111EB, -1, WORD) % WORD
    z = (z ^ (z >> 27) ^ (z >> 54)) * pow(0xBF58476D1CE4E5B9, -1, WORD) % WORD
    return z ^ (z >> 30) ^ (z >> 60)


def test_numbers_never_change_between_versions():
    assert mix(GOLDEN) == 0xE220A8397B1DCDAF  # first word of SplitMix64 from seed 0
    stream = mix((3 * GOLDEN + mix(11)) % WORD) + mix(WORD - 1 - 2)
    a, b = (mix((stream + n * GOLDEN) % WORD) for n in (2 * 9, 2 * 9 + 1))
    share = torch.tensor([a >> 32, b >> 32], dtype=torch.float64).add(0.5) / 2**32
    angle = torch.tensor([a % 2**32, b % 2**32], dtype=torch.float64) * 2 * torch.pi / 2**32
    radius = (-2 * share.log()).sqrt()
    x, z = radius * angle.cos()
    y = radius[0] * angle[0].sin()
    expected = torch.stack((x, y, z)).float()
    torch.testing.assert_close(normal_N3(Key(11, 3), torch.tensor([9]), 2)[0], expected)


def test_the_rarest_word_gives_a_finite_number():
    # The flow whose first word begins with 32 zeros: the logarithm of nothing is infinite.
    stream = mix(mix(0)) + mix(WORD - 1)
    counts = ((unmix(low) - stream) * pow(GOLDEN, -1, WORD) % WORD for low in range(64))
    index = next(count for count in counts if count % 2 == 0) // 2
    x, y, _ = normal_N3(Key(0, 0), torch.tensor([index]), 0)[0]
    assert torch.hypot(x, y).item() == pytest.approx((2 * 33 * math.log(2)) ** 0.5)


def test_numbers_are_normal():
    x_N3 = normal_N3(Key(0, 0), MANY, 0)
    assert x_N3.dtype == torch.float32
    assert x_N3.isfinite().all()
    assert x_N3.mean(0).abs().max() < 0.013  # four standard errors
    assert (x_N3.var(0) - 1).abs().max() < 0.018
    assert (x_N3**3).mean(0).abs().max() < 0.05
    assert ((x_N3**4).mean(0) - 3).abs().max() < 0.13
    sorted_N3, _ = x_N3.double().sort(0)
    share_N1 = (torch.arange(len(MANY)).double() + 0.5).div(len(MANY)).unsqueeze(1)
    gap = (torch.special.ndtr(sorted_N3) - share_N1).abs().max()
    assert gap < 1.95 / len(MANY) ** 0.5  # Kolmogorov-Smirnov, one in a thousand


def test_other_seeds_steps_flows_and_axes_are_not_correlated():
    few_N = MANY[:20_000]
    keys = [(0, 0, 0), (0, 0, 1), (0, 1, 0), (1, 0, 0), (1, 1, 1), (2, 0, 0), (0, 2, 0), (0, 0, 2)]
    streams = [normal_N3(Key(seed, step), few_N, lattice) for seed, step, lattice in keys]
    columns = torch.cat([*streams, streams[0].roll(1, 0), streams[0].roll(7, 0)], dim=1)
    for power in (1, 2):  # of the squares too: signs alone could hide a shared radius
        correlation = torch.corrcoef((columns**power).T.double())
        correlation.fill_diagonal_(0)
        assert correlation.abs().max() < 5 / len(few_N) ** 0.5


def test_no_two_names_share_a_number():
    streams = [
        normal_N3(Key(seed, step), MANY[:200], lattice).view(torch.int32).flatten()
        for seed, step, lattice in itertools.product(range(4), range(4), range(4))
    ]
    numbers = torch.cat(streams)
    # Random 24-bit mantissas meet now and then; a repeated stream would repeat 600 at once.
    assert len(numbers) - len(numbers.unique()) < 200


def test_large_and_negative_names_work():
    far_N = torch.tensor([2**40, 2**62 - 1, 0], dtype=torch.long)
    x_N3 = normal_N3(Key(seed=-3, step=2**33), far_N, 10_000)
    assert x_N3.isfinite().all()
    assert x_N3.unique().numel() == 9


@pytest.mark.gpu
def test_a_gpu_makes_the_same_numbers():
    on_host_N3 = normal_N3(Key(3, 4), MANY, 5)
    on_device_N3 = normal_N3(Key(3, 4), MANY.cuda(), 5).cpu()
    assert torch.equal(on_device_N3, on_host_N3)
