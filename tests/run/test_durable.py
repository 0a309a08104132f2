from __future__ import annotations

import errno
import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from holdfast.run.durable import Appender, replace_file

pytestmark = pytest.mark.timeout(30)
Limit = Callable[[int], AbstractContextManager[None]]


def test_replacing_is_all_or_nothing(tmp_path: Path, full_disk: Limit) -> None:
    path = tmp_path / "a"
    replace_file(path, b"old")
    with full_disk(4), pytest.raises(OSError):
        replace_file(path, b"new", b"er and longer")
    assert path.read_bytes() == b"old"
    replace_file(path, b"new", b"er and longer")
    assert path.read_bytes() == b"newer and longer"
    assert os.listdir(tmp_path) == ["a"]


@pytest.mark.parametrize("links", [True, False])
def test_exclusive_never_replaces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, links: bool
) -> None:
    if not links:

        def refuse(*_: object) -> None:
            raise OSError(errno.EPERM, "no hard links here")

        monkeypatch.setattr(os, "link", refuse)
    replace_file(tmp_path / "a", b"first", exclusive=True)
    with pytest.raises(FileExistsError):
        replace_file(tmp_path / "a", b"second", exclusive=True)
    assert (tmp_path / "a").read_bytes() == b"first"
    assert os.listdir(tmp_path) == ["a"]


def test_a_failed_append_leaves_no_trace_and_the_next_works(
    tmp_path: Path, full_disk: Limit
) -> None:
    file = Appender(tmp_path / "a")
    file.append(b"12345678")
    with full_disk(10), pytest.raises(OSError):
        file.append(b"abcdefgh")
    assert (tmp_path / "a").read_bytes() == b"12345678"
    file.append(b"ijkl")
    file.sync()
    file.close()
    assert (tmp_path / "a").read_bytes() == b"12345678ijkl"


def test_a_torn_end_that_cannot_be_cut_now_is_cut_before_the_next_append(
    tmp_path: Path, full_disk: Limit, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = Appender(tmp_path / "a")
    file.append(b"12345678")

    def refuse(*_: object) -> None:
        raise OSError(errno.EIO, "the disk is ill")

    with full_disk(10), monkeypatch.context() as patch, pytest.raises(OSError):
        patch.setattr(os, "ftruncate", refuse)
        file.append(b"abcdefgh")
    assert (tmp_path / "a").read_bytes() == b"12345678ab"
    file.append(b"ijkl")
    file.close()
    assert (tmp_path / "a").read_bytes() == b"12345678ijkl"


def test_opening_cuts_back_to_what_is_to_be_kept(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"12345678")
    file = Appender(tmp_path / "a", keep=5)
    assert file.size == 5
    file.close()
    assert (tmp_path / "a").read_bytes() == b"12345"
    file = Appender(tmp_path / "a", keep=50)
    assert file.size == 5
    file.close()
