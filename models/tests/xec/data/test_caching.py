from __future__ import annotations

import dataclasses
import os
import pickle
from pathlib import Path

import pytest
import torch
from torch.utils.data import DataLoader

from holdfast.training import collate
from holdfast_models.xec.data import caching
from holdfast_models.xec.data.batches import inputs_of
from holdfast_models.xec.data.events import event_files, open_events
from holdfast_models.xec.data.synth_files import write_batches
from holdfast_models.xec.settings import DataSettings, HistogramSettings, ReweightingSettings

HALF = 2**-10  # of float16, relative


def settings_of(cache: str, folder: Path, **more) -> DataSettings:
    return DataSettings(cache=cache, cache_dir=str(folder), time_branch="time", **more)  # pyright: ignore


@pytest.mark.parametrize("cache", ["ram", "memmap"])
@pytest.mark.parametrize("on_device", [False, True])
def test_cached_batches_are_those_of_the_file_but_for_rounding(
    synth, tmp_path: Path, cache: str, on_device: bool
) -> None:
    settings = settings_of(cache, tmp_path, device_transform=on_device)
    cached = open_events(settings, synth.normalization, synth.train, ["energy"], say=_quiet)
    assert len(cached) == 192  # pyright: ignore
    which = [150, 3, 3, 77]
    batch = cached.__getitems__(which).batch  # pyright: ignore
    assert ("values" in batch) == on_device
    assert torch.equal(batch["energy"], synth.events["energy"][which])
    assert batch["event"].tolist() == which
    raw = {key: synth.events[key][which] for key in ("npho", "time")}
    expected, found = (inputs_of(one, synth.normalization) for one in (raw, batch))
    assert torch.equal(found.npho_valid_BS, expected.npho_valid_BS)
    assert torch.equal(found.time_valid_BS, expected.time_valid_BS)
    torch.testing.assert_close(found.x_BSC, expected.x_BSC, rtol=HALF / 2, atol=1e-7)
    # A root squared: twice the rounding. What has no root came as 0.
    legal = expected.npho_BS.clamp_min(0)
    torch.testing.assert_close(found.npho_BS, legal, rtol=2 * HALF, atol=0.01)
    sample = cached[-1]
    assert sample["event"] == 191
    with pytest.raises(IndexError):
        cached[192]


def test_a_cache_feeds_workers_whole_batches(synth, tmp_path: Path) -> None:
    cached = open_events(
        settings_of("memmap", tmp_path), synth.normalization, synth.train, say=_quiet
    )
    loader = DataLoader(cached, batch_size=48, shuffle=True, num_workers=1, collate_fn=collate)
    batches = list(loader)
    assert [batch["x"].shape for batch in batches] == [(48, 4760, 2)] * 4
    numbers = torch.cat([batch["event"] for batch in batches]).tolist()
    assert numbers != sorted(numbers) and sorted(numbers) == list(range(192))
    assert len(pickle.dumps(cached)) < 10000


def test_the_cache_is_filled_once_and_anew_for_other_files_or_settings(synth, tmp_path: Path):
    some = {key: synth.events[key][:20] for key in ("npho", "time", "run", "event")}
    path = tmp_path / "some.root"
    write_batches(path, iter([some]))
    said: list[str] = []
    settings = settings_of("memmap", tmp_path / "cache")

    def opened(norm=synth.normalization, where=settings):
        said.clear()
        cached = open_events(where, norm, str(path), say=said.append)
        return len(cached), len(said)  # pyright: ignore

    assert opened() == (20, 2) and "20 events" in said[0]
    assert opened() == (20, 0)
    assert opened(dataclasses.replace(synth.normalization, npho_scale=1e3)) == (20, 2)
    assert opened(where=dataclasses.replace(settings, time_branch="npho")) == (20, 2)
    os.utime(path, ns=(1, 1))
    assert opened() == (20, 2)
    write_batches(path, iter([{key: rows[:9] for key, rows in some.items()}]))
    assert opened() == (9, 2)
    assert not [*(tmp_path / "cache").glob("*.part")]


def test_a_cache_that_was_cut_short_is_not_used(synth, tmp_path: Path, monkeypatch) -> None:
    settings = settings_of("memmap", tmp_path)

    def breaks(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(caching, "packed", breaks)
    with pytest.raises(KeyboardInterrupt):
        open_events(settings, synth.normalization, synth.train, say=_quiet)
    monkeypatch.undo()
    assert len(open_events(settings, synth.normalization, synth.train, say=_quiet)) == 192  # pyright: ignore


def test_weights_go_with_cached_events(synth, tmp_path: Path) -> None:
    weights = ReweightingSettings(energy=HistogramSettings(enabled=True, nbins=5))
    settings = settings_of("ram", tmp_path)
    (file,) = event_files(settings, synth.normalization, synth.train, weights=weights)
    cached = open_events(settings, synth.normalization, synth.train, weights=weights, say=_quiet)
    batch = cached.__getitems__([9, 4]).batch  # pyright: ignore
    assert torch.equal(batch["weight"], torch.stack([file[9]["weight"], file[4]["weight"]]))


def _quiet(_: str) -> None:
    pass
