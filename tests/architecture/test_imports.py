"""Who may import whom: the table, and the walk over src/ that holds the code to it."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

from .sources import nodes

ROOT = Path(__file__).parents[2]
SRC = ROOT / "src"
MODELS = ROOT / "models" / "src"

BASE = "types errors harmless regular_files records source config run"
JUDGES = f"{BASE} plugins suspicion detectors policy report redaction"
MEASURING = f"{BASE} probes checkpoint actions diagnosis resume recovery guard"
SPINE = f"{JUDGES} {MEASURING} launcher boot boot.__init__ watching torch_version"

# A room is a folder or a module of src/holdfast. "holdfast" is its __init__.py, the public names;
# "boot.__init__" holds only the names that a parent and its child processes agree on.
MAY_IMPORT = {
    "types": "",
    "errors": "",
    "plugins": "",
    "harmless": "",
    "regular_files": "",
    "redaction": "",
    "torch_version": "errors",
    "shards": "",  # torch, and nothing of ours
    "records": "types",  # what both sides agree on
    "source": "",  # reads the user's code for everybody; no torch
    "config": "types errors regular_files",
    "run": "types errors regular_files redaction records",
    # the judging side: no torch
    "suspicion": "",  # what recovery, too, judges with
    "detectors": f"{BASE} plugins suspicion",
    "policy": BASE,
    "report": f"{BASE} detectors policy",
    "launcher": f"{JUDGES} boot.__init__",
    # the training side: torch
    "probes": f"{BASE} shards",
    "checkpoint": f"{BASE} shards",
    "actions": f"{BASE} torch_version shards probes checkpoint",
    "diagnosis": f"{BASE} shards redaction probes checkpoint",
    "resume": f"{BASE} shards redaction checkpoint diagnosis",
    "recovery": f"{BASE} shards policy suspicion probes checkpoint actions resume",
    "guard": f"{BASE} shards policy suspicion probes checkpoint actions diagnosis recovery"
    " torch_version",
    "boot.__init__": "",
    "boot": f"{BASE} torch_version actions diagnosis guard boot.__init__",
    # where both meet
    "watching": f"{JUDGES} launcher checkpoint guard boot boot.__init__ torch_version",
    # built from the public names
    "holdfast": SPINE,
    "training": f"{BASE} policy checkpoint watching plugins torch_version holdfast",
    "faults": BASE,
    # readers of the run folder, and forms for frameworks that train
    "integrations": f"{JUDGES} launcher watching",
    # nothing imports the command line
    "cli": f"{SPINE} training faults integrations holdfast",
    "__main__": "cli",
}
ALLOWED = {room: set(names.split()) for room, names in MAY_IMPORT.items()}

TORCH_SIDE = {*MEASURING.split(), "shards", "boot", "watching", "training", "faults"}
TORCH_SIDE -= {*BASE.split()}
THIRD_PARTY = {  # package -> the rooms that may import it; any other package is undeclared
    "torch": TORCH_SIDE,
    "triton": {"actions", "probes"},
    "numpy": set(ALLOWED)
    - {"types", "errors", "config", "source", "torch_version", "holdfast", "__main__"},
    "psutil": {"run", "launcher", "probes", "diagnosis", "recovery", "training"},
    "yaml": {"config"},
    "mlflow": {"integrations"},
    "sqlalchemy": {"integrations"},
    "tensorboard": {"integrations"},
    "lightning": {"integrations"},
    "pytorch_lightning": {"integrations"},
    "transformers": {"integrations"},
    "accelerate": {"integrations"},
    "sitecustomize": {"boot"},  # the user's own, which ours hands over to
}

# Folders that hold many files of one shape: no member knows another.
PLURAL = {"detectors", "probes", "actions", "faults", "integrations", "cli"}
# What members share, and other rooms import too.
SHARED = {"ranking", "kills", "peers"}  # who asks the detectors, who ranks, what others judge with
SHARED |= {"host_norms", "norm_rows", "norm_kernel", "device_baseline", "launch"}  # of probes
JOINS = {
    "holdfast.probes.step_record",
    "holdfast.detectors.judge",
    "holdfast.detectors.comparison",
    "holdfast.detectors.ranking",
}  # puts together what the members measured


# Packages that offer names of their members and import them when they are asked for.
LAZY = {"holdfast.run", "holdfast.training"}


@dataclass(frozen=True)
class Import:
    line: int
    module: str  # absolute, as far as it is a module
    name: str = ""  # what is taken from it, if anything


def modules(src: Path = SRC) -> dict[str, Path]:
    found: dict[str, Path] = {}
    for path in sorted(src.rglob("*.py")):
        parts = path.relative_to(src).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


KNOWN = set(modules()) | {f"holdfast.{room}" for room in ALLOWED if room != "holdfast"}


def imports(source: str, module: str, is_package: bool) -> Iterator[Import]:
    package = module.split(".") if is_package else module.split(".")[:-1]
    for node in nodes(source):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(node.lineno, alias.name)
        elif isinstance(node, ast.ImportFrom):
            start = package[: len(package) - node.level + 1] if node.level else []
            parent = ".".join([*start, *([node.module] if node.module else [])])
            for alias in node.names:
                child = f"{parent}.{alias.name}"
                yield (
                    Import(node.lineno, child)
                    if child in KNOWN
                    else Import(node.lineno, parent, alias.name)
                )
        elif (
            isinstance(node, ast.Call)
            and node.args
            and isinstance(node.args[0], ast.Constant)
            and ast.unparse(node.func) in {"importlib.import_module", "import_module", "__import__"}
        ):
            yield Import(node.lineno, str(node.args[0].value))


def room_of(module: str) -> str:
    if module == "holdfast.boot":
        return "boot.__init__"
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else parts[0]


def violations(source: str, module: str, is_package: bool = False) -> list[str]:
    """Every import in a module of holdfast that the table does not allow, one line each."""
    room = room_of(module)
    if room not in ALLOWED:
        return [f"{module}: no room {room!r} in the table; add it and say who may import it"]
    found: list[str] = []
    for item in imports(source, module, is_package):
        top = item.module.split(".")[0]
        if top == "holdfast":
            problem = _ours(room, module, is_package, item)
        elif top in sys.stdlib_module_names:
            problem = ""
        elif top not in THIRD_PARTY:
            problem = "is no declared dependency"
        else:
            problem = "" if room in THIRD_PARTY[top] else f"is not for {room}"
        line = f"{module}:{item.line}: {item.module} {problem}"
        if problem and line not in found:
            found.append(line)
    return found


def _ours(room: str, module: str, is_package: bool, item: Import) -> str:
    target = room_of(item.module)
    if target == "holdfast" and item.name in {"", "__version__"}:
        return ""  # `import holdfast` alone or its version: nothing of any room
    if target != room:
        if target not in ALLOWED[room]:
            return f"is not for {room}"
        hidden = any(_is_private(part) for part in [*item.module.split("."), item.name])
        return f"is private to {target}; what another room needs has a name without _" * hidden
    if room not in PLURAL or (is_package and module == f"holdfast.{room}"):
        return ""
    if module in JOINS:
        return ""
    own, sibling = module.split(".")[2], [*item.module.split("."), ""][2]
    if sibling == own or sibling.startswith(("_", "base")) or sibling in SHARED:
        return ""
    if not sibling:
        return "is the folder this file is listed in; a member does not know the list"
    return "is a sibling; what members share lives in _NAME.py or base.py"


def _is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def outside_violations(source: str, where: str, public: set[str] | None) -> list[str]:
    """Imports of holdfast beyond its public names, in code that stands outside it."""
    found: list[str] = []
    rooms = {"holdfast": public, "holdfast.training": TRAINER}
    for node in nodes(source):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names if alias.name.startswith("holdfast.")]
        elif isinstance(node, ast.ImportFrom) and not node.level and node.module in rooms:
            offered = rooms[node.module]
            hidden = [a.name for a in node.names if offered and a.name not in offered]
            names = [f"{node.module}.{name}" for name in hidden]
        elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
            names = [node.module] if node.module.startswith("holdfast.") else []
        else:
            continue
        found += [f"{where}:{node.lineno}: {name} is no public name" for name in names]
    return found


def public_names(package: str = "holdfast") -> set[str] | None:
    """What the __init__.py of a package lists in __all__, None while it lists nothing."""
    init = SRC / package.replace(".", "/") / "__init__.py"
    for node in ast.parse(init.read_text()).body if init.exists() else []:
        target = node.targets[0] if isinstance(node, ast.Assign) else None
        target = node.target if isinstance(node, ast.AnnAssign) else target
        if isinstance(target, ast.Name) and target.id == "__all__":
            assert isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None
            return set(ast.literal_eval(node.value))
    return None


TRAINER = public_names("holdfast.training")


def loaded_by(statement: str, names: set[str]) -> set[str]:
    """Which of these packages a fresh interpreter holds after running the statement."""
    code = f"{statement}\nimport sys; print(*{{n.split('.')[0] for n in sys.modules}})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return names & set(done.stdout.split())


def test_every_import_in_holdfast_is_in_the_table():
    found: list[str] = []
    for module, path in modules().items():
        if module.split(".")[0] == "holdfast":
            found += violations(path.read_text(), module, path.name == "__init__.py")
    assert not found, "\n".join(found)


def test_families_and_examples_use_public_names_only():
    public = public_names()
    found: list[str] = []
    for path in [*MODELS.rglob("*.py"), *(ROOT / "examples").rglob("*.py")]:
        found += outside_violations(path.read_text(), str(path.relative_to(ROOT)), public)
    assert not found, "\n".join(found)


def test_holdfast_its_tests_and_the_examples_name_no_family():
    """Each package and each family in it; only this file says where they are."""
    folders = [path for path in [*MODELS.glob("*/"), *MODELS.glob("*/*/")] if path.name[0] != "_"]
    word = re.compile(rf"\b(?:{'|'.join(path.name for path in folders)})\b")
    files = [*SRC.rglob("*.py"), *(ROOT / "tests").rglob("*.py"), *(ROOT / "examples").glob("*")]
    found = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in files
        if path.is_file()
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if word.search(line)
    ]
    assert not found, "\n".join(found)
    assert all(word.search(f"import a.{path.name}.b") for path in folders) and len(folders) > 1


def test_the_table_points_one_way_and_names_only_rooms():
    assert not set().union(*ALLOWED.values()) - set(ALLOWED)
    tuple(TopologicalSorter(ALLOWED).static_order())  # raises CycleError


def file_graph() -> dict[str, set[str]]:
    """Which file imports which; what only a package's ``__init__`` looks up by name is left out."""
    graph: dict[str, set[str]] = {}
    for module, path in modules().items():
        if not module.startswith("holdfast."):
            continue
        found = imports(path.read_text(), module, path.name == "__init__.py")
        graph[module] = {i.module for i in found if i.module in KNOWN} - {module, "holdfast"}
    for package in LAZY:
        graph[package] = set()
    return graph


