from __future__ import annotations

import pytest
import torch

from holdfast.training import Streamed
from holdfast_models.xec.data.events import event_files
from holdfast_models.xec.evaluation.benchmark import reading
from holdfast_models.xec.settings import DataSettings


@pytest.mark.parametrize("on_device", [False, True])
def test_loading_is_measured_part_by_part(synth, on_device: bool) -> None:
    settings = DataSettings(time_branch="time", device_transform=on_device)
    files = event_files(settings, synth.normalization, synth.train)
    files += event_files(settings, synth.normalization, synth.val)
    first, found = reading(Streamed(files, chunk=100), 32)
    assert torch.equal(first["event"], synth.events["event"][:32])
    read, transform, batch = (found[f"s to {what}"] for what in ("read", "normalise", "batch"))
    assert read > 0 and batch > 0
    assert (transform > 0.2 * read) != on_device
    assert found["reading events/s"] == pytest.approx(256 / (read + transform + batch))
