"""Pictures that a task left in the run folder: on the page, within bounds, whatever they are."""

from __future__ import annotations

import base64
import json
import re
import struct
import zlib
from html import unescape
from pathlib import Path
from typing import Any

import pytest

from holdfast.report import report_html
from holdfast.run import Run

EVIL = "<script>alert(1)</script>\"'><img src=x onerror=alert(2)>"


def part(kind: bytes, data: bytes) -> bytes:
    check = zlib.crc32(kind + data)
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", check)


def png(width: int = 3, height: int = 2, *, padding: int = 0) -> bytes:
    head = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    rows = zlib.compress((b"\0" + b"\x80" * width) * height)
    parts = [part(b"IHDR", head), part(b"tEXt", b"x" * padding), part(b"IDAT", rows)]
    return b"\x89PNG\r\n\x1a\n" + b"".join([*parts, part(b"IEND", b"")])


@pytest.fixture
def run(tmp_path: Path) -> Run:
    (tmp_path / "run" / "pictures").mkdir(parents=True)
    return Run.create(tmp_path / "run", {})


def show(run: Run, *entries: Any, **files: bytes) -> str:
    folder = run.path / "pictures"
    for name, data in files.items():
        (folder / f"{name}.png").write_bytes(data)
    (folder / "pictures.json").write_text(json.dumps(list(entries)))
    return report_html(run)


def entry(name: str, **more: Any) -> dict[str, Any]:
    return {"file": f"{name}.png", "title": f"The {name}", "caption": f"What {name} is.", **more}


def shown(text: str) -> list[str]:
    return re.findall(r"<h3>(The \w+)</h3><img", text)


def test_pictures_become_part_of_the_page_in_the_order_of_the_list(run: Run) -> None:
    text = show(run, entry("b"), entry("a"), a=png(3, 2), b=png(40, 30))
    assert shown(text) == ["The b", "The a"]
    assert '<h2 id="pictures">Pictures</h2>' in text
    assert text.index("Plots</h2>") < text.index("Pictures</h2>") < text.index("did</h2>")
    sources = re.findall(r'<img src="data:image/png;base64,([^"]+)"', text)
    assert [base64.b64decode(source) for source in sources] == [png(40, 30), png(3, 2)]
    assert 'width="40" height="30"' in text and ">What b is.</figcaption>" in text


def test_the_policy_of_the_page_allows_them_and_nothing_from_elsewhere(run: Run) -> None:
    policy = re.search(r'Content-Security-Policy" content="([^"]+)"', show(run))
    assert policy is not None
    assert "img-src data:;" in unescape(policy[1]) and "http" not in policy[1]


def test_what_a_list_says_is_text(run: Run) -> None:
    text = show(run, entry("a", title=EVIL, caption=EVIL), a=png())
    assert len(re.findall("<img ", text)) == 1 and "<script>alert" not in text
    assert "&lt;script&gt;alert(1)" in text


def test_long_words_are_cut(run: Run) -> None:
    text = show(run, entry("a", title="t" * 5000, caption="c" * 50_000), a=png())
    assert "t" * 50 in text and "t" * 200 not in text
    assert "c" * 200 in text and "c" * 1000 not in text


def test_there_are_twenty_at_most(run: Run) -> None:
    text = show(run, *[entry("a")] * 30, a=png())
    assert len(shown(text)) == 20


def test_one_that_is_too_large_is_left_out(run: Run) -> None:
    text = show(run, entry("large"), entry("fits"), large=png(padding=2_000_000), fits=png())
    assert shown(text) == ["The fits"]


BROKEN = {
    "cut": png()[:-5],
    "headless": png()[8:],
    "changed": png().replace(b"\x80", b"\x81").replace(b"IDAT", b"IDAX"),
    "empty": b"",
    "text": b"<svg onload=alert(1)>",
    "flat": png(0, 5),
    "endless": png()[:8] + struct.pack(">I4s", 0xFFFFFFFF, b"IHDR") + bytes(40),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_picture_is_left_out_and_the_others_stay(run: Run, name: str) -> None:
    text = show(run, entry("bad"), entry("good"), bad=BROKEN[name], good=png())
    assert shown(text) == ["The good"]


def test_missing_files_and_entries_that_make_no_sense_are_left_out(run: Run) -> None:
    wrong = [entry("gone"), 5, None, "a.png", {}, {"file": 3}, entry("a", caption=["x"])]
    wrong += [entry("a", file=name) for name in ("", "x" * 5000, "a\0.png", ".", "..")]
    text = show(run, *wrong, entry("a"), a=png())
    assert shown(text) == ["The a"]


def test_a_picture_from_outside_the_folder_is_not_shown(run: Run) -> None:
    (run.path / "private.png").write_bytes(png())
    (run.path / "pictures" / "link.png").symlink_to(run.path / "private.png")
    outside = [entry("a", file="../private.png"), entry("b", file=str(run.path / "private.png"))]
    assert not shown(show(run, *outside, entry("link")))


@pytest.mark.parametrize("text", ["", "{}", "[", "null", "[" * 100_000, '"' + "x" * 300_000 + '"'])
def test_a_list_that_makes_no_sense_is_no_section(run: Run, text: str) -> None:
    (run.path / "pictures" / "pictures.json").write_text(text)
    assert "Pictures</h2>" not in report_html(run)


def test_a_run_without_pictures_has_no_section(run: Run) -> None:
    (run.path / "pictures").rmdir()
    assert "Pictures</h2>" not in report_html(run)