def test_no_file_imports_in_a_circle():
    """Also not for types alone: two files that need each other's names are one thing."""
    tuple(TopologicalSorter(file_graph()).static_order())  # raises CycleError


def test_the_judging_side_cannot_reach_torch_through_the_table():
    for room in [*JUDGES.split(), "launcher"]:
        reach, todo = set[str](), [room]
        while todo:
            todo += ALLOWED[reached := todo.pop()] - reach
            reach.add(reached)
        assert not reach & (TORCH_SIDE | {"holdfast"}), room


def test_importing_the_command_line_loads_no_framework():
    heavy = {"torch", "starlette", "uvicorn", "lightning", "transformers", "accelerate", "rich"}
    # Neither do trackers, which stand beside the forms for frameworks.
    assert not loaded_by("import holdfast.cli, holdfast.integrations.tracker", heavy)


def test_the_check_of_loaded_packages_can_fail():
    assert loaded_by("import json", {"json", "torch"}) == {"json"}


@pytest.mark.parametrize(
    ("module", "source", "problem"),
    [
        ("holdfast.types", "import numpy", "numpy is not for types"),
        ("holdfast.errors", "from .types import Step", "holdfast.types is not for errors"),
        ("holdfast.run.ring", "import torch", "torch is not for run"),
        ("holdfast.run.ring", "from torch.nn import Linear", "torch.nn is not for run"),
        ("holdfast.run.ring", "def f():\n    import torch", "torch is not for run"),
        ("holdfast.run.ring", "from ..detectors import ALL", "holdfast.detectors is not for run"),
        ("holdfast.run.ring", "from holdfast import probes", "holdfast.probes is not for run"),
        ("holdfast.run.ring", "import holdfast.watching", "holdfast.watching is not for run"),
        ("holdfast.run.ring", "from .. import watching", "holdfast.watching is not for run"),
        ("holdfast.run.ring", "from holdfast import Policy", "holdfast is not for run"),
        (
            "holdfast.detectors.judge",
            "import importlib\nimportlib.import_module('holdfast.probes')",
            "holdfast.probes is not for detectors",
        ),
        ("holdfast.report.text", "import requests", "requests is no declared dependency"),
        ("holdfast.detectors.a", "import rich", "rich is no declared dependency"),
        ("holdfast.detectors.a", "import psutil", "psutil is not for detectors"),
        ("holdfast.boot.session", "from ..watching import Watch", "is not for boot"),
        (
            "holdfast.launcher.supervisor",
            "from ..boot import patches",
            "boot.patches is not for launcher",
        ),
        ("holdfast.probes.loss", "import holdfast.cli", "holdfast.cli is not for probes"),
        ("holdfast.core", "", "no room 'core'"),
    ],
)
def test_a_forbidden_import_is_seen(module, source, problem):
    assert problem in " ".join(violations(source, module))


