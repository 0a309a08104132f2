"""The pages about detectors are built from the classes."""

from __future__ import annotations

import dataclasses
import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

import holdfast
from holdfast.detectors import ALL

SCRIPT = Path(__file__).parents[1] / "docs" / "build_detectors.py"


def load_builder() -> ModuleType:
    spec = importlib.util.spec_from_file_location("build_detectors", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


builder = load_builder()


def test_every_detector_gets_a_page_and_those_of_others_go(tmp_path: Path) -> None:
    (tmp_path / "OLD001.md").write_text("gone")
    builder.main(tmp_path)
    built = {path.name: path.read_text() for path in tmp_path.iterdir()}
    assert set(built) == {"README.md", *(f"{detector.code}.md" for detector in ALL)}
    for name, text in built.items():
        for target in re.findall(r"\]\(([^)#:]+)\)", text):
            there = builder.FOLDER / target
            assert target in built or there.resolve().exists(), f"{name}: {target}"


def test_built_pages_are_not_committed() -> None:
    ignored = (SCRIPT.parents[1] / ".gitignore").read_text().splitlines()
    assert "docs/detectors/" in ignored


def test_a_page_has_the_options_with_defaults_and_meaning() -> None:
    (detector,) = [detector for detector in ALL if detector.code == "MEM002"]
    text = builder.page(detector)
    assert "| `consumed` | 60 | " in text  # of its own
    assert "| `least` | 8,192 | bytes per step" in text  # of the class above
    (detector,) = [detector for detector in ALL if detector.code == "TPT005"]
    assert "| `share` | 0.2 | " in builder.page(detector)  # told below the field


@pytest.mark.parametrize("detector", ALL, ids=lambda detector: detector.code)
def test_every_option_says_what_it_means(detector: type[holdfast.Detector]) -> None:
    rows = re.findall(r"^\| `(\w+)` \| [^|]+ \|(.*)\|$", builder.page(detector), re.MULTILINE)
    assert len(rows) == len(dataclasses.fields(detector.Options))
    assert not [name for name, meaning in rows if not meaning.strip()]


@pytest.mark.parametrize("detector", ALL, ids=lambda detector: detector.code)
def test_no_detector_is_newer_than_the_project(detector: type[holdfast.Detector]) -> None:
    def parts(version: str) -> list[int]:
        return [int(part) for part in version.split(".")]

    assert parts(detector.since) <= parts(holdfast.__version__)
