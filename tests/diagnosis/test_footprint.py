"""The arithmetic of a run that was too big."""

from __future__ import annotations

import contextlib
import errno
import linecache
import re
import resource
from collections.abc import Iterator
from types import SimpleNamespace

import psutil
import pytest
import torch
from torch import Tensor, nn

from holdfast.detectors.judge import Judge
from holdfast.diagnosis.memory import expression, footprint
from holdfast.faults._budget import MemoryBudget
from holdfast.records.memory import MemoryRanOut
from holdfast.run import host_memory
from holdfast.run.host_memory import MemoryLimit
from holdfast.types import Finding
from tests.memory_events import RAN_OUT, event

MIB = 2**20


class Stack(nn.Module):
    def __init__(self, depth: int, width: int = 512) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x).relu()
        if type(x) is Tensor:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1.50 GiB.")
        return x


def died(model: nn.Module, optimizer: torch.optim.Optimizer, rows: int = 64) -> MemoryRanOut:
    names = [name for name, _ in model.named_parameters()]
    training = SimpleNamespace(models=lambda: [model], optimizers=lambda: [(optimizer, names)])
    with pytest.raises(torch.OutOfMemoryError) as caught:
        model(torch.randn(rows, 512))
    return footprint.arithmetic(caught.value, training)  # type: ignore[arg-type]


def test_what_is_yet_to_come_is_counted_too() -> None:
    model = Stack(2)
    facts = died(model, torch.optim.AdamW(model.parameters()))
    weights = 4 * 2 * (512 * 512 + 512)
    assert facts.asked == 1.5 * 2**30
    assert facts.parts == {"weights": weights, "gradients": 0, "optimizer state": 0}
    assert facts.needs["gradients"] == weights
    assert facts.needs["optimizer state"] == 2 * weights
    # Input and output of each layer; an input that is an output is one.
    assert facts.needs["activations"] == 4 * 64 * 512 * 3
    assert set(facts.modules) == {"blocks.0", "blocks.1", "Stack"}
    assert sum(m["weights"] for m in facts.modules.values()) == weights


def test_equal_modules_of_a_stack_stand_together() -> None:
    model = Stack(12)
    facts = died(model, torch.optim.SGD(model.parameters(), lr=0.1))
    assert set(facts.modules) == {"blocks.*", "Stack"}
    assert facts.needs["optimizer state"] == 0
    assert facts.within == "" and facts.batch == 64


def test_the_batch_that_would_have_fitted(monkeypatch: pytest.MonkeyPatch) -> None:
    model = Stack(2)
    for capacity, fits in ((16 * MIB, True), (MIB, False)):
        monkeypatch.setattr(footprint, "capacity", lambda device, there=capacity: there)
        facts = died(model, torch.optim.SGD(model.parameters(), lr=0.1), rows=4096)
        finding = judged(facts)
        activations = 4 * 512 * (1.3 * 3 + 3.0)  # of which one is the output
        weights = 2 * facts.needs["weights"]
        wanted = int((0.92 * capacity - weights) / activations) if fits else None
        assert finding.evidence.get("fits") == wanted


@pytest.mark.parametrize(
    ("kind", "options", "count"),
    [
        ("AdamW", {}, 2),
        ("Adam", {"amsgrad": True}, 3),
        ("SGD", {}, 0),
        ("SGD", {"momentum": 0.9}, 1),
        ("RMSprop", {"momentum": 0.9, "centered": True}, 3),
        ("Adagrad", {}, 1),
        ("Adadelta", {}, 2),
        ("NAdam", {}, 2),
        ("Adamax", {}, 2),
        ("Muon", {}, 1),
    ],
)
def test_what_an_optimizer_keeps_is_what_it_keeps(kind: str, options: dict, count: int) -> None:
    weight = nn.Parameter(torch.randn(16, 16))
    optimizer = getattr(torch.optim, kind)([weight], lr=0.1, **options)
    assert footprint.state_per_weight(optimizer) == count
    weight.grad = torch.randn(16, 16)
    optimizer.step()
    held = sum(v.numel() for v in optimizer.state[weight].values() if torch.is_tensor(v))
    assert held // weight.numel() == count


