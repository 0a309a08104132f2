from __future__ import annotations

import dataclasses
import importlib.metadata
import sys
import types
from typing import Any

import pytest

from holdfast.config import Section
from holdfast.errors import HoldfastError, UsageError
from holdfast.training import recipes
from holdfast.training.other_names import Deprecated, Ignored
from holdfast.training.recipes import (
    Recipe,
    find_recipe,
    known_recipes,
    resolve,
)


@pytest.fixture(autouse=True)
def nothing_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is installed beside us offers nothing here."""
    monkeypatch.setattr("importlib.metadata.entry_points", lambda group: [])


@dataclasses.dataclass(frozen=True, kw_only=True)
class Inner(Section):
    lr: float = 3e-4


@dataclasses.dataclass(frozen=True, kw_only=True)
class Own(Section):
    train: Inner = Inner()


def build(settings: Any, place: Any) -> Any:
    raise AssertionError("no model is built here")


def made(name: str = "mine", **given: Any) -> Recipe:
    return Recipe(name=name, summary="one", settings=Own, build=build, **given)


@pytest.fixture
def plugin(monkeypatch):
    """A module named in HOLDFAST_PLUGINS; our own recipes are out of the way."""
    module: Any = types.ModuleType("holdfast_test_recipes")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setenv("HOLDFAST_PLUGINS", module.__name__)
    monkeypatch.setattr(recipes, "RECIPES", ())
    return module


@pytest.fixture
def path(monkeypatch, tmp_path):
    """A folder of its own; what is imported from it is forgotten afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        if str(tmp_path) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


def failure(function: Any, *args: Any, **given: Any) -> str:
    with pytest.raises(HoldfastError) as caught:
        function(*args, **given)
    assert caught.value.exit_code == 2
    return str(caught.value)


def test_a_module_of_the_environment_offers_recipes(plugin):
    plugin.RECIPES = (own := made(), other := made("other"))
    assert find_recipe("mine") is own and find_recipe("other") is other


def test_a_recipe_may_be_named_by_its_place_and_is_imported_then(plugin, path):
    (path / "holdfast_late_recipe.py").write_text(
        f"import sys\nOWN = sys.modules[{__name__!r}].made('late')\n"
    )
    sys.path.insert(0, str(path))
    plugin.RECIPES = ("holdfast_late_recipe:OWN",)
    assert find_recipe("late").name == "late"


def test_an_entry_point_offers_one(plugin, monkeypatch):
    plugin.OWN = made("entered")
    entry = importlib.metadata.EntryPoint("x", f"{plugin.__name__}:OWN", "holdfast.recipes")
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: [entry])
    assert find_recipe("entered") is plugin.OWN


def test_an_installed_package_named_in_the_variable_too_is_no_clash(plugin, monkeypatch):
    plugin.RECIPES = (made(),)
    entry = importlib.metadata.EntryPoint("x", plugin.__name__, "holdfast.recipes")
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: [entry])
    assert len(known_recipes()[0]) == 1


def test_two_of_one_name_are_an_error_that_names_both(plugin, monkeypatch):
    plugin.RECIPES, plugin.OWN = (made(), made("fine")), made()
    monkeypatch.setattr(recipes, "RECIPES", (f"{plugin.__name__}:OWN",))
    reported = failure(find_recipe, "mine")
    assert "2 recipes are called 'mine': holdfast and holdfast_test_recipes" in reported
    assert find_recipe("fine").name == "fine"


@pytest.mark.parametrize("offered", [("nonsense:RECIPE",), (3,), 5])
def test_a_broken_plugin_is_a_line_and_the_others_go_on(plugin, monkeypatch, offered, capsys):
    other: Any = types.ModuleType("holdfast_test_good")
    other.RECIPES = (made("good"),)
    monkeypatch.setitem(sys.modules, other.__name__, other)
    monkeypatch.setenv("HOLDFAST_PLUGINS", f"{plugin.__name__},{other.__name__}")
    plugin.RECIPES = offered
    assert find_recipe("good").name == "good"
    reported = capsys.readouterr().err
    assert reported.startswith(
        "holdfast: plugin holdfast_test_recipes (HOLDFAST_PLUGINS) is left out"
    )
    assert reported.count("\n") == 1
    said: list[str] = []
    find_recipe("good", said.append)
    assert len(said) == 1 and capsys.readouterr().err == ""


def test_a_wrong_name_is_reported_the_nearest(plugin):
    plugin.RECIPES = (made("energy"), made("plasma"))
    assert "did you mean 'plasma'? see: holdfast train --list" in failure(find_recipe, "plamsa")
    assert "there are energy, plasma; see" in failure(find_recipe, "zzz")


