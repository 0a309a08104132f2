"""The numbers of a step: all of them in the record, real ones, and nothing spent on others."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from holdfast.run import LaneReader, Run
from holdfast.training import (
    LogSettings,
    Place,
    Trainer,
    channels,
    resolve,
    run_recipe,
)
from holdfast.training.loop.progress import Progress
from holdfast_models.energy_flow import recipe, step_metrics
from holdfast_models.energy_flow.recipe import RECIPE, build
from holdfast_models.energy_flow.step_metrics import Stopwatch, lap

CPU = Place(torch.device("cpu"), rank=1)  # one that prints nothing
SMALL = [
    "model.lattice.width=4", "model.lattice.height=4", "model.lattice.depth=8", "model.width=16",
    "model.carrier.hidden=8", "model.carrier.layers=1", "model.flows.spawn_threshold=0.1",
    "model.flows.spawn_most=1", "data.width=16", "data.count=60", "train.data.batch=4",
    "train.data.workers=0", "train.accumulate=2", "bridge.width=8", "bridge.heads=2",
    "bridge.layers=1", "bridge.decoder_layers=1", "bridge.decoder_every=3", "train.device=cpu",
    "train.epochs=null", "train.steps=50", "train.validation.epochs=0", "pictures=false",
]  # fmt: skip

# Section 12 of the specification, but for what only a GPU has.
CONTRACT = {
    "throughput_samples_per_sec", "memory_used_gb", "flow_convergence_steps",
    "text_bridge_time_ms", "energy_computation_time_ms", "step_time", "flow_time", "total_loss",
    "energy_loss", "text_loss", "learning_rate", "grad_norm", "active_flows", "spawned_flows",
    "flows_reached_output", "completion_rate", "skipped_steps", "effective_batch_size",
    "gru_input_absmax", "gru_hidden_absmax",
}  # fmt: skip
OF_A_GPU = {"gpu_utilization_percent", "memory_utilization_percent"}


def task(*more: str) -> Any:
    torch.manual_seed(0)
    return build(resolve(RECIPE, None, None, [*SMALL, *more], "none"), CPU)


def recorded(path: Path) -> list[Mapping[str, float]]:
    settings = resolve(RECIPE, None, None, SMALL, "none")
    Trainer.of(task(), settings.train, run_dir=path, progress=Progress()).fit()
    events = LaneReader(Run.open(path), "r0").events()
    return [event.data for event in events if event.kind == "numbers"]


def test_a_record_has_every_number_of_the_contract_and_they_hold_together(tmp_path: Path) -> None:
    (found,) = recorded(tmp_path / "run")
    assert found.keys() >= CONTRACT and not found.keys() & OF_A_GPU
    # 16 cells send a flow each, of 4 samples; children come on top.
    assert found["active_flows"] == pytest.approx(64 + found["spawned_flows"], rel=0.1)
    assert 0 < found["spawned_flows"] <= found["active_flows"]
    assert 0 < found["flows_reached_output"] <= found["active_flows"]
    share = found["flows_reached_output"] / found["active_flows"]
    assert found["completion_rate"] == pytest.approx(share, abs=0.1)
    assert 1 <= found["mean_steps"] <= found["flow_convergence_steps"] <= 4
    assert 0 < found["gru_input_absmax"] <= 10 and 0 < found["gru_hidden_absmax"] < 1
    assert found["total_loss"] == pytest.approx(found["loss"])
    assert found["energy_loss"] < found["total_loss"] and found["text_loss"] > 0
    # Mean over steps: every third has the decoder's loss, which is told for itself.
    assert found["text_loss"] > found["text_encoder"]
    assert 7 < found["effective_batch_size"] <= 8 and found["skipped_steps"] == 0
    assert 0 < 1e3 * found["flow_time"] < found["energy_computation_time_ms"]
    assert found["energy_computation_time_ms"] < 1e3 * found["step_time"] * 5


def test_flows_are_counted_as_they_end() -> None:
    made = task("bridge.on=false")
    outs: list[Any] = []

    def net(*given: Any, **how: Any) -> Any:
        outs.append(made.model(*given, **how))
        return outs[-1]

    _, reported = made.loss(net, made.train.__getitems__(range(4)).batch)
    flows = outs[0].flows
    taken = flows.parent_N.ge(0).sum() + 64
    assert reported["active_flows"] == taken and reported["spawned_flows"] == taken - 64
    reached = (flows.exit_N > 0) & ~flows.projected_N
    assert reported["flows_reached_output"] == reached.sum()
    assert reported["completion_rate"] == pytest.approx(float(reached.sum() / taken))
    assert reported["flow_convergence_steps"] == 4 and 1 < reported["mean_steps"] < 3


# ------------------------------------------------------------------ times


def test_one_batch_in_so_many_steps_is_timed_and_told_once() -> None:
    watch = Stopwatch(torch.device("cpu"), every=3)
    timed = []
    for step in range(6):
        for _ in range(2):  # micro-batches
            laps = watch.begin(step)
            with lap(laps, "energy"), lap(laps, "flow"):
                pass
            if laps is not None:
                timed.append(step)
                found = watch.take()
                assert found.keys() == {"energy_computation_time_ms", "flow_time"}
                assert 0 <= 1e3 * found["flow_time"] <= found["energy_computation_time_ms"]
            assert watch.take() == {}
    assert timed == [2, 5]


class FakeEvent:
    """An event of a GPU whose work is done when it is told so; waiting for it is not foreseen."""

    done = False
    made = 0

    def __init__(self, enable_timing: bool = False) -> None:
        assert enable_timing
        FakeEvent.made += 1

    def record(self) -> None:
        pass

    def query(self) -> bool:
        return FakeEvent.done

    def elapsed_time(self, end: FakeEvent) -> float:
        assert FakeEvent.done
        return 250.0


def test_events_of_a_gpu_are_asked_and_used_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "Event", FakeEvent)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    watch = Stopwatch(torch.device("cuda"), every=1)
    for step in range(20):
        FakeEvent.done = False
        with lap(watch.begin(step), "flow"):
            pass
        assert watch.take() == {}, "not known yet"
        FakeEvent.done = True
        assert watch.take() == {"flow_time": 0.25}
    assert FakeEvent.made == 2
    FakeEvent.done = False
    for step in range(20, 60):  # a device that is far behind: what is kept is bounded
        with lap(watch.begin(step), "text"):
            pass
    FakeEvent.done = True
    late = [watch.take() for _ in range(40)]
    assert 0 < len([one for one in late if one]) < 8
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    assert watch.begin(99) is None


@pytest.mark.gpu
def test_a_gpu_tells_how_long_a_part_took() -> None:
    device = torch.device("cuda")
    watch, x = Stopwatch(device, every=1), torch.randn(2048, 2048, device=device)
    with lap(watch.begin(0), "flow"):
        for _ in range(20):
            x = x @ x.softmax(-1)
    torch.cuda.synchronize()
    assert 1e-6 < watch.take()["flow_time"] < 10


def test_a_compiled_model_sees_the_same_arguments_in_every_step() -> None:
    made = task("bridge.on=false")
    given: list[Any] = []

    def net(*args: Any, **how: Any) -> Any:
        given.append(how["laps"])
        return made.model(*args, **how)

    batch = made.train.__getitems__(range(4)).batch
    made.stepped(9)
    _, reported = made.loss(net, batch)
    assert given.pop() is not None and "flow_time" in reported
    made.model._compiled_call_impl = made.model._call_impl
    made.stepped(19)
    _, reported = made.loss(net, batch)
    assert given.pop() is None
    assert "flow_time" not in reported and reported["energy_computation_time_ms"] > 0


class Reads(TorchDispatchMode):
    """Counts values that the host asks for."""

    count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += func.overloadpacket.__name__ in ("_local_scalar_dense", "nonzero")
        return func(*args, **(kwargs or {}))


class Operations(TorchDispatchMode):
    """Counts operations."""

    count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += 1
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("step", [0, 9])
def test_the_loss_of_a_batch_reads_nothing_back_timed_or_not(step: int) -> None:
    made = task("model.convergence.on=false")
    batch = made.train.__getitems__(range(4)).batch
    made.stepped(step)
    with Reads() as reads:
        loss, reported = made.loss(made.model, batch)
        loss.backward()
    assert reads.count == 0
    assert ("flow_time" in reported) == (step == 9)
    assert not [v for v in reported.values() if isinstance(v, Tensor) and v.requires_grad]
    with Reads() as reads:
        loss.item()
    assert reads.count == 1


# ------------------------------------------------------------------ units and sources


class HostClock:
    """Seconds that pass where a test says so."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now

    def slowly(self, function: Any, seconds: float) -> Any:
        def run(*given: Any, **how: Any) -> Any:
            self.now += seconds
            return function(*given, **how)

        return run


