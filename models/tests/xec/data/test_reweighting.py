from __future__ import annotations

import dataclasses
import os
from pathlib import Path

import numpy as np
import pytest
import torch

from holdfast_models.xec.data import reweighting
from holdfast_models.xec.data.events import event_files, open_roots
from holdfast_models.xec.data.reweighting import event_weights
from holdfast_models.xec.data.synth_files import write_batches
from holdfast_models.xec.settings import (
    DataSettings,
    FiducialSettings,
    HistogramSettings,
    ReweightingSettings,
)

ON = HistogramSettings(enabled=True, nbins=7, nbins_2d=(4, 3))
DATA = DataSettings(time_branch="time")


def weights_of(synth, tmp_path: Path, **which) -> np.ndarray:
    settings = ReweightingSettings(**which)
    roots = open_roots(DATA, synth.train, [*settings.active()])
    (found,) = event_weights([(root, None) for root in roots], settings, str(tmp_path))
    return found.double().numpy()


@pytest.mark.parametrize(
    ("name", "bins"), [("energy", (7,)), ("timing", (7,)), ("angle", (4, 3)), ("uvwFI", (4, 3, 3))]
)
def test_an_event_weighs_one_over_the_events_in_its_bin(synth, tmp_path, name: str, bins) -> None:
    weight = weights_of(synth, tmp_path, **{name: ON})
    values = synth.events[name].double().numpy().reshape(192, -1)
    counts, edges = np.histogramdd(values, bins)
    cell = [
        np.clip(np.searchsorted(edge, column, side="right") - 1, 0, len(edge) - 2)
        for edge, column in zip(edges, values.T, strict=True)
    ]
    expected = 1 / counts[tuple(cell)]
    assert weight.mean() == pytest.approx(1.0)
    close = np.isclose(weight, expected / expected.mean(), rtol=1e-4)
    assert close.mean() > 0.98  # but for values on an edge of a bin
    total = np.bincount(np.ravel_multi_index(tuple(cell), bins), weight)
    assert total[total > 0].std() < 0.1 * total.max()  # every bin that has events counts alike


def test_several_quantities_multiply(synth, tmp_path: Path) -> None:
    energy, timing = (weights_of(synth, tmp_path, **{name: ON}) for name in ("energy", "timing"))
    both = weights_of(synth, tmp_path, energy=ON, timing=ON)
    expected = energy * timing
    np.testing.assert_allclose(both, expected / expected.mean(), rtol=1e-5)


def test_weights_are_kept_until_a_file_or_a_setting_changes(synth, tmp_path, monkeypatch) -> None:
    path = tmp_path / "some.root"
    write_batches(path, iter([{k: v[:30] for k, v in synth.events.items()}]))
    made: list[str] = []
    rarity = reweighting._rarity
    monkeypatch.setattr(reweighting, "_rarity", lambda *a: made.append("") or rarity(*a))
    settings = dataclasses.replace(DATA, cache_dir=str(tmp_path / "cache"))

    def times(nbins: int = 5) -> int:
        made.clear()
        which = ReweightingSettings(energy=HistogramSettings(enabled=True, nbins=nbins))
        (file,) = event_files(settings, synth.normalization, str(path), weights=which)
        assert file.weights is not None and len(file.weights) == 30
        assert file.weights.mean().item() == pytest.approx(1.0)
        return len(made)

    assert [times(), times(), times(6)] == [1, 0, 1]
    os.utime(path, ns=(1, 1))
    assert times() == 1


def test_only_events_inside_the_cut_are_weighed(synth, tmp_path: Path) -> None:
    cut = dataclasses.replace(
        DATA, cache_dir=str(tmp_path), fiducial=FiducialSettings(enabled=True, u_max=10.0)
    )
    which = ReweightingSettings(energy=ON)
    (file,) = event_files(cut, synth.normalization, synth.train, weights=which)
    assert file.weights is not None and len(file.weights) == len(file) < 192
    block = file.__getitems__(range(4, 9)).batch
    assert torch.equal(block["weight"], file.weights[4:9]) and "energy" not in block
    assert file.weights.mean().item() == pytest.approx(1.0)


def test_events_without_truth_weigh_nothing(synth, tmp_path: Path) -> None:
    some = {key: rows[:20].clone() for key, rows in synth.events.items()}
    some["energy"][3], some["energy"][4] = torch.nan, 1e10
    write_batches(tmp_path / "some.root", iter([some]))
    settings = dataclasses.replace(DATA, cache_dir=str(tmp_path))
    which = ReweightingSettings(energy=ON)
    path = str(tmp_path / "some.root")
    (file,) = event_files(settings, synth.normalization, path, weights=which)
    assert file.weights is not None
    assert (file.weights == 0).nonzero()[:, 0].tolist() == [3, 4]
