"""A torch that is too old is one line that names both versions, wherever it is met first."""

from __future__ import annotations

import importlib.metadata
import os
import subprocess
import sys
from pathlib import Path

import pytest

import holdfast
from holdfast.cli import main
from holdfast.errors import HoldfastError
from holdfast.torch_version import check_torch, installed_version

TOO_OLD = "torch 2.10.1+cpu is installed, holdfast needs 2.11 or newer; pip install 'torch>=2.11'"


@pytest.fixture
def version(monkeypatch: pytest.MonkeyPatch):
    """Lets another version be installed."""

    def install(found: str) -> None:
        monkeypatch.setattr("torch.__version__", found)

    return install


@pytest.mark.parametrize("found", ["2.11.0", "2.11.0a0+git1", "2.13.0+cpu", "3.0", "10.1", "dev"])
def test_a_new_one_passes(version, found):
    version(found)
    check_torch()


@pytest.mark.parametrize("found", ["2.10.1+cpu", "2.9", "1.13.1"])
def test_an_old_one_is_reported_with_the_one_needed(version, found):
    version(found)
    with pytest.raises(HoldfastError, match=r"torch .* is installed, holdfast needs 2\.11 or"):
        check_torch()


@pytest.mark.parametrize(
    "folder", ["torch-{}.dist-info", "Torch-{}.dist-info", "torch-{}.egg-info"]
)
def test_the_version_is_that_of_the_first_torch_on_the_path(monkeypatch, tmp_path, folder):
    """As ``importlib.metadata`` says, also where a name alone does not tell it."""
    path = [str(tmp_path / name) for name in ("gone", "others", "first", "second")]
    for place, name, version in (
        ("others", "torchvision-0.1.dist-info", "0.1"),
        ("others", "torch_x-0.2.dist-info", "0.2"),
        ("first", folder.format("2.12.1+cu130"), "2.12.1+cu130"),
        ("second", "torch-2.9.0.dist-info", "2.9.0"),
    ):
        metadata = tmp_path / place / name
        metadata.mkdir(parents=True)
        file = "METADATA" if name.endswith("dist-info") else "PKG-INFO"
        (metadata / file).write_text(f"Metadata-Version: 2.1\nName: torch\nVersion: {version}\n")
    monkeypatch.delitem(sys.modules, "torch")
    monkeypatch.setattr(sys, "path", path[: 3 if "egg" in folder else 4])
    importlib.invalidate_caches()
    assert installed_version() == importlib.metadata.version("torch") == "2.12.1+cu130"


def test_without_torch_there_is_no_version(monkeypatch, tmp_path):
    monkeypatch.delitem(sys.modules, "torch")
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    assert installed_version() == ""


@pytest.mark.parametrize("words", [["run", "x.py"], ["train", "demo"]])
def test_commands_end_with_one_line_and_2(version, capsys, monkeypatch, tmp_path, words):
    monkeypatch.chdir(tmp_path)
    Path("x.py").write_text("print('ran')\n")
    version("2.10.1+cpu")
    assert main(words) == 2
    captured = capsys.readouterr()
    assert captured.err == f"holdfast: error: {TOO_OLD}\n" and captured.out == ""
    assert not Path("runs").exists()


@pytest.mark.parametrize("statement", ["holdfast.watch", "holdfast.training.Trainer"])
def test_names_that_need_torch_raise_it_at_first_use(tmp_path, statement):
    """In an environment of its own, where only the metadata of an old torch is to be seen."""
    folder = tmp_path / "torch-2.10.1+cpu.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: torch\nVersion: 2.10.1+cpu\n")
    source = str(Path(holdfast.__file__).parents[1])
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), source])}
    code = f"import sys, holdfast.training\nholdfast.Finding\ntry: {statement}\n" + (
        "except holdfast.HoldfastError as error: print(error, 'torch' in sys.modules)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True
    )
    assert done.stdout == f"{TOO_OLD} False\n", done.stderr


def test_a_script_whose_own_torch_is_too_old_runs_unguarded(version, capsys):
    from holdfast.boot import session

    version("2.10.1+cpu")
    session.begin()
    assert session.current() is None
    reported = f"holdfast: could not start ({TOO_OLD}); the script runs unguarded\n"
    assert capsys.readouterr().err == reported
