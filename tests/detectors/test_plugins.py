from __future__ import annotations

import importlib.metadata
import sys
import types
from typing import Any

import pytest

from holdfast import detectors
from holdfast.detectors import ALL, Detector, load_plugins
from holdfast.errors import SettingsError
from holdfast.types import Severity


@pytest.fixture(autouse=True)
def nothing_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is installed beside us offers nothing here."""
    monkeypatch.setattr("importlib.metadata.entry_points", lambda group: [])


def made(code: str = "TST001", name: str = "too_test") -> type[Detector]:
    attributes = {
        "code": code, "name": name, "severity": Severity.INFO, "needs": ("loss",), "since": "1",
    }  # fmt: skip
    return type("Made", (Detector,), attributes)


@pytest.fixture
def module(monkeypatch):
    fake: Any = types.ModuleType("holdfast_test_plugin")
    monkeypatch.setitem(sys.modules, fake.__name__, fake)
    return fake


VARIABLE = {"HOLDFAST_PLUGINS": "holdfast_test_plugin"}


def test_a_module_named_in_the_environment(module):
    module.DETECTORS = (made(),)
    found = load_plugins(VARIABLE, ALL)
    assert [d.code for d in found.detectors] == ["TST001"]
    assert not found.warnings


def test_a_module_without_detectors_is_fine(module):
    assert load_plugins(VARIABLE, ALL) == detectors.Plugins()


def test_nothing_named_nothing_loaded():
    assert load_plugins({}, ALL).warnings == ()


def test_none_leaves_out_what_is_installed_but_not_what_is_named(module, monkeypatch):
    module.DETECTORS = (made(),)
    entry = importlib.metadata.EntryPoint("x", "no_such_module_x", "holdfast.detectors")
    monkeypatch.setattr("importlib.metadata.entry_points", lambda group: [entry])
    (warning,) = load_plugins(VARIABLE, ALL).warnings
    assert "no_such_module_x" in warning
    assert load_plugins({"HOLDFAST_PLUGINS": "none"}, ALL) == detectors.Plugins()
    found = load_plugins({"HOLDFAST_PLUGINS": "none, holdfast_test_plugin"}, ALL)
    assert [d.code for d in found.detectors] == ["TST001"] and not found.warnings


@pytest.mark.parametrize(
    ("offered", "reason"),
    [
        ([made("NUM001")], "NUM001 is taken"),
        ([made("TST001", "nonfinite_loss")], "nonfinite_loss is taken"),
        ([7], "is not a Detector"),
        ([type("Bare", (Detector,), {"code": "T1", "name": "t"})], "has no severity"),
        (5, "not iterable"),
    ],
)
def test_what_cannot_be_used_is_a_warning(module, offered, reason):
    module.DETECTORS = offered
    found = load_plugins(VARIABLE, ALL)
    assert not found.detectors
    assert len(found.warnings) == 1
    assert reason in found.warnings[0]
    assert "holdfast_test_plugin" in found.warnings[0]


def test_a_module_that_is_not_there_or_exits_is_a_warning(tmp_path, monkeypatch):
    (tmp_path / "plugin_that_exits.py").write_text("raise SystemExit(3)")
    monkeypatch.syspath_prepend(str(tmp_path))
    found = load_plugins({"HOLDFAST_PLUGINS": "no_such_module_x, plugin_that_exits"}, ALL)
    assert ["no_such_module_x" in w for w in found.warnings] == [True, False]
    assert "SystemExit" in found.warnings[1]


def test_entry_points_of_installed_packages(monkeypatch, module):
    module.Made = made()
    entry = importlib.metadata.EntryPoint("mine", "holdfast_test_plugin:Made", "holdfast.detectors")
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: [entry])
    assert load_plugins({}, ALL).detectors == (module.Made,)


def test_select_and_ignore_go_by_prefix():
    among = (*ALL, made())
    families = {"NUM", "OPT", "RUN", "MEM", "TPT", "RNK", "TST"}
    assert {d.code[:3] for d in detectors.select([], [], among)} == families
    assert [d.code for d in detectors.select(["TST"], [], among)] == ["TST001"]
    kept = detectors.select(["num"], ["NUM00", "TST"], among)
    assert kept == ()
    assert len(detectors.select([], ["NUM001"])) == len(ALL) - 1
    assert detectors.select(["ALL"]) == ALL


@pytest.mark.parametrize("prefix", ["NMU", "", "NUM9"])
def test_a_prefix_that_matches_nothing_is_a_mistake(prefix):
    for arguments in ({"select": [prefix]}, {"ignore": [prefix]}):
        with pytest.raises(SettingsError, match="NUM001"):
            detectors.select(**arguments)


def test_by_code_takes_names_too_and_suggests():
    assert detectors.by_code("num003").name == "nonfinite_parameter"
    assert detectors.by_code("nonfinite_input").code == "NUM005"
    with pytest.raises(SettingsError, match="NUM001 nonfinite_loss"):
        detectors.by_code("nonfinite_los")
    with pytest.raises(SettingsError, match="holdfast explain"):
        detectors.by_code("zzz")


def test_two_detectors_with_one_code_are_refused():
    with pytest.raises(ValueError, match="both answer to NUM001"):
        detectors.reject_duplicates((*ALL, made("NUM001")))
