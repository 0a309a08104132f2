"""Which terminals get colours, links and how many columns."""

from __future__ import annotations

import re

import pytest

from holdfast.report.layout import Span, line, painted, shown
from holdfast.report.terminal import Terminal


class Screen:
    def isatty(self) -> bool:
        return True

    def fileno(self) -> int:
        raise OSError("not a real one")


class Pipe(Screen):
    def isatty(self) -> bool:
        return False


@pytest.mark.parametrize(
    ("stream", "environment", "colour"),
    [
        (Screen(), {}, True),
        (Screen(), {"TERM": "dumb"}, False),
        (Screen(), {"NO_COLOR": "1"}, False),
        (Screen(), {"NO_COLOR": ""}, True),
        (Screen(), {"NO_COLOR": "1", "FORCE_COLOR": "1"}, False),
        (Screen(), {"FORCE_COLOR": "0"}, False),
        (Pipe(), {}, False),
        (Pipe(), {"FORCE_COLOR": "1"}, True),
        (None, {}, False),
    ],
)
def test_colour(stream, environment, colour):
    assert Terminal.of(stream, environment).colour is colour


@pytest.mark.parametrize(
    ("stream", "environment", "links"),
    [
        (Screen(), {"TERM": "xterm-256color"}, False),
        (Screen(), {"TERM_PROGRAM": "vscode"}, True),
        (Screen(), {"TERM": "xterm-kitty"}, True),
        (Screen(), {"VTE_VERSION": "7600"}, True),
        (Screen(), {"VTE_VERSION": "4205"}, False),
        (Screen(), {"WT_SESSION": "x"}, True),
        (Screen(), {"TERM_PROGRAM": "vscode", "CI": "true"}, False),
        (Screen(), {"TMUX": "x", "TERM_PROGRAM": "tmux", "TERM_PROGRAM_VERSION": "3.4"}, True),
        (Screen(), {"TMUX": "x", "TERM_PROGRAM": "tmux", "TERM_PROGRAM_VERSION": "3.3a"}, False),
        (Screen(), {"TMUX": "x", "VTE_VERSION": "7600"}, False),
        (Screen(), {"FORCE_HYPERLINK": "1"}, True),
        (Screen(), {"FORCE_HYPERLINK": "0", "WT_SESSION": "x"}, False),
        (Pipe(), {"TERM_PROGRAM": "vscode", "FORCE_HYPERLINK": "1", "FORCE_COLOR": "1"}, False),
    ],
)
def test_links(stream, environment, links):
    assert Terminal.of(stream, environment).links is links


@pytest.mark.parametrize(
    ("columns", "width"),
    [("", 88), ("40", 40), ("200", 100), ("10", 40), ("x", 88), ("-5", 88), ("9" * 9, 88)],
)
def test_width(columns, width):
    assert Terminal.of(Screen(), {"COLUMNS": columns}).width == width
    assert Terminal.of(Pipe(), {"COLUMNS": columns}).width == width


def test_paths_that_exist_can_be_clicked_and_nothing_else(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model.py").touch()
    (tmp_path / "my runs").mkdir()
    (tmp_path / "my runs" / "report.html").touch()
    text = "log(0) at model.py:88, or other.py:3, 1.5 of 3/4"
    said = painted([line(text), line("  ", Span("my runs/report.html"))], links=True)
    assert re.sub(r"\x1b\]8;;.*?\x1b\\", "", said) == f"{text}\n  my runs/report.html\n"
    links = re.findall(r"\x1b\]8;;(.+?)\x1b\\(.*?)\x1b\]8;;\x1b\\", said)
    assert [shown for _, shown in links] == ["model.py:88", "my runs/report.html"]
    assert links[0][0].startswith("file://") and links[0][0].endswith(f"{tmp_path}/model.py")
    assert links[1][0].endswith("/my%20runs/report.html")


def test_no_escape_where_there_is_no_colour():
    lines = [line(Span("worse", "bold red"), " .")]
    assert shown(lines, Terminal()) == "worse .\n"
    assert shown(lines, Terminal(colour=True)) == "\x1b[1;31mworse\x1b[0m .\n"
