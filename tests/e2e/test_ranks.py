"""Several ranks: each has its own lane in one run folder, and they skip together."""

from __future__ import annotations

import itertools

import pytest

from .conftest import Bench, Record

DISTRIBUTED = """
import hashlib, os
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

torch.set_num_threads(1)
dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Linear(8, 1)))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
torch.manual_seed(100 + rank)
for step in range(12):
    x = torch.randn(16, 4)
    if step == 5 and rank == 1:
        x[3, 2] = float("nan")
    loss = (model(x) ** 2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
flat = torch.cat([p.detach().flatten() for p in model.parameters()])
digest = hashlib.sha256(flat.numpy().tobytes()).hexdigest()[:12]
print(f"rank {rank} of {os.environ['WORLD_SIZE']} finite {bool(flat.isfinite().all())} {digest}\\n",
      end="", flush=True)
dist.destroy_process_group()
"""

TORCHRUN = ["-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone"]


def ranks_told(text: str) -> list[list[str]]:
    return sorted(line.split() for line in text.splitlines() if line.startswith("rank "))


def skipped_together(record: Record, lanes: list[str]) -> None:
    assert record.lanes == lanes
    for lane, rank in zip(lanes, itertools.count()):
        rows = record.steps(lane)
        assert list(rows["step"]) == list(range(12))
        assert record.skipped(lane) == [5]
        start = record.events("start", lane)[0]
        assert (start.data["rank"], start.data["world"]) == (rank, 2)
        assert record.events("end", lane)
    # Only rank 1 saw a bad loss; both saw a bad gradient, because gradients are reduced.
    assert [int(record.steps(lane)["loss_bad"].sum()) for lane in lanes] == [0, 1]
    assert [int(record.steps(lane)["grad_bad"][5]) > 0 for lane in lanes] == [True, True]


def agree(told: list[list[str]]) -> None:
    assert [words[:6] for words in told] == [
        ["rank", "0", "of", "2", "finite", "True"],
        ["rank", "1", "of", "2", "finite", "True"],
    ]
    assert told[0][6] == told[1][6]


@pytest.mark.ranks(2)
def test_torchrun_with_holdfast_in_every_rank(bench: Bench):
    """``torchrun … -m holdfast run script.py``: a parent per rank, one run folder."""
    script = bench.write(DISTRIBUTED)
    seen = bench.end(bench.start([*TORCHRUN, "-m", "holdfast", "run", script]))
    assert seen.code == 0, seen.told
    agree(ranks_told(seen.text))
    runs = list((bench.folder / "runs").iterdir())
    assert len(runs) == 1
    skipped_together(Record(runs[0]), ["r0", "r1"])
    assert Record(runs[0]).run.meta["status"] == "finished"
    # One summary for the whole run, and no half-told one.
    assert seen.told.count("holdfast: finished after 12 steps") == 1
    report = bench.cli("report")
    assert report.code == 0 and "FINISHED  after 12 steps" in report.text


@pytest.mark.slow
@pytest.mark.ranks(2)
def test_holdfast_around_torchrun(bench: Bench):
    """``holdfast run -m torch.distributed.run … script.py``: one parent for all ranks."""
    seen = bench.guarded(*TORCHRUN, bench.write(DISTRIBUTED), options=[])
    assert seen.code == 0, seen.told
    agree(ranks_told(seen.text))
    skipped_together(bench.record, ["r0", "r1"])
    report = bench.cli("report", str(bench.path))
    assert "FINISHED  after 12 steps" in report.text and "1 step skipped" in report.text


@pytest.mark.slow
@pytest.mark.ranks(2)
def test_an_explicit_run_folder_is_shared_by_the_ranks(bench: Bench):
    script = bench.write(DISTRIBUTED)
    words = [*TORCHRUN, "-m", "holdfast", "run", "--quiet", "--run-dir", "out", script]
    seen = bench.end(bench.start(words))
    assert seen.code == 0, seen.told
    assert seen.told.count("holdfast") == 0
    skipped_together(Record(bench.folder / "out"), ["r0", "r1"])
    # A second launch must not write into the first one's folder.
    again = bench.end(bench.start(words))
    assert again.code != 0 and "already holds a run" in again.told
    skipped_together(Record(bench.folder / "out"), ["r0", "r1"])


@pytest.mark.slow
@pytest.mark.ranks(2)
def test_a_rank_that_fails_takes_the_launch_down_as_it_would_without_us(bench: Bench):
    script = bench.write(
        DISTRIBUTED.replace("    loss = (model", "    if step == 7: raise SystemExit(rank * 3)\n"
                            "    loss = (model")
    )  # fmt: skip
    plain, guarded = bench.both(*TORCHRUN, script)
    assert guarded.code == plain.code != 0
    assert [len(bench.record.steps(lane)) for lane in ("r0", "r1")] == [7, 7]


ACCELERATED = """
import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader, TensorDataset

torch.set_num_threads(1)
torch.manual_seed(0)
accelerator = Accelerator(cpu=True)
x = torch.randn(64, 4)
x[21, 0] = float("nan")
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
loader = DataLoader(TensorDataset(x), batch_size=4)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
for (batch,) in loader:
    optimizer.zero_grad()
    accelerator.backward((model(batch) ** 2).mean())
    accelerator.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
weights = accelerator.unwrap_model(model).weight
print(f"rank {accelerator.process_index} finite {bool(weights.isfinite().all())} "
      f"{weights.sum().item()}\\n", end="", flush=True)
accelerator.end_training()
"""


