"""What a run takes is known, said and refused before anything of it is built."""

from __future__ import annotations

import re
import resource

import pytest
import torch

from holdfast import HoldfastError
from holdfast.training import Place, resolve, run_recipe
from holdfast.training.batch_size import memory as machine
from holdfast.training.batch_size.memory import HostMemory
from holdfast_models.energy_flow import recipe as family
from holdfast_models.energy_flow.forecast import forecast, macs, sketch
from holdfast_models.energy_flow.kernels.support import unsupported
from holdfast_models.energy_flow.model.lattice import Core
from holdfast_models.energy_flow.modes.memory import first_flows, rows
from holdfast_models.energy_flow.recipe import RECIPE
from holdfast_models.energy_flow.run_settings import EnergyFlowSettings

CPU = Place(torch.device("cpu"))
SHIPPED = [None, *RECIPE.presets]
BIG = ["model.lattice.width=200", "model.lattice.height=200"]


def settings(preset: str | None = None, *given: str) -> EnergyFlowSettings:
    return resolve(RECIPE, None, preset, given, "none")


@pytest.fixture
def free(monkeypatch):
    """Says how much memory the machine has free, in GB."""

    def says(gigabytes: float) -> None:
        found = HostMemory(64e9, gigabytes * 1e9)
        monkeypatch.setattr(machine, "host_memory", lambda: found)

    says(16.0)
    return says


@pytest.mark.parametrize("preset", SHIPPED)
def test_flows_of_a_sample_never_outnumber_the_cells(preset: str | None) -> None:
    made = settings(preset)
    batch = made.train.data.batch
    assert rows(made.model, batch) == first_flows(made.model, batch) <= made.model.lattice.cells


@pytest.mark.parametrize("preset", SHIPPED)
def test_every_preset_as_shipped_can_take_the_fast_path(preset: str | None) -> None:
    made = settings(preset)
    assert unsupported(made.model, made.train.data.batch) is None


def test_the_first_command_needs_so_little_arithmetic_that_two_cores_do_it_in_minutes() -> None:
    made = settings()
    assert made.train.steps is not None and made.train.epochs is None
    moved = made.train.data.batch * made.model.lattice.cells * made.model.steps
    # A core does some 20 GFLOP/s on such work: two of them, five minutes.
    assert made.train.steps * 6 * macs(made.model) * moved < 5 * 60 * 2 * 20e9 / 4


@pytest.mark.parametrize("preset", ["experiment", "exp50", "max80"])
def test_what_takes_hours_says_so_and_what_to_choose_instead(preset: str, free) -> None:
    first, advice = forecast(settings(preset), CPU).lines(CPU)
    assert re.search(r"about .* (h|days) for \d+ steps", first)
    assert "without --preset" in advice and "--preset fields" in advice


def test_the_default_says_how_long_it_takes_and_no_more(free) -> None:
    (line,) = forecast(settings(), CPU).lines(CPU)
    assert re.search(r"forecast on cpu: about .* for 300 steps, .* a step; about \d+ MB", line)


def test_steps_of_a_run_over_files_are_not_known_before_they_are_read(free, tmp_path) -> None:
    (tmp_path / "pairs.jsonl").write_text('{"input": "a b", "target": "c d"}\n')
    given = [f"data.path={tmp_path / 'pairs.jsonl'}", "data.source=pairs", "data.split=pair"]
    found = forecast(settings(None, *given, "train.steps=null", "train.epochs=2"), CPU)
    assert found.steps is None and found.step_seconds is not None


