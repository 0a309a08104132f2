"""Prediction files: the columns of each model, bounded memory, and going on after a kill."""

from __future__ import annotations

import multiprocessing
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
from holdfast_models.xec.artifacts import Artifacts
from holdfast_models.xec.data.normalization import NOT_AVAILABLE, normalise
from holdfast_models.xec.predictions.columns import physical
from holdfast_models.xec.predictions.root_writer import RootPredictions
from holdfast_models.xec.settings import NormalizationSettings

uproot: Any = pytest.importorskip("uproot")

NORM = NormalizationSettings(npho_scheme="sqrt", npho_scale=20000.0, time_scale=2e-8, time_shift=0)
BOTH = ("npho", "time")


def predicted(channels: tuple[str, ...], events: int = 3) -> dict[str, torch.Tensor]:
    """What the models that fill in sensors say: 90 % of the truth in the network's scale."""
    generator = torch.Generator().manual_seed(events)
    npho = torch.rand(events, 4760, generator=generator) * 3000
    npho[:, 7] = NOT_AVAILABLE
    time = torch.rand(events, 4760, generator=generator) * 1e-8
    x = normalise(npho, time, NORM).x_BSC
    hidden = torch.zeros(events, 4760, dtype=torch.uint8)
    hidden[:, [0, 4100, 4310, 4700, 4759]] = 1
    hidden[0, 7] = 1  # dead: there is no truth
    said = {
        "run": torch.arange(events) + 400_000,
        "event": torch.arange(events) + 2**33,
        "mask": hidden,
    }
    for index, channel in enumerate(BOTH):
        said[f"truth_{channel}"] = x[..., index]
        said[f"masked_{channel}"] = torch.where(hidden.bool(), -1.0, x[..., index])
        if channel in channels:
            said[f"pred_{channel}"] = 0.9 * x[..., index]
    return said


def arrays(path: Path, tree: str = "tree") -> dict[str, Any]:
    with uproot.open(path) as file:
        return file[tree].arrays(library="np")


def written(path: Path, kind: Any, rows: dict[str, torch.Tensor], events: int, **more: Any) -> Path:
    writer = RootPredictions(path, kind, NORM, **more)
    writer.append(rows, events)
    writer.close(finished=True)
    return path


def test_the_regressor_has_a_row_for_each_event_and_columns_in_order(tmp_path: Path) -> None:
    rows = {
        "opening_angle": torch.rand(4),
        "energy_log_var": torch.rand(4),
        "x_vtx": torch.rand(4),
        **{f"true_{name}": torch.rand(4) for name in ("u", "theta", "energy")},
        **{f"pred_{name}": torch.rand(4) for name in ("u", "theta", "energy")},
        "pred_n_gamma": torch.arange(4),
        "event_id": torch.arange(4) + 2**33,
        "run_id": torch.arange(4),
    }  # fmt: skip
    path = written(tmp_path / "a.root", "reg", rows, 4)
    found = arrays(path, "val_tree")
    assert list(found) == [
        "run_id", "event_id", "pred_theta", "true_theta", "pred_energy", "true_energy", "pred_u",
        "true_u", "energy_log_var", "pred_n_gamma", "opening_angle", "x_vtx",
    ]  # fmt: skip
    assert found["event_id"].dtype == np.int64 and found["event_id"][0] == 2**33
    assert found["pred_n_gamma"].dtype == np.int32 and found["pred_u"].dtype == np.float32
    np.testing.assert_array_equal(found["pred_energy"], rows["pred_energy"].numpy())


@pytest.mark.parametrize("channels", [("npho",), BOTH], ids=["npho_only", "npho_and_time"])
def test_the_autoencoder_writes_vectors_of_all_sensors(
    tmp_path: Path, channels: tuple[str, ...]
) -> None:
    rows = predicted(channels)
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
    rows = predicted(channels)
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
    rows = predicted(("npho",))
    path = written(tmp_path / "a.root", "inp", rows, 3, channels=("npho",))
    found = arrays(path, "metadata")
    assert {len(column) for column in found.values()} == {1}
    assert found["npho_scheme"][0] == "sqrt" and found["predict_channels"][0] == "npho"
    assert found["kind"][0] == "inpainter" and found["npho_scale"][0] == 20000.0
    assert found["time_scale"][0] == 2e-8 and found["sentinel_time"][0] == -1.0


def test_only_so_many_events_of_the_autoencoder_are_written(tmp_path, parts_of, rows_of) -> None:
    settings, model, objective = parts_of("mae", "output.max_events=3")
    made = Artifacts(model, settings, rows_of(8), objective)
    made._write_predictions(tmp_path)
    assert arrays(tmp_path / "mae_predictions.root")["event_id"].tolist() == [0, 1, 2]


