from __future__ import annotations

import fcntl
import io
import logging
import os
import struct
import sys
import termios

from rich.logging import RichHandler

from holdfast.training.loop.terminal import Careful, reaches_a_person


def test_rich_and_stream_handlers_reach_a_person_files_do_not(tmp_path):
    with (tmp_path / "log").open("w") as file:
        assert not reaches_a_person(logging.StreamHandler(file), 20)
    assert not reaches_a_person(logging.NullHandler(), 20)
    assert not reaches_a_person(logging.StreamHandler(io.StringIO()), 20)
    assert reaches_a_person(logging.StreamHandler(sys.stdout), 20)
    assert reaches_a_person(RichHandler(), 20)
    assert not reaches_a_person(RichHandler(level=30), 20)


def test_the_width_is_the_terminals_where_nothing_else_is_said(monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)
    leader, follower = os.openpty()
    try:
        fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 77, 0, 0))
        with open(follower, "w", closefd=False) as stream:
            assert Careful(stream).width == 77
    finally:
        os.close(leader)
        os.close(follower)
    assert Careful(io.StringIO()).width == 100
