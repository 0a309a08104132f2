"""Out of memory survived: plain loops with less memory than they need, beside the same with enough.

    python benchmarks/oom.py                    # a GPU where there is one, else the CPU
    python benchmarks/oom.py --device cpu --only plain --limits 90,35
    python benchmarks/oom.py --write            # also into benchmarks/results/

Each form is a loop as people write it, run under the patches of ``holdfast run``. The memory it
needs is measured first, without a limit; then the allocator of the GPU gets a share of that
(``set_per_process_memory_fraction``), or, on a CPU, a budget that raises as a GPU would.
``difference`` is that of the gradients of the last step from those with enough memory: the largest
over all parameters, relative to the largest value of each; for half precision followed by how far
the gradients with enough memory are from those in fp32, which is the noise of that precision.
``time`` is that of all steps over the
time of the same steps with enough memory, tries that failed included, ``steady`` that of the last
steps alone. ``parts`` is what batches were split into in the end, ``again`` how many steps were
skipped and made again. Forms with dropout draw other masks in parts and those with BatchNorm
normalise by part, so their gradients differ, and ``reported`` says that holdfast said so.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import gc
import platform
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from datetime import date
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import BatchSampler, DataLoader, SequentialSampler, TensorDataset

from holdfast.boot import patches
from holdfast.config import Settings, WatcherSettings
from holdfast.faults._budget import MemoryBudget
from holdfast.guard.engine import Engine
from holdfast.records import Kind
from holdfast.run import RowTable

STEPS = 8
LIMITS = (95, 90, 70, 50, 35)
CLASSES = 16


class Residual(nn.Module):
    """Linear layers with a way around them."""

    def __init__(
        self,
        width: int,
        layers: int,
        extra: Callable[[], nn.Module] = nn.Identity,
        wide: int = 0,
    ) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))
        self.extra = nn.ModuleList(extra() for _ in range(layers))
        # A wide layer in the end: its backward needs more than any forward.
        self.head = nn.Sequential(
            *([nn.Linear(width, wide * width), nn.GELU()] if wide else []),
            nn.Linear(max(1, wide) * width, CLASSES),
        )

    def forward(self, x: Tensor) -> Tensor:
        for layer, extra in zip(self.layers, self.extra, strict=True):
            x = x + extra(functional.gelu(layer(x)))
        return self.head(x)


class Attention(nn.Module):
    """A small transformer with a mask for each sample; ``how`` says what it returns."""

    def __init__(self, width: int, how: str, layers: int = 4) -> None:
        super().__init__()
        self.embed = nn.Embedding(64, width)
        self.blocks: Any = nn.ModuleList(
            nn.ModuleDict(
                {
                    "norm": nn.LayerNorm(width),
                    "qkv": nn.Linear(width, 3 * width),
                    "out": nn.Linear(width, width),
                    "mlp": nn.Sequential(
                        nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(),
                        nn.Linear(4 * width, width),
                    ),
                }
            )
            for _ in range(layers)
        )  # fmt: skip
        self.head = nn.Linear(width, 64)
        self.how = how

    def forward(self, tokens: Tensor, mask: Tensor | None = None, targets: Any = None) -> Any:
        x = self.embed(tokens)
        batch, length, width = x.shape
        keep = None if mask is None else mask[:, None, None, :]
        for block in self.blocks:
            parts = block["qkv"](block["norm"](x)).view(batch, length, 3, 4, width // 4)
            q, k, v = parts.permute(2, 0, 3, 1, 4)
            y = functional.scaled_dot_product_attention(q, k, v, attn_mask=keep)
            x = x + block["out"](y.transpose(1, 2).reshape(batch, length, width))
            x = x + block["mlp"](x)
        if self.how == "last":
            return self.head(x)[:, -1]
        logits = self.head(x)
        if self.how == "flat":
            return logits.view(-1, 64)
        if self.how == "dict":
            return {"logits": logits, "pooled": x.mean(1)}
        if self.how == "dataclass":
            return Output(logits, x.mean(1))
        return logits, functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


@dataclass
class Output:
    """What a model may return."""

    logits: Tensor
    pooled: Tensor


@dataclass(frozen=True)
class Size:
    """How large the forms are on a device."""

    rows: int
    width: int
    sequences: int
    length: int
    model: int
    layers: int


SIZES = {
    "cuda": Size(rows=8192, width=1024, sequences=64, length=256, model=512, layers=16),
    "cpu": Size(rows=2048, width=32, sequences=48, length=24, model=32, layers=32),
}


@dataclass(frozen=True)
class Form:
    """One way to write a loop."""

    name: str
    model: Callable[[Size], nn.Module]
    loss: Callable[[nn.Module, Tensor, Tensor], Tensor]
    text: bool = False
    accumulate: int = 1
    dtype: torch.dtype | None = None
    scaler: bool = False
    exact: bool = True
    adam: bool = False
    limits: tuple[int, ...] = LIMITS


def _classes(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    logits = model(x)
    logits /= 2.0
    return functional.cross_entropy(logits, y)


def _masked(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    last = model(x, mask=y > 3)
    last *= 0.5
    return functional.cross_entropy(last, y[:, 0])


def _flat(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return functional.cross_entropy(model(x), y.flatten())


def _named(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    out = model(x)
    out = vars(out) if isinstance(out, Output) else out
    logits = out["logits"].flatten(0, 1)
    return functional.cross_entropy(logits, y.flatten()) + out["pooled"].square().mean()


def _inside(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    _, loss = model(x, targets=y)
    return loss


def _compiled(size: Size) -> nn.Module:
    on_gpu = size is SIZES["cuda"]
    model = Residual(size.width, size.layers // 4)
    return torch.compile(model, backend="inductor" if on_gpu else "aot_eager")  # type: ignore[return-value]


FORMS = (
    Form("plain, logits /= t", lambda s: Residual(s.width, s.layers), _classes),
    Form("backward needs most", lambda s: Residual(s.width, s.layers, wide=8), _classes),
    Form(
        "the same, accumulation",
        lambda s: Residual(s.width, s.layers, wide=8),
        _classes,
        accumulate=4,
    ),
    Form("mask, view [:, -1]", lambda s: Attention(s.model, "last"), _masked, text=True),
    Form("view(-1, vocabulary)", lambda s: Attention(s.model, "flat"), _flat, text=True),
    Form("dict", lambda s: Attention(s.model, "dict"), _named, text=True),
    Form("dataclass", lambda s: Attention(s.model, "dataclass"), _named, text=True),
    Form("tuple, loss in the model", lambda s: Attention(s.model, "loss"), _inside, text=True),
    Form("accumulation", lambda s: Residual(s.width, s.layers), _classes, accumulate=4),
    Form("AdamW", lambda s: Residual(s.width, s.layers), _classes, adam=True),
    Form("autocast bf16", lambda s: Residual(s.width, s.layers), _classes, dtype=torch.bfloat16),
    Form(
        "GradScaler fp16",
        lambda s: Residual(s.width, s.layers),
        _classes,
        dtype=torch.float16,
        scaler=True,
    ),
    Form(
        "BatchNorm",
        lambda s: Residual(s.width, s.layers, extra=lambda: nn.BatchNorm1d(s.width)),
        _classes,
        exact=False,
    ),
    Form(
        "dropout",
        lambda s: Residual(s.width, s.layers, extra=lambda: nn.Dropout(0.1)),
        _classes,
        exact=False,
    ),
    Form("compiled", _compiled, _classes, limits=(50,)),
)


# ---------------------------------------------------------------------- one run


class Recorder:
    """Keeps events in memory."""

    rank, lane = 0, "r0"
    run = SimpleNamespace(path=None, write_traceback=lambda lane, text: None)

    def __init__(self) -> None:
        self.events: list[tuple[str, int, dict[str, Any]]] = []
        self.ring = SimpleNamespace(has_message=False, put=lambda kind, payload: True)

    def event(self, step: int, record: Kind) -> None:
        """Keep one."""
        self.events.append((record.kind, step, record.to_dict()))

    def batch(self, data: dict[str, Any]) -> None:
        """Not of interest."""

    def table(self, name: str, columns: list[str]) -> RowTable:
        """Rows go nowhere."""
        return RowTable(self.ring, 16, columns)  # type: ignore[arg-type]

    def orders(self) -> list[dict[str, Any]]:
        """None."""
        return []

    def close(self) -> None:
        """Nothing to close."""


@dataclass
class Run:
    """What came of a loop."""

    gradients: list[Tensor] = field(default_factory=list[Tensor])
    times: list[float] = field(default_factory=list[float])
    peak: int = 0
    error: str = ""
    events: list[tuple[str, int, dict[str, Any]]] = field(default_factory=list[Any])

    @property
    def seconds(self) -> float:
        """Of all steps."""
        return sum(self.times)

    @property
    def steady(self) -> float:
        """Of one step, in the end."""
        return statistics.median(self.times[-3:])


_current: list[Engine] = []


def run(form: Form, device: str, limit: float | None) -> Run:
    """Train for some steps, with ``limit`` bytes or as much as there is."""
    size, done, recorder = SIZES[device], Run(), Recorder()
    settings = Settings(watchers=WatcherSettings(memory=False, time=False))
    # Snapshots lie in host memory, which the budget of a CPU would count.
    settings = replace(settings, rollback=replace(settings.rollback, snapshots=0))
    _current[:] = [Engine(settings, lambda: recorder)]  # type: ignore[arg-type,return-value]
    torch.manual_seed(0)
    loader = _loader(form.text, size)
    torch.manual_seed(0)
    with limited(device, limit) as measure:
        try:
            train(form, size, loader, device, done)
        except RuntimeError as error:
            done.error = f"{type(error).__name__}: {str(error).splitlines()[0]}"
        done.peak = measure()
    done.events = recorder.events
    _current.clear()
    return done


def train(form: Form, size: Size, loader: Any, device: str, done: Run) -> None:
    """The loop: nothing in it knows of holdfast."""
    model = form.model(size).to(device)
    kind: Any = torch.optim.AdamW if form.adam else torch.optim.SGD
    optimizer = kind(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler(device, enabled=form.scaler, init_scale=65536.0)
    for number, (x, y) in enumerate(loader):
        began = time.perf_counter()
        x, y = x.to(device, non_blocking=True), y.to(device, non_blocking=True)
        with torch.autocast(device, form.dtype, enabled=form.dtype is not None):
            loss = form.loss(model, x, y) / form.accumulate
        scaler.scale(loss).backward()
        if (number + 1) % form.accumulate == 0:
            scaler.unscale_(optimizer)
            if number >= STEPS - 1:
                done.gradients = [p.grad.cpu() for p in model.parameters() if p.grad is not None]
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
        if device == "cuda":
            torch.cuda.synchronize()
        done.times.append(time.perf_counter() - began)


@functools.cache
def _loader(text: bool, size: Size) -> DataLoader[Any]:
    rows = size.sequences if text else size.rows
    shape = (STEPS * rows, size.length)
    if text:
        data = TensorDataset(torch.randint(0, 64, shape), torch.randint(0, 64, shape))
    else:
        x = torch.randn(STEPS * rows, size.width)
        data = TensorDataset(x, torch.randint(0, CLASSES, (STEPS * rows,)))
    # A batch by one index: stacking samples one by one would take longer than the step.
    batches = BatchSampler(SequentialSampler(data), rows, drop_last=True)
    return DataLoader(data, sampler=batches, batch_size=None)


@contextlib.contextmanager
def limited(device: str, limit: float | None) -> Iterator[Callable[[], int]]:
    """Memory of the device for a block; gives the peak so far."""
    if device == "cpu":
        with MemoryBudget(limit or float("inf")) as budget:
            yield lambda: budget.peak
        return
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    total = torch.cuda.mem_get_info()[1]
    torch.cuda.set_per_process_memory_fraction(min(1.0, ((limit or total) + before) / total))
    try:
        yield lambda: torch.cuda.max_memory_allocated() - before
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)


# ---------------------------------------------------------------------- the table


def row(form: Form, percent: int, limited_run: Run, reference: Run, noise: str) -> str:
    """One line of the table."""
    splits = [data for kind, _, data in limited_run.events if kind == "batch_split"]
    again = sum(kind == "lost_step" for kind, _, _ in limited_run.events)
    failed = [data for kind, _, data in limited_run.events if kind == "holdfast_error"]
    reported = splits[-1] if splits else {}
    said = (
        "exact" if reported.get("exact") else reported.get("why") or reported.get("refused") or "-"
    )
    if limited_run.error or failed:
        said = limited_run.error or f"{failed[0]['where']}: {failed[0]['error']}"
    survived = not limited_run.error and len(limited_run.gradients) == len(reference.gradients)
    away = difference(limited_run.gradients, reference.gradients) if survived else float("nan")
    ratio = limited_run.seconds / reference.seconds if survived else float("nan")
    steady = limited_run.steady / reference.steady if survived else float("nan")
    cells = [
        form.name,
        f"{percent} %",
        "yes" if survived else "no",
        f"{away:.1e}{noise}",
        f"{ratio:.2f}",
        f"{steady:.2f}",
        str(reported.get("parts", "-")),
        str(again),
        said,
    ]
    return f"| {' | '.join(cells)} |"


def difference(found: list[Tensor], wanted: list[Tensor]) -> float:
    """The largest difference over all tensors, relative to the largest value of each."""
    pairs = zip(found, wanted, strict=True)
    return max(float((a - b).abs().max() / b.abs().max().clamp_min(1e-12)) for a, b in pairs)


def main() -> None:
    """Run the forms that were asked for and print the table."""
    parser = argparse.ArgumentParser(description="out of memory survived, form by form")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--only", default="", help="forms whose name contains this")
    parser.add_argument("--limits", default="", help="percent of the memory needed, e.g. 90,35")
    parser.add_argument("--write", action="store_true", help="also into benchmarks/results/")
    args = parser.parse_args()
    torch.backends.cudnn.allow_tf32 = False
    patches.install(lambda: _current[-1] if _current else None)
    hardware = torch.cuda.get_device_name() if args.device == "cuda" else "cpu"
    lines = [
        f"{hardware}, torch {torch.__version__}, python {platform.python_version()}",
        "",
        "| form | memory | survived | difference | time | steady | parts | again | told |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    print("\n".join(lines), flush=True)
    for form in FORMS:
        if args.only not in form.name:
            continue
        if form.name != "compiled":  # there every new model is compiled anew
            run(form, args.device, None)  # kernels are chosen and loaded
        reference = run(form, args.device, None)
        if reference.error:
            print(f"{form.name}: {reference.error}", flush=True)
            continue
        noise = ""
        if form.dtype is not None:
            single = run(replace(form, dtype=None, scaler=False), args.device, None)
            noise = f" ({difference(reference.gradients, single.gradients):.1e})"
        asked = [int(one) for one in args.limits.split(",") if one] or form.limits
        for percent in asked:
            found = run(form, args.device, reference.peak * percent / 100)
            lines.append(row(form, percent, found, reference, noise))
            print(lines[-1], flush=True)
    if args.write:
        name = hardware.lower().replace("nvidia ", "").replace(" ", "_")
        path = Path(__file__).parent / "results" / f"oom_{name}_{date.today()}.md"
        text = "\n".join(lines)
        path.write_text(f"# Out of memory survived\n\n`python benchmarks/oom.py`: {text}\n")


if __name__ == "__main__":
    main()
