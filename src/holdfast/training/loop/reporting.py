"""What the loop says while it runs: averages, throughput, waiting, memory, skipped steps."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import TypeVar

import torch
from torch import Tensor
from torch.optim import Optimizer

from ...records.trainer import EpochEnded, TrainingNumbers
from ...watching.watch import Watch
from .. import channels
from ..compiling import CompiledModel
from ..device import Place
from ..task import TOKENS, Scalars
from .averages import StepAverages
from .measures import Measures, memory_layout, memory_peak, most_memory, resident
from .norms import GradientNorms
from .progress import Progress, Tick

B = TypeVar("B")

_memory = channels.get("memory")
_performance = channels.get("performance")
_profiling = channels.get("profiling")
_training = channels.get("training")
_verbose = channels.get("verbose")
# Steps between two records of the numbers of a run.
_NOTED_EVERY = 50
# Share of an epoch that the loop may wait for data before its line says what to do.
_LONG_WAIT = 0.2
_WAIT_ADVICE = (
    "; loading is slower than training: set more train.data.workers or a larger train.data.chunk, "
    "or cache what is decoded"
)


class StepReporter:
    """Counts along and shows it now and then; nothing here waits for the device."""

    def __init__(
        self,
        progress: Progress,
        place: Place,
        *,
        steps: int | None,
        epochs: int | None,
        watch: Watch,
        optimizer: Optimizer,
        compiled: CompiledModel,
    ) -> None:
        self._progress, self._place = progress, place
        self._steps, self._epochs = steps, epochs
        self._watch, self._optimizer, self._compiled = watch, optimizer, compiled
        self._readings, self._noted = StepAverages(), StepAverages()
        self._measures = Measures(place, watch, optimizer, progress.say)
        self.numbers: Mapping[str, float] = {}
        """What was noted last."""
        self._epoch = 0
        self.wait_share = 0.0
        """Share of the last epoch that the loop waited for data."""
        self.wait_seconds = 0.0
        """What it waited for one batch."""
        self._interval = _Span(compiled)
        self._between_notes = _Span(compiled)
        self._whole_epoch = _Span(compiled)
        self.run = _Span(compiled)
        self._spans = (self._interval, self._between_notes, self._whole_epoch, self.run)

    # ------------------------------------------------------------------ counting

    def waiting(self, batches: Iterable[B]) -> Iterator[B]:
        """Pass batches on and count the time they are waited for."""
        iterator = iter(batches)
        while True:
            began = time.perf_counter()
            try:
                batch = next(iterator)
            except StopIteration:
                return
            waited = time.perf_counter() - began
            for span in self._spans:
                span.waited += waited
                span.batches += 1
            yield batch

    def saw(self, loss: Tensor, extra: Scalars, samples: int) -> None:
        """A micro-batch is through."""
        values = {"loss": loss.detach(), **extra}
        if TOKENS in values:
            # Of each sample, as means are weighted by samples.
            values["tokens_per_sample"] = values.pop(TOKENS) / samples
        keep = self._compiled.keep
        kept = {n: keep(v) if isinstance(v, Tensor) else v for n, v in values.items()}
        if _verbose.on:
            _verbose(_batch_reported, samples, kept)
        self._readings.add(kept, samples)
        if extra:
            self._noted.add(kept, samples)
        for span in self._spans:
            span.samples += samples

    @contextlib.contextmanager
    def aside(self) -> Iterator[None]:
        """What happens in here is not training: validations and checkpoints."""
        began, compiling = time.perf_counter(), self._compiled.seconds
        try:
            yield
        finally:
            spent = time.perf_counter() - began - (self._compiled.seconds - compiling)
            for span in self._spans:
                span.aside += spent

    def pace(self) -> dict[str, float]:
        """How fast this run has been so far, without what is not training; for checkpoints."""
        seconds, run = self.run.seconds, self.run
        return {
            "throughput_samples_per_sec": run.samples * self._place.world / seconds,
            "step_time": seconds / max(run.steps, 1),
        }

    # ------------------------------------------------------------------ saying

    def epoch_begins(self, epoch: int) -> None:
        """A pass over the data begins."""
        self._epoch = epoch
        self._whole_epoch.begin()

    def stepped(self, step: int) -> None:
        """An optimizer step is over; shown now and then."""
        for span in self._spans:
            span.steps += 1
        if step % _NOTED_EVERY == 0:
            self._note(step)
        elif _training.on:
            _training(self._pace_reported, step)
        if _performance.on:
            _performance(self._performance, step)
        if _memory.on:
            _memory(lambda: f"step {step}: {memory_peak(self._place.device)}")
        if _profiling.on:
            _profiling(lambda: f"step {step}: {memory_layout(self._place.device)}")
        if not self._progress.due(step):
            return
        values = self._readings.take()
        span = self._interval
        norm = self._watch.latest.get("grad_norm", math.nan)
        self._progress.tick(
            Tick(
                step=step,
                steps=self._steps,
                epoch=self._epoch + 1,
                epochs=self._epochs,
                loss=values.get("loss"),
                rate=span.samples * self._place.world / span.seconds,
                wait=span.waited / span.seconds,
                memory=memory(self._place.device),
                skipped=self._watch.skipped,
                lr=float(self._optimizer.param_groups[0]["lr"]),
                norm=norm if math.isfinite(norm) else None,
            )
        )
        span.begin()

    def _note(self, step: int) -> None:
        """Write the numbers of the last steps into the record."""
        began, span = time.perf_counter(), self._between_notes
        seconds = span.seconds
        own = self._measures.take(seconds=seconds, steps=span.steps, samples=span.samples)
        row = {name: self._watch.latest.get(name, math.nan) for name in ("loss", "scale")}
        known = {name: value for name, value in row.items() if math.isfinite(value)}
        numbers = self.numbers = {**known, **self._noted.take(), **own}
        if "tokens_per_sample" in numbers:
            rate = numbers["tokens_per_sample"] * own["throughput_samples_per_sec"]
            numbers["throughput_tokens_per_sec"] = rate
        noted = TrainingNumbers(values=numbers)
        self._watch.note(noted.kind, noted.to_dict())
        self._measures.cost(time.perf_counter() - began, seconds)
        span.begin()
        _training(_listed, step, numbers)

    def _pace_reported(self, step: int) -> str:
        span, values = self._between_notes, self._noted.peek()
        rate = span.samples * self._place.world / span.seconds
        reported = {"throughput_samples_per_sec": rate, **self._measures.utilization()}
        if "tokens_per_sample" in values:
            reported["throughput_tokens_per_sec"] = rate * values["tokens_per_sample"]
        return _listed(step, reported)

    def _performance(self, step: int) -> str:
        row, span, values = self._watch.latest, self._interval, self._readings.take()
        phases = ("data_wait", "forward", "backward", "optimizer", "guard")
        known = {name: row[name] for name in phases if math.isfinite(row.get(name, math.nan))}
        times = ", ".join(f"{name} {1e3 * seconds:.2f} ms" for name, seconds in known.items())
        others = ", ".join(f"{k} {v:.4g}" for k, v in values.items() if k != "loss")
        rate = span.samples * self._place.world / span.seconds
        return "; ".join(
            part for part in (f"step {step}: {rate:.0f} samples/s", times, others) if part
        )

    def epoch_ends(self, epoch: int, step: int, norms: GradientNorms) -> None:
        """Record an epoch, and the one line about it; ``norms``: those of its gradients."""
        span = self._whole_epoch
        of = f"/{self._epochs}" if self._epochs is not None else ""
        seconds, samples = span.seconds, span.samples * self._place.world
        self.wait_share = span.waited / seconds
        self.wait_seconds = span.waited / max(span.batches, 1)
        loss = self._readings.take().get("loss", math.nan)
        most, now = most_memory(self._place.device)
        ended = EpochEnded(
            epoch=epoch,
            step=step,
            loss=_finite(loss),
            throughput_samples_per_sec=_finite(samples / seconds),
            epoch_seconds=_finite(seconds),
            data_wait_fraction=_finite(self.wait_share),
            memory_peak_gb=most,
            process_rss_gb=now,
            skipped_steps=self._watch.skipped,
            learning_rate=_finite(float(self._optimizer.param_groups[0]["lr"])),
            grad_norm_max=_finite(norms.largest),
        )
        self._watch.note(ended.kind, ended.to_dict())
        parts = [
            f"epoch {epoch + 1}{of}: step {step}",
            f"loss {loss:.4g}",
            f"{seconds:.1f} s",
            f"{samples / seconds:.0f} samples/s",
            f"data wait {self.wait_share:.0%}",
            f"skipped {self._watch.skipped}",
        ]
        if norms.line():
            parts.append(norms.line())
        advice = _WAIT_ADVICE if self.wait_share > _LONG_WAIT else ""
        self._progress.epoch(", ".join(parts) + advice)


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _batch_reported(samples: int, values: Scalars) -> str:
    listed = ", ".join(f"{name} {float(value):.4g}" for name, value in values.items())
    return f"batch of {samples}: {listed}"


def _listed(step: int, numbers: Mapping[str, float]) -> str:
    return f"step {step}: " + ", ".join(f"{name} {value:.4g}" for name, value in numbers.items())


class _Span:
    """What was done since some moment; time spent compiling or aside does not count."""

    def __init__(self, compiled: CompiledModel) -> None:
        self._compiled = compiled
        self.begin()

    def begin(self) -> None:
        self.samples, self.batches, self.steps = 0, 0, 0
        self.waited, self.aside = 0.0, 0.0
        self._began, self._compiling = time.perf_counter(), self._compiled.seconds

    @property
    def seconds(self) -> float:
        compiling = self._compiled.seconds - self._compiling
        return max(time.perf_counter() - self._began - compiling - self.aside, 1e-9)


def memory(device: torch.device) -> float:
    """Bytes in use: on the GPU by tensors, on the CPU by this process."""
    if device.type == "cuda":
        return float(torch.cuda.memory_allocated(device))
    return resident()