def test_several_ranks_are_not_called_once_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(footprint, "ranks", lambda: 2)
    model = Stack(2)
    facts = died(model, torch.optim.AdamW(model.parameters()))
    assert "ranks" in facts.not_counted
    assert facts.needs["activations"] == 0 < facts.needs["weights"]


def test_a_model_that_cannot_be_called_without_values_leaves_the_rest() -> None:
    class Asks(Stack):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) if x.sum() < 1e9 else x

    model = Asks(2)
    facts = died(model, torch.optim.AdamW(model.parameters()))
    assert "Data" in facts.not_counted
    assert facts.needs["activations"] == 0 < facts.needs["gradients"]


@pytest.mark.parametrize(
    ("error", "room", "out"),
    [
        (RuntimeError("DefaultCPUAllocator: not enough memory: you tried to"), 1 << 40, True),
        (RuntimeError("could not create a primitive"), 1 << 20, True),
        (RuntimeError("could not create a primitive"), 1 << 40, False),
        (RuntimeError("shapes cannot be multiplied"), 1 << 20, False),
        (MemoryError(), 1 << 40, True),
        (RuntimeError("std::bad_alloc"), 1 << 40, True),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), 1 << 40, True),
        (FileNotFoundError(errno.ENOENT, "No such file"), 1 << 20, False),
        (None, 1 << 20, False),
    ],
)
def test_what_it_looks_like(
    monkeypatch: pytest.MonkeyPatch, error: BaseException | None, room: int, out: bool
) -> None:
    monkeypatch.setattr(host_memory, "room", lambda: room)
    assert host_memory.ran_out(error) is out


@contextlib.contextmanager
def at_most(more: int) -> Iterator[None]:
    """No more memory than this beside what is mapped. Some kernels promise far more than is there,
    and end the process when it is used."""
    limit = resource.getrlimit(resource.RLIMIT_AS)
    mapped = psutil.Process().memory_info().vms
    try:
        resource.setrlimit(resource.RLIMIT_AS, (mapped + more, limit[1]))
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limit)


def test_the_room_that_is_left() -> None:
    there = host_memory.room()
    with at_most(64 << 20):
        assert host_memory.room() <= 64 << 20 < there


N = 1 << 22
BLOWN_UP = {
    "x[:, None] - y": ([[N, 1], [N]], [N, N]),
    "x.unsqueeze(1) * y[None, :]": ([[N, 1], [1, N]], [N, N]),
    "torch.outer(x, y)": ([[N], [N]], [N, N]),
    "wide.expand(-1, len(x), 64).clone()": ([[N, N, 64]], [N, N, 64]),
    "torch.cat([table.T, table.T]) @ table": ([[2 * N, 2], [2, N]], [2 * N, N]),
}


@pytest.mark.parametrize("code", BLOWN_UP)
def test_the_expression_that_did_not_fit_is_named_with_its_shapes(code: str) -> None:
    x = y = torch.zeros(N)
    wide, table = x[:, None, None], torch.zeros(2, N)
    path = f"<ipython-input-{abs(hash(code))}>"  # a cell of a notebook is the user's own code
    linecache.cache[path] = len(code), None, [code + "\n"], path
    with at_most(1 << 30), pytest.raises(RuntimeError) as caught:
        exec(compile(code, path, "exec"), dict(x=x, y=y, wide=wide, table=table, torch=torch))
    assert host_memory.ran_out(caught.value)
    (asked,) = re.findall(r"allocate (\d+) bytes", str(caught.value))
    found = expression.did_not_fit(caught.value, float(asked))
    parts, result = BLOWN_UP[code]
    assert found is not None and found.made_of_bytes is not None
    assert [list(shape) for _, shape in found.made_of] == parts
    assert (list(found.result), found.expression) == (result, code)
    assert found.made_of_bytes <= 64 * N
    assert expression.did_not_fit(caught.value, float(asked) / 2) is None


