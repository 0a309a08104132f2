"""A checkpoint holds one moment: whatever is written later, by a thread, was encoded before."""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import pytest
import torch

from holdfast.checkpoint.saver import Saver
from holdfast.checkpoint.writer import BackgroundWriter

from .conftest import Bench

SCRIPT = """
import collections, time
class Average(torch.optim.SGD):
    def step(self, closure=None):
        super().step(closure)
        for group in self.param_groups:
            for p in group["params"]:
                count, mean = self.state[p].setdefault("mean", [0, torch.zeros_like(p)])
                mean.mul_(0.9).add_(p.detach(), alpha=0.1)
                self.state[p]["mean"][0] = count + 1
model, shadow = net(), net()
optimizer = Average(model.parameters(), lr=1e-2, momentum=0.9)
schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, [10, 20])
own, dice = np.random.default_rng(1), np.random.RandomState(2)
draws = torch.Generator().manual_seed(4)
recent, counts, sums, seen = collections.deque(maxlen=9), collections.Counter(), np.zeros(3), []
table, best, part = torch.zeros(4), {"loss": 9.0, "at": []}, np.zeros((3, 2))
row = part[1]
def averaged():
    held = [0.0]
    def add(value):
        held[0] += value
        return held[0]
    return add
add = averaged()
for step in range(36):
    x = torch.randn(16, 6, generator=draws) + float(own.random()) + float(dice.rand())
    loss = nn.functional.cross_entropy(model(x), (x.sum(1) > 0).long())
    optimizer.zero_grad(); loss.backward(); optimizer.step(); schedule.step()
    with torch.no_grad():
        for one, other in zip(shadow.parameters(), model.parameters()):
            one.mul_(0.9).add_(other, alpha=0.1)
    value = loss.item()
    recent.append([value]); counts[step % 3] += 1; sums += value; seen.append((step, value))
    recent[0][0] += 1; table[step % 4] += value; best["at"].append(add(value)); row += value
    time.sleep(0.02)
print(list(recent), counts, sums.tolist(), seen, table.tolist(), best, part.tolist())
print([[m[0], m[1].sum().item()] for m in (optimizer.state[p]["mean"] for p in model.parameters())])
told(model, shadow)
"""


def test_a_checkpoint_does_not_change_while_it_waits_to_be_written(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    reported: dict[int, tuple[str, list[torch.Tensor]]] = {}
    submit, write = BackgroundWriter.submit, BackgroundWriter._write

    def noted(self: Any, skeleton: Any, tensors: Any, meta: Any, *args: Any, **named: Any) -> Any:
        reported[meta["step"]] = json.dumps(skeleton), [one.clone() for one in tensors]
        return submit(self, skeleton, tensors, meta, *args, **named)

    def late(self: Any, job: Any) -> None:
        time.sleep(0.1)  # five steps of the script
        text, before = reported[job.step]
        same = json.dumps(job.skeleton) == text and all(map(torch.equal, job.tensors, before))
        print(f"{job.step} is {'the same' if same else 'CHANGED'}", file=sys.stderr, flush=True)
        write(self, job)

    script = bench.script(SCRIPT)
    with monkeypatch.context() as patched:
        patched.setattr(BackgroundWriter, "submit", noted)
        patched.setattr(BackgroundWriter, "_write", late)
        patched.setattr(Saver, "wait", lambda self: None)
        whole = bench.run(script, every=3)
    assert whole.code == 0, whole.err
    assert "CHANGED" not in whole.err
    assert whole.err.count("is the same") > 2 and len(whole.checkpoints) > 2, whole.refusal
    for path in whole.checkpoints[1:3]:
        again = bench.run(script, resume=path, every=99)
        assert (again.code, again.out) == (0, whole.out), again.err
