"""The style sheet keeps its promises: contrast, dark, narrow, print."""

from __future__ import annotations

import re
from importlib.resources import files

import pytest

STYLE = files("holdfast.report.html").joinpath("page.css").read_text()
SCRIPT = files("holdfast.report.html").joinpath("page.js").read_text()


def themes() -> dict[str, dict[str, str]]:
    """The variables of every theme; dark and print change those of light."""
    blocks = re.findall(r":root \{(.*?)\}", STYLE, re.S)
    light, dark, paper = (dict(re.findall(r"--([\w-]+): (#\w{6})", block)) for block in blocks)
    return {"light": light, "dark": light | dark, "print": light | paper}


def luminance(colour: str) -> float:
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    light, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


# Text and what it stands on, as the rules of the style sheet pair them.
TEXT = [
    ("ink", "bg"), ("soft", "bg"), ("ink", "panel"), ("soft", "panel"), ("link", "bg"),
    ("mark-ink", "mark"), ("ins", "ins-bg"), ("del", "del-bg"), ("on", "bad"), ("bad", "bg"),
    ("good", "bg"), ("info", "bg"), ("warn", "bg"), ("link", "panel"),
    *((tone, f"{tone}-bg") for tone in ("good", "info", "warn", "bad")),
    *((word, f"{tone}-bg") for tone in ("good", "info", "warn", "bad") for word in ("ink", "soft")),
]  # fmt: skip
LINES = [*((f"s{i}", "bg") for i in range(6)), ("bad", "bg"), ("warn", "bg")]


@pytest.mark.parametrize("theme", ["light", "dark", "print"])
def test_text_can_be_read_and_lines_can_be_seen(theme):
    colours = themes()[theme]
    weak = [p for p in TEXT if contrast(colours[p[0]], colours[p[1]]) < 4.5]
    weak += [p for p in LINES if contrast(colours[p[0]], colours[p[1]]) < 3]
    assert not weak


@pytest.mark.parametrize("theme", ["light", "dark", "print"])
def test_shades_of_the_heat_map_are_in_order(theme):
    colours = themes()[theme]
    shades = [contrast(colours[f"h{i}"], colours["bg"]) for i in range(9)]
    assert shades == sorted(shades) and shades[-1] > 5


def test_paper_is_white_whatever_the_screen():
    paper = themes()["print"]
    assert paper["bg"] == "#ffffff" and paper["ink"] == "#000000"
    assert STYLE.rindex("@media print") > STYLE.rindex("prefers-color-scheme")
    dark = re.findall(r":root \{(.*?)\}", STYLE, re.S)[1]
    changed = set(re.findall(r"--([\w-]+):", dark))
    blocks = re.findall(r":root \{(.*?)\}", STYLE, re.S)[2]
    assert changed <= set(re.findall(r"--([\w-]+):", blocks)), "dark would show through on paper"


def test_narrow_screens_and_folds_on_paper():
    assert "@media (max-width" in STYLE
    assert "details::details-content" in STYLE and "beforeprint" in SCRIPT


def test_every_variable_is_known():
    used = set(re.findall(r"var\(--([\w-]+)\)", STYLE)) - {"tone", "tint", "mono"}
    assert used <= set(themes()["light"])


def test_the_script_only_writes_text():
    assert not re.findall(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(", SCRIPT)
