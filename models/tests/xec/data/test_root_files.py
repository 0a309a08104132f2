from __future__ import annotations

import os
import pickle
from collections import deque
from pathlib import Path

import numpy as np
import pytest
import torch

from holdfast import HoldfastError
from holdfast_models.xec.data import root_files
from holdfast_models.xec.data.branches import BRANCHES
from holdfast_models.xec.data.root_files import RootEvents, find_files, scan

uproot = pytest.importorskip("uproot")

SENSORS = {"npho": "npho", "time": "time", "run": "run", "event": "event"}


def write(path: Path, columns: dict[str, np.ndarray], tree: str = "tree") -> Path:
    with uproot.recreate(path) as file:
        kinds = {key: np.dtype((one.dtype, one.shape[1:])) for key, one in columns.items()}
        file.mktree(tree, kinds).extend(columns)
    return path


def columns(count: int = 3, sensors: int = 4760) -> dict[str, np.ndarray]:
    values = np.arange(count * sensors, dtype=np.float32).reshape(count, sensors)
    number = np.arange(count, dtype=np.int32)
    return {"npho": values, "time": values, "run": number, "event": number}


def test_files_are_found_by_name_folder_pattern_and_home(tmp_path: Path, monkeypatch) -> None:
    for name in ("b.root", "a.root", "c.txt"):
        (tmp_path / name).touch()
    both = [tmp_path / "a.root", tmp_path / "b.root"]
    assert find_files(str(tmp_path)) == find_files(str(tmp_path / "*.root")) == both
    assert find_files(str(both[1])) == both[1:]
    monkeypatch.setenv("HOME", str(tmp_path))
    assert find_files("~/a.root") == both[:1] and find_files("~") == both


@pytest.mark.parametrize(
    ("path", "said"),
    [("", "set data.train_path"), ("none*.root", "no such file"), (".", "holds no")],
)
def test_nothing_found_is_an_error(tmp_path: Path, monkeypatch, path: str, said: str) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(HoldfastError, match=said):
        find_files(path)


def test_only_the_asked_range_is_read_into_plain_tensors(synth, monkeypatch) -> None:
    file = RootEvents(f"{synth.train}/000.root", SENSORS | dict(BRANCHES), threads=2)
    assert len(file) == 192 and file.boundaries == (0, 128, 192)
    block = file.read(100, 150)
    for name, rows in block.items():
        assert torch.equal(rows, synth.events[name][100:150].to(rows.dtype)), name
    kinds = {name: rows.dtype for name, rows in block.items()}
    assert kinds["npho"] == kinds["energy"] == torch.float32
    assert kinds["run"] == kinds["n_gamma"] == torch.int64 and kinds["dead"] == torch.bool
    monkeypatch.setattr(root_files, "BLOCK", 30)  # as larger files are read
    assert torch.equal(file.read(7, 180, ["npho"])["npho"], synth.events["npho"][7:180])
    assert [*file._steps(7, 180)] == [(7, 128), (128, 180)]  # no basket twice
    monkeypatch.setattr(root_files, "BLOCK", 150)
    assert [*file._steps(0, 192)] == [(0, 128), (128, 192)]
    assert [*file._steps(50, 60)] == [(50, 60)]
    monkeypatch.setattr(root_files, "BLOCK", 30)
    seen = [len(part["run"]) for part in scan([file, file], ["run"], 100)]
    assert seen == [30, 20, 30, 20]


def test_it_is_sent_to_another_process_without_its_file(synth) -> None:
    file = RootEvents(f"{synth.train}/000.root", SENSORS)
    sent = pickle.dumps(file)
    assert len(sent) < 2000
    assert torch.equal(pickle.loads(sent).read(5, 6)["npho"], synth.events["npho"][5:6])


