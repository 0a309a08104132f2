"""The trainer as a user meets it: any module, any loss, any data."""

from __future__ import annotations

import json
import math
import os
import signal
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.conftest import Clock
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

from holdfast.config import from_dict
from holdfast.errors import HoldfastError, SettingsError, UsageError
from holdfast.run import LaneReader, Ring, Run
from holdfast.training.loop import artifacts, measures
from holdfast.training.loop.progress import Progress, Tick
from holdfast.training.settings import TrainSettings
from holdfast.training.trainer import Result, Trainer


class Seen(Progress):
    """Notes what it is told."""

    def __init__(self) -> None:
        self.ticks: list[Tick] = []
        self.lines: list[str] = []
        self.epochs: list[str] = []
        self.validations: list[tuple[int, Mapping[str, float], bool]] = []

    def due(self, step: int) -> bool:
        return True

    def tick(self, tick: Tick) -> None:
        self.ticks.append(tick)

    def say(self, line: str) -> None:
        self.lines.append(line)

    def epoch(self, summary: str) -> None:
        self.epochs.append(summary)

    def validated(self, step: int, values: Mapping[str, float], best: bool) -> None:
        self.validations.append((step, dict(values), best))


def settings(**given: Any) -> TrainSettings:
    plain = {"device": "cpu", "optimizer": {"lr": 0.05}, "data": {"batch": 8, "workers": 0}}
    nested = {**plain, **given}
    nested["data"] = {**plain["data"], **given.get("data", {})}  # type: ignore[dict-item]
    return from_dict(nested, kind=TrainSettings)


def data(count: int = 60, seed: int = 0) -> TensorDataset:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(count, 4, generator=generator)
    return TensorDataset(x, x @ torch.tensor([[1.0], [-2.0], [0.5], [3.0]]))


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 1))


