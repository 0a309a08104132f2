"""A finding that becomes known after its step earns an action all the same, a stranger's too."""

from __future__ import annotations

from typing import Any

import pytest

from .conftest import Bench, Outcome

DETECTOR = """
from holdfast import Detector, Severity

class LossBelow(Detector):
    code, name, since = "ACME001", "loss_below", "0.1"
    severity, needs = Severity.WARNING, ("loss",)

    def check(self, window):
        if not window.value("loss") < 1.0:
            return None
        return self.finding(window, "the loss is low", "look at it")

DETECTORS = (LossBelow,)
"""

# It goes on until the learning rate has been lowered, or for a minute.
SCRIPT = """
import time
import torch

net = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
x = torch.randn(32, 4)
end = time.monotonic() + 60
step = 0
while time.monotonic() < end and optimizer.param_groups[0]["lr"] == 0.05:
    loss = (net(x) - 1).square().mean() + (2.0 if step < 20 else 0.0)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    step += 1
    time.sleep(0.005)
print("lr", optimizer.param_groups[0]["lr"])
"""


def run(bench: Bench, action: str) -> tuple[Outcome, list[dict[str, Any]]]:
    bench.write(DETECTOR, "acme_detectors.py")
    script = bench.write(SCRIPT)
    env = {"HOLDFAST_PLUGINS": "acme_detectors", "PYTHONPATH": str(bench.folder)}
    options = ("--quiet", "--on", f"ACME001={action}")
    done = bench.guarded(script, options=options, env=env)
    return done, [dict(event.data) for event in bench.record.events("action")]


@pytest.mark.slow
def test_a_strangers_finding_stops_a_run_that_goes_on(bench: Bench) -> None:
    done, actions = run(bench, "stop")
    assert done.code == 3, done.reported
    assert [event.data["code"] for event in bench.record.events("stop")] == ["ACME001"]
    assert [(a["action"], a["code"], a["done"]) for a in actions] == [("stop", "ACME001", True)]
    assert actions[0]["found"] == 20  # the step of the finding; the event has that of the action
    (event,) = bench.record.events("action")
    assert event.step > 20


@pytest.mark.slow
def test_a_strangers_finding_lowers_the_learning_rate_once(bench: Bench) -> None:
    done, actions = run(bench, "lower_lr")
    assert done.code == 0 and "lr 0.05" not in done.text
    assert [a["action"] for a in actions] == ["lower_lr"]


@pytest.mark.parametrize("wrong", ["rollback", "skip", "sleep"])
def test_what_cannot_be_done_later_is_refused_before_the_run(bench: Bench, wrong: str) -> None:
    script = bench.write(SCRIPT)
    done = bench.guarded(script, options=("--on", f"ACME001={wrong}"))
    assert done.code == 2 and wrong in done.reported and not bench.path.exists()
