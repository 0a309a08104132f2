"""What the families offer to holdfast is found, valid and light."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import holdfast
import holdfast_models
from holdfast import HoldfastError
from holdfast.detectors import ALL, load_plugins, reject_duplicates
from holdfast.plugins import load
from holdfast.training import resolve
from holdfast.training.recipes import known_recipes

PROJECT = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]
PACKAGE = Path(holdfast_models.__file__).parent
FAMILIES = sorted(path.parent.name for path in PACKAGE.glob("*/__init__.py"))
# Say what has to be given: which quantities, whose encoder.
INCOMPLETE = {("xec.reg", None): "tasks.energy.enabled=true", ("xec.inp", None): "init.encoder=RUN"}
PLUGGED = {"HOLDFAST_PLUGINS": "none,holdfast_models"}


def test_the_version_is_that_of_holdfast() -> None:
    assert PROJECT["version"] == holdfast.__version__
    assert f"holdfast>={PROJECT['version']}" in PROJECT["dependencies"]


def test_every_group_leads_to_the_package() -> None:
    groups = {"holdfast.recipes", "holdfast.commands", "holdfast.detectors"}
    assert PROJECT["entry-points"] == {group: {"models": "holdfast_models"} for group in groups}


def test_every_preset_of_every_recipe_is_valid() -> None:
    offers, warnings = known_recipes(PLUGGED)
    found = [offer.value for offer in offers if offer.source != "holdfast"]
    # "xec.reg" is of the family xec.
    assert sorted({recipe.name.split(".")[0] for recipe in found}) == FAMILIES and not warnings
    for recipe in found:
        for preset in (None, *recipe.presets):
            if (recipe.name, preset) in INCOMPLETE:
                with pytest.raises(HoldfastError, match=INCOMPLETE[recipe.name, preset]):
                    resolve(recipe, None, preset)
                continue
            for kind in ("arm", "cuda", "cpu", "none"):
                assert isinstance(resolve(recipe, None, preset, (), kind), recipe.settings)
        with pytest.raises(HoldfastError, match="unknown setting"):
            resolve(recipe, overrides=["train.nothing_of_this_name=1"])


def test_every_detector_is_accepted_and_no_code_or_name_is_taken_twice() -> None:
    found = load_plugins(PLUGGED, ALL)
    assert not found.warnings
    reject_duplicates((*ALL, *found.detectors))
    files = PACKAGE.glob("*/detectors/[!_]*.py")
    written = {f"{path.parent.parent.name}.{path.stem}" for path in files}
    offered = {f"{one.__module__.split('.')[1]}.{one.name}" for one in found.detectors}
    assert offered == written and {name.split(".")[0] for name in offered} == set(FAMILIES)


def test_every_family_offers_a_command() -> None:
    assert sorted(load(place).name for place in holdfast_models.COMMANDS) == FAMILIES


def test_the_help_of_every_command_imports_no_torch() -> None:
    code = (
        "import sys\nfrom holdfast.cli import main\n"
        f"assert not any(main([name, '--help']) for name in {FAMILIES})\n"
        "assert 'torch' not in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
