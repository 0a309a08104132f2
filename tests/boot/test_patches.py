"""The one table of patches: every entry goes in, says why, and comes out without a trace."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

from holdfast.boot import patches
from holdfast.diagnosis.memory.evaluation import Evaluations


def targets() -> list[str]:
    return [t for p in patches.TABLE for t in (p.target, *p.aliases)]


def standing(target: str) -> object:
    """What stands at a target, as its owner holds it."""
    owner, name = patches.locate(target)
    return owner.__dict__.get(name)


def test_every_target_exists_and_says_why() -> None:
    for patch in patches.TABLE:
        owner, name = patches.locate(patch.target)
        assert patch.adds is not callable(getattr(owner, name, None)), patch.target
        assert len(patch.why) > 20, patch.target


def test_all_go_in_and_come_out_again() -> None:
    before = {t: standing(t) for t in targets()}
    patches.install(lambda: None)
    try:
        active = [p for p in patches.TABLE if p.when() and not p.on_order]
        for patch in active:
            for target in (patch.target, *patch.aliases):
                assert standing(target) is not before[target], target
        patches.install(lambda: None)  # twice is once
    finally:
        patches.uninstall()
    assert {t: standing(t) for t in targets()} == before


def test_modules_tell_of_themselves_only_while_the_patches_are_in() -> None:
    hooks = nn.modules.module
    reported = hooks._global_parameter_registration_hooks, hooks._global_module_registration_hooks
    patches.install(lambda: None)
    try:
        assert [len(kind) for kind in reported] == [1, 1]
        nn.Sequential(nn.Linear(2, 2))  # without an engine nothing is told
    finally:
        patches.uninstall()
    assert [len(kind) for kind in reported] == [0, 0]


def test_train_is_torchs_own_while_nothing_is_evaluated() -> None:
    own, evaluation = nn.Module.train, Evaluations(lambda *_: None)
    patches.install(lambda: None)
    try:
        for ends in (evaluation.ends, evaluation.differentiates, patches.uninstall):
            assert nn.Module.train is own
            evaluation.begins(sys._getframe())
            assert nn.Module.train is not own
            ends()
        assert nn.Module.train is own
    finally:
        patches.uninstall()


def test_aliases_are_the_same_function() -> None:
    for patch in patches.TABLE:
        assert len({id(standing(t)) for t in (patch.target, *patch.aliases)}) == 1


def test_tensor_backward_goes_through_the_patched_name() -> None:
    """If torch changed this, losses would go unseen: then patch Tensor.backward too."""
    seen: list[object] = []

    class Spy:
        may_rewrite = True

        def backward_begins(self, tensors: object) -> None:
            seen.append(tensors)

        def backward_ends(self, *, freed: bool = False) -> None:
            seen.append("end")

    patches.install(lambda: Spy())  # type: ignore[arg-type,return-value]
    try:
        x = torch.ones((), requires_grad=True)
        y = x * 2
        y.backward()
    finally:
        patches.uninstall()
    assert seen[0] is y and seen[-1] == "end"


def test_collectives_called_from_python_wait_at_the_patched_name(tmp_path: Path) -> None:
    """If torch changed this, a rank that waits in forward would look like a slow one."""
    seen: list[float] = []

    class Spy:
        def waited(self, seconds: float) -> None:
            seen.append(seconds)

    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    patches.install(lambda: Spy())  # type: ignore[arg-type,return-value]
    try:
        numbers = torch.ones(2)
        dist.all_reduce(numbers)
        work = dist.broadcast(numbers, 0, async_op=True)
        assert work is not None and dist.group.WORLD is not None
        work.wait()
        dist._broadcast_coalesced(dist.group.WORLD, [numbers], 1 << 20, 0)
        dist.barrier()
    finally:
        patches.uninstall()
        dist.destroy_process_group()
    assert len(seen) == 4 and all(seconds > 0 for seconds in seen)


def test_without_an_engine_everything_works_as_ever() -> None:
    patches.install(lambda: None)
    try:
        net = torch.nn.Linear(2, 1)
        opt = torch.optim.SGD(net.parameters(), lr=0.1)
        data = torch.utils.data.TensorDataset(torch.ones(4, 2))
        for (x,) in torch.utils.data.DataLoader(data, 2):
            net(x).sum().backward()
            torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            opt.step()
    finally:
        patches.uninstall()
