from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from holdfast import HoldfastError
from holdfast_models.xec.data.made_once import made_once, name_of, stamps


def test_of_several_that_need_a_folder_one_makes_it(tmp_path: Path) -> None:
    made: list[Path] = []

    def make(part: Path) -> None:
        time.sleep(0.1)
        made.append(part)
        (part / "whole").touch()

    folder = tmp_path / "deep" / "set-1"
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: made_once(folder, make), range(4)))
    assert len(made) == 1 and found == [folder] * 4
    assert (folder / "whole").exists() and not made[0].exists()


def test_a_folder_that_failed_is_made_again(tmp_path: Path) -> None:
    def fails(part: Path) -> None:
        (part / "half").touch()
        raise OSError("disk full")

    folder = tmp_path / "set-1"
    with pytest.raises(OSError, match="disk full"):
        made_once(folder, fails)
    assert not folder.exists()
    made_once(folder, lambda part: (part / "whole").touch())
    assert [path.name for path in folder.iterdir()] == ["whole"]


def test_a_place_that_cannot_be_written_to_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(HoldfastError, match="choose a folder that you can write to"):
        made_once(tmp_path / "file" / "set-1", lambda _: None)


def test_names_follow_what_decides(tmp_path: Path) -> None:
    file = tmp_path / "a.root"
    file.write_bytes(b"1")
    first = name_of("set", stamps([file]), {"b": 1, "a": 2})
    assert first == name_of("set", stamps([file]), {"a": 2, "b": 1})
    file.write_bytes(b"12")
    assert name_of("set", stamps([file]), {"a": 2, "b": 1}) != first
