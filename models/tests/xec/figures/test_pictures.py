from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

from holdfast import HoldfastError
from holdfast_models.drawing import Drawn
from holdfast_models.xec.figures.drawing import paper
from holdfast_models.xec.figures.pictures import write_pictures


def plain(name: str) -> Iterable[Drawn]:
    figure, (panel,) = paper(size=(2.0, 2.0))
    panel.plot([1, 2], [3, 4])
    yield Drawn(name, f"Title of {name}", "A line.", figure)


def broken() -> Iterable[Drawn]:
    yield from plain("before")
    raise ZeroDivisionError("no events")


def test_a_maker_may_give_one_picture_or_many(tmp_path: Path) -> None:
    (one,) = plain("one")
    written = write_pictures(tmp_path, {"one": lambda: one, "many": lambda: plain("many")})
    assert not written.failed and len(written.files) == 4


def test_png_pdf_and_the_list_of_the_report(tmp_path: Path) -> None:
    written = write_pictures(tmp_path / "new" / "pictures", {"a": lambda: plain("a")})
    assert [path.name for path in written.files] == ["a.png", "a.pdf"]
    assert written.files[0].read_bytes().startswith(b"\x89PNG")
    assert written.files[1].read_bytes().startswith(b"%PDF")
    (entry,) = json.loads((tmp_path / "new" / "pictures" / "pictures.json").read_text())
    assert entry["file"] == "a.png" and entry["title"] == "Title of a" and entry["caption"]


def test_a_failing_picture_is_counted_with_its_traceback_and_stops_nothing(tmp_path: Path) -> None:
    makers = {"bad": broken, "good": lambda: plain("good")}
    written = write_pictures(tmp_path, makers)
    assert len(written.failed) == 1 and "ZeroDivisionError: no events" in written.failed[0]
    names = [path.name for path in written.files if path.suffix == ".png"]
    assert names == ["before.png", "good.png"]
    reported = (tmp_path / "failed_pictures.txt").read_text()
    assert "Traceback" in reported and "in broken" in reported


def test_the_list_names_the_latest_version_and_keeps_the_others(tmp_path: Path) -> None:
    write_pictures(tmp_path, {"a": lambda: plain("a"), "b": lambda: plain("b")}, suffix="_ep1")
    write_pictures(tmp_path, {"a": lambda: plain("a")}, suffix="_ep5")
    write_pictures(tmp_path, {"deep": lambda: plain("worst_events/worst_01")})
    listed = json.loads((tmp_path / "pictures.json").read_text())
    assert [entry["file"] for entry in listed] == ["a_ep5.png", "b_ep1.png"]
    assert (tmp_path / "a_ep1.png").is_file() and (tmp_path / "worst_events/worst_01.pdf").is_file()


def test_the_same_picture_has_the_same_bytes(tmp_path: Path) -> None:
    some = [write_pictures(tmp_path / name, {"a": lambda: plain("a")}).files for name in "xy"]
    for one, other in zip(*some, strict=True):
        assert one.read_bytes() == other.read_bytes()


def test_without_matplotlib_one_line_says_how_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(HoldfastError, match=r"matplotlib.*holdfast-models\[xec\]"):
        write_pictures(tmp_path, {})
