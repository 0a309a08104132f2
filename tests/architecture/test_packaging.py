"""What the repository promises about its own files: bounds, pins, sizes, names and commands."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import tomllib
from collections.abc import Iterable
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from .sources import nodes

ROOT = Path(__file__).parents[2]
PROJECTS = [
    tomllib.loads((folder / "pyproject.toml").read_text())["project"]
    for folder in (ROOT, ROOT / "models")
]
PROJECT = PROJECTS[0]
DECLARED: list[str] = [
    line
    for project in PROJECTS
    for lines in (project["dependencies"], *project["optional-dependencies"].values())
    for line in lines
]
CONSTRAINTS = (ROOT / "constraints.txt").read_text()

# Some fifteen is the aim; CONTRIBUTING.md tells who is above it.
MOST_ATTRIBUTES = 19
VAGUE = {"util", "utils", "common", "core", "helper", "helpers", "misc"}

# Absolute paths of somebody's machine (me and user are nobody), addresses of package indexes.
MACHINE = re.compile(
    r"""(?<![\w./-])/(?:root|work|(?:home|Users)/(?!me/|user/)\w+|opt/\w+)/"""
    r"""|https?://[^\s/'"]*(?:pypi|pythonhosted|npm|debian|mirror|proxy|whl)"""
    r"""|https?://[^\s'"]*/(?:simple|whl)\b"""
)


def ceilings(requirements: Iterable[str]) -> list[str]:
    """Requirements that a future release could break: anything but plain floors.

    Torch has no floor either: pip must never replace one that works.
    """
    return [
        line
        for line in requirements
        if line != "torch" and [clause.operator for clause in Requirement(line).specifier] != [">="]
    ]


def loose_pins(text: str) -> list[str]:
    """Lines of a constraints file that are not exactly ``name==version`` of a public release."""
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return [
        line for line in lines if not re.fullmatch(r"[A-Za-z0-9._-]+==[0-9][A-Za-z0-9.]*", line)
    ]


def attributes(node: ast.ClassDef) -> set[str]:
    """What the methods of a class assign on ``self``."""
    found: set[str] = set()
    for inner in ast.walk(node):
        todo: list[ast.expr] = []
        if isinstance(inner, ast.Assign):
            todo = list(inner.targets)
        elif isinstance(inner, ast.AnnAssign | ast.AugAssign):
            todo = [inner.target]
        while todo:
            target = todo.pop()
            if isinstance(target, ast.Tuple | ast.List):
                todo += target.elts
            elif isinstance(target, ast.Attribute) and ast.unparse(target.value) == "self":
                found.add(target.attr)
    return found


def overloaded(root: Path) -> list[str]:
    """Classes with so many attributes that they have more than one reason to change."""
    return [
        f"{path.name}: {node.name} has {count} attributes"
        for path in sorted(root.rglob("*.py"))
        for node in nodes(path.read_text())
        if isinstance(node, ast.ClassDef) and (count := len(attributes(node))) > MOST_ATTRIBUTES
    ]


def vague_names(root: Path) -> list[str]:
    """Modules and folders whose name says nothing about what they hold."""
    return [path.name for path in root.rglob("*") if path.stem.strip("_").lower() in VAGUE]


def machine_bound(files: Iterable[Path]) -> list[str]:
    """Lines that work, or mean something, on one machine or one network only."""
    found: list[str] = []
    for path in files:
        try:
            text = path.read_text()
        except UnicodeDecodeError:
            continue
        for number, line in enumerate(text.splitlines(), 1):
            if MACHINE.search(line):
                found.append(f"{path.name}:{number}: {line.strip()}")
    return found