def loss(net: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    x, y = batch
    return nn.functional.mse_loss(net(x), y)


def fit(tmp_path: Path, how: TrainSettings, net: nn.Module | None = None, **more: Any) -> Result:
    net = net if net is not None else model()
    more = {"run_dir": tmp_path / "run", "progress": Seen(), "train": data(), **more}
    return Trainer(net, more.pop("loss", loss), more.pop("train"), settings=how, **more).fit()


def weights(net: nn.Module) -> list[float]:
    return torch.cat([p.detach().flatten() for p in net.parameters()]).tolist()


# ------------------------------------------------------------------ the loop


def test_a_model_is_trained_validated_saved_and_reported(tmp_path: Path) -> None:
    seen, net = Seen(), model()
    result = fit(tmp_path, settings(epochs=6), net, validation=data(20, seed=1), progress=seen)
    assert result.step == 6 * 8 and result.why == "6 epochs are done"
    losses = [values["loss"] for _, values, _ in seen.validations]
    assert losses[-1] < 0.2 * losses[0]
    assert result.best == min(losses) and result.validation["loss"] == losses[-1]
    assert [step for step, _, _ in seen.validations] == [8, 16, 24, 32, 40, 48]
    assert len(seen.epochs) == 6 and "epoch 6/6: step 48" in seen.epochs[-1]
    assert result.run is not None and result.run == tmp_path / "run"
    assert len(LaneReader(Run.open(result.run), "r0").steps()) == 48
    assert list((result.run / "checkpoints").glob("*.json"))
    tick = seen.ticks[-1]
    assert tick.step == tick.steps == 48 and tick.loss is not None and tick.loss < 10
    assert tick.rate is not None and tick.rate > 0 and tick.skipped == 0
    assert tick.norm is not None and math.isfinite(tick.norm)
    assert not net.training or all(m.training for m in net.modules())


def test_lines_name_the_headline_and_the_record_has_all_numbers(tmp_path: Path) -> None:
    seen = Seen()

    def measure(net: nn.Module, batch: tuple[Tensor, Tensor]) -> dict[str, Tensor]:
        return {"other": torch.ones(()), "loss": loss(net, batch)}

    held_out, given = data(20, seed=1), settings(epochs=1)
    result = fit(
        tmp_path, given, validation=held_out, progress=seen, measure=measure, headline=("loss",)
    )
    assert [list(values) for _, values, _ in seen.validations] == [["loss"]]
    assert set(result.validation) == {"other", "loss"} and result.headline == ("loss",)


def test_as_many_threads_compute_as_the_settings_say(tmp_path: Path) -> None:
    before, seen = torch.get_num_threads(), set[int]()

    def counted(net: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        seen.add(torch.get_num_threads())
        return loss(net, batch)

    fit(tmp_path, settings(steps=2, data={"threads": before + 2}), loss=counted)
    assert seen == {before + 2} and torch.get_num_threads() == before


def test_a_checkpoint_tells_how_fast_the_run_was(tmp_path: Path) -> None:
    result = fit(tmp_path, settings(epochs=2), validation=data(20, seed=1))
    assert result.run is not None
    saved = [json.loads(p.read_text()) for p in (result.run / "checkpoints").glob("*.json")]
    assert saved
    for metrics in (record["metrics"] for record in saved):
        assert 0 < metrics["step_time"] < 5
        # 60 samples in 8 batches
        each = metrics["throughput_samples_per_sec"] * metrics["step_time"]
        assert each == pytest.approx(60 / 8, rel=0.2)


def test_it_computes_what_the_plain_loop_computes(tmp_path: Path) -> None:
    """The same data order and settings, written by hand: the same weights, bit for bit."""
    net, plain = model(), model()
    how = settings(epochs=3, clip=None, optimizer={"lr": 0.01, "weight_decay": 0.0})
    fit(tmp_path, how, net)
    # The trainer's own choice: on some processors its last bits differ from those of the others.
    optimizer = torch.optim.AdamW(plain.parameters(), lr=0.01, weight_decay=0.0, fused=True)
    from holdfast.training.data.sampling import EpochBatches
    from holdfast.training.device import Place

    batches = EpochBatches(60, 8, Place(torch.device("cpu")), shuffle=True, seed=0)
    x, y = data().tensors
    for epoch in range(3):
        batches.set_epoch(epoch)
        for indices in batches:
            optimizer.zero_grad()
            nn.functional.mse_loss(plain(x[indices]), y[indices]).backward()
            optimizer.step()
    assert weights(net) == weights(plain)


@pytest.mark.parametrize(("count", "accumulate"), [(64, 2), (60, 3), (57, 4)])
def test_accumulation_is_the_large_batch(tmp_path: Path, count: int, accumulate: int) -> None:
    """Also where windows and batches do not divide the epoch."""
    how = {"epochs": 2, "clip": None, "optimizer": {"name": "sgd", "lr": 0.01, "weight_decay": 0.0}}
    one, other = model(), model()
    large = settings(**how, data={"batch": 8 * accumulate, "shuffle": False})
    small = settings(**how, accumulate=accumulate, data={"shuffle": False})
    fit(tmp_path / "a", large, one, train=data(count))
    result = fit(tmp_path / "b", small, other, train=data(count))
    assert result.step == 2 * math.ceil(count / (8 * accumulate))
    assert weights(one) == pytest.approx(weights(other), abs=1e-6)


def test_the_loss_that_is_reported_is_not_divided_by_the_window(tmp_path: Path) -> None:
    result = fit(tmp_path, settings(steps=4, accumulate=4, optimizer={"lr": 1e-9}), train=data(128))
    assert result.run is not None
    rows = LaneReader(Run.open(result.run), "r0").steps()
    expected = loss(model(), data(128).tensors).item()  # type: ignore[arg-type]
    assert float(rows["loss"].mean()) == pytest.approx(expected, rel=0.1)


def test_steps_end_a_run_amid_an_epoch(tmp_path: Path) -> None:
    seen = Seen()
    result = fit(tmp_path, settings(epochs=9, steps=11), validation=data(16), progress=seen)
    assert (result.step, result.why) == (11, "11 steps are done")
    assert [step for step, _, _ in seen.validations] == [8, 11]


def test_numbers_beside_the_loss_are_reported_and_averaged(tmp_path: Path) -> None:
    def with_error(net: nn.Module, batch: tuple[Tensor, Tensor]) -> Any:
        error = (net(batch[0]) - batch[1]).abs().mean()
        return loss(net, batch), {"error": error, "constant": 2.0}

    result = fit(tmp_path, settings(epochs=7), loss=with_error, validation=data(20))
    assert set(result.validation) == {"loss", "error", "constant"}
    assert result.validation["constant"] == 2.0
    assert result.run is not None
    events = LaneReader(Run.open(result.run), "r0").events()
    (noted,) = [e for e in events if e.kind == "numbers"]
    assert noted.data["constant"] == 2.0 and {"loss", "error"} <= noted.data.keys()
    validations = [e.data for e in events if e.kind == "validation"]
    assert len(validations) == 7 and validations[0]["best"] is True


def with_numbers(net: nn.Module, batch: tuple[Tensor, Tensor]) -> Any:
    return loss(net, batch), {"two": 2.0}


def test_the_trainer_notes_its_own_numbers_with_them(tmp_path: Path) -> None:
    """Pace is of training: what validations take does not count."""

    def slowly(net: nn.Module, batch: Any) -> Any:
        time.sleep(0.02)
        return {"loss": loss(net, batch)}

    how = settings(
        epochs=None, steps=50, accumulate=2, validation={"steps": 10}, stop={"metric": "loss"},
        schedule={"name": "linear", "floor": 0.0}, data={"batch": 4},
    )  # fmt: skip
    result = fit(tmp_path, how, loss=with_numbers, validation=data(16), measure=slowly)
    (noted,) = numbers(result)
    rows = LaneReader(Run.open(tmp_path / "run"), "r0").steps()
    assert noted["effective_batch_size"] == pytest.approx(60 / 8, rel=0.1)
    assert noted["throughput_samples_per_sec"] == pytest.approx(
        noted["effective_batch_size"] / noted["step_time"]
    )
    assert 0 < noted["step_time"] < (rows["time"][-1] - rows["time"][0]) / 50
    assert noted["grad_norm"] == pytest.approx(float(rows["grad_norm"][-1]))
    assert 0 <= noted["learning_rate"] < 0.05 and noted["skipped_steps"] == 0
    assert 0 < noted["memory_used_gb"] < 100
    assert not [name for name in noted if "gpu" in name or "utilization" in name]


def test_measuring_that_takes_too_long_is_left_out_and_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clock: Clock
) -> None:
    def slow(device: torch.device) -> dict[str, float]:
        clock.sleep(0.3)
        return {"memory_used_gb": 1.0}

    monkeypatch.setattr(measures, "memory_numbers", slow)
    seen = Seen()
    result = fit(tmp_path, settings(epochs=13), loss=with_numbers, progress=seen)
    first, second = numbers(result)
    assert "memory_used_gb" in first and "memory_used_gb" not in second
    assert "step_time" in second
    assert len([line for line in seen.lines if "measuring took" in line]) == 1


def test_channels_tell_the_numbers_and_profile_a_window(tmp_path: Path) -> None:
    seen = Seen()
    how = settings(steps=50, epochs=7, log={"channels": ["training", "profiling"]})
    fit(tmp_path, how, loss=with_numbers, progress=seen)
    (reported,) = [line for line in seen.lines if line.startswith("[training] step 50: ")]
    assert "throughput_samples_per_sec" in reported and "two 2" in reported
    assert any(line.startswith("[profiling] step 50: resident") for line in seen.lines)
    assert any(line.startswith("profile of steps 11 to 15") for line in seen.lines)
    quiet = Seen()
    fit(tmp_path / "quiet", settings(steps=50, epochs=7), loss=with_numbers, progress=quiet)
    assert not [line for line in quiet.lines if line.startswith(("[", "profile"))]


def numbers(result: Result) -> list[Mapping[str, Any]]:
    assert result.run is not None
    events = LaneReader(Run.open(result.run), "r0").events()
    return [event.data for event in events if event.kind == "numbers"]


def test_a_loader_of_the_users_own_and_batches_of_dictionaries(tmp_path: Path) -> None:
    class Rows(torch.utils.data.Dataset[dict[str, Tensor]]):
        def __len__(self) -> int:
            return 30

        def __getitem__(self, index: int) -> dict[str, Tensor]:
            x, y = data().tensors
            return {"x": x[index], "y": y[index]}

    def of_rows(net: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        return loss(net, (batch["x"], batch["y"]))

    own = DataLoader(Rows(), batch_size=7)
    result = fit(tmp_path, settings(epochs=2, accumulate=2), train=own, loss=of_rows)
    assert result.step == 2 * 3


def test_batches_without_a_length(tmp_path: Path) -> None:
    class Stream(torch.utils.data.IterableDataset[tuple[Tensor, Tensor]]):
        def __iter__(self) -> Any:
            return iter(zip(*data(21).tensors, strict=True))

    own = DataLoader(Stream(), batch_size=4)
    result = fit(tmp_path, settings(epochs=2, accumulate=4), train=own)
    assert result.step == 2 * 2  # 6 batches: a full window and the rest


def test_an_average_is_what_is_validated(tmp_path: Path) -> None:
    net, seen = model(), Seen()
    how = settings(epochs=2, average={"decay": 0.999, "warmup": False})
    fit(tmp_path, how, net, validation=data(20, seed=1), progress=seen)
    # With so slow an average the validated model is nearly the one at the start.
    x, y = data(20, seed=1).tensors
    start = nn.functional.mse_loss(model()(x), y).item()
    assert seen.validations[-1][1]["loss"] == pytest.approx(start, rel=0.1)
    assert nn.functional.mse_loss(net(x), y).item() < 0.9 * start


def test_a_plateau_lowers_the_rate(tmp_path: Path) -> None:
    schedule = {"name": "plateau", "patience": 0, "factor": 0.1}
    seen = Seen()
    how = settings(epochs=3, schedule=schedule, optimizer={"name": "sgd", "lr": 1e-30})
    fit(tmp_path, how, validation=data(20), progress=seen)
    first, last = seen.ticks[0].lr, seen.ticks[-1].lr
    assert first is not None and last is not None and last < 0.2 * first


def test_early_stop(tmp_path: Path) -> None:
    how = settings(epochs=50, optimizer={"name": "sgd", "lr": 1e-30}, stop={"patience": 2})
    result = fit(tmp_path, how, validation=data(20))
    assert "2 validations without a better loss" in result.why
    assert result.step == 3 * 8 and result.best_step == 8


def test_moments_of_a_task_are_reported(tmp_path: Path) -> None:
    steps: list[int] = []
    values: list[int] = []
    fit(
        tmp_path,
        settings(epochs=2),
        validation=data(16),
        stepped=steps.append,
        validated=lambda step, numbers: values.append(step),
    )
    assert steps == list(range(1, 17)) and values == [8, 16]


@pytest.mark.parametrize("slow", [False, True])
def test_the_record_of_an_epoch_holds_its_numbers(tmp_path: Path, slow: bool, clock: Clock) -> None:
    rows = data(24)

    class Rows(Dataset[Any]):
        def __len__(self) -> int:
            return len(rows)

        def __getitem__(self, index: int) -> Any:
            clock.sleep(0.01 * slow)
            return rows[index]

    def timed(net: nn.Module, batch: Any) -> Tensor:
        clock.sleep(0.16)
        return loss(net, batch)

    seen = Seen()
    result = fit(tmp_path, settings(epochs=2), train=Rows(), loss=timed, progress=seen)
    assert result.run is not None
    events = LaneReader(Run.open(result.run), "r0").events()
    first, second = (event.data for event in events if event.kind == "epoch")
    assert (first["epoch"], first["step"], second["epoch"], second["step"]) == (0, 3, 1, 6)
    waited = 0.24 if slow else 0.0
    assert second["epoch_seconds"] == pytest.approx(0.48 + waited, rel=0.05)
    assert second["throughput_samples_per_sec"] == pytest.approx(24 / (0.48 + waited), rel=0.05)
    assert second["data_wait_fraction"] == pytest.approx(waited / (0.48 + waited), abs=0.02)
    assert second["memory_peak_gb"] >= second["process_rss_gb"] > 0.01
    assert second["skipped_steps"] == 0 and second["learning_rate"] == 0.05
    assert second["grad_norm_max"] > 0 and math.isfinite(second["loss"])
    advised = ["set more train.data.workers" in line for line in seen.epochs]
    assert advised == [slow, slow]


def test_the_end_is_reported_before_the_report_with_the_record_on_disk(tmp_path: Path) -> None:
    reported: list[tuple[Path, list[int], bool]] = []

    def ended(folder: Path) -> None:
        lines = (folder / "events.r0.jsonl").read_text().splitlines()
        events = [json.loads(line) for line in lines]
        steps = [event["step"] for event in events if event["kind"] == "validation"]
        reported.append((folder, steps, (folder / "report.html").exists()))

    result = fit(tmp_path, settings(epochs=2), validation=data(16), ended=ended)
    assert reported == [(tmp_path / "run", [8, 16], False)]
    assert result.run is not None and (result.run / "report.html").exists()


def test_an_error_at_the_end_is_a_line(tmp_path: Path) -> None:
    def ended(folder: Path) -> None:
        raise ZeroDivisionError("no\npicture")

    seen, net = Seen(), model()
    result = fit(tmp_path, settings(steps=3), net, progress=seen, ended=ended)
    assert result.step == 3 and result.run is not None
    (line,) = [line for line in seen.lines if "Task.ended failed at step 3" in line]
    assert line.endswith("ZeroDivisionError: no picture")
    assert "in ended" in (result.run / artifacts.ERRORS).read_text() and result.hook_errors == 1
    assert Run.open(result.run.absolute()).meta["exit_code"] == 0
    assert (result.run / "report.html").exists()


def test_an_end_told_by_a_signal_is_reported_and_a_crash_is_not(tmp_path: Path) -> None:
    reported: list[str] = []

    def stopped(step: int) -> None:
        os.kill(os.getpid(), signal.SIGINT)

    def broken(net: nn.Module, batch: Any) -> Tensor:
        raise ZeroDivisionError("mine")

    def ended(folder: Path) -> None:
        reported.append(folder.parent.name)

    fit(tmp_path / "stopped", settings(epochs=1), stepped=stopped, ended=ended)
    with pytest.raises(ZeroDivisionError):
        fit(tmp_path / "broken", settings(epochs=1), loss=broken, ended=ended)
    assert reported == ["stopped"]


def test_a_record_that_never_reaches_the_disk_is_not_waited_for_forever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(artifacts, "_PATIENCE", 0.1)
    run = Run.create(tmp_path / "run", {})
    ring = Ring.create(run.ring_path("r0"), 1 << 16, pid=1, owner="nobody")
    ring.put(1, b"{}")
    reported: list[Path] = []
    artifacts.RunHooks(run, lambda kind, data: None, print).ended(reported.append, 0)
    ring.detach()
    assert reported == [run.path]


def test_gradient_checkpointing_changes_nothing_but_memory(tmp_path: Path) -> None:
    one, other = model(), model()
    fit(tmp_path / "a", settings(steps=5), one)
    fit(tmp_path / "b", settings(steps=5, recompute=["0", "1"]), other)
    assert weights(one) == weights(other)


def test_anomaly_mode_for_the_first_steps(tmp_path: Path) -> None:
    found: list[bool] = []

    def asked(net: nn.Module, batch: Any) -> Tensor:
        found.append(torch.is_anomaly_enabled())
        return loss(net, batch)

    fit(tmp_path, settings(steps=5, anomaly=2), loss=asked)
    assert found == [True, True, False, False, False]


def test_a_profile_lands_in_the_run_folder(tmp_path: Path) -> None:
    result = fit(tmp_path, settings(steps=8, profile={"start": 2, "steps": 2}))
    assert result.run is not None
    assert [p for p in result.run.iterdir() if p.name.startswith("trace")]


# ------------------------------------------------------------------ survival


def test_a_poisoned_batch_is_one_skipped_step(tmp_path: Path) -> None:
    poisoned = data()
    poisoned.tensors[0][13] = math.nan
    net = model()
    result = fit(tmp_path, settings(epochs=3), net, train=poisoned)
    assert result.step == 24  # one of the batches is looked at again, which is no step
    assert result.skipped == 4
    assert all(math.isfinite(value) for value in weights(net))
    assert "NUM005" in result.report and result.run is not None
    found = LaneReader(Run.open(result.run), "r0").findings()
    assert [f.code for f in found] == ["NUM005"]
    assert "13" in found[0].message, found[0].message
    assert '"index":13' in (result.run / "quarantine.r0.jsonl").read_text()


def test_a_poisoned_window_is_left_out_whole_and_changes_nothing_else(tmp_path: Path) -> None:
    """Looking at a poisoned window again must not move the windows after it."""
    poisoned = data()
    poisoned.tensors[0][21] = math.nan
    how: dict[str, Any] = {"epochs": 2, "accumulate": 3, "schedule": {"name": "cosine"}}
    one, other = model(), model()
    no_replay = settings(**how, holdfast={"guard": {"replay": False, "explain": False}})
    fit(tmp_path / "a", settings(**how), one, train=poisoned)
    fit(tmp_path / "b", no_replay, other, train=poisoned)
    assert weights(one) == weights(other)


def test_clipping_is_that_of_torch(tmp_path: Path) -> None:
    net, plain = model(), model()
    how = settings(steps=8, clip=0.1, optimizer={"name": "sgd", "lr": 0.5, "weight_decay": 0.0})
    fit(tmp_path, how, net, train=data(64))
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.5)
    from holdfast.training.data.sampling import EpochBatches
    from holdfast.training.device import Place

    x, y = data(64).tensors
    for indices in EpochBatches(64, 8, Place(torch.device("cpu")), shuffle=True, seed=0):
        optimizer.zero_grad()
        nn.functional.mse_loss(plain(x[indices]), y[indices]).backward()
        nn.utils.clip_grad_norm_(plain.parameters(), 0.1)
        optimizer.step()
    assert weights(net) == pytest.approx(weights(plain), rel=1e-5, abs=1e-7)


@pytest.mark.parametrize("stop_at", [3, 8, 11, 16])
def test_a_resumed_run_is_the_undisturbed_one(tmp_path: Path, stop_at: int) -> None:
    """Ended by its number of steps amid an epoch, at its end, and taken up again."""
    how: dict[str, Any] = {
        "epochs": 3,
        "accumulate": 1,
        "average": {"decay": 0.9},
        # Four steps: the first cut is amid the warm-up, which none of the others repeats.
        "schedule": {"name": "cosine", "warmup_epochs": 0.5, "warmup_from": 0.01, "lowest": 1e-3},
    }
    whole, parts = noisy(), noisy()
    fit(tmp_path / "whole", settings(**how), whole, validation=data(16, seed=2))
    longer = settings(**how, steps=24)
    cut = settings(**how, steps=stop_at)
    fit_cut(tmp_path / "parts", longer, cut, parts)
    again = noisy()
    result = fit(tmp_path / "parts", longer, again, validation=data(16, seed=2), resume=True)
    assert result.step == 24
    assert weights(again) == weights(whole)


def test_a_warm_up_in_epochs_follows_the_steps_of_one(tmp_path: Path) -> None:
    how = settings(epochs=2, accumulate=2, schedule={"warmup_epochs": 0.5, "warmup_from": 0.01})
    fit(tmp_path, how)
    rates = LaneReader(Run.open(tmp_path / "run"), "r0").steps()["lr"][:3]
    assert rates == pytest.approx([0.01 * 0.05, 0.05, 0.05])  # 8 batches, 4 steps, 2 of them warm
    batches = (batch for batch in DataLoader(data(), batch_size=8))
    with pytest.raises(SettingsError, match=r"use schedule.warmup, a number of steps"):
        fit(tmp_path / "stream", how, train=batches)


def noisy() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 16), nn.BatchNorm1d(16), nn.Dropout(0.3), nn.Linear(16, 1))