def test_the_estimate_of_memory_is_near_what_a_step_takes() -> None:
    made = settings("debug", "bridge.on=false", "train.data.batch=4", "model.convergence.on=false")
    expected = forecast(made, CPU).memory["a batch in dense mode"]
    torch.manual_seed(0)
    core = Core(made.model)
    surface_BHW = torch.randn(4, 20, 20)
    held: list[torch.Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: held.append(t) or t, lambda t: t):
        out = core(surface_BHW, step=0, seed=0)
    del out
    own = {one.untyped_storage().data_ptr() for one in core.parameters()}
    kept = {one.untyped_storage().data_ptr(): one.untyped_storage().nbytes() for one in held}
    taken = sum(size for place, size in kept.items() if place not in own)
    assert 0.7 * taken < expected < 1.5 * taken


def test_less_memory_means_chunks_and_then_a_refusal_with_what_would_fit(free) -> None:
    """``experiment`` under 9 GB ended in an allocator's traceback."""
    made = settings("experiment")
    free(32)
    assert "a batch in dense mode" in forecast(made, CPU).memory
    free(9)
    found = forecast(made, CPU)
    assert "a batch in chunks of 1" in found.memory and found.bytes < 9e9 and not found.fits
    free(1)
    assert forecast(made, CPU).fits == "model.flows.capacity=6250 would fit"


@pytest.mark.parametrize(
    ("preset", "given", "memory"),
    [
        ("experiment", [], 1.0),
        (None, ["train.data.batch=4096"], 0.2),
        (None, [*BIG, "train.data.batch=2", "bridge.on=false"], 2.0),
        ("debug", ["model.flows.mode=dense", "train.data.batch=512"], 4.0),
    ],
)
def test_what_is_named_does_fit(preset: str | None, given: list[str], memory: float, free) -> None:
    free(memory)
    found = forecast(settings(preset, *given), CPU)
    assert found.bytes > memory * 1e9
    said = re.fullmatch(r"(?:set )?([\w.]+=\w+)(?: would fit|, which .*)", found.fits)
    assert said, found.fits
    again = forecast(settings(preset, *given, said[1]), CPU)
    assert again.bytes <= memory * 1e9 and not again.fits


@pytest.mark.parametrize("given", [BIG, [*BIG, "model.flows.mode=dense", "bridge.on=false"]])
def test_a_lattice_of_200_x_200_is_refused_in_one_line_before_it_is_built(
    given: list[str], free, monkeypatch
) -> None:
    free(2)
    monkeypatch.setattr(family, "load_pairs", lambda *_: pytest.fail("data was read"))
    with pytest.raises(HoldfastError) as caught:
        run_recipe(RECIPE, settings(None, *given))
    line = str(caught.value)
    assert "\n" not in line and "cpu has 2.0 GB free" in line
    assert re.search(r"energy_flow needs about [\d.]+ GB of memory \(weights", line)
    assert line.endswith(("would fit", "a smaller lattice", "in chunks"))


def test_a_pass_on_a_cpu_goes_in_chunks_where_memory_is_short(free) -> None:
    core = Core(settings("debug", "bridge.on=false").model)
    surface_BHW = torch.empty(8, 20, 20)
    assert core.mode_for(surface_BHW) == "dense"
    core = Core(core.settings)
    free(0.3)
    assert core.mode_for(surface_BHW) == "chunked"


def test_a_limit_on_the_address_space_counts(monkeypatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda what: (10**12, 10**12))
    used = 10**12 - 3 * 10**9

    class Process:
        def memory_info(self):
            return type("Info", (), {"vms": used})

    monkeypatch.setattr(machine.psutil, "Process", Process)
    assert machine.host_memory().free <= 3e9


def test_a_sketch_takes_no_memory_and_has_the_weights_of_the_model() -> None:
    made = settings()
    drawn = sketch(made)
    assert all(one.is_meta for one in drawn.parameters()) and drawn.bridge is not None
    whole = sketch(settings("max80"))
    assert sum(one.numel() for one in whole.parameters()) > 40_000_000


def test_a_forecast_leaves_the_random_numbers_alone(free) -> None:
    torch.manual_seed(3)
    before = torch.get_rng_state()
    forecast(settings(), CPU)
    assert torch.equal(before, torch.get_rng_state())
