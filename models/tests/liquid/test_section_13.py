"""What the reference of this family got wrong, put into small runs one by one, and told each time.

Numbers are those of section 13 of the specification. A fault is told by a detector, or the run is
refused in one line; the same run without the fault is silent.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import holdfast_models.liquid
from holdfast import HoldfastError, Stopped
from holdfast.detectors import ALL
from holdfast.report.replay import replay
from holdfast.run import Run
from holdfast.training import Task, precision
from holdfast.training.averaging import Average
from holdfast.training.loop import reporting
from holdfast.training.schedules import Schedule
from holdfast_models.liquid import recipe
from holdfast_models.liquid import settings as sections
from holdfast_models.liquid.data import sequences
from holdfast_models.liquid.data.sequences import TaskSequence
from holdfast_models.liquid.detectors import DETECTORS
from holdfast_models.liquid.model import mamba_path, model
from holdfast_models.liquid.model.liquid.cell import LiquidCell
from holdfast_models.liquid.model.mamba.mamba import Mamba
from holdfast_models.liquid.model.mamba_path import MambaPath
from holdfast_models.liquid.model.mixing import causal, cross_attention
from holdfast_models.liquid.model.mixing.conversion import SpikesToMamba
from holdfast_models.liquid.model.spiking.decoders import SpikeDecoder
from holdfast_models.liquid.plasticity.meta import MetaController
from holdfast_models.liquid.plasticity.plasticity import Plasticity

FAMILY = Path(holdfast_models.liquid.__path__[0])
MAMBA = (
    "model.mamba.on=true", "model.mamba.gate=true", "model.mamba.cross_attention=true",
)  # fmt: skip
TASKS = (
    "continual.on=true", "continual.num_tasks=2", "continual.tasks=permuted_vocabulary",
    "continual.consolidation=false", "train.epochs=2", "train.steps=null", "train.data.batch=16",
    "data.megabytes=0.002", "data.sequence_length=24", "train.validation.epochs=0",
)  # fmt: skip

Patch = Callable[[pytest.MonkeyPatch], None]


@pytest.fixture(autouse=True)
def noted_often(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Records every other step instead of every fiftieth."""
    monkeypatch.setattr(reporting, "_NOTED_EVERY", 2)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def codes(settings_of: Any, task_of: Any, fit: Any) -> Callable[..., dict[str, str]]:
    """Train a few steps; what is found, by code. How fast the machine is, is no finding here."""
    count = iter(range(99))

    def train(*overrides: str, change: Callable[[Task], Task] | None = None) -> dict[str, str]:
        settings = settings_of("train.validation.epochs=0", *overrides)
        task = task_of(settings)
        name = f"run{next(count)}"
        result = fit(task if change is None else change(task), settings, name)
        found = replay(Run.open(result.run), (*ALL, *DETECTORS)).findings
        return {one.code: one.message for one in found if not one.code.startswith("TPT")}

    return train


@pytest.fixture(scope="module")
def shown() -> set[tuple[str, ...]]:
    """Settings of runs that were silent: one run of them is enough."""
    return set()


@pytest.fixture
def silent(codes: Any, shown: set[tuple[str, ...]]) -> Callable[..., None]:
    """Train without a fault: nothing is found."""

    def check(*overrides: str) -> None:
        if overrides not in shown:
            assert codes(*overrides) == {}
            shown.add(overrides)

    return check


def poisoned(*steps: int) -> Callable[[Task], Task]:
    """The loss of these steps, from 1, is infinite."""

    def change(task: Task) -> Task:
        count = iter(range(1, 10**6))
        plain: Any = task.loss

        def loss(net: Any, batch: Any) -> Any:
            found, reported = plain(net, batch)
            return found * (math.inf if next(count) in steps else 1.0), reported

        return dataclasses.replace(task, loss=loss)

    return change


# ------------------------------------------------------------------ 1, 2: nothing is trained


