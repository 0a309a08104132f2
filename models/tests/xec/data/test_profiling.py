from __future__ import annotations

import pytest

from holdfast_models.xec.data.events import event_files
from holdfast_models.xec.data.profiling import measure_loading
from holdfast_models.xec.settings import DataSettings


@pytest.mark.parametrize("on_device", [False, True])
def test_loading_is_measured_part_by_part(synth, on_device: bool) -> None:
    settings = DataSettings(time_branch="time", device_transform=on_device)
    files = event_files(settings, synth.normalization, synth.train)
    files += event_files(settings, synth.normalization, synth.val)
    speed = measure_loading(files, chunk=100, batch=32, events=220)
    assert speed.events == 220
    assert speed.read > 0 and speed.batch > 0
    assert (speed.transform > 0.2 * speed.read) != on_device
    total = speed.read + speed.transform + speed.batch
    assert speed.per_second == pytest.approx(220 / total)
    assert f"{speed.per_second:.0f} events/s" in speed.line()
