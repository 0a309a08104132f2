"""The README of each room, the page on architecture and the decisions say what is there."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

from holdfast.cli._commands import COMMANDS
from holdfast.detectors import ALL
from holdfast.faults import ALL as FAULTS
from holdfast.faults import ON_GPU

from .test_imports import ALLOWED, ROOT, SRC

PACKAGE = SRC / "holdfast"
DOCS = ROOT / "docs"
FILES = re.compile(r"`([\w./]+(?:\.py|/))`")
LISTED = {
    "cli": {module.rpartition(".")[2] for _, module, _ in COMMANDS},
    "detectors": {detector.__module__.rpartition(".")[2] for detector in ALL},
    "faults": {*FAULTS, *ON_GPU},
}
"""Files that a list of their room names already: a map may leave them out."""
LONGEST = 70
"""Lines of a map: what is longer is no map."""


def load_builder() -> ModuleType:
    spec = importlib.util.spec_from_file_location("build_rooms", DOCS / "build_rooms.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


builder = load_builder()
ROOMS = [folder.name for folder in builder.rooms()]
MAPS = sorted(path.relative_to(PACKAGE).as_posix() for path in PACKAGE.rglob("README.md"))


def files_of(folder: Path) -> set[str]:
    """What a map has to name: files, and folders that have a map of their own."""
    found: set[str] = set()
    for path in sorted(folder.iterdir()):
        if path.is_dir() and (path / "README.md").exists():
            found.add(f"{path.name}/")
        elif path.is_dir():
            found |= {f"{path.name}/{name}" for name in files_of(path)}
        elif path.suffix == ".py" and path.name != "__init__.py":
            found.add(path.name)
    return found


@pytest.mark.parametrize("room", ROOMS)
def test_every_room_has_a_map(room: str) -> None:
    text = (PACKAGE / room / "README.md").read_text()
    same = text == builder.with_imports(text, room, ALLOWED)
    assert same, "the table of imports has changed; make docs writes it into the map"
    assert "\n## Read in this order\n" in text


@pytest.mark.parametrize("name", MAPS)
def test_a_map_names_every_file_of_its_room_and_no_other(name: str) -> None:
    page = PACKAGE / name
    named = set(FILES.findall(page.read_text()))
    places = (page.parent, PACKAGE, ROOT)
    gone = [name for name in named if not any((place / name).exists() for place in places)]
    assert not gone
    listed = {f"{one}.py" for one in LISTED.get(page.parent.name, ())}
    left_out = sorted(files_of(page.parent) - named - listed)
    assert not left_out
    assert len(page.read_text().splitlines()) <= LONGEST


def test_a_file_of_a_folder_without_a_map_belongs_to_the_map_above(tmp_path: Path) -> None:
    for name in ("__init__.py", "one.py", "mapped/two.py", "mapped/README.md", "plain/three.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    assert files_of(tmp_path) == {"one.py", "mapped/", "plain/three.py"}


def test_a_changed_table_changes_the_map() -> None:
    text = "# run\n\nWhat it is for.\n"
    made = builder.with_imports(text, "run", {"types": set(), "run": {"types"}, "cli": {"run"}})
    assert made == f"{text}\n## Imports\n\nMay import: `types`.\n\nMay be imported by: `cli`.\n"
    assert builder.with_imports(made, "run", {"run": set()}).count("no other room") == 2


def test_the_page_on_architecture_is_two_screens_and_names_what_exists() -> None:
    text = (DOCS / "architecture.md").read_text()
    paths = set(re.findall(r"`([\w./]+/[\w.]*)`", text)) | set(FILES.findall(text))
    real = [path for path in paths if "NAME" not in path]
    gone = [path for path in real if not any((place / path).exists() for place in (PACKAGE, ROOT))]
    assert len(real) > 40
    assert not gone
    assert len(text.splitlines()) <= 110


def test_every_decision_that_is_referred_to_is_in_the_archive_or_still_binds() -> None:
    archive = (DOCS / "decisions_archive.md").read_text()
    archived = [int(number) for number in re.findall(r"^\| (\d+) \|", archive, re.M)]
    assert archived == list(range(1, len(archived) + 1))
    binding = (DOCS / "decisions.md").read_text()
    numbers = re.findall(r"^### .*\(([\d, ]+)\)$", binding, re.M)
    known = {*archived, *(int(one) for group in numbers for one in group.split(", "))}
    assert len(numbers) == len(re.findall(r"^### ", binding, re.M)), "an entry without its number"
    assert known == set(range(1, max(known) + 1))
    pages = [*ROOT.glob("*.md"), *DOCS.rglob("*.md"), *(ROOT / "models").rglob("*.md")]
    for page in [*pages, *(ROOT / "benchmarks").rglob("*.md")]:
        for group in re.findall(r"[Dd]ecisions? ([\d, ]*\d(?: (?:and|to) \d+)?)", page.read_text()):
            assert set(map(int, re.findall(r"\d+", group))) <= known, f"{page.name}: {group}"