def test_times_are_of_their_parts_and_in_their_units(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each part takes another time: one for the other, or seconds for milliseconds, is seen."""
    made, clock = task(), HostClock()
    monkeypatch.setattr(step_metrics.time, "perf_counter", clock)
    monkeypatch.setattr(made.model.core, "forward", clock.slowly(made.model.core.forward, 0.2))
    monkeypatch.setattr(made.model.input, "forward", clock.slowly(made.model.input.forward, 0.03))
    monkeypatch.setattr(made.model.bridge, "loss", clock.slowly(made.model.bridge.loss, 0.004))
    made.stepped(9)
    _, reported = made.loss(made.model, made.train.__getitems__(range(4)).batch)
    assert reported["flow_time"] == pytest.approx(0.2)  # seconds
    assert reported["energy_computation_time_ms"] == pytest.approx(230)
    assert reported["text_bridge_time_ms"] == pytest.approx(4)


@pytest.mark.parametrize(("drift", "steps"), [(0.6, 2), (0.4, 3), (0.05, 4)])
def test_convergence_steps_are_the_lattice_steps_of_the_pass(drift: float, steps: int) -> None:
    """Of four; with less drift flows need longer to the faces."""
    made = task("bridge.on=false", f"model.carrier.z_drift={drift}", "model.flows.spawn_most=0",
                "model.convergence.least_steps=1", "model.convergence.every=1",
                "model.flows.noise_cells=0")  # fmt: skip
    with torch.no_grad():
        made.model.core.carrier.move_end.weight.zero_()
        made.model.core.carrier.move_end.bias.zero_()
    _, reported = made.loss(made.model, made.train.__getitems__(range(4)).batch)
    assert reported["flow_convergence_steps"] == steps
    assert reported["flow_convergence_steps"].dtype == torch.float32


def test_tokens_of_a_batch_are_the_pieces_of_its_texts_without_padding() -> None:
    made = task()
    batch = made.train.__getitems__(range(4)).batch
    _, reported = made.loss(made.model, batch)
    words = made.model.bridge.vocabulary
    texts = [made.train.pairs.text(index) for index in range(4)]
    pieces = [words.row(text, 128) for one in texts for text in (one.input, one.target)]
    assert reported["tokens"] == sum(map(len, pieces)) < batch[3].numel() + batch[4].numel()
    assert "tokens" not in task("bridge.on=false").loss(made.model, batch)[1]


# ------------------------------------------------------------------ channels

NUMBER = r"-?\d[\d.e+-]*"
OF_THE_LATTICE = {
    "spatial": (13, r"\d+% of the surface is filled; .* \d+% left at z = 0, \d+% at z = depth"),
    "energy": (18, rf"flows begin with {NUMBER} to {NUMBER}, end with mean {NUMBER} and"),
    "spawn": (19, r"\d+ flows, \d+ of them children, 0 died; room for 100000"),
    "convergence": (20, r"(not )?converged at step \d of 4: \d+% of flows had reached a face"),
    "relative": (23, rf"from where they began flows moved {NUMBER} cells in x, {NUMBER} in y and"),
    "spawn_movement": (24, r"\d+ children of \d+ flows, born in lattice steps \d to \d, ended"),
    "reflection": (25, r"\d+ of 16 flows of the first sample met a side wall; \d+ times in"),
    "importance": (26, rf"weights before the softmax of \d+ flows that .*: {NUMBER} to {NUMBER}"),
}
OF_THE_TRAINER = {
    "verbose": r"batch of 4: loss .*spawned_flows \d+",
    "cache": r"no embedding cache: 120 different ones of 120 texts computed",
    "forward": rf"compact mode, 4 samples: input surface {NUMBER} to {NUMBER}, output surface",
    "memory": r"data: \d+ \+ \d+ \+ \d+ pairs, 0\.008 MB of embeddings, 0\.\d+ MB of texts",
    "training": rf"step 1: throughput_samples_per_sec {NUMBER}, throughput_tokens_per_sec {NUMBER}",
    "init": r"noise with seed 0, data with seed 0; vocabulary of \d+ pieces",
    "performance": r"step 1: \d+ samples/s; .*forward",
    "profiling": rf"step 1: resident {NUMBER} GB",
}


def test_every_channel_of_the_contract_writes_something_in_a_run(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Nine of twelve were silent in 52 steps."""
    names = [*OF_THE_TRAINER, *OF_THE_LATTICE]
    numbers = {channels.get(name).number for name in names}
    assert numbers == set(range(11, 27))
    log = [f"train.log.channels={','.join(names)}", "train.log.first=2"]
    settings = resolve(RECIPE, None, None, [*SMALL, *log, "train.steps=2"], "none")
    run_recipe(RECIPE, settings, run_dir=tmp_path / "run")
    lines = capfd.readouterr().err.splitlines()
    wanted = OF_THE_TRAINER | {name: text for name, (_, text) in OF_THE_LATTICE.items()}
    for name, pattern in wanted.items():
        said = [line for line in lines if line.startswith(f"[{name}] ")]
        assert said and re.match(rf"\[{name}\] {pattern}", said[0]), (name, said[:1])
    assert not [line for line in lines if "could not be made" in line]
    assert len([line for line in lines if line.startswith("[spatial]")]) == 2, "of four batches"
    assert not channels.get("spawn").on


def test_channels_of_the_lattice_compute_nothing_while_off(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As many operations as without them; each that is on adds some."""
    made = task("bridge.on=false")
    batch = made.train.__getitems__(range(4)).batch

    def operations(*names: str) -> int:
        undo = channels.setup(LogSettings(channels=names), Place(torch.device("cpu")), print)
        try:
            with Operations() as counted:
                made.loss(made.model, batch)
        finally:
            undo()
        return counted.count

    off = operations()
    alone = {name: operations(name) for name in OF_THE_LATTICE}
    assert [name for name, count in alone.items() if count <= off] == []
    monkeypatch.setattr(recipe, "tell_pass", lambda *given, **how: None)
    assert operations() == off


@pytest.mark.parametrize(("drift", "said"), [
    (0.6, "converged at step 2 of 4: 100% of flows had reached a face"),
    (0.05, "not converged at step 4 of 4: 0% of flows had reached a face"),
])  # fmt: skip
def test_the_channel_says_at_which_step_flows_converged(drift: float, said: str) -> None:
    made = task("bridge.on=false", f"model.carrier.z_drift={drift}", "model.flows.spawn_most=0",
                "model.convergence.least_steps=1", "model.convergence.every=1",
                "model.flows.noise_cells=0")  # fmt: skip
    with torch.no_grad():
        made.model.core.carrier.move_end.weight.zero_()
        made.model.core.carrier.move_end.bias.zero_()
    lines: list[str] = []
    undo = channels.setup(
        LogSettings(channels=("convergence", "relative", "reflection")),
        Place(torch.device("cpu")),
        lines.append,
    )
    try:
        made.loss(made.model, made.train.__getitems__(range(4)).batch)
    finally:
        undo()
    convergence, relative, reflection = lines
    assert convergence == f"[convergence] {said}"
    planes = 4.0 if drift == 0.6 else 4 * 4 * drift  # a step of 1 is 4 of 8 planes
    assert f"0.00 cells in x, 0.00 in y and {planes:.2f} planes in z" in relative
    assert "0 of 16 flows of the first sample met a side wall; 0 times in" in reflection


def test_the_caches_tell_how_they_were_used(tmp_path: Path) -> None:
    lines: list[str] = []
    undo = channels.setup(
        LogSettings(channels=("cache",)), Place(torch.device("cpu")), lines.append
    )
    try:
        _, again = (task(f"data.cache_dir={tmp_path}", "bridge.cache=2") for _ in range(2))
        bridge = again.model.bridge.eval()
        bridge.read(["a man", "a dog"])
        bridge.read(["a dog", "a cat", "a man"])
    finally:
        undo()
    embeddings = [line for line in lines if "embedding cache" in line]
    assert "0 hits, 120 misses; 120 rows kept" in embeddings[0]
    assert "120 hits, 0 misses; 120 rows kept" in embeddings[1]
    assert "[cache] text cache: room for 2 surfaces and 2 texts; training bypasses it" in lines
    used = [line for line in lines if "text cache, surfaces" in line]
    assert used[-1].endswith("2 hits, 3 misses, 1 evictions; 2 of 2 kept")
