"""The numbers of a step: all of them in the record, real ones, and nothing spent on others."""

from __future__ import annotations

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
)
from holdfast.training.loop.progress import Progress
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

    _, told = made.loss(net, made.train.__getitems__(range(4)).batch)
    flows = outs[0].flows
    taken = flows.parent_N.ge(0).sum() + 64
    assert told["active_flows"] == taken and told["spawned_flows"] == taken - 64
    reached = (flows.exit_N > 0) & ~flows.projected_N
    assert told["flows_reached_output"] == reached.sum()
    assert told["completion_rate"] == pytest.approx(float(reached.sum() / taken))


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
    _, told = made.loss(net, batch)
    assert given.pop() is not None and "flow_time" in told
    made.model._compiled_call_impl = made.model._call_impl
    made.stepped(19)
    _, told = made.loss(net, batch)
    assert given.pop() is None
    assert "flow_time" not in told and told["energy_computation_time_ms"] > 0


class Reads(TorchDispatchMode):
    """Counts values that the host asks for."""

    count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += func.overloadpacket.__name__ in ("_local_scalar_dense", "nonzero")
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("step", [0, 9])
def test_the_loss_of_a_batch_reads_nothing_back_timed_or_not(step: int) -> None:
    made = task("model.convergence.on=false")
    batch = made.train.__getitems__(range(4)).batch
    made.stepped(step)
    with Reads() as reads:
        loss, told = made.loss(made.model, batch)
        loss.backward()
    assert reads.count == 0
    assert ("flow_time" in told) == (step == 9)
    assert not [v for v in told.values() if isinstance(v, Tensor) and v.requires_grad]
    with Reads() as reads:
        loss.item()
    assert reads.count == 1


def test_channels_of_the_lattice_tell_what_the_flows_did_and_read_nothing_while_off() -> None:
    made = task("train.log.channels=spawn")  # a name that settings accept
    batch = made.train.__getitems__(range(4)).batch
    said: list[str] = []
    chosen = LogSettings(channels=("spatial", "energy", "spawn", "convergence"))
    undo = channels.setup(chosen, Place(torch.device("cpu")), said.append)
    try:
        made.loss(made.model, batch)
    finally:
        undo()
    names = ["spatial", "energy", "spawn", "convergence"]
    assert [line.split("] ")[0] for line in said] == [f"[{name}" for name in names]
    assert [channels.get(name).number for name in names] == [13, 18, 19, 20]
