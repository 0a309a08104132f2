"""Prediction files: the columns of each model, bounded memory, and going on after a kill."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from holdfast import HoldfastError
from holdfast_models.xec.data.normalization import NOT_AVAILABLE, normalise
from holdfast_models.xec.predictions.columns import (
    inpainting_rows,
    opening_angle,
    physical,
    reconstruction_rows,
    regression_rows,
)
from holdfast_models.xec.predictions.root_writer import RootPredictions
from holdfast_models.xec.settings import NormalizationSettings, TaskSettings

uproot: Any = pytest.importorskip("uproot")

NORM = NormalizationSettings(npho_scheme="sqrt", npho_scale=20000.0, time_scale=2e-8, time_shift=0)
BOTH = ("npho", "time")


def raw(events: int = 3, seed: int = 0) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    npho = torch.rand(events, 4760, generator=generator) * 3000
    npho[:, 7] = NOT_AVAILABLE
    return {
        "npho": npho,
        "time": torch.rand(events, 4760, generator=generator) * 1e-8,
        "run": torch.arange(events) + 400_000,
        "event": torch.arange(events) + 2**33,
    }


def hidden_case(channels: tuple[str, ...], events: int = 3) -> tuple[Any, ...]:
    batch = raw(events)
    inputs = normalise(batch["npho"], batch["time"], NORM)
    hidden = torch.zeros(events, 4760, dtype=torch.bool)
    hidden[:, [0, 4100, 4310, 4700, 4759]] = True
    hidden[0, 7] = True  # dead: there is no truth
    return inputs.x_BSC[..., : len(channels)] * 0.9, inputs, hidden, batch, NORM, channels


def arrays(path: Path, tree: str = "tree") -> dict[str, Any]:
    with uproot.open(path) as file:
        return file[tree].arrays(library="np")


def written(path: Path, kind: Any, rows: dict[str, torch.Tensor], events: int, **more: Any) -> Path:
    writer = RootPredictions(path, kind, NORM, **more)
    writer.append(rows, events)
    writer.close(finished=True)
    return path


def test_the_regressor_has_a_row_for_each_event(tmp_path: Path) -> None:
    tasks = {
        "angle": TaskSettings(enabled=True),
        "energy": TaskSettings(enabled=True, loss_fn="gaussian_nll"),
        "uvwFI": TaskSettings(enabled=True),
        "timing": TaskSettings(enabled=True),
        "n_gamma": TaskSettings(enabled=True),
    }
    batch = raw(4) | {
        "angle": torch.tensor([[90.0, 0.0]] * 4),
        "energy": torch.full((4,), 0.05),
        "uvwFI": torch.rand(4, 3),
        "n_gamma": torch.ones(4, dtype=torch.int64),
        "xyzVTX": torch.rand(4, 3),
    }
    outputs = {
        "angle": torch.tensor([[90.0, 0.0], [91.0, 0.0], [90.0, 2.0], [90.0, 0.001]]),
        "energy": torch.tensor([[0.051, -9.0]] * 4),
        "uvwFI": torch.rand(4, 3),
        "timing": torch.full((4, 1), 1e-9),
        "n_gamma": torch.eye(5)[:4],
    }
    path = written(tmp_path / "a.root", "reg", regression_rows(outputs, batch, tasks), 4)
    found = arrays(path, "val_tree")
    assert list(found)[:6] == ["run_id", "event_id", "pred_theta", "true_theta", "pred_phi",
                               "true_phi"]  # fmt: skip
    assert found["event_id"].dtype == np.int64 and found["event_id"][0] == 2**33
    np.testing.assert_allclose(found["opening_angle"], [0, 1, 2, 0.001], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(found["pred_energy_log_var"], -9.0)
    assert "pred_theta_log_var" not in found and "true_timing" not in found, "no truth, no column"
    assert {"pred_timing", "x_vtx", "pred_w", "true_u"} <= set(found)
    assert found["pred_n_gamma"].tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("channels", [("npho",), BOTH], ids=["npho_only", "npho_and_time"])
def test_the_autoencoder_writes_vectors_of_all_sensors(
    tmp_path: Path, channels: tuple[str, ...]
) -> None:
    rows = reconstruction_rows(*hidden_case(channels))
    path = written(tmp_path / "a.root", "mae", rows, 3, channels=channels)
    with uproot.open(path) as file:
        assert file["tree"]["truth_npho"].typename == "float[4760]"
    found = arrays(path)
    assert ("pred_time" in found) == ("err_time" in found) == ("time" in channels)
    assert found["mask"].dtype == np.uint8 and found["mask"].sum() == 16
    assert found["event_id"].tolist() == [0, 1, 2] and found["run"][2] == 400_002
    assert (found["masked_npho"][:, 4759] == np.float32(1e10)).all()
    assert (found["masked_time"][:, 0] == np.float32(1e10)).all()
    said, truth = found["pred_npho"][1, 8:], found["truth_npho"][1, 8:]
    np.testing.assert_allclose(said, 0.81 * truth, rtol=1e-4)
    errors = found["err_npho"][:, 0]
    np.testing.assert_allclose(errors, -0.19 * found["truth_npho"][:, 0], rtol=1e-3)
    assert (found["err_npho"][:, 7] == np.float32(1e10)).all(), "there is no truth of a dead sensor"


@pytest.mark.parametrize("channels", [("npho",), BOTH], ids=["npho_only", "npho_and_time"])
def test_the_inpainter_writes_a_row_for_each_hidden_sensor(
    tmp_path: Path, channels: tuple[str, ...]
) -> None:
    rows = inpainting_rows(*hidden_case(channels))
    writer = RootPredictions(tmp_path / "a.root", "inp", NORM, channels, first=100)
    writer.append(rows, 3)
    writer.append(rows, 3)
    writer.close(finished=True)
    found = arrays(tmp_path / "a.root")
    types = {name: found[name].dtype.str for name in found}
    assert types["event_idx"] == types["sensor_id"] == types["face"] == "<i4"
    assert types["run_number"] == types["event_number"] == "<i8"
    assert {types[f"{what}_npho"] for what in ("truth", "pred", "error")} == {"<f4"}
    assert ("pred_time" in found) == ("time" in channels)
    assert (
        found["event_idx"].tolist()
        == [100] * 6 + [101] * 5 + [102] * 5 + [103] * 6 + [104] * 5 + [105] * 5
    )
    assert found["face"][6:11].tolist() == [0, 3, 1, 5, 3]
    truth = found["truth_npho"][6:16]
    np.testing.assert_allclose(found["pred_npho"][6:16], 0.81 * truth, rtol=1e-3)
    dead = found["sensor_id"] == 7
    assert dead.sum() == 2 and (found["error_npho"][dead] == np.float32(1e10)).all()


def test_the_metadata_has_one_entry_with_text_and_numbers(tmp_path: Path) -> None:
    rows = inpainting_rows(*hidden_case(("npho",)))
    path = written(tmp_path / "a.root", "inp", rows, 3, channels=("npho",))
    found = arrays(path, "metadata")
    assert {len(column) for column in found.values()} == {1}
    assert found["npho_scheme"][0] == "sqrt" and found["predict_channels"][0] == "npho"
    assert found["kind"][0] == "inpainter" and found["npho_scale"][0] == 20000.0
    assert found["time_scale"][0] == 2e-8 and found["sentinel_time"][0] == -1.0


def test_only_so_many_events_of_the_autoencoder_are_written(tmp_path: Path) -> None:
    rows = reconstruction_rows(*hidden_case(BOTH))
    writer = RootPredictions(tmp_path / "a.root", "mae", NORM, BOTH, max_events=4)
    for _ in range(3):
        writer.append(rows, 3)
    writer.close(finished=True)
    assert arrays(tmp_path / "a.root")["event_id"].tolist() == [0, 1, 2, 3]


def test_rows_that_disagree_are_refused_by_name(tmp_path: Path) -> None:
    rows = inpainting_rows(*hidden_case(("npho",)))
    writer = RootPredictions(tmp_path / "a.root", "inp", NORM)
    with pytest.raises(HoldfastError, match=r"different lengths.*'face': 15"):
        writer.append(rows | {"face": rows["face"][:-1]}, 3)
    with pytest.raises(HoldfastError, match="no column pred_w"):
        writer.append(rows | {"pred_w": rows["face"]}, 3)
    vectors = reconstruction_rows(*hidden_case(("npho",)))
    other = RootPredictions(tmp_path / "b.root", "mae", NORM)
    with pytest.raises(HoldfastError, match="truth_npho has rows of the shape"):
        other.append(vectors | {"truth_npho": vectors["truth_npho"][:, 0]}, 3)


def test_a_root_below_zero_is_no_photon() -> None:
    assert float(physical(torch.tensor(-0.3), NORM, "npho")) == 0.0
    assert float(physical(torch.tensor(0.5), NORM, "time")) == pytest.approx(1e-8)


def test_nearly_equal_directions_keep_their_digits() -> None:
    some = torch.tensor([[80.0, 10.0]])
    assert float(opening_angle(some, some + torch.tensor([[1e-3, 0.0]]))) == pytest.approx(
        1e-3, rel=1e-2
    )


# ------------------------------------------------------------------ interruptions


def test_an_interrupted_file_goes_on_and_is_the_same(tmp_path: Path) -> None:
    batches = [inpainting_rows(*hidden_case(BOTH, events)) for events in (3, 1, 2, 3)]
    sizes = (3, 1, 2, 3)
    whole = RootPredictions(tmp_path / "whole.root", "inp", NORM, BOTH)
    for rows, events in zip(batches, sizes, strict=True):
        whole.append(rows, events)
    whole.close(finished=True)

    first = RootPredictions(tmp_path / "parts.root", "inp", NORM, BOTH, what={"weights": "a"})
    first.append(batches[0], 3)
    first.append(batches[1], 1)
    first.keep()
    first.append(batches[2], 2)
    first.close(finished=False)  # as predict does after an error
    assert not (tmp_path / "parts.root").exists()
    with pytest.raises(HoldfastError, match="begun with another weights"):
        RootPredictions(tmp_path / "parts.root", "inp", NORM, BOTH, what={"weights": "b"})
    again = RootPredictions(tmp_path / "parts.root", "inp", NORM, BOTH, what={"weights": "a"})
    assert again.entries == 4
    again.append(batches[2], 2)
    again.keep()
    again.append(batches[3], 3)
    again.close(finished=True)
    for name, column in arrays(tmp_path / "whole.root").items():
        np.testing.assert_array_equal(column, arrays(tmp_path / "parts.root")[name])
    assert sorted(one.name for one in tmp_path.iterdir()) == ["parts.root", "whole.root"]
    with pytest.raises(HoldfastError, match="there already"):
        RootPredictions(tmp_path / "parts.root", "inp", NORM)
    RootPredictions(tmp_path / "parts.root", "inp", NORM, overwrite=True)


_WRITING = textwrap.dedent(
    """
    import sys, torch
    from holdfast_models.xec.predictions.root_writer import RootPredictions
    from holdfast_models.xec.settings import NormalizationSettings
    writer = RootPredictions(sys.argv[1], "inp", NormalizationSettings(), ("npho",))
    for batch in range(writer.entries // 10, 30):
        ids = torch.arange(1000)
        rows = {name: batch * 1000 + ids for name in ("run_number", "event_number", "sensor_id")}
        rows |= {name: (batch * 1000 + ids).float() for name in ("truth_npho", "pred_npho")}
        writer.append(rows | {"event_idx": ids // 100, "face": ids % 6}, 10)
        if batch % 4 == 3:
            writer.keep()
        if batch == 17 and sys.argv[2] == "die":
            import os, signal
            os.kill(os.getpid(), signal.SIGKILL)
    writer.close(finished=True)
    """
)


def test_after_a_kill_the_same_command_writes_the_same_rows(tmp_path: Path) -> None:
    def run(path: Path, how: str) -> int:
        return subprocess.run([sys.executable, "-c", _WRITING, str(path), how]).returncode

    assert run(tmp_path / "whole.root", "live") == 0
    assert run(tmp_path / "cut.root", "die") == -signal.SIGKILL
    assert not (tmp_path / "cut.root").exists()
    assert run(tmp_path / "cut.root", "live") == 0
    whole, cut = arrays(tmp_path / "whole.root"), arrays(tmp_path / "cut.root")
    assert len(whole["face"]) == 30_000 and whole["event_idx"][-1] == 299
    for name, column in whole.items():
        np.testing.assert_array_equal(column, cut[name])
    assert sorted(os.listdir(tmp_path)) == ["cut.root", "whole.root"]


# ------------------------------------------------------------------ memory and speed

_MANY = textwrap.dedent(
    """
    import resource, sys, time, torch
    from holdfast_models.xec.predictions.root_writer import RootPredictions
    from holdfast_models.xec.settings import NormalizationSettings
    rows, level = int(sys.argv[2]), int(sys.argv[3])
    count, generator = 50_000, torch.Generator().manual_seed(0)
    batch = {
        "event_idx": torch.arange(count) // 238,
        "run_number": torch.full((count,), 400_000),
        "event_number": torch.arange(count) // 238,
        "sensor_id": torch.randint(4760, (count,), generator=generator),
        "face": torch.randint(6, (count,), generator=generator),
    }
    for name in ("truth_npho", "pred_npho", "error_npho"):
        batch[name] = torch.rand(count, generator=generator) * 1000
    def resident():
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    writer = RootPredictions(sys.argv[1], "inp", NormalizationSettings(), ("npho",),
                             compression=level)
    writer.append(batch, 210)
    writer.keep()
    before, began = resident(), time.perf_counter()
    for done in range(count, rows, count):
        writer.append(batch, 210)
        if done % 1_000_000 == 0:
            writer.keep()
    writer.keep()
    written = time.perf_counter() - began
    writer.close(finished=True)
    print(resident() - before, rows / written, rows / (time.perf_counter() - began))
    """
)


def written_rows(path: Path, rows: int, level: int) -> tuple[float, float, float]:
    command = [sys.executable, "-c", _MANY, str(path), str(rows), str(level)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    grown, rate, whole = map(float, done.stdout.split())
    print(f"{rows} rows, zstd {level}: {grown:.0f} MB more, {rate:.3g} rows/s, "
          f"{whole:.3g} with joining")  # fmt: skip
    assert uproot.open(path)["tree"].num_entries == rows
    return grown, rate, whole


def test_memory_does_not_grow_with_the_rows(tmp_path: Path) -> None:
    assert written_rows(tmp_path / "a.root", 500_000, 1)[0] < 100


@pytest.mark.slow
@pytest.mark.parametrize("level", [0, 1])
def test_five_million_rows_are_quick_and_take_no_memory(tmp_path: Path, level: int) -> None:
    grown, rate, _ = written_rows(tmp_path / "a.root", 5_000_000, level)
    assert grown < 200
    assert rate > 1e6