def test_nothing_of_the_users_is_called_for_it() -> None:
    asked: list[str] = []

    def pairs(x: torch.Tensor) -> torch.Tensor:
        asked.append("called")
        return x[:, None] - x

    x = torch.zeros(N)
    with at_most(1 << 30), pytest.raises(RuntimeError) as caught:
        pairs(x)
    found = expression.did_not_fit(caught.value, None)
    assert asked == ["called"] and found is not None and found.result == (N, N)

    rows = [x, x]
    with at_most(1 << 30), pytest.raises(RuntimeError) as caught:
        torch.sub(rows.pop()[:, None], x)
    assert expression.did_not_fit(caught.value, None) is None and len(rows) == 1


@pytest.mark.parametrize(
    ("name", "words", "more"),
    [
        ("ulimit -v", "failed at the limit of its address space (ulimit -v), 8.0 MiB", "ulimit"),
        ("slurm", "failed at the memory of its SLURM job, 8.0 MiB", "sbatch --mem"),
        ("cgroup", "(memory.max), 8.0 MiB", "docker run --memory"),
        ("machine", "allocating 1.5 GiB failed; ", "accumulate"),
    ],
)
def test_the_limit_that_was_met_is_named(
    monkeypatch: pytest.MonkeyPatch, name: str, words: str, more: str
) -> None:
    limit = MemoryLimit(name=name, bytes=8 * MIB, used=7 * MIB)
    monkeypatch.setattr(footprint, "host_limit", lambda: limit)
    model = Stack(2)
    facts = died(model, torch.optim.SGD(model.parameters(), lr=0.1))
    finding = judged(facts)
    assert words in finding.message and more in finding.advice
    assert (finding.evidence["limit"], finding.evidence["limit_bytes"]) == (name, 8 * MIB)


def test_memory_that_went_into_something_else() -> None:
    facts = RAN_OUT.replace(
        asked=None, parts={"weights": 4 * MIB}, capacity=8192 * MIB, limit="machine"
    )
    assert "model and optimizer take only 4.0 MiB" in judged(facts).advice
    assert "smaller" in judged(facts.replace(capacity=8 * MIB)).advice


def judged(facts: MemoryRanOut) -> Finding:
    judge = Judge()
    judge.feed(None, [event(facts, 0)])
    (finding,) = judge.close()
    return finding


def _loss_of(logits: Tensor, target: Tensor) -> Tensor:
    return nn.functional.cross_entropy(logits.flatten(1), target)


@pytest.mark.parametrize("where", ["loss", "criterion", "model", "backward", "copy", "optimizer"])
def test_the_scripts_own_loss_code_is_reported_from_all_else(where: str) -> None:
    model = nn.Linear(4, 64)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    training = SimpleNamespace(models=lambda: [model], optimizers=lambda: [(optimizer, ["w", "b"])])
    x, y = torch.randn(4096, 4), torch.zeros(4096, dtype=torch.long)

    def large(*_: object) -> Tensor:
        return x.repeat(64, 1)

    with pytest.raises(torch.OutOfMemoryError) as caught, MemoryBudget() as budget:
        logits = model(x)
        loss = _loss_of(logits, y) if where in ("backward", "optimizer") else None
        if where == "optimizer":
            optimizer.register_step_post_hook(large)  # type: ignore[arg-type]
            logits.sum().backward()
        budget.limit = budget.live() + MIB // 2  # the logits are one
        match where:
            case "loss":
                _loss_of(logits, y)
            case "criterion":
                nn.CrossEntropyLoss()(logits.view(-1, 64), y)
            case "model":
                model(x)
            case "copy":
                large()
            case "backward":
                assert loss is not None
                loss.backward()
            case _:
                optimizer.step()
    facts = footprint.arithmetic(caught.value, training)  # type: ignore[arg-type]
    in_loss = where in ("loss", "criterion")
    assert (facts.phase == "loss") is in_loss
    finding = judged(facts)
    assert ("watch.run_step(" in finding.advice) is in_loss
    assert ("own code after the call of the model" in finding.message) is in_loss
