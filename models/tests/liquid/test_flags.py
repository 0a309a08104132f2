"""The specification's flags: each changes the settings, none is ignored in silence."""

from __future__ import annotations

import argparse
import dataclasses
import shlex
from pathlib import Path
from typing import Any

import pytest

from holdfast import HoldfastError
from holdfast.training import resolve
from holdfast_models.liquid.flags import (
    FLAGS,
    FROM_A_NETWORK,
    REFERENCE,
    SEVERAL_GPUS,
    Flag,
    add_flags,
    check_effect,
    overrides,
)
from holdfast_models.liquid.recipe import RECIPE
from holdfast_models.liquid.run_settings import LiquidSettings

PHASES = {
    1: "--task llm --epochs 1 --batch-size 4 --sequence-length 64 --num-layers 2 --liquid-units 64 "
    "--spiking-units 32 --hidden-dim 128 --gradient-clip 0.5",
    2: "--epochs 2 --batch-size 4 --sequence-length 128 --num-layers 2 --liquid-units 128 "
    "--spiking-units 64 --hidden-dim 256 --gradient-clip 1.0 --mixed-precision",
    3: "--epochs 2 --batch-size 4 --sequence-length 256 --num-layers 4 --liquid-units 128 "
    "--spiking-units 64 --continual-learning --num-tasks 2 --use-mamba --integration-mode "
    "bidirectional --use-stdp --use-meta-plasticity",
    4: "--epochs 30 --continual-learning --num-tasks 5 --use-stdp --use-meta-plasticity "
    "--use-replay --use-mamba --integration-mode bidirectional --spike-to-mamba-method temporal "
    "--mamba-expand 2 --mamba-d-state 32 --mamba-d-conv 4 --use-adaptive-gating "
    "--num-gate-heads 8 --use-cross-attention --cross-attn-heads 16",
}
SPECIFIED = """\
    --task --epochs --batch-size --learning-rate --liquid-units --spiking-units
    --num-layers --hidden-dim --num-attention-heads --liquid-backbone --spike-threshold --beta
    --num-spike-steps --vocab-size --embedding-dim --max-position-embeddings --sequence-length
    --tokenizer --conv-channels --conv-kernel-sizes --dropout --attention-dropout
    --embedding-dropout --weight-decay --gradient-clip --output-dir --save-interval --no-validation
    --device --mixed-precision --no-mixed-precision --seed --use-stdp --stdp-type
    --stdp-learning-rate --stdp-tau-plus --stdp-tau-minus --stdp-target-rate --use-meta-plasticity
    --meta-lr --meta-history-length --meta-hidden-dim --continual-learning --num-tasks
    --consolidation-strength --plasticity-decay --use-replay --replay-buffer-size --replay-strategy
    --compute-importance-interval --use-mamba --integration-mode --mamba-d-state --mamba-d-conv
    --mamba-expand --spike-to-mamba-method --spike-temporal-tau --use-adaptive-gating
    --num-gate-heads --use-cross-attention --cross-attn-heads"""
# What a flag is given where half of its usual value is nothing that fits.
VALUES = {
    "--conv-channels": "8 8 16",
    "--conv-kernel-sizes": "5 5 3",
    "--tokenizer": "bpe",
    "--vocab-size": "900",
    "--data": "english",
    "--output-dir": "elsewhere",
    "--seed": "7",
    "--save-interval": "3",
    "--num-tasks": "3",
    "--max-position-embeddings": "2000",
}
BESIDE = {"--no-mixed-precision": "--set train.precision=bf16"}  # the usual precision is fp32


