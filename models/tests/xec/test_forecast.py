"""What a run takes is told, or refused, before anything of it is built."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from holdfast import HoldfastError
from holdfast.cli import main
from holdfast.training import Place, resolve
from holdfast.training.batch_size import memory as machine
from holdfast.training.batch_size.memory import HostMemory
from holdfast.training.forecast import announce
from holdfast_models.xec import forecast as family
from holdfast_models.xec.forecast import forecast_of
from holdfast_models.xec.recipes import recipe_of

GPU = Place(torch.device("cuda"))
CPU = Place(torch.device("cpu"))


@pytest.fixture
def free(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Says how much memory the machine has free, in GB."""

    def says(gigabytes: float) -> None:
        found = HostMemory(2000e9, gigabytes * 1e9)
        monkeypatch.setattr(machine, "host_memory", lambda: found)

    return says


@pytest.mark.parametrize("kind", ["reg", "mae", "inp"])
def test_the_default_size_is_forecast_without_memory_for_it(
    kind: str, synth: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not one of its weights exists, and what does not fit is not tried."""
    given = [f"data.train_path={synth.train}"]
    given += {
        "reg": ["tasks.energy.enabled=true"],
        "mae": [],
        "inp": ["model.freeze_encoder=false"],
    }[kind]
    settings = resolve(recipe_of(kind), None, None, given, "none")
    assert settings.model.encoder_dim == 1024
    monkeypatch.setattr(family, "free_memory", lambda device: 40e9)
    monkeypatch.setattr(family, "_trial", lambda *_: pytest.fail("a model was built"))
    began = time.thread_time()
    found = forecast_of(settings, GPU)
    assert time.thread_time() - began < 5
    weights = {"reg": 25.9e6, "mae": 45.0e6, "inp": 27.2e6}[kind]
    assert found.memory["weights and optimizer"] / 16 == pytest.approx(weights, rel=0.1)
    batch = settings.train.data.batch
    each = found.memory[f"activations of {batch} events"] / batch
    assert 5e6 < each < 400e6, "some ten MB of an event"


def test_blocks_by_kernels_keep_a_fraction_of_what_plain_ones_do(
    synth: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(family, "free_memory", lambda device: 40e9)
    given = [f"data.train_path={synth.train}", "tasks.energy.enabled=true"]
    kept: list[float] = []
    for blocks in ("plain", "auto"):
        more = [*given, f"model.blocks={blocks}"]
        found = forecast_of(resolve(recipe_of("reg"), None, None, more, "none"), GPU)
        kept.append(found.memory["activations of 256 events"])
    assert kept[0] > 4 * kept[1]


def test_what_does_not_fit_is_refused_with_a_setting_that_does(
    synth: Any, free: Callable[[float], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    given = [f"data.train_path={synth.train}", "tasks.energy.enabled=true"]
    recipe = recipe_of("reg")
    free(10)
    monkeypatch.setattr(family, "_trial", lambda *_: pytest.fail("a model was built"))
    found = forecast_of(resolve(recipe, None, None, given, "none"), CPU)
    with pytest.raises(HoldfastError, match=r"train\.data\.batch=") as refused:
        announce("xec.reg", found, CPU, print)
    line = str(refused.value)
    assert "\n" not in line and "cpu has 10" in line
    # What it says is done: the batch that counts stays as large, and it fits.
    advice = line.partition("; set ")[2].split()
    monkeypatch.setattr(family, "_trial", lambda *_: 0.1)
    settings = resolve(recipe, None, None, [*given, *advice], "none")
    assert settings.train.data.batch * settings.train.accumulate == 256
    said: list[str] = []
    announce("xec.reg", forecast_of(settings, CPU), CPU, said.append)
    assert "of memory" in said[0] and "a step" in said[0]


def test_the_command_refuses_before_a_model_is_built(
    tmp_path: Path,
    synth: Any,
    free: Callable[[float], None],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    free(8)
    monkeypatch.setattr("holdfast_models.xec.recipes.make_model", lambda *_: pytest.fail("built"))
    code = main(["train", "xec.reg", "--set", f"data.train_path={synth.train}", "--set",
                 "tasks.energy.enabled=true", "--run-dir", str(tmp_path / "run"),
                 "--set", "train.device=cpu"])  # fmt: skip
    reported = capsys.readouterr().err
    assert code == 2 and reported.count("\n") == 1 and "xec.reg needs about" in reported
    assert not (tmp_path / "run").exists()