def test_13_1_a_rate_of_0_for_the_whole_run(
    codes: Any, silent: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    silent()
    with pytest.raises(HoldfastError, match="lr must be a number above 0"):
        codes("train.optimizer.lr=0")
    monkeypatch.setattr(Schedule, "_warm", lambda self: 0.0)  # a warm-up that never advances
    found = codes()
    assert list(found) == ["LIQ004"]
    assert "0% of steps change the weights, learning rate 0" in found["LIQ004"]


def test_13_2_without_guards_one_bad_batch_spoils_the_weights(codes: Any) -> None:
    once = "train.holdfast.guard.explain=false"
    assert "NUM003" not in codes(once, change=poisoned(3))
    assert "NUM003" in codes(once, "train.holdfast.guard.skip=false", change=poisoned(3))


def test_13_2_an_average_that_is_scored_and_never_updated(
    codes: Any, silent: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    how = "train.average.decay=0.9", "train.validation.steps=2", "train.steps=8"
    silent(*how)
    monkeypatch.setattr(Average, "update", lambda self: None)
    found = codes(*how)
    assert list(found) == ["LIQ004"]
    assert "the weights change, and 3 validations in a row" in found["LIQ004"]


# ------------------------------------------------------------------ 3, 4, 5: parts without effect


@pytest.mark.parametrize("backbone", ["cfc", "ltc", "ncp", "ltc_scan"])
def test_13_3_a_liquid_cell_that_ignores_its_state(
    backbone: str, codes: Any, silent: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    how = f"model.liquid_backbone={backbone}", "train.steps=4"
    silent(*how)
    plain = LiquidCell.forward

    def token_by_token(self: LiquidCell, x_BTF: Tensor, *_: Any, **__: Any) -> Any:
        l_BTU, state = plain(self, x_BTF.flatten(0, 1).unsqueeze(1))
        return l_BTU.view(*x_BTF.shape[:2], -1), state.view(*x_BTF.shape[:2], -1)[:, -1]

    monkeypatch.setattr(LiquidCell, "forward", token_by_token)
    with pytest.raises(HoldfastError, match=r"blocks\.0\.liquid .* no memory"):
        codes(*how)


def test_13_4_rates_of_mamba_that_are_not_numbers(
    codes: Any, silent: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    how = "model.mamba.on=true", "train.steps=4"
    silent(*how)
    plain = Mamba.__init__

    def half(self: Mamba, *given: Any, **options: Any) -> None:
        plain(self, *given, **options)
        self.a_log.data[:, ::2] = math.nan

    monkeypatch.setattr(Mamba, "__init__", half)
    with pytest.raises(Stopped, match="stopped at step 0: NUM003"):
        codes(*how)
    with pytest.raises(HoldfastError, match="no finite gradient"):
        codes("model.mamba.on=true", "train.holdfast.guard.skip=false")


@pytest.mark.parametrize(
    ("setting", "says"),
    [
        ("mamba.on", r"model\.mamba\.on is set, and the network has 0 of 2 Mamba"),
        ("mamba.gate", r"model\.mamba\.gate is set, and the network has 0 of 2 AdaptiveGate"),
        ("mamba.cross_attention", "0 of 2 CrossAttention"),
        ("attention.on", "0 of 1 SpikingAttention"),
    ],
)
def test_13_4_5_a_flag_that_only_prints_a_line(
    setting: str, says: str, codes: Any, silent: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    how = *MAMBA, "train.steps=1"
    silent(*how)
    part, name = setting.split(".")
    plain = recipe.LiquidNet

    def without(given: Any, *rest: Any) -> Any:
        off = dataclasses.replace(getattr(given, part), **{name: False})
        return plain(dataclasses.replace(given, **{part: off}), *rest)

    monkeypatch.setattr(recipe, "LiquidNet", without)
    with pytest.raises(HoldfastError, match=says):
        codes(*how)


def test_13_5_an_exchange_that_is_made_and_never_called(
    codes: Any, silent: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    silent("model.mamba.on=true")
    monkeypatch.setattr(MambaPath, "tau_scale", lambda self, m_BTH: None)
    with pytest.raises(HoldfastError, match=r"to_tau\S+: no finite gradient"):
        codes("model.mamba.on=true")


def same_network(one: Any, other: Any, task_of: Any) -> bool:
    """The same weights, and the same outputs for the same tokens."""
    nets = [task_of(settings).model.eval() for settings in (one, other)]
    shapes = [{name: of.shape for name, of in net.state_dict().items()} for net in nets]
    if shapes[0] != shapes[1]:
        return False
    nets[1].load_state_dict(nets[0].state_dict())
    tokens_BT = torch.arange(24).view(2, 12)
    with torch.no_grad():
        return torch.equal(*(net(tokens_BT).y_BTV for net in nets))


FIXED: dict[str, Patch] = {
    "gate_heads=4": lambda patch: patch.setattr(
        mamba_path,
        "AdaptiveGate",
        lambda width, heads, make=mamba_path.AdaptiveGate: make(width, 2),
    ),
    "cross_heads=4": lambda patch: patch.setattr(
        mamba_path,
        "CrossAttention",
        lambda units, width, heads, make=mamba_path.CrossAttention: make(units, width, 2),
    ),
    "tau=5": lambda patch: patch.setattr(
        mamba_path,
        "SpikesToMamba",
        lambda method, units, width, tau, make=SpikesToMamba: make(method, units, width),
    ),
    "conversion=rate": lambda patch: patch.setattr(
        mamba_path,
        "SpikesToMamba",
        lambda method, units, width, tau, make=SpikesToMamba: make("temporal", units, width),
    ),
}


@pytest.mark.parametrize("changed", FIXED)
def test_13_5_numbers_of_the_mamba_part_are_not_fixed(
    changed: str, settings_of: Any, task_of: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual, other = settings_of(*MAMBA), settings_of(*MAMBA, f"model.mamba.{changed}")
    assert same_network(usual, usual, task_of)
    assert not same_network(usual, other, task_of)
    FIXED[changed](monkeypatch)
    assert same_network(usual, other, task_of)


# ------------------------------------------------------------------ 6, 7: time


def test_13_6_cross_attention_within_a_token(
    codes: Any, silent: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    how = *MAMBA, "train.steps=1"
    silent(*how)

    def within(self: Any, asking: Tensor, asked: Tensor, cached: Any) -> Any:
        _, values = self.key_value(asked).chunk(2, dim=-1)
        return self.out(self.query(asking).sigmoid() * values), cached

    monkeypatch.setattr(cross_attention._Direction, "forward", within)
    with pytest.raises(HoldfastError, match=r"cross \(CrossAttention\): .* no memory"):
        codes(*how)


def unmasked(patch: pytest.MonkeyPatch) -> None:
    def attend(queries: Tensor, keys: Tensor, values: Tensor, *_: Any) -> Tensor:
        return torch.nn.functional.scaled_dot_product_attention(queries, keys, values)

    patch.setattr(causal, "_attend", attend)


def whole_mean(patch: pytest.MonkeyPatch) -> None:
    def forward(self: SpikesToMamba, rate_BTK: Tensor, *_: Any) -> Any:
        return self.proj(rate_BTK.mean(1, keepdim=True).expand_as(rate_BTK)), ()

    patch.setattr(SpikesToMamba, "forward", forward)


@pytest.mark.parametrize("task", ["llm", "robotics"])
@pytest.mark.parametrize("leak", [unmasked, whole_mean])
def test_13_7_outputs_that_know_the_future(
    leak: Patch, task: str, codes: Any, silent: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    how = f"task={task}", "model.mamba.on=true", "train.steps=1"
    silent(*how)
    leak(monkeypatch)
    with pytest.raises(HoldfastError, match=r"first 6 tokens change .* sees the future"):
        codes(*how)


# ------------------------------------------------------------------ 8, 9: plasticity


PLASTIC = (
    "plasticity.on=true", "plasticity.interval=1", "model.num_layers=1", "data.sequence_length=8",
)  # fmt: skip


@pytest.mark.parametrize("why", ["never_called", "rate_of_0"])
def test_13_8_plasticity_that_changes_no_weight(
    why: str, codes: Any, silent: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    how = *PLASTIC, "train.steps=8"
    silent(*how)
    if why == "never_called":  # as where every failure of it is swallowed
        monkeypatch.setattr(Plasticity, "step", lambda self, *given, **options: None)
    found = codes(*how, *(["plasticity.lr=0"] if why == "rate_of_0" else []))
    assert list(found) == ["LIQ003"]
    assert "changes a fast weight by 0" in found["LIQ003"]


def test_13_9_a_controller_that_is_never_updated(
    codes: Any, silent: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    how = *PLASTIC, "plasticity.meta.on=true", "plasticity.meta.hidden_dim=8", "train.steps=32"
    silent(*how)
    monkeypatch.setattr(MetaController, "learn", lambda self, hypergradient_PL: None)
    found = codes(*how)
    assert list(found) == ["LIQ003"]
    assert "the meta controller has changed no parameter" in found["LIQ003"]


# ------------------------------------------------------------------ 10: tasks


def test_13_10_tasks_that_are_all_alike(
    codes: Any, silent: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    silent(*TASKS)
    with monkeypatch.context() as patch:
        patch.setattr(TaskSequence, "set_epoch", lambda self, epoch: None)
        with pytest.raises(HoldfastError, match=r"task 2 should be over, .* those of task 1"):
            codes(*TASKS)
    plain = sequences.permutation
    monkeypatch.setattr(sequences, "permutation", lambda tokenizer, *_: plain(tokenizer, 0))
    with pytest.raises(HoldfastError, match="'permutation 1' begin with the same samples"):
        codes(*TASKS)


# ------------------------------------------------------------------ 11: skips in half precision


def test_13_11_a_scaler_that_raises_on_the_second_skip(
    settings_of: Any, task_of: Any, fit: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(precision, "_asked", lambda name, device: "for this test, on the CPU")
    settings = settings_of(
        "train.precision=fp16", "train.steps=5", "train.holdfast.guard.explain=false"
    )
    result = fit(poisoned(2, 3, 4)(task_of(settings)), settings, "healthy")
    assert (result.step, result.skipped) == (5, 3)
    plain, skips = torch.amp.GradScaler.update, iter((False, True, True))

    def update(self: Any, new_scale: Any = None) -> None:
        if next(skips):
            raise AssertionError("No inf checks were recorded prior to update.")
        plain(self, new_scale)

    monkeypatch.setattr(torch.amp.GradScaler, "update", update)
    with pytest.raises(AssertionError, match="No inf checks"):
        fit(poisoned(1, 2)(task_of(settings)), settings, "raises")


# ------------------------------------------------------------------ 12, 13, 15: silence


def test_13_12_a_decoder_that_fails_in_silence(
    codes: Any, silent: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    silent()
    monkeypatch.setattr(
        SpikeDecoder, "forward", lambda self, train, rate: rate.new_zeros(*rate.shape[:2], 16)
    )
    with pytest.raises(HoldfastError, match=r"decoder\S+ and 5 more: no finite gradient"):
        codes()


@pytest.mark.parametrize("task", ["vision", "robotics"])
def test_13_13_a_task_that_cannot_be_made(
    task: str, codes: Any, silent: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    how = f"task={task}", "train.steps=2"
    silent(*how)

    def front(*_: Any) -> Any:
        raise TypeError("no such front")

    monkeypatch.setattr(model, "_front", front)
    with pytest.raises(TypeError, match="no such front"):
        codes(*how)


@pytest.mark.parametrize(
    "how",
    [
        ("data.robot=pendulum",),
        ("data.robot=arm",),
        ("data.robot=navigation",),
        ("data.robot=cart-pole",),
        ("continual.on=true", "continual.num_tasks=2", "train.epochs=2"),
    ],
    ids=lambda how: how[0],
)
def test_13_13_every_robot_can_be_trained(
    how: tuple[str, ...], settings_of: Any, task_of: Any
) -> None:
    task = task_of(settings_of("task=robotics", *how))
    loss: Any = task.loss(task.model, task.train.__getitems__(range(2)).batch)
    assert loss[0].isfinite()


def swallowing(source: str) -> list[int]:
    """Lines that catch whatever comes, or make a layer that the optimizer never sees."""
    found: list[int] = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ExceptHandler):
            names = [] if node.type is None else [ast.unparse(one) for one in _each(node.type)]
            if not names or {"Exception", "BaseException"} & {*names}:
                found.append(node.lineno)
        if isinstance(node, ast.Call):
            called = ast.unparse(node.func).rsplit(".", 1)[-1]
            broad = {"Exception", "BaseException"} & {ast.unparse(one) for one in node.args}
            if called.startswith("Lazy") or (called == "suppress" and broad):
                found.append(node.lineno)
    return found


def _each(caught: ast.expr) -> list[ast.expr]:
    return caught.elts if isinstance(caught, ast.Tuple) else [caught]


def test_13_15_nothing_is_swallowed() -> None:
    # A kernel that fails in whatever way is not used, which is said: ``test_choice``.
    sources = sorted({*FAMILY.rglob("*.py")} - {FAMILY / "kernels" / "check.py"})
    assert len(sources) > 60
    assert {str(one): found for one in sources if (found := swallowing(one.read_text()))} == {}
    for fault in (
        "try:\n    f()\nexcept Exception:\n    pass",
        "try:\n    f()\nexcept:\n    pass",
        "try:\n    f()\nexcept (ValueError, BaseException) as error:\n    print(error)",
        "with contextlib.suppress(Exception):\n    f()",
        "layer = nn.LazyLinear(3)",
    ):
        assert swallowing(fault), fault


@functools.cache
def names_read() -> frozenset[str]:
    """Attributes that modules other than that of the settings mention."""
    sources = [one.read_text() for one in FAMILY.rglob("*.py") if one.name != "settings.py"]
    nodes = [node for source in sources for node in ast.walk(ast.parse(source))]
    return frozenset(node.attr for node in nodes if isinstance(node, ast.Attribute))


def unread(section: Any) -> set[str]:
    """Settings that nobody asks for."""
    return {field.name for field in dataclasses.fields(section)} - names_read()


@pytest.mark.parametrize(
    "section",
    [
        pytest.param(getattr(sections, name), id=name)
        for name in vars(sections)
        if name.endswith("Settings")
    ],
)
def test_13_5_every_setting_is_read(section: Any) -> None:
    assert unread(section) == set()
    more = dataclasses.make_dataclass("More", [("a_flag_that_is_ignored", int)])
    assert unread(more) == {"a_flag_that_is_ignored"}
