from __future__ import annotations

import sys
from types import ModuleType

import pytest

from holdfast.source import ownership
from holdfast.source.ownership import kind_of


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder on the path with one package in it, beside the folder of the script."""
    script, target = tmp_path / "project", tmp_path / "target"
    for where in (script, target):
        (where / "vision").mkdir(parents=True)
    monkeypatch.setattr(sys, "path", [str(script), str(target), *sys.path])
    return tmp_path


def test_what_was_installed_into_a_folder_of_its_own_is_a_library(folder):
    (folder / "target" / "vision-1.0.dist-info").mkdir()
    assert kind_of(str(folder / "target" / "vision" / "transforms.py")) == "library"


def test_a_folder_on_the_path_without_records_of_packages_is_the_users(folder):
    assert kind_of(str(folder / "target" / "vision" / "transforms.py")) == "user"


def test_packages_beside_the_script_do_not_make_it_a_library(folder):
    (folder / "project" / "vision-1.0.dist-info").mkdir()
    assert kind_of(str(folder / "project" / "train.py")) == "user"


def test_the_packages_of_a_distribution_are_libraries():
    assert kind_of("/usr/lib/python3/dist-packages/PIL/Image.py") == "library"


def test_modules_of_others_are_known_by_their_package_and_new_ones_of_the_user_are_found(
    folder, monkeypatch
):
    def load(name: str, file: str) -> None:
        module = ModuleType(name)
        module.__file__ = file
        monkeypatch.setitem(sys.modules, name, module)

    ownership.user_modules()
    own = folder / "project" / "vision"
    load("vision_of_a_test", str(own / "__init__.py"))
    load("vision_of_a_test.layers", str(own / "layers.py"))
    load("pytest.of_a_test", str(own / "generated.py"))
    found = ownership.user_modules()
    assert {"vision_of_a_test", "vision_of_a_test.layers"} <= set(found)
    assert "pytest.of_a_test" not in found
