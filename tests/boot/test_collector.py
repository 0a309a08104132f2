"""The collector is what it was, whatever the script has made of it, and our modules cost none."""

from __future__ import annotations

import gc
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from holdfast.boot.collector import at_rest


@pytest.fixture(autouse=True)
def collector() -> Iterator[None]:
    """As python starts with it; afterwards as it was before the test."""
    thresholds, collects, frozen = gc.get_threshold(), gc.isenabled(), gc.get_freeze_count()
    gc.unfreeze()
    gc.set_threshold(700, 10, 10)
    gc.enable()
    yield
    (gc.freeze if frozen else gc.unfreeze)()
    gc.set_threshold(*thresholds)
    (gc.enable if collects else gc.disable)()


class Cell:
    """The collector knows it."""


def collections() -> int:
    return sum(one["collections"] for one in gc.get_stats())


def test_nothing_is_collected_and_what_was_made_is_old() -> None:
    with at_rest():
        before = collections()
        made = [Cell() for _ in range(20_000)]
        assert collections() == before
    old = {id(one) for one in gc.get_objects(generation=2)}
    assert {id(one) for one in made} <= old
    assert gc.get_threshold() == (700, 10, 10) and gc.isenabled()
    made += [Cell() for _ in range(20_000)]
    assert collections() > before, "it collects again"


def test_garbage_of_the_script_is_found_later() -> None:
    with at_rest():
        circle: list[Any] = []
        circle.append(circle)
        del circle
    assert gc.collect() >= 1


@pytest.mark.parametrize("thresholds", [(0, 10, 10), (50_000, 20, 100)])
@pytest.mark.parametrize("enabled", [True, False])
def test_settings_of_the_script_stay(thresholds: tuple[int, int, int], enabled: bool) -> None:
    gc.set_threshold(*thresholds)
    (gc.enable if enabled else gc.disable)()
    with at_rest():
        assert gc.isenabled() is enabled
    assert gc.get_threshold() == thresholds and gc.isenabled() is enabled


def test_what_is_set_meanwhile_stays() -> None:
    with at_rest():
        gc.disable()
        gc.set_threshold(123, 4, 5)
    assert gc.get_threshold() == (123, 4, 5) and not gc.isenabled()


def test_objects_that_the_script_has_frozen_stay_frozen() -> None:
    gc.freeze()
    frozen = gc.get_freeze_count()
    with at_rest():
        pass
    assert frozen > 0 and gc.get_freeze_count() == frozen


def test_an_error_passes_and_the_collector_goes_on() -> None:
    with pytest.raises(ValueError), at_rest():
        raise ValueError
    assert gc.get_threshold() == (700, 10, 10)


def test_torch_is_not_looked_through_for_our_modules(tmp_path: Any) -> None:
    """In a process of its own, from the end of torch's import to the beginning of the script's."""
    script = tmp_path / "script.py"
    script.write_text(
        "import gc, sys\n"
        "ran = []\n"
        "def note(phase, info):\n"
        "    ran.append((phase, 'holdfast.boot.session' in sys.modules))\n"
        "gc.callbacks.append(note)\n"
        "import torch\n"
        "ours = len(ran)\n"
        "print(sum(1 for phase, loading in ran[:ours] if loading), gc.get_threshold(), "
        "'holdfast.guard.engine' in sys.modules)\n"
    )
    run = [sys.executable, "-m", "holdfast", "run", "--run-dir", str(tmp_path / "run"), str(script)]
    done = subprocess.run(run, capture_output=True, text=True, check=True)
    assert done.stdout.split("\n")[0] == "0 (700, 10, 10) True"
