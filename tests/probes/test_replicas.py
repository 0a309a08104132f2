"""Checksums of weights: equal for equal bits, whoever adds them up; different for any other."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from holdfast.probes.replicas import checksums, parallel_facts
from holdfast.records.ranks import Parallel


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64, torch.complex64])
def test_one_bit_of_one_weight_is_seen(dtype):
    weights = [torch.randn(33, 7).to(dtype), torch.randn(5).to(dtype)]
    before = checksums(weights)
    assert before is not None and before.dtype == torch.float64
    again = checksums([w.clone() for w in weights])
    assert again is not None and torch.equal(before, again)
    weights[0].view(-1).view(torch.uint8)[3] ^= 1
    after = checksums(weights)
    assert after is not None
    assert (after != before).tolist() == [True, False]


def test_a_row_of_the_run_folder_holds_them_exactly():
    sums = checksums([torch.randn(1000, 1000), torch.full((9,), -1e30), torch.zeros(3)])
    assert sums is not None
    assert torch.equal(sums, sums.float().double()) and bool((sums >= 0).all())


@pytest.mark.parametrize("shape", [(64, 64, 9, 9), (333, 333)])
def test_the_order_in_which_they_are_added_up_does_not_matter(shape):
    """A larger sum is split over threads, and floats would round differently."""
    weights = torch.randn(shape)
    before = checksums([weights])
    threads = torch.get_num_threads()
    torch.set_num_threads(3)
    after = checksums([weights])
    torch.set_num_threads(threads)
    assert before is not None and after is not None and torch.equal(before, after)
    turned = checksums([torch.randn(8, 4, 5, 5).to(memory_format=torch.channels_last)])
    assert turned is not None and bool(turned > 0)


def test_sharded_parameters_are_left_alone():
    part = torch.randn(4)
    part._local_tensor = part[:2]  # pyright: ignore[reportAttributeAccessIssue]
    assert checksums([part]) is None
    assert checksums([]) is None


def test_facts_tell_models_apart(monkeypatch):
    monkeypatch.setattr(torch.distributed, "get_backend", lambda: "gloo")

    def facts(model: nn.Module) -> Parallel:
        names = [name for name, _ in model.named_parameters()]
        return parallel_facts(list(model.parameters()), names, 2)

    same, other = facts(nn.Linear(3, 2)), facts(nn.Linear(3, 4))
    assert facts(nn.Linear(3, 2)) == same and same.wrapper == ""
    assert same.model != other.model and same.group == 2
    assert facts(nn.Linear(3, 2).bfloat16()).dtype == "bfloat16"
