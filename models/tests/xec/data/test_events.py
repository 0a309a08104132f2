from __future__ import annotations

import logging
import os
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from torch.utils.data import DataLoader

from holdfast import HoldfastError
from holdfast.training import Place, Streamed
from holdfast.training.data.loading import sample_bytes
from holdfast_models.xec.data import events as events_module
from holdfast_models.xec.data.batches import inputs_of
from holdfast_models.xec.data.events import event_files, open_events
from holdfast_models.xec.data.normalization import normalise
from holdfast_models.xec.data.synth_files import write_batches
from holdfast_models.xec.settings import DataSettings, FiducialSettings

RAW = DataSettings(time_branch="time", device_transform=True)
CPU = torch.device("cpu")


def numbers_of(stream: Streamed, workers: int = 0) -> list[int]:
    """The events of a pass through a stream, in its order."""
    return [n for _, numbers in read(stream, workers) for n in numbers]


def read(stream: Streamed, workers: int) -> list[tuple[int, list[int]]]:
    """Batches of 16 as (process, events)."""
    return list(DataLoader(stream, batch_size=16, num_workers=workers, collate_fn=_whose))


def _whose(samples: list[dict[str, torch.Tensor]]) -> tuple[int, list[int]]:
    return os.getpid(), [int(sample["event"]) for sample in samples]


def test_raw_batches_are_what_the_file_holds(synth) -> None:
    (file,) = event_files(RAW, synth.normalization, synth.train, ["energy", "uvwFI"])
    block = file.__getitems__(range(10, 30)).batch
    assert set(block) == {"npho", "time", "run", "event", "energy", "uvwFI"}
    for name, rows in block.items():
        assert torch.equal(rows, synth.events[name][10:30]), name


@pytest.mark.parametrize("threads", [1, 3])
def test_the_loader_normalises_as_the_device_does(synth, threads: int) -> None:
    settings = DataSettings(time_branch="time", num_threads=threads)
    (file,) = event_files(settings, synth.normalization, synth.train, ["angle"])
    block = file.__getitems__(range(192)).batch
    assert "time" not in block and block["x"].shape == (192, 4760, 2)
    there = normalise(synth.events["npho"], synth.events["time"], synth.normalization)
    for here, expected in zip(inputs_of(block, synth.normalization), there, strict=True):
        assert here.dtype == expected.dtype
        torch.testing.assert_close(here, expected, rtol=0, atol=1e-6)


def test_the_time_branch_is_a_choice(synth) -> None:
    (file,) = event_files(DataSettings(device_transform=True), synth.normalization, synth.train)
    assert torch.equal(file[3]["time"], synth.events["relative_time"][3])


def test_optional_quantities_are_read_where_they_are(synth, tmp_path: Path) -> None:
    without = {key: synth.events[key] for key in ("npho", "time", "run", "event")}
    write_batches(tmp_path / "plain.root", iter([without]))
    (file,) = event_files(RAW, synth.normalization, str(tmp_path), optional=["dead", "npho_clean"])
    assert "dead" not in file[0]
    (file,) = event_files(RAW, synth.normalization, synth.train, optional=["dead", "npho_clean"])
    assert {"dead", "npho_clean"} <= set(file[0])
    with pytest.raises(HoldfastError, match=r"no branch 'emiAng'.*needed for angle") as caught:
        event_files(RAW, synth.normalization, str(tmp_path), ["angle"])
    assert "plain.root" in str(caught.value)
    with pytest.raises(HoldfastError, match="no quantity 'enrgy'"):
        event_files(RAW, synth.normalization, str(tmp_path), ["enrgy"])


def test_any_other_branch_is_passed_on_as_it_is(synth, tmp_path: Path) -> None:
    some = {key: synth.events[key][:5] for key in ("npho", "time", "run", "event")}
    some |= {"energyReco": synth.events["energy"][:5], "uvwRecoFI": synth.events["uvwFI"][:5]}
    write_batches(tmp_path / "reco.root", iter([some]))
    wanted = ["energyReco", "uvwRecoFI", "timeReco"]
    (file,) = event_files(RAW, synth.normalization, str(tmp_path), optional=wanted)
    block = file.__getitems__(range(5)).batch
    assert torch.equal(block["energyReco"], some["energyReco"]) and "timeReco" not in block
    assert torch.equal(block["uvwRecoFI"], some["uvwRecoFI"])


def test_17_3_training_data_is_shuffled_and_validation_is_not(synth) -> None:
    stream = open_events(RAW, synth.normalization, synth.train, chunk=64)
    assert isinstance(stream, Streamed)
    train = stream.joined(Place(CPU), 16, seed=1, train=True)
    first = numbers_of(train)
    train.set_epoch(1)
    second = numbers_of(train)
    assert first != sorted(first) and first != second
    assert sorted(first) == sorted(second) == list(range(192))
    apart = [abs(a - b) for a, b in pairwise(first)]
    assert sum(apart) / len(apart) > 20  # mixed over two chunks, not within a few events
    validation = stream.joined(Place(CPU), 16, seed=1, train=False)
    assert numbers_of(validation) == list(range(192))