def project_files() -> list[Path]:
    """What git tracks or would track; every file where this is no checkout."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    if listed.returncode == 0:
        paths = [ROOT / name for name in listed.stdout.split("\0") if name]
    else:
        folders = ("src", "tests", "docs", "examples", "benchmarks", "corpus", "models", ".ci")
        paths = [*ROOT.glob("*"), *(path for name in folders for path in (ROOT / name).rglob("*"))]
    return [path for path in paths if path.is_file()]


def test_dependencies_have_floors_and_no_ceilings():
    assert not ceilings(DECLARED)
    for project in PROJECTS:
        assert project["requires-python"] == ">=3.11"
        assert "torch" in project["dependencies"]


def shipped_by(project: Path) -> set[Path]:
    """What the wheel of a project holds."""
    wheel = pytest.importorskip("hatchling.builders.wheel")
    files = wheel.WheelBuilder(str(project)).recurse_included_files()
    return {Path(file.distribution_path) for file in files}


def test_each_wheel_holds_its_own_package_alone():
    assert {path.parts[0] for path in shipped_by(ROOT)} == {"holdfast"}
    families = shipped_by(ROOT / "models")
    assert {path.parts[0] for path in families} == {"_".join(["holdfast", "models"])}
    assert {"py.typed", "__init__.py"} <= {path.name for path in families}
    assert (ROOT / "models" / "LICENSE").read_text() == (ROOT / "LICENSE").read_text()


def from_the_corpus(shipped: Iterable[Path], corpus: Path) -> list[str]:
    """Files of a wheel that carry the name of a collection, or are one of its files."""
    collections = {path.name for path in corpus.iterdir() if path.is_dir()}
    answers = {path for path in shipped if path.name == "answers.json"}
    folders = {path for path in shipped if {corpus.name, *collections} & {*path.parts}}
    return sorted(str(path) for path in answers | folders)


def test_the_wheel_holds_the_faults_and_no_corpus():
    """One fault for each detector is for users; collections are for those who work on holdfast."""
    shipped = shipped_by(ROOT)
    faults = ROOT / "src" / "holdfast" / "faults"
    assert Path("holdfast/examples/dies_of_nan.py") in shipped  # `holdfast demo` runs it
    assert {path.relative_to(ROOT / "src") for path in faults.glob("*.py")} <= shipped
    assert len(list((ROOT / "corpus").glob("*/answers.json"))) > 20
    assert not from_the_corpus(shipped, ROOT / "corpus")


@pytest.mark.parametrize(
    "where", ["src/holdfast/corpus/x.py", "src/holdfast/faults/new/answers.json"]
)
def test_a_collection_in_the_wheel_is_seen(tmp_path, where):
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    for name in ("src/holdfast/__init__.py", "examples/dies_of_nan.py", where):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    found = from_the_corpus(shipped_by(tmp_path), ROOT / "corpus")
    assert found == [where.removeprefix("src/")]


def test_the_version_is_one():
    import holdfast

    assert getattr(holdfast, "__version__", PROJECT["version"]) == PROJECT["version"]


@pytest.mark.parametrize("line", ["a", "a<2", "a>=1,<2", "a==1", "torch>=2,<3", "a>=1,!=1.5"])
def test_a_ceiling_or_a_missing_floor_is_seen(line):
    assert ceilings(["b>=1", line]) == [line]


def test_ci_installs_exact_versions_of_everything_declared():
    assert not loose_pins(CONSTRAINTS)
    assert "\ntorch==2.13.0\n" in CONSTRAINTS
    pinned = {canonicalize_name(line.split("==")[0]) for line in CONSTRAINTS.splitlines()}
    declared = {canonicalize_name(Requirement(line).name) for line in DECLARED}
    assert not declared - pinned - {PROJECT["name"]}


@pytest.mark.parametrize("line", ["a>=1", "a", "a==1.0+cpu", "a @ file:///x", "-e .", "a==1 # why"])
def test_a_loose_pin_is_seen(line):
    assert loose_pins(f"# head\n\nb==1.0\n{line}\n") == [line]


def test_no_class_has_too_many_attributes():
    assert not overloaded(ROOT / "src") + overloaded(ROOT / "models" / "src")


def test_a_class_with_too_many_attributes_is_seen(tmp_path):
    lines = [f"        self.a{i} = {i}" for i in range(MOST_ATTRIBUTES + 1)]
    head = ["class A:", "    def __init__(self):"]
    (tmp_path / "many.py").write_text("\n".join([*head, *lines]))
    (tmp_path / "fits.py").write_text("\n".join([*head, *lines[1:]]))
    assert overloaded(tmp_path) == [f"many.py: A has {MOST_ATTRIBUTES + 1} attributes"]


def test_no_module_has_a_vague_name():
    assert not vague_names(ROOT / "src")
    assert not vague_names(ROOT / "models" / "src")


def test_a_vague_name_is_seen(tmp_path):
    (tmp_path / "common").mkdir()
    (tmp_path / "_utils.py").touch()
    (tmp_path / "useful.py").touch()
    assert sorted(vague_names(tmp_path)) == ["_utils.py", "common"]


def test_ci_runs_the_command_the_readme_tells_contributors():
    script = ROOT / ".ci" / "run"
    assert os.access(script, os.X_OK)
    assert "make test" in script.read_text().splitlines()
    makefile = (ROOT / "Makefile").read_text()
    readme = ROOT / "README.md"
    for target in ("install", "demo", "quick", "test", "prove", "bench"):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target
    assert not readme.exists() or "make test" in readme.read_text()


def test_nothing_is_bound_to_one_machine():
    found = machine_bound(project_files())
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    "line",
    [
        "cd /" + "work/main",
        "path = '/" + "home/alice/data'",
        "--find-links=/" + "opt/wheels/",
        "--index-url https://" + "some.pypi.example/x",
        "-i http://" + "10.0.0.1:8080/simple",
    ],
)
def test_a_machine_path_or_an_index_is_seen(tmp_path, line):
    file = tmp_path / "notes.md"
    file.write_text(f"see https://docs.example/stable\nrun /bin/bash, cd src/work/x\n{line}\n")
    assert machine_bound([file]) == [f"notes.md:3: {line}"]
