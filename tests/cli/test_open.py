"""``holdfast open``: the page of a run in the browser, or its path."""

from __future__ import annotations

import pytest

from holdfast.cli import main


@pytest.fixture
def opened(monkeypatch):
    seen: list[str] = []
    monkeypatch.setattr("webbrowser.open", lambda address: not seen.append(address))
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "WSL_DISTRO_NAME", "BROWSER"):
        monkeypatch.delenv(name, raising=False)
    return seen


def test_the_page_is_made_and_opened(make_run, opened, monkeypatch, capsys):
    monkeypatch.setenv("DISPLAY", ":0")
    run = make_run()
    assert main(["open", str(run.path)]) == 0
    assert opened == [run.page_path.resolve().as_uri()]
    assert "<html" in run.page_path.read_text()
    assert capsys.readouterr().out == f"{run.page_path}\n"


def test_without_a_display_the_path_is_printed(make_run, opened, monkeypatch, capsys):
    monkeypatch.setattr("sys.platform", "linux")
    run = make_run()
    assert main(["open", str(run.path)]) == 0
    said = capsys.readouterr()
    assert (opened, said.out) == ([], f"{run.page_path}\n")
    assert "no display" in said.err


def test_a_browser_that_does_not_start_is_said(make_run, opened, monkeypatch, capsys):
    monkeypatch.setenv("BROWSER", "nothing")
    monkeypatch.setattr("webbrowser.open", lambda address: False)
    assert main(["open", str(make_run().path)]) == 0
    assert "no browser could be started" in capsys.readouterr().err


def test_a_page_that_is_there_is_kept_and_no_run_is_one_line(make_run, opened, tmp_path, capsys):
    run = make_run()
    run.page_path.write_text("mine")
    assert main(["open", str(run.path)]) == 0
    assert run.page_path.read_text() == "mine"
    assert main(["open", str(tmp_path / "nowhere")]) == 2
    assert capsys.readouterr().err.count("\n") <= 2