def test_rows_that_disagree_are_refused_by_name(tmp_path: Path) -> None:
    rows = {"run_id": torch.arange(3), "pred_u": torch.rand(3), "pred_v": torch.rand(6)}
    writer = RootPredictions(tmp_path / "a.root", "reg", NORM)
    with pytest.raises(HoldfastError, match=r"unequal lengths.*pred_v 6"):
        writer.append(rows, 3)
    with pytest.raises(HoldfastError, match="no column surprise"):
        writer.append(rows | {"surprise": rows["pred_u"]}, 3)
    with pytest.raises(HoldfastError, match="pred_u has rows of the shape"):
        writer.append({"run_id": torch.arange(3), "pred_u": torch.rand(3, 2)}, 3)


def test_a_root_below_zero_is_no_photon() -> None:
    assert float(physical(torch.tensor(-0.3), NORM, "npho")) == 0.0
    assert float(physical(torch.tensor(0.5), NORM, "time")) == pytest.approx(1e-8)


# ------------------------------------------------------------------ interruptions


def test_an_interrupted_file_goes_on_and_is_the_same(tmp_path: Path) -> None:
    batches = [predicted(BOTH, events) for events in (3, 1, 2, 3)]
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


def write_some(path: Path, *, dies: bool) -> None:
    writer = RootPredictions(path, "inp", NORM, ("npho",))
    for batch in range(writer.entries // 2, 30):
        writer.append(predicted(("npho",), 2), 2)
        if batch % 4 == 3:
            writer.keep()
        if batch == 17 and dies:
            os.kill(os.getpid(), signal.SIGKILL)
    writer.close(finished=True)


def test_after_a_kill_the_same_command_writes_the_same_rows(tmp_path: Path) -> None:
    write_some(tmp_path / "whole.root", dies=False)
    child = multiprocessing.get_context("fork").Process(
        target=write_some, args=(tmp_path / "cut.root",), kwargs={"dies": True}
    )
    child.start()
    child.join()
    assert child.exitcode == -signal.SIGKILL
    assert not (tmp_path / "cut.root").exists() and (tmp_path / "cut.parts").exists()
    write_some(tmp_path / "cut.root", dies=False)
    whole, cut = arrays(tmp_path / "whole.root"), arrays(tmp_path / "cut.root")
    assert len(whole["face"]) == 30 * 11 and whole["event_idx"][-1] == 59
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
    count, generator = 49_980, torch.Generator().manual_seed(0)
    keys = torch.rand(210, 4760, generator=generator)
    batch = {
        "run": torch.full((210,), 400_000),
        "event": torch.arange(210),
        "mask": (keys < keys.kthvalue(239, dim=1, keepdim=True)[0]).to(torch.uint8),
        "truth_npho": torch.rand(210, 4760, generator=generator),
        "pred_npho": torch.rand(210, 4760, generator=generator),
    }
    assert int(batch["mask"].sum()) == count
    def resident():
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    writer = RootPredictions(sys.argv[1], "inp", NormalizationSettings(), ("npho",),
                             compression=level)
    writer.append(batch, 210)
    writer.keep()
    before, began = resident(), time.process_time()
    for done in range(count, rows, count):
        writer.append(batch, 210)
        if done % (20 * count) == 0:
            writer.keep()
    writer.keep()
    written = time.process_time() - began
    writer.close(finished=True)
    print(resident() - before, rows / written, rows / (time.process_time() - began))
    """
)


def written_rows(path: Path, rows: int, level: int) -> tuple[float, float, float]:
    command = [sys.executable, "-c", _MANY, str(path), str(rows), str(level)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    grown, rate, whole = map(float, done.stdout.split())
    print(f"{rows} rows, zstd {level}: {grown:.0f} MB more, {rate:.3g} rows/s, "
          f"{whole:.3g} with joining")  # fmt: skip
    assert uproot.open(path)["tree"].num_entries >= rows
    return grown, rate, whole


def test_memory_does_not_grow_with_the_rows(tmp_path: Path) -> None:
    assert written_rows(tmp_path / "a.root", 200_000, 1)[0] < 100


@pytest.mark.slow
@pytest.mark.parametrize("level", [0, 1])
def test_five_million_rows_are_quick_and_take_no_memory(tmp_path: Path, level: int) -> None:
    grown, rate, _ = written_rows(tmp_path / "a.root", 5_000_000, level)
    assert grown < 200
    assert rate > (1e6 if level == 0 else 5e5), "per second of one core"
