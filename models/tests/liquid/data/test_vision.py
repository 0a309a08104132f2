"""Images: their form, how they are split and changed, and what a linear model reaches."""

from __future__ import annotations

import pickle
import sys

import pytest
import torch

from holdfast import HoldfastError
from holdfast_models.liquid.data.baselines import linear_accuracy
from holdfast_models.liquid.data.vision import (
    SHAPES,
    digits,
    of_classes,
    permuted,
    rotated,
    shapes,
)


def test_shapes_have_their_form_and_are_the_same_again() -> None:
    data, again, other = shapes(500), shapes(500), shapes(500, seed=1)
    sample = data.train[3]
    assert sample["image"].shape == (1, 16, 16) and sample["image"].dtype == torch.float32
    assert sample["label"].shape == () and sample["label"].dtype == torch.int64
    assert (len(data.train), len(data.validation)) == (400, 100) and data.classes == len(SHAPES)
    assert torch.equal(data.train.tensors["image"], again.train.tensors["image"])
    assert not torch.equal(data.train.tensors["image"], other.train.tensors["image"])
    assert set(data.train.tensors["label"].tolist()) == set(range(len(SHAPES)))
    batch = data.train.__getitems__([7, 3]).batch
    assert torch.equal(batch["image"][1], sample["image"])
    assert torch.equal(pickle.loads(pickle.dumps(data.train))[3]["image"], sample["image"])


def test_shapes_are_drawn() -> None:
    """Without noise a disk covers more than its ring, and turning changes nothing of it."""
    data = shapes(800, side=24, noise=0.0).train.tensors
    area = [(data["image"][data["label"] == n] > 0).float().mean() for n in range(len(SHAPES))]
    disk, ring, square, frame = area[:4]
    assert disk > ring and square > frame and min(area) > 0.02 and max(area) < 0.4


def test_a_linear_model_knows_digits_and_not_shapes() -> None:
    data = shapes(2000)
    reached = linear_accuracy(data.train, data.validation)
    assert 1.2 / len(SHAPES) < reached < 0.5
    pytest.importorskip("sklearn")
    data = digits()
    assert len(data.train) + len(data.validation) == 1797 and data.classes == 10
    assert data.train.tensors["image"].shape[1:] == (1, 8, 8)
    assert data.train.tensors["image"].amin() == -1 and data.train.tensors["image"].amax() == 1
    assert 0.93 < linear_accuracy(data.train, data.validation) < 0.99


def test_changed_images() -> None:
    images = shapes(100).train
    image = images.tensors["image"]
    assert torch.allclose(rotated(images, 0).tensors["image"], image, atol=1e-5)
    quarter = rotated(images, 90).tensors["image"]
    assert torch.allclose(quarter, image.rot90(1, (2, 3)), atol=1e-4)
    order = torch.randperm(256, generator=torch.Generator().manual_seed(0))
    mixed = permuted(images, order)
    assert not torch.equal(mixed.tensors["image"], image)
    assert torch.equal(permuted(mixed, order.argsort()).tensors["image"], image)
    some = of_classes(images, (2, 5))
    assert set(some.tensors["label"].tolist()) == {2, 5}
    assert len(some) == int(torch.isin(images.tensors["label"], torch.tensor((2, 5))).sum())


def test_bad_images_are_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(HoldfastError, match="4 pixels; give"):
        shapes(10, side=4)
    with pytest.raises(HoldfastError, match="share of 1"):
        shapes(10, share=1.0)
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(HoldfastError, match=r'pip install "holdfast-models\[liquid\]"'):
        digits()