def test_files_beyond_a_limit_are_closed_and_opened_again(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(root_files, "MOST_OPEN", 2)
    monkeypatch.setattr(root_files, "_open_files", deque())
    paths = [write(tmp_path / f"{n}.root", columns(n + 1)) for n in range(6)]
    files = [RootEvents(path, SENSORS) for path in paths]
    assert [len(file.read(0, len(file))["npho"]) for file in files * 2] == [1, 2, 3, 4, 5, 6] * 2
    held = [os.readlink(fd) for fd in Path("/proc/self/fd").iterdir() if fd.is_symlink()]
    assert sum(str(tmp_path) in path for path in held) <= 2


def test_float64_branches_come_as_float32(tmp_path: Path) -> None:
    wide = columns()
    wide["npho"] = wide["npho"].astype(np.float64)
    found = RootEvents(write(tmp_path / "wide.root", wide), SENSORS).read(1, 2)
    assert found["npho"].dtype == torch.float32 and found["npho"][0, 0] == 4760.0


def missing_branch(path: Path) -> Path:
    return write(path, {key: one for key, one in columns().items() if key != "time"})


def no_events(path: Path) -> Path:
    return write(path, columns(0))


def wrong_sensors(path: Path) -> Path:
    return write(path, columns(sensors=4000))


def half_a_file(path: Path) -> Path:
    write(path, columns())
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    return path


def broken_inside(path: Path) -> Path:
    """As long as it says it is, but not what was written."""
    write(path, columns())
    data = bytearray(path.read_bytes())
    data[64:400] = b"\xff" * 336
    path.write_bytes(data)
    return path


def no_root(path: Path) -> Path:
    path.write_text("run,event,npho\n" * 10)
    return path


def no_bytes(path: Path) -> Path:
    path.touch()
    return path


def other_tree(path: Path) -> Path:
    return write(path, columns(), tree="rec")


def jagged(path: Path) -> Path:
    import awkward

    rest = {key: one for key, one in columns().items() if key != "npho"}
    with uproot.recreate(path) as file:
        kinds = {key: np.dtype((one.dtype, one.shape[1:])) for key, one in rest.items()}
        tree = file.mktree("tree", {**kinds, "npho": "var * float32"})
        tree.extend({**rest, "npho": awkward.Array([[1.0], [2.0, 3.0], []])})
    return path


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (missing_branch, "no branch 'time' in tree 'tree', needed for time; there are npho, run"),
        (no_events, "has no events"),
        (wrong_sensors, "'npho' has 4000 values per event, needed for npho are 4760"),
        (half_a_file, "bytes; write or copy it again"),
        (broken_inside, "not readable as a ROOT file"),
        (no_root, "is no ROOT file"),
        (no_bytes, "is empty, 0 bytes"),
        (other_tree, "no tree 'tree'; there are rec; set data.tree_name"),
        (jagged, "needed is a fixed number of values per event: 4760"),
    ],
)
def test_19_9_bad_files_are_one_line_that_names_the_file(tmp_path: Path, make, said: str) -> None:
    path = make(tmp_path / "bad.root")
    with pytest.raises(HoldfastError) as caught:
        RootEvents(path, SENSORS)
    line = str(caught.value)
    assert said in line and line.startswith(f"{path}: ") and "\n" not in line


def test_a_broken_basket_is_one_line_when_it_is_read(tmp_path: Path) -> None:
    path = write(tmp_path / "bad.root", columns())
    seek = int(uproot.open(path)["tree"]["npho"].member("fBasketSeek")[0])
    data = path.read_bytes()
    path.write_bytes(data[: seek + 100] + bytes(1000) + data[seek + 1100 :])
    file = RootEvents(path, SENSORS)
    with pytest.raises(HoldfastError) as caught:
        file.read(0, 3)
    line = str(caught.value)
    assert line.startswith(f"{path}: entries 0 to 3 of branch 'npho' cannot be read")
    assert "\n" not in line


def test_a_file_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(HoldfastError, match="No such file"):
        RootEvents(tmp_path / "gone.root", SENSORS)


def test_17_3_tree_and_branch_names_are_honoured(tmp_path: Path) -> None:
    named = columns() | {"other": columns()["npho"] + 1}
    path = write(tmp_path / "rec.root", named, tree="rec")
    found = RootEvents(path, SENSORS | {"npho": "other"}, tree_name="rec").read(0, 1)
    assert found["npho"][0, 0] == 1.0 and found["time"][0, 0] == 0.0


def test_uproot_missing_is_one_line_with_the_extra(monkeypatch, synth) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "uproot", None)
    with pytest.raises(HoldfastError, match=r'pip install "holdfast-models\[xec\]"'):
        RootEvents(f"{synth.train}/000.root", SENSORS)
