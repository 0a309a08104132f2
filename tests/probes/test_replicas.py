"""Checksums of weights: equal for equal bits, whoever adds them up; different for any other."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from holdfast.probes.replicas import checksums, parallel_facts


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64, torch.complex64])
def test_one_bit_of_one_weight_is_seen(dtype):
    weights = [torch.randn(33, 7).to(dtype), torch.randn(5).to(dtype)]
    before = checksums(weights)
    assert before is not None and before.dtype == torch.float64
    assert torch.equal(before, checksums([w.clone() for w in weights]))
    weights[0].view(-1).view(torch.uint8)[3] ^= 1
    after = checksums(weights)
    assert after is not None
    assert (after != before).tolist() == [True, False]


def test_a_row_of_the_run_folder_holds_them_exactly():
    sums = checksums([torch.randn(1000, 1000), torch.full((9,), -1e30), torch.zeros(3)])
    assert sums is not None
    assert torch.equal(sums, sums.float().double()) and bool((sums >= 0).all())


def test_the_order_and_the_layout_of_the_sum_do_not_matter():
    image = torch.randn(8, 4, 5, 5)
    turned = image.to(memory_format=torch.channels_last)
    threads = torch.get_num_threads()
    torch.set_num_threads(3)
    sums = [checksums([one]) for one in (image, turned)]
    torch.set_num_threads(threads)
    assert sums[0] is not None and sums[1] is not None
    assert torch.equal(sums[0], sums[1]) and torch.equal(sums[0], checksums([image]))


def test_sharded_parameters_are_left_alone():
    part = torch.randn(4)
    part._local_tensor = part[:2]  # pyright: ignore[reportAttributeAccessIssue]
    assert checksums([part]) is None
    assert checksums([]) is None


def test_facts_tell_models_apart(monkeypatch):
    monkeypatch.setattr(torch.distributed, "get_backend", lambda: "gloo")

    def facts(model: nn.Module) -> dict[str, object]:
        names = [name for name, _ in model.named_parameters()]
        return parallel_facts(list(model.parameters()), names, 2)

    same, other = facts(nn.Linear(3, 2)), facts(nn.Linear(3, 4))
    assert facts(nn.Linear(3, 2)) == same and same["wrapper"] == ""
    assert same["model"] != other["model"] and same["group"] == 2
    assert facts(nn.Linear(3, 2).bfloat16())["dtype"] == "bfloat16"