SOURCE = """
from __future__ import annotations
import dataclasses
from neighbour import VALUE
from holdfast.config import Section
from holdfast.training.recipes import Recipe

@dataclasses.dataclass(frozen=True, kw_only=True)
class Inner(Section):
    x: int = VALUE

@dataclasses.dataclass(frozen=True, kw_only=True)
class Mine(Section):
    train: Inner = Inner()

RECIPE = Recipe(name="given", summary="s", settings=Mine, build=lambda settings, place: None)
OTHER = dataclasses.replace(RECIPE, name="other")
NUMBER = 3
"""


def test_a_file_with_or_without_an_attribute(path):
    (path / "sub").mkdir()
    (path / "sub" / "holdfast_given.py").write_text(SOURCE)
    (path / "sub" / "neighbour.py").write_text("VALUE = 5\n")
    given = find_recipe("sub/holdfast_given.py")
    assert given.name == "given"
    assert find_recipe(f"{path}/sub/holdfast_given.py:OTHER").name == "other"
    # Loader processes that start afresh find its classes under this name.
    assert sys.modules["holdfast_given"].RECIPE is given
    assert resolve(given, overrides=["train.x=6"]).train.x == 6


def test_a_module_in_the_working_directory(path):
    (path / "holdfast_given_module.py").write_text(SOURCE)
    (path / "neighbour.py").write_text("VALUE = 5\n")
    assert find_recipe("holdfast_given_module:OTHER").name == "other"


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("wrnog.py:RECIPE", "no such recipe file: wrnog.py; did you mean wrong.py?"),
        ("nowhere/at_all.py", "no such recipe file: nowhere/at_all.py; check the path"),
        ("wrong.py:RECIPE", "ZeroDivisionError: division by zero, at"),
        ("syntax.py", "SyntaxError"),
        ("leaves.py", "SystemExit: 3"),
        ("json.py", "another module is called 'json'; rename the file"),
        ("sub/this.py", "another module is called 'this'; rename the file"),
        ("sub/a.b.py", "a.b.py cannot be imported: its name has a dot too many"),
        ("no_such_module_x:A", "No module named 'no_such_module_x'; check the name"),
        ("holdfast_held.py:RECIPEE", "did you mean 'RECIPE'?"),
        ("holdfast_held.py:NUMBER", "NUMBER in holdfast_held.py is of type int, no recipe"),
        ("neighbour.py", "nothing is called 'RECIPE' in neighbour.py; it holds no recipe"),
    ],
)
def test_whatever_is_wrong_with_a_place_is_one_line(path, name, says):
    (path / "wrong.py").write_text("x = 1\n1 / 0\n")
    (path / "syntax.py").write_text("def\n")
    (path / "leaves.py").write_text("raise SystemExit(3)\n")
    (path / "json.py").write_text("")
    (path / "sub").mkdir()
    (path / "sub" / "this.py").write_text("")
    (path / "sub" / "a.b.py").write_text("")
    (path / "neighbour.py").write_text("VALUE = 5\n")
    (path / "holdfast_held.py").write_text(SOURCE)
    assert says in failure(find_recipe, name)


def test_the_line_of_a_mistake_in_a_file_is_named(path):
    (path / "holdfast_wrong.py").write_text("x = 1\n1 / 0\n")
    assert "holdfast_wrong.py:2;" in failure(find_recipe, "holdfast_wrong.py")
    assert "holdfast_wrong" not in sys.modules
    (path / "holdfast_inside.py").write_text("import holdfast\nholdfast.Settings(guard=3)\n")
    reported = failure(find_recipe, "holdfast_inside.py")
    assert "guard must be a section" in reported and "holdfast_inside.py:2;" in reported


def test_a_recipe_is_checked_where_it_is_made():
    with pytest.raises(UsageError, match="cannot be called 'a:b'"):
        made("a:b")
    with pytest.raises(UsageError, match="Inner has no field train; add"):
        Recipe(name="x", summary="", settings=Inner, build=build)
    with pytest.raises(UsageError, match="give a class of Section"):
        Recipe(name="x", summary="", settings=dict, build=build)  # type: ignore[arg-type]


def test_the_name_of_a_recipe_may_have_dots_but_is_no_file(plugin, path):
    plugin.RECIPES = (made("family.member"), made("family.other"))
    assert find_recipe("family.member") is plugin.RECIPES[0]
    assert "did you mean 'family.member'?" in failure(find_recipe, "family.membr")
    (path / "family.py").write_text("")
    assert "no recipe" in failure(find_recipe, "family.py")
    for name in ("family.py", ".member", "family.", "family..member", "a/b"):
        with pytest.raises(UsageError, match="cannot be called"):
            made(name)


def test_other_names_are_checked_where_the_recipe_is_made():
    made(reads={"rate": "train.lr", "speed": Deprecated("rate", "say rate"), "x": Ignored("no")})
    with pytest.raises(UsageError, match=r"reads has 'train.lr', a setting of its own"):
        made(reads={"train.lr": "train.lr"})
    for meaning in ("train.rate", Deprecated("train.rate", "")):
        with pytest.raises(UsageError, match=r"stands for 'train.rate', no setting of it"):
            made(reads={"rate": meaning})