def test_17_3_and_4_one_file_keeps_all_workers_busy(synth) -> None:
    stream = open_events(RAW, synth.normalization, synth.train, chunk=16)
    assert isinstance(stream, Streamed)
    batches = read(stream.joined(Place(CPU), 16, seed=1, train=True), workers=2)
    assert len({worker for worker, _ in batches}) == 2
    assert sorted(n for _, numbers in batches for n in numbers) == list(range(192))


@pytest.mark.parametrize("world", [2, 5])
def test_17_4_ranks_have_equally_many_batches_of_different_events(synth, world: int) -> None:
    stream = open_events(RAW, synth.normalization, synth.train, chunk=16)
    assert isinstance(stream, Streamed)
    ranks = [
        numbers_of(stream.joined(Place(CPU, rank, world), 16, seed=1, train=True))
        for rank in range(world)
    ]
    assert {len(rank) for rank in ranks} == {192 // world}
    together = [n for rank in ranks for n in rank]
    assert len(set(together)) == len(together)
    every = [
        numbers_of(stream.joined(Place(CPU, rank, world), 16, seed=1, train=False))
        for rank in range(world)
    ]
    assert sorted(n for rank in every for n in rank) == list(range(192))


@pytest.mark.parametrize("w_max", [None, 3.0])
def test_the_fiducial_cut_keeps_the_events_inside(synth, w_max: float | None) -> None:
    cut = FiducialSettings(enabled=True, u_max=10.0, v_max=40.0, w_min=1.0, w_max=w_max)
    settings = DataSettings(time_branch="time", device_transform=True, fiducial=cut)
    (file,) = event_files(settings, synth.normalization, synth.train)
    u, v, w = synth.events["uvwFI"].unbind(-1)
    inside = (u.abs() < 10) & (v.abs() < 40) & (w >= 1) & (w <= (w_max or 99))
    expected = inside.nonzero()[:, 0]
    assert 5 < len(file) == len(expected) < 100
    block = file.__getitems__(range(len(file))).batch
    assert torch.equal(block["event"], expected) and "uvwFI" not in block
    assert torch.equal(block["npho"], synth.events["npho"][expected])
    assert file[2]["event"] == expected[2]
    assert set(file.boundaries) == {0, int((expected < 128).sum()), len(file)}


def test_the_cut_is_found_once_per_file(synth, monkeypatch) -> None:
    cut = FiducialSettings(enabled=True, u_max=11.0)
    settings = DataSettings(time_branch="time", fiducial=cut)
    event_files(settings, synth.normalization, synth.train)
    reads: list[object] = []
    monkeypatch.setattr(events_module.RootEvents, "read", lambda *a: reads.append(a))
    event_files(settings, synth.normalization, synth.train)
    assert not reads


def test_no_event_inside_the_cut_is_an_error(synth) -> None:
    settings = DataSettings(fiducial=FiducialSettings(enabled=True, u_max=0.0))
    with pytest.raises(HoldfastError, match=r"none of 192 events lies inside data\.fiducial"):
        open_events(settings, synth.normalization, synth.train)


def test_invalid_counts_are_named_then_counted(synth, tmp_path: Path, caplog) -> None:
    some = {key: synth.events[key][:4].clone() for key in ("npho", "time", "run", "event")}
    some["npho"][2, 100:112] = torch.nan
    some["npho"][3, 7] = -torch.inf
    write_batches(tmp_path / "bad.root", iter([some]))
    with caplog.at_level(logging.WARNING, "holdfast.xec"):
        (file,) = event_files(RAW, synth.normalization, str(tmp_path))
        file.__getitems__(range(4))
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == 11 and "bad.root: run 1, event 2, sensor 100: npho is nan" in lines[0]
    assert "3 more" in lines[-1] and "among 4 events" in lines[-1]
    caplog.clear()
    quiet = DataSettings(time_branch="time", log_invalid_npho=False)
    (file,) = event_files(quiet, synth.normalization, str(tmp_path))
    batch = file.__getitems__(range(4)).batch
    assert not caplog.records
    assert batch["x"].isfinite().all() and not batch["npho_valid"][2, 100:112].any()


def test_dead_sensors_are_no_news(synth, caplog) -> None:
    (file,) = event_files(RAW, synth.normalization, synth.train)
    file.__getitems__(range(20))
    assert not caplog.records


def test_relative_npho_is_warned_of_once(synth, tmp_path: Path, caplog) -> None:
    some = {key: synth.events[key][:2] for key in ("npho", "time", "run", "event")}
    some["relative_npho"] = some["npho"] / some["npho"].amax()
    write_batches(tmp_path / "old.root", iter([some]))
    settings = DataSettings(time_branch="time", npho_branch="relative_npho")
    for _ in range(2):
        event_files(settings, synth.normalization, str(tmp_path))
    assert [record.getMessage().split(",")[0] for record in caplog.records] == [
        "data.npho_branch is relative_npho"
    ]


def test_chunks_take_the_memory_that_was_estimated(synth) -> None:
    """Two blocks as ``Streamed`` holds them, beside what the trainer says before it is taken."""
    (file,) = event_files(
        DataSettings(time_branch="time", num_threads=1), synth.normalization, synth.train
    )
    blocks = [file.__getitems__(range(at, at + 96)) for at in (0, 96)]
    held = sum(rows.nbytes for block in blocks for rows in block.batch.values())
    assert sample_bytes(Streamed([file], chunk=96)) == 4760 * 14 + 16
    assert held == 2 * 96 * (4760 * 14 + 16)
