"""``holdfast train`` on several ranks: shared out, killed and started again, more and fewer."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from holdfast.checkpoint.file import load
from holdfast.checkpoint.store import CheckpointStore
from holdfast.run import LaneReader, Run
from holdfast.training import load_weights

from .warm_python import WarmPopen

PATIENCE = 200

# Blocks of a width that ranks cannot share evenly; running statistics and dropout if asked for.
RECIPE = """
import dataclasses, os, signal, time
import torch
from torch import nn
from holdfast import Section
from holdfast.training import Recipe, Task, TrainSettings

@dataclasses.dataclass(frozen=True, kw_only=True)
class Mine(Section):
    kill: int = 0
    damage: int = 0
    noisy: bool = False
    pause: float = 0.0
    train: TrainSettings = TrainSettings(epochs=3)

class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm, self.mix = nn.LayerNorm(width), nn.Linear(width, width)
    def forward(self, x):
        return x + self.mix(self.norm(x)).tanh()

class Net(nn.Module):
    def __init__(self, width=13, noisy=False):
        super().__init__()
        self.enter = nn.Linear(6, width)
        self.noise = nn.Sequential(nn.BatchNorm1d(width), nn.Dropout(0.2)) if noisy else None
        self.blocks = nn.ModuleList([Block(width) for _ in range(3)])
        self.head = nn.Linear(width, 1)
    def forward(self, x):
        x = self.enter(x)
        x = x if self.noise is None else self.noise(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x)

def build(settings, place):
    x = torch.randn(64, 6, generator=torch.Generator().manual_seed(3))
    y = x.sum(1, keepdim=True).sin()
    model = Net(noisy=settings.noisy)
    def loss(model, batch):
        time.sleep(settings.pause)
        return nn.functional.mse_loss(model(batch[0]), batch[1])
    def measure(model, batch):
        out = model(batch[0])
        far = (out - batch[1]).abs()[:, 0]
        return {"loss": nn.functional.mse_loss(out, batch[1]), "far": far}
    def stepped(step):
        if step and step == settings.damage:
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.mul_(30.0)
        first = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") == "0"
        if step == settings.kill and first and place.rank == place.world - 1:
            os.kill(os.getpid(), signal.SIGKILL)
    def improved(folder, step):
        print(f"improved at {step}: {float(model(x[:4]).sum().detach()):.4f}", flush=True)
    return Task(
        model=model, loss=loss, measure=measure, stepped=stepped, improved=improved,
        summarize=lambda rows: {"rows": len(rows["far"]), "farthest": float(rows["far"].max())},
        train=torch.utils.data.TensorDataset(x, y),
        # 19 samples in batches of 4: the ranks do not have as many batches.
        validation=torch.utils.data.TensorDataset(x[:19], y[:19]),
    )