def fit_cut(path: Path, how: TrainSettings, cut: TrainSettings, net: nn.Module) -> None:
    """Train as ``how`` says, with Ctrl-C after the steps of ``cut``."""

    def stepped(step: int) -> None:
        if step == cut.steps:
            os.kill(os.getpid(), signal.SIGINT)

    result = fit(path, how, net, validation=data(16, seed=2), stepped=stepped)
    assert result.interrupted and result.step == cut.steps
    assert "told to stop (SIGINT)" in result.why


def test_an_error_of_the_users_gets_out_and_the_run_is_closed(tmp_path: Path) -> None:
    def broken(net: nn.Module, batch: Any) -> Tensor:
        raise ZeroDivisionError("mine")

    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(ZeroDivisionError, match="mine"):
        fit(tmp_path, settings(epochs=1), loss=broken)
    assert signal.getsignal(signal.SIGINT) is before
    assert not list((tmp_path / "run").glob("ring.*"))


# ------------------------------------------------------------------ mistakes


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (lambda net, batch: net(batch[0]), r"the loss function returned \(8, 1\), not a scalar"),
        (lambda net, batch: 3.0, "the loss function returned float"),
        (lambda net, batch: loss(net, batch).detach(), "the loss has no gradient"),
    ],
)
def test_a_loss_that_is_none_is_said(tmp_path: Path, broken: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        fit(tmp_path, settings(epochs=1), loss=broken)


def test_settings_that_never_end_are_refused() -> None:
    with pytest.raises(SettingsError, match="both null"):
        settings(epochs=None)


def test_too_little_data_is_said(tmp_path: Path) -> None:
    with pytest.raises(HoldfastError, match="make no batch"):
        fit(tmp_path, settings(data={"batch": 100, "drop_last": True}))
