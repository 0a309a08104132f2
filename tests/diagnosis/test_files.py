from __future__ import annotations

import sys

import pytest

from holdfast.diagnosis.source.files import kind_of


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