@pytest.mark.slow
@pytest.mark.ranks(2)
@pytest.mark.parametrize("processes", [1, 2])
def test_accelerate(bench: Bench, processes: int):
    """With its own launcher, which on CPUs starts one process, and with torchrun for two."""
    launch = ["-m", "accelerate.commands.launch", "--cpu", "--num_processes", "1"]
    launch += ["--num_machines", "1", "--mixed_precision", "no", "--dynamo_backend", "no"]
    launch = launch if processes == 1 else TORCHRUN
    home = {"HF_HOME": str(bench.folder / "home")}
    seen = bench.guarded(*launch, bench.write(ACCELERATED), env=home)
    assert seen.code == 0, seen.told
    told = ranks_told(seen.text)
    assert [words[:4] for words in told] == [
        ["rank", str(rank), "finite", "True"] for rank in range(processes)
    ]
    assert len({words[4] for words in told}) == 1
    record = bench.record
    assert record.lanes == [f"r{rank}" for rank in range(processes)]
    # Sample 21 is in the sixth batch, which is the third of rank 1 when there are two.
    for lane in record.lanes:
        assert len(record.steps(lane)) == 16 // processes
        assert record.skipped(lane) == [5 if processes == 1 else 2]
    # accelerate fetches one batch ahead: the batch to name is not the one fetched last.
    lane = record.lane(record.lanes[-1])
    assert "NUM005" in {finding.code for finding in lane.findings}
    assert [21 in batch["indices"] for batch in lane.batches] == [True]


TWICE = (
    DISTRIBUTED.replace("step == 5", "step in (5, 6)")
    .replace('x[3, 2] = float("nan")', "x[3] = 0")
    .replace("(model(x) ** 2).mean()", "(model(x) / x.sum(1, keepdim=True)).mean()  # HERE")
)


@pytest.mark.slow
@pytest.mark.ranks(2)
def test_the_next_occurrence_names_the_line(bench: Bench):
    """With several ranks nothing is computed twice: the steps that follow are observed."""
    script = bench.write(TWICE)
    told = bench.guarded(*TORCHRUN, script)
    assert told.code == 0, told.told
    line = 1 + TWICE.splitlines().index(next(x for x in TWICE.splitlines() if "# HERE" in x))
    causes = [e.data for lane in bench.record.lanes for e in bench.record.events("cause", lane)]
    assert [(c["how"], c["line"], c["op"]) for c in causes] == [("next", line, "div")]
    agree(ranks_told(told.text))


@pytest.mark.slow
@pytest.mark.ranks(2)
def test_an_explosion_on_one_rank_is_left_out_on_all(bench: Bench):
    """Norms are equal on all ranks, losses are not: the norm alone decides."""
    longer = DISTRIBUTED.replace("range(12)", "range(60)").replace("step == 5", "step == 40")
    script = bench.write(longer.replace('x[3, 2] = float("nan")', "x = x * 1000"))
    seen = bench.guarded(*TORCHRUN, script, options=[])
    assert seen.code == 0, seen.told
    agree(ranks_told(seen.text))
    lanes = [lane for lane in bench.record.lanes if len(bench.record.steps(lane)) == 60]
    assert len(lanes) == 2
    for lane in lanes:
        assert bench.record.skipped(lane) == [40]
        assert bench.record.events("rollback", lane) == []
        assert bench.record.events("holdfast_error", lane) == []
        assert bench.record.steps(lane)["outlier"][40] == 1


SHARDED = (
    DISTRIBUTED.replace(
        "from torch.nn.parallel import DistributedDataParallel",
        "from torch.distributed.fsdp import fully_shard",
    )
    .replace("model = DistributedDataParallel(", "model = fully_shard(")
    .replace("p.detach().flatten()", "p.full_tensor().detach().flatten()")
    .replace("range(12)", "[s for s in range(12) if os.environ.get('LEAVE_OUT') != str(s)]")
)
# The batch of a step is drawn from its own seed, so that a run without a step draws the others.
SHARDED = SHARDED.replace(
    "    x = torch.randn", "    torch.manual_seed(100 * step + rank)\n    x = torch.randn"
)


@pytest.mark.ranks(2)
def test_shards_skip_together(bench: Bench):
    """FSDP2: the NaN of rank 1 shows in the shards of both, and the step is as if it never was."""
    script = bench.write(SHARDED)
    seen = bench.guarded(*TORCHRUN, script, options=[])
    assert seen.code == 0, seen.told
    told = ranks_told(seen.text)
    agree(told)
    skipped_together(bench.record, ["r0", "r1"])
    for lane in bench.record.lanes:
        assert bench.record.events("holdfast_error", lane) == []
    norms = [bench.record.steps(lane)["grad_norm"] for lane in bench.record.lanes]
    assert (norms[0][:5] == norms[1][:5]).all()
    without = bench.plain(*TORCHRUN, script, env={"LEAVE_OUT": "5"})
    assert ranks_told(without.text) == told