@pytest.mark.parametrize("target", ["from . import b", "from .b import X", "import holdfast.cli.b"])
def test_a_sibling_in_a_plural_folder_is_seen(monkeypatch, target):
    monkeypatch.setattr(sys.modules[__name__], "KNOWN", {*KNOWN, "holdfast.cli.b"})
    assert "is a sibling" in violations(target, "holdfast.cli.a")[0]
    assert not violations(target, "holdfast.cli", is_package=True)
    assert not violations(target, "holdfast.cli.b")


@pytest.mark.parametrize(
    "source",
    [
        "from ..probes._norm_program import kernel",
        "from ..probes import _norm_program",
        "from ..probes.loss import _pending",
        "import holdfast.probes._norm_program",
    ],
)
def test_a_private_name_of_another_room_is_seen(source: str):
    (found,) = violations(source, "holdfast.guard.engine")
    assert "is private to probes" in found
    assert not violations(source, "holdfast.probes.loss")


def test_a_member_that_reads_its_own_list_is_seen():
    assert "does not know the list" in violations("from . import ALL", "holdfast.detectors.a")[0]


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("holdfast.run.ring", "import mmap, numpy\nfrom ..errors import RunFolderError"),
        ("holdfast.run.ring", "from holdfast import __version__"),
        ("holdfast.run.ring", "from .folder import Run"),
        ("holdfast.detectors.a", "from .base import Detector\nfrom ._window import Window"),
        ("holdfast.boot.patches", "import torch\nfrom ..guard.engine import Engine"),
        ("holdfast.launcher.supervisor", "from ..boot import SITE"),
        ("holdfast.cli.run", "def run():\n    from holdfast.launcher.supervisor import supervise"),
        ("holdfast.config.strict", "from holdfast.config import yaml_values"),
    ],
)
def test_an_allowed_import_passes(module, source):
    assert not violations(source, module)


@pytest.mark.parametrize(
    "source",
    [
        "from holdfast.run import Run",
        "import holdfast.run.ring",
        "from holdfast import hidden",
        "from holdfast.training import Loop",
        "from holdfast.training.loop import Loop",
    ],
)
def test_a_private_name_used_outside_is_seen(source):
    assert outside_violations(source, "x.py", {"watch"})
    assert not outside_violations("import holdfast\nfrom holdfast import watch", "x.py", {"watch"})
    assert not outside_violations("from holdfast.training import Trainer", "x.py", {"watch"})