def parsed(words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--set", action="append", default=[])
    add_flags(parser)
    return parser.parse_args(shlex.split(words))


def settled(words: str, *, reference: bool = True) -> LiquidSettings:
    args = parsed(words)
    found = overrides(args, reference=reference, steps_per_epoch=lambda _: 11)
    # What flags are compared with is beside them, so it goes first.
    settings = resolve(RECIPE, None, None, [*args.set, *found], "none")
    check_effect(args, settings)
    return settings


def value_of(settings: Any, path: str) -> Any:
    for part in path.split("."):
        settings = getattr(settings, part)
    return settings


def words_of(flag: Flag, usual: Any) -> str:
    """The flag with a value that is not the usual one."""
    if flag.name in VALUES:
        return f"{flag.name} {VALUES[flag.name]}"
    if isinstance(flag.kind, dict) and "" in flag.kind:
        return flag.name
    if isinstance(flag.kind, dict):
        return f"{flag.name} {next(word for word, one in flag.kind.items() if one != usual)}"
    if isinstance(flag.kind, tuple):
        return f"{flag.name} {next(word for word in flag.kind if word != usual)}"
    return f"{flag.name} {usual // 2 if flag.kind is int else (usual or 0.5) / 2}"


def test_every_flag_of_the_specification_is_there() -> None:
    assert {*SPECIFIED.split()} <= {flag.name for flag in FLAGS}
    assert len({flag.name for flag in FLAGS}) == len(FLAGS)


@pytest.mark.parametrize("flag", FLAGS, ids=lambda flag: flag.name)
def test_every_flag_changes_its_setting_and_nothing_else(flag: Flag) -> None:
    beside = " ".join([*(need.words for need in flag.needs), BESIDE.get(flag.name, "")])
    before = settled(beside, reference=flag.name not in BESIDE)
    words = words_of(flag, value_of(before, flag.path))
    after = settled(f"{beside} {words}", reference=flag.name not in BESIDE)
    assert value_of(after, flag.path) != value_of(before, flag.path)
    changed = dataclasses.asdict(after)
    inside, last = changed, flag.path.split(".")
    for part in last[:-1]:
        inside = inside[part]
    inside[last[-1]] = value_of(before, flag.path)
    assert changed == dataclasses.asdict(before)


@pytest.mark.parametrize("flag", [flag for flag in FLAGS if flag.needs], ids=lambda flag: flag.name)
def test_a_flag_without_effect_is_refused_by_name(flag: Flag) -> None:
    need = flag.needs[-1]
    other = {
        "task": "--task vision" if "llm" in need.values else "--task llm",
        "model.attention.on": "--set model.attention.on=false",
        "model.spikes.persist": "--spike-state persist",
        "continual.consolidation": "--set continual.consolidation=false",
        "plasticity.rule": "--stdp-type bcm",
        "model.mamba.mode": "--integration-mode sequential",
        "model.mamba.conversion": "--spike-to-mamba-method rate",
    }.get(need.path, "")
    earlier = [one.words for one in flag.needs[:-1] if one.path != need.path]
    words = words_of(flag, value_of(settled(""), flag.path))
    given = f"{' '.join(earlier)} {other} {words}"
    # The settings themselves refuse some of them; both say what to do.
    with pytest.raises(HoldfastError, match=f"{flag.name} has no effect|set mamba|part of|needs"):
        settled(given)


def test_one_block_has_no_attention() -> None:
    with pytest.raises(HoldfastError, match=r"has no effect where model.num_layers is 1"):
        settled("--num-layers 1 --num-attention-heads 4")


@pytest.mark.parametrize("phase", PHASES)
def test_the_four_phases_parse_unchanged(phase: int) -> None:
    settings = settled(PHASES[phase])
    model, train = settings.model, settings.train
    assert (model.embedding_dim, model.attention.heads, model.spikes.steps) == (768, 8, 10)
    assert train.optimizer.lr == 1e-4 and train.steps is None
    assert train.precision == ("bf16" if phase == 2 else "fp32")
    if phase == 3:
        assert model.hidden_dim == 512 and model.mamba.on and settings.plasticity.meta.on
    if phase == 4:
        assert (train.data.batch, settings.data.sequence_length, model.num_layers) == (8, 256, 8)
        assert (model.liquid_units, model.spiking_units, model.hidden_dim) == (256, 128, 512)
        assert (model.mamba.state, model.mamba.gate_heads, model.mamba.cross_heads) == (32, 8, 16)
        assert settings.continual.replay and settings.continual.num_tasks == 5


@pytest.mark.parametrize("phase", PHASES)
def test_the_presets_of_the_phases_are_these_commands(phase: int) -> None:
    own = dataclasses.asdict(settled(PHASES[phase]))
    preset = dataclasses.asdict(resolve(RECIPE, None, f"phase{phase}", (), "none"))
    for section in ("model", "plasticity", "continual", "data", "task"):
        assert own[section] == preset[section], section
    for name in ("epochs", "clip", "steps"):
        assert own["train"][name] == preset["train"][name], name
    assert own["train"]["data"] == preset["train"]["data"]


def test_the_sizes_of_the_reference_are_used_only_where_nothing_else_is_said() -> None:
    usual = settled("")
    assert {path: value_of(usual, path) for path in REFERENCE} == REFERENCE
    assert settled("", reference=False) == LiquidSettings()


def test_epochs_between_checkpoints_become_steps() -> None:
    assert settled("--save-interval 3").train.holdfast.checkpoint.steps == 33
    with pytest.raises(HoldfastError, match="--save-interval 0"):
        settled("--save-interval 0")


@pytest.mark.parametrize("name", SEVERAL_GPUS)
def test_flags_for_several_gpus_name_torchrun(name: str) -> None:
    for value in ("", " 2"):
        with pytest.raises(HoldfastError, match=f"^{name}: .*torchrun"):
            settled(f"{name}{value}")


@pytest.mark.parametrize("name", FROM_A_NETWORK)
def test_tokenizers_from_a_network_are_refused_by_name(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(HoldfastError, match=f"--tokenizer {name} .*byte, bpe"):
        settled(f"--tokenizer {name}")
    Path(name).touch()
    assert settled(f"--tokenizer {name}").data.tokenizer == name, "a file of that name is meant"


def test_flags_that_contradict_each_other_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parsed("--mixed-precision --no-mixed-precision")
    assert "not allowed with" in capsys.readouterr().err
