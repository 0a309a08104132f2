"""A script that compiles nothing never loads torch's compiler; one that does finds it as always."""

from __future__ import annotations

import subprocess
import sys

SCRIPT = """
import copy, sys
import torch
from torch import nn
from holdfast.boot import patches

from holdfast.guard.fast.torch_time_saved import TorchTimeSaved

class Engine:
    may_rewrite = True
    torch_time_saved = TorchTimeSaved(lambda saved: None)
    def __getattr__(self, name):
        return lambda *args, **kwargs: None

engine = Engine()
patches.install(lambda: engine)

class Own(torch.optim.SGD):
    def add_param_group(self, group):
        super().add_param_group(group)
        self.groups = getattr(self, "groups", 0) + 1

def train(model):
    optimizer = Own(model.parameters(), lr=0.1, momentum=0.9)
    optimizer.add_param_group({"params": [nn.Parameter(torch.ones(2))]})
    for _ in range(3):
        model(torch.ones(2, 4)).square().mean().backward()
        optimizer.step()
        optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    return optimizer.groups, model.weight.detach().tolist()

def made():
    torch.manual_seed(0)
    return nn.Linear(4, 1)

without = train(made())
print("torch._dynamo" in sys.modules)
compiled = torch.compile(made(), backend="eager")
print(compiled(torch.ones(2, 4)).shape, "torch._dynamo" in sys.modules)
print(train(made()) == without)
patches.uninstall()
print(train(made()) == without)
"""


def test_the_compiler_is_loaded_by_who_compiles() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=False, timeout=100
    )
    assert done.stdout.splitlines() == [
        "False",
        "torch.Size([2, 1]) True",
        "True",
        "True",
    ], done.stderr[-2000:]