RECIPE = Recipe(
    name="mine", summary="a test", settings=Mine, build=build, may_change=("pause", "kill")
)
"""

SMALL = [
    "train.accumulate=2", "train.data.batch=8", "train.validation.batch=4", "train.epochs=2",
    "train.data.workers=0", "train.average.decay=0.9", "train.schedule.name=cosine",
    "train.holdfast.checkpoint.steps=2",
]  # fmt: skip
# A bias before a batch norm has no gradient but rounding, which Adam makes large: no such thing
# where another number of ranks is to give the same.
NOISY = [*SMALL, "noisy=true", "train.epochs=3", "train.validation.epochs=0"]


@pytest.fixture
def recipe(tmp_path: Path) -> str:
    path = tmp_path / "mine.py"
    path.write_text(RECIPE)
    return str(path)


def command(
    recipe: str, run: Path, sets: list[str], *more: str, ranks: int = 1, restarts: int = 0
) -> list[str]:
    launcher: list[str] = []
    if ranks > 1 or restarts:
        launcher = ["-m", "torch.distributed.run", "--standalone"]
        launcher += [f"--nproc-per-node={ranks}", f"--max-restarts={restarts}"]
    given = [word for one in sets for word in ("--set", one)]
    words = ["train", recipe, "--run-dir", str(run), *given, *more]
    return [sys.executable, *launcher, "-m", "holdfast", *words]


def train(*args: Any, **how: Any) -> subprocess.CompletedProcess[str]:
    words, cwd = command(*args, **how), args[1].parent
    given = WarmPopen(words, cwd=cwd, env=environment(), stdout=-1, stderr=-1, text=True)
    with given as process:
        out, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, out + err
    return subprocess.CompletedProcess(words, 0, out, err)


def environment() -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONFAULTHANDLER": "1"}


def tensors(tree: Any, name: str = "") -> dict[str, torch.Tensor]:
    if isinstance(tree, torch.Tensor):
        return {name: tree}
    if not isinstance(tree, dict | list | tuple):
        return {}
    items = tree.items() if isinstance(tree, dict) else enumerate(tree)
    return {k: v for key, one in items for k, v in tensors(one, f"{name}.{key}").items()}


def furthest(one: Path, other: Path, rank: int = 0) -> float:
    """The largest difference between what two runs ended with."""
    entries = [CheckpointStore(run / "checkpoints").latest(rank=rank) for run in (one, other)]
    assert all(entries) and entries[0].step == entries[1].step  # type: ignore[union-attr]
    trees = [load(entry.path)[0] for entry in entries if entry is not None]
    found = [
        {k: v for part in ("models", "optimizers", "ema") for k, v in tensors(tree[part]).items()}
        for tree in trees
    ]
    assert found[0].keys() == found[1].keys() and len(found[0]) > 30
    return max(float((v.double() - found[1][k].double()).abs().max()) for k, v in found[0].items())


def curve(run: Path) -> dict[int, float]:
    """The validation loss by step."""
    events = [
        event
        for lane in Run.open(run).lanes()
        if lane.split("-")[0] == "r0"
        for event in LaneReader(Run.open(run), lane).events()
    ]
    return {event.step: event.data["loss"] for event in events if event.kind == "validation"}


@pytest.mark.ranks(2)
def test_a_model_shared_by_two_ranks_is_the_one_of_one_process(tmp_path: Path, recipe: str) -> None:
    """Accumulation, clipping, an average, validation on uneven shares, the weights for others."""
    one = train(recipe, tmp_path / "one", SMALL)
    two = train(recipe, tmp_path / "two", [*SMALL, "train.parallel=fsdp"], ranks=2)
    assert furthest(tmp_path / "one", tmp_path / "two") < 1e-5
    assert curve(tmp_path / "one") == pytest.approx(curve(tmp_path / "two"), abs=1e-5)
    assert "3 blocks are gathered one at a time" in two.stderr
    # Every sample was validated once, and the first rank could call the model alone.
    assert "rows 19" in one.stdout and "rows 19" in two.stdout
    reported = [[w for w in text.stdout.splitlines() if "improved" in w] for text in (one, two)]
    # On a busy machine a later call may be left to the next one: it may take a tenth of the time.
    both = min(map(len, reported))
    assert both and reported[0][:both] == reported[1][:both]
    scope: dict[str, Any] = {}
    exec(RECIPE, scope)
    model = scope["Net"]()
    load_weights(model, tmp_path / "two")
    assert all(type(p.data) is torch.Tensor for p in model.parameters())


@pytest.mark.slow
@pytest.mark.ranks(2)
def test_a_killed_rank_is_started_again_and_the_run_goes_on(tmp_path: Path, recipe: str) -> None:
    train(recipe, tmp_path / "one", SMALL)
    cut = tmp_path / "cut"
    done = train(recipe, cut, [*SMALL, "kill=6", "pause=0.05"], ranks=2, restarts=1)
    assert "was begun by an earlier life of this launch: going on" in done.stderr
    assert "ended at step 8" in done.stdout
    assert furthest(tmp_path / "one", cut) < 1e-5


@pytest.mark.slow
@pytest.mark.timeout(500)
@pytest.mark.ranks(2)
@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_with_as_many_ranks_it_ends_as_if_nothing_had_happened(
    tmp_path: Path, recipe: str, kind: str
) -> None:
    """With dropout and running statistics, to the bit."""
    sets = [*NOISY, f"train.parallel={kind}"]
    train(recipe, tmp_path / "whole", sets, ranks=2)
    train(recipe, tmp_path / "cut", [*sets, "kill=9", "pause=0.05"], ranks=2, restarts=1)
    for rank in (0, 1):
        assert furthest(tmp_path / "whole", tmp_path / "cut", rank) == 0.0


@pytest.mark.slow
@pytest.mark.timeout(500)
@pytest.mark.ranks(4)
@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_from_four_ranks_to_two_to_one_the_curve_stays_the_same(
    tmp_path: Path, recipe: str, kind: str
) -> None:
    # A cosine would end with each part of the run.
    sets = [one for one in SMALL if "schedule" not in one]
    sets += ["train.epochs=3", "train.validation.steps=2", f"train.parallel={kind}"]
    train(recipe, tmp_path / "one", sets)
    run = tmp_path / "run"
    train(recipe, run, [*sets, "train.steps=4"], ranks=4)
    train(recipe, run, ["train.steps=8"], "--resume", "auto", ranks=2)
    last = train(recipe, run, ["train.steps=null"], "--resume", "auto")
    assert "ended at step 12" in last.stdout
    assert furthest(tmp_path / "one", run) < 1e-5
    assert curve(run) == pytest.approx(curve(tmp_path / "one"), abs=1e-5)


@pytest.mark.slow
@pytest.mark.timeout(500)
@pytest.mark.ranks(4)
def test_two_copies_shared_by_two_ranks_each(tmp_path: Path, recipe: str) -> None:
    """HSDP, with activations computed again and the compiler beside it."""
    train(recipe, tmp_path / "one", SMALL)
    more = ["train.replicas=2", "train.recompute=blocks.*", "train.compile.mode=default"]
    done = train(recipe, tmp_path / "run", [*SMALL, "train.parallel=fsdp", *more], ranks=4)
    assert "4 ranks, 2 copies" in done.stderr and "eager" not in done.stderr
    assert furthest(tmp_path / "one", tmp_path / "run") < 1e-5


@pytest.mark.slow
@pytest.mark.timeout(500)
@pytest.mark.ranks(2)
def test_a_lost_node_leaves_a_run_that_goes_on_with_fewer_ranks(
    tmp_path: Path, recipe: str
) -> None:
    sets = [*SMALL, "train.epochs=10"]
    train(recipe, tmp_path / "one", sets)
    run = tmp_path / "run"
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    launcher = [
        sys.executable, "-m", "torch.distributed.run", "--nnodes=1:2", "--nproc-per-node=1",
        "--max-restarts=3", "--rdzv-backend=c10d", f"--rdzv-endpoint=localhost:{port}",
        "--rdzv-id=mine", "--rdzv-conf=last_call_timeout=5,keep_alive_interval=1",
    ]  # fmt: skip
    words = command(recipe, run, [*sets, "pause=0.2"])[1:]
    nodes: list[subprocess.Popen[str]] = []
    for _ in range(2):
        nodes.append(
            subprocess.Popen(
                [*launcher, *words],
                env=environment(),
                text=True,
                start_new_session=True,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
            )
        )
        time.sleep(1.0)  # the first one holds the rendezvous
    saved = run / "checkpoints"
    until = time.monotonic() + PATIENCE
    while len(list(saved.glob("*.r1.json"))) < 2 and time.monotonic() < until:
        time.sleep(0.1)
    lost = psutil.Process(nodes[1].pid)
    for process in [lost, *lost.children(recursive=True)]:  # ranks have sessions of their own
        process.kill()
    reported, _ = nodes[0].communicate(timeout=PATIENCE)
    nodes[1].communicate()
    assert nodes[0].returncode == 0 and "ended at step 40" in reported, reported
    resumed = [
        event.data
        for lane in Run.open(run).lanes()
        for event in LaneReader(Run.open(run), lane).events()
        if event.kind == "resume"
    ]
    assert [one["step"] > 0 for one in resumed] == [True]
    assert "saved by 2 ranks, there is 1 now" in resumed[0]["why"]
    assert furthest(tmp_path / "one", run) < 1e-5


@pytest.mark.slow
@pytest.mark.timeout(500)
@pytest.mark.ranks(2)
@pytest.mark.parametrize("parallel", ["ddp", "fsdp"])
def test_ranks_restore_the_best_state_together(tmp_path: Path, recipe: str, parallel: str) -> None:
    sets = [
        *SMALL, "train.accumulate=1", "train.epochs=50", f"train.parallel={parallel}",
        "damage=250", "train.holdfast.policy.OPT001=restore_best,lower_lr",
    ]  # fmt: skip
    run = tmp_path / "run"
    train(recipe, run, sets, ranks=2)
    events = [LaneReader(Run.open(run), lane).events() for lane in ("r0", "r1")]
    backs = [[e for e in each if e.kind == "rollback"] for each in events]
    assert [len(each) for each in backs] == [1, 1]
    one, two = (each[0] for each in backs)
    assert one.step == two.step > 250 >= one.data["to"] == two.data["to"]
    assert one.data["validation"] == two.data["validation"] > 0
    assert not [e for each in events for e in each if e.kind == "holdfast_error"]
