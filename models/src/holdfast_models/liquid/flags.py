"""The specification's flags of ``train``, each with the setting that it stands for.

``holdfast liquid train --num-layers 2`` is ``holdfast train liquid --set model.num_layers=2``, with
the sizes of the reference where nothing else is said. A flag that changes nothing in the chosen
configuration is refused. Nothing heavy is imported here: the help of the command reads it.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from holdfast import HoldfastError

REFERENCE = {
    "train.epochs": 10,
    "train.steps": None,
    "train.data.batch": 8,
    "train.optimizer.lr": 1e-4,
    "train.clip": 1.0,
    "train.precision": "fp32",
    "train.seed.seed": 42,
    "data.sequence_length": 256,
    "model.num_layers": 8,
    "model.liquid_units": 256,
    "model.spiking_units": 128,
    "model.hidden_dim": 512,
    "model.embedding_dim": 768,
    "model.attention.heads": 8,
    "model.spikes.steps": 10,
}
"""Where no flag says otherwise, and no file, preset or earlier run."""

FROM_A_NETWORK = ("gpt2", "gpt3", "gpt4", "o200k", "codellama", "llama2")  # tokenizers
SEVERAL_GPUS = ("--multi-gpu", "--gpu-strategy", "--gpu-ids", "--distributed-backend")


class Need(NamedTuple):
    """What a setting must be for a flag to change anything, and the flags that make it so."""

    path: str
    values: Sequence[Any]
    words: str


class Flag(NamedTuple):
    """One option of the command line.

    ``kind`` is int, float or str; [int] for several; words; words and what they stand for; or, with
    the key "", what the flag alone sets.
    """

    name: str
    path: str
    kind: Any
    what: str
    needs: tuple[Need, ...] = ()

    @property
    def key(self) -> str:
        """Name in the parsed arguments."""
        return self.name.removeprefix("--").replace("-", "_")


_ON = {"": True}
_SAVED = "train.holdfast.checkpoint.steps"
_TEXT = (Need("task", ("llm",), "--task llm"),)
_IMAGES = (Need("task", ("vision",), "--task vision"),)
_LONG = (Need("task", ("llm", "robotics"), "--task llm"),)
_VOCABULARY = (*_TEXT, Need("data.tokenizer", ("bpe", "random"), "--tokenizer bpe"))
_TWO = Need("model.num_layers", range(2, 10**6), "--num-layers 2")  # it follows every second block
_ATTENTION = (_TWO, Need("model.attention.on", (True,), "--set model.attention.on=true"))
_RESET = (Need("model.spikes.persist", (False,), "--spike-state reset"),)
_STDP = (Need("plasticity.on", (True,), "--use-stdp"),)
_PAIRS = ("classical", "triplet", "homeostatic")
_TIMING = (*_STDP, Need("plasticity.rule", _PAIRS, "--stdp-type classical"))
_RATE = (*_STDP, Need("plasticity.rule", ("homeostatic",), "--stdp-type homeostatic"))
_META = (*_STDP, Need("plasticity.meta.on", (True,), "--use-meta-plasticity"))
_TASKS = (Need("continual.on", (True,), "--continual-learning"),)
_HELD = (*_TASKS, Need("continual.consolidation", (True,), "--set continual.consolidation=true"))
_REPLAY = (*_TASKS, Need("continual.replay", (True,), "--use-replay"))
_MAMBA = (Need("model.mamba.on", (True,), "--use-mamba"),)
_MODES = ("parallel", "bidirectional")
_PATHS = (*_MAMBA, Need("model.mamba.mode", _MODES, "--integration-mode parallel"))
_BOTH = (*_MAMBA, Need("model.mamba.mode", _MODES[1:], "--integration-mode bidirectional"))
_TEMPORAL = Need("model.mamba.conversion", ("temporal",), "--spike-to-mamba-method temporal")
_TRACE = (*_PATHS, _TEMPORAL)
_GATE = (*_PATHS, Need("model.mamba.gate", (True,), "--use-adaptive-gating"))
_CROSS = (*_BOTH, Need("model.mamba.cross_attention", (True,), "--use-cross-attention"))
_STATES = {"reset": False, "persist": True}
_CELLS = ("cfc", "ltc", "ncp", "ltc_scan")
_RULES = (*_PAIRS, "bcm")
_STRATEGIES = ("uniform", "importance", "balanced")
_CODES = ("rate", "temporal", "potential")

FLAGS = (
    Flag("--task", "task", ("llm", "vision", "robotics"), "what is learned"),
    Flag("--epochs", "train.epochs", int, "passes over the data"),
    Flag("--batch-size", "train.data.batch", int, "samples of a step"),
    Flag("--learning-rate", "train.optimizer.lr", float, "of AdamW, after warm-up"),
    Flag("--liquid-units", "model.liquid_units", int, "U"),
    Flag("--spiking-units", "model.spiking_units", int, "K"),
    Flag("--num-layers", "model.num_layers", int, "blocks"),
    Flag("--hidden-dim", "model.hidden_dim", int, "width of the blocks"),
    Flag("--num-attention-heads", "model.attention.heads", int, "of self-attention", _ATTENTION),
    Flag("--liquid-backbone", "model.liquid_backbone", _CELLS, "kind of liquid cell"),
    Flag("--spike-threshold", "model.spikes.threshold", float, "of the membrane"),
    Flag("--beta", "model.spikes.beta", float, "what a step leaves of the membrane"),
    Flag("--num-spike-steps", "model.spikes.steps", int, "spike steps per token", _RESET),
    Flag("--spike-state", "model.spikes.persist", _STATES, "of membranes after a token"),
    Flag("--lif-reset", "model.spikes.reset", ("subtract", "zero", "none"), "after a spike"),
    Flag("--vocab-size", "data.vocab_size", int, "tokens of bpe or random", _VOCABULARY),
    Flag("--embedding-dim", "model.embedding_dim", int, "width of a token", _TEXT),
    Flag("--tie-embeddings", "model.tie_embeddings", _ON, "share them with the head", _TEXT),
    Flag("--max-position-embeddings", "model.max_position_embeddings", int, "places", _TEXT),
    Flag("--sequence-length", "data.sequence_length", int, "tokens or time steps", _LONG),
    Flag("--tokenizer", "data.tokenizer", str, "byte, bpe, random, or a saved one", _TEXT),
    Flag("--data", "data.sources", [str], "corpora, files or folders", _TEXT),
    Flag("--conv-channels", "model.vision.channels", [int], "of each convolution", _IMAGES),
    Flag("--conv-kernel-sizes", "model.vision.kernels", [int], "of each convolution", _IMAGES),
    Flag("--dropout", "model.dropout", float, "in blocks and head"),
    Flag("--attention-dropout", "model.attention.dropout", float, "of weights", _ATTENTION),
    Flag("--embedding-dropout", "model.embedding_dropout", float, "of embeddings", _TEXT),
    Flag("--weight-decay", "train.optimizer.weight_decay", float, "of matrices"),
    Flag("--gradient-clip", "train.clip", float, "largest norm of a gradient"),
    Flag("--output-dir", "train.holdfast.run.root", str, "folder of run folders"),
    Flag("--save-interval", _SAVED, int, "epochs between checkpoints"),
    Flag("--no-validation", "train.validation.epochs", {"": 0}, "only train"),
    Flag("--device", "train.device", ("auto", "cpu", "cuda"), "where"),
    Flag("--mixed-precision", "train.precision", {"": "bf16"}, "bf16"),
    Flag("--no-mixed-precision", "train.precision", {"": "fp32"}, "fp32, as by default"),
    Flag("--precision", "train.precision", ("auto", "fp32", "bf16", "fp16"), "of forward passes"),
    Flag("--seed", "train.seed.seed", int, "of weights, order and dropout"),
    Flag("--use-stdp", "plasticity.on", _ON, "fast weights by the timing of spikes"),
    Flag("--stdp-type", "plasticity.rule", _RULES, "rule", _STDP),
    Flag("--stdp-learning-rate", "plasticity.lr", float, "of the rule", _STDP),
    Flag("--stdp-tau-plus", "plasticity.tau_plus", float, "tokens", _TIMING),
    Flag("--stdp-tau-minus", "plasticity.tau_minus", float, "tokens", _TIMING),
    Flag("--stdp-target-rate", "plasticity.target_rate", float, "of events", _RATE),
    Flag("--use-meta-plasticity", "plasticity.meta.on", _ON, "learn how plastic", _STDP),
    Flag("--meta-lr", "plasticity.meta.lr", float, "of the controller", _META),
    Flag("--meta-history-length", "plasticity.meta.history_length", int, "updates it sees", _META),
    Flag("--meta-hidden-dim", "plasticity.meta.hidden_dim", int, "its width", _META),
    Flag("--continual-learning", "continual.on", _ON, "tasks one after the other"),
    Flag("--num-tasks", "continual.num_tasks", int, "how many", _TASKS),
    Flag("--consolidation-strength", "continual.consolidation_strength", float, "of EWC", _HELD),
    Flag("--plasticity-decay", "continual.plasticity_decay", float, "of its earlier tasks", _HELD),
    Flag("--use-replay", "continual.replay", _ON, "samples of earlier tasks", _TASKS),
    Flag("--replay-buffer-size", "continual.replay_buffer_size", int, "samples", _REPLAY),
    Flag("--replay-strategy", "continual.replay_strategy", _STRATEGIES, "which samples", _REPLAY),
    Flag("--compute-importance-interval", "continual.importance_interval", int, "batches", _HELD),
    Flag("--use-mamba", "model.mamba.on", _ON, "a state space in every block"),
    Flag("--integration-mode", "model.mamba.mode", ("sequential", *_MODES), "of paths", _MAMBA),
    Flag("--mamba-d-state", "model.mamba.state", int, "N", _MAMBA),
    Flag("--mamba-d-conv", "model.mamba.conv", int, "width of its convolution", _MAMBA),
    Flag("--mamba-expand", "model.mamba.expand", int, "times the width", _MAMBA),
    Flag("--ssm-kind", "model.mamba.kind", ("selective", "ssd"), "of state space", _MAMBA),
    Flag("--exchange", "model.mamba.exchange", ("next_block", "two_pass"), "of states", _BOTH),
    Flag("--spike-to-mamba-method", "model.mamba.conversion", _CODES, "what it gets", _PATHS),
    Flag("--spike-temporal-tau", "model.mamba.tau", float, "tokens", _TRACE),
    Flag("--use-adaptive-gating", "model.mamba.gate", _ON, "between the two paths", _PATHS),
    Flag("--num-gate-heads", "model.mamba.gate_heads", int, "that divide the width", _GATE),
    Flag("--use-cross-attention", "model.mamba.cross_attention", _ON, "between both paths", _BOTH),
    Flag("--cross-attn-heads", "model.mamba.cross_heads", int, "of it", _CROSS),
)  # fmt: skip


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Describe all flags; those that say the same thing exclude each other."""
    paths = dict.fromkeys(flag.path for flag in FLAGS)
    groups = {path: parser.add_mutually_exclusive_group() for path in paths}
    for flag in FLAGS:
        usual, kind, many = REFERENCE.get(flag.path), flag.kind, isinstance(flag.kind, list)
        words = f"{flag.what} (default: {usual})" if usual is not None else flag.what
        how: dict[str, Any] = {"help": words}
        if isinstance(kind, dict) and "" in kind:
            how |= {"action": "store_const", "const": ""}
        elif isinstance(kind, dict | tuple):
            how |= {"choices": tuple(kind)}
        else:
            kind = kind[0] if many else kind
            how |= {"type": kind, "nargs": "+" if many else None}
            how |= {"metavar": {int: "N", float: "X", str: "WORD"}[kind]}
        groups[flag.path].add_argument(flag.name, **how)
    for name in SEVERAL_GPUS:
        parser.add_argument(name, nargs="*", help=argparse.SUPPRESS)


def given(args: argparse.Namespace) -> Iterator[tuple[Flag, Any]]:
    """The flags that somebody wrote, with the values of their settings."""
    for flag in FLAGS:
        value = getattr(args, flag.key)
        if value is not None:
            yield flag, flag.kind[value] if isinstance(flag.kind, dict) else value


def overrides(
    args: argparse.Namespace, *, reference: bool, steps_per_epoch: Callable[[list[str]], int]
) -> list[str]:
    """What ``holdfast train liquid --set`` takes, from the sizes of the ``reference`` or from none.

    ``steps_per_epoch`` of the settings so far is asked where a flag counts epochs.
    """
    for name in SEVERAL_GPUS:
        if getattr(args, name.removeprefix("--").replace("-", "_")) is not None:
            raise HoldfastError(
                f"{name}: start one process per GPU instead: torchrun --nproc-per-node N -m "
                "holdfast liquid train ..."
            )
    if args.tokenizer in FROM_A_NETWORK and not Path(args.tokenizer).is_file():
        raise HoldfastError(
            f"--tokenizer {args.tokenizer} is fetched from a network; use byte, bpe (trained "
            "here), or the path of a saved one"
        )
    values: dict[str, Any] = dict(REFERENCE) if reference else {}
    values |= {flag.path: value for flag, value in given(args)}
    if "train.epochs" in values:
        values["train.steps"] = None
    epochs = values.pop(_SAVED, None)
    if epochs is not None and epochs < 1:
        raise HoldfastError(f"--save-interval {epochs}; give at least 1 epoch")
    found = [f"{path}={_text(value)}" for path, value in values.items()]
    return found if epochs is None else [*found, f"{_SAVED}={epochs * steps_per_epoch(found)}"]


def check_effect(args: argparse.Namespace, settings: Any) -> None:
    """Refuse flags that change nothing in these settings."""
    for flag, _ in given(args):
        for need in flag.needs:
            value = settings
            for part in need.path.split("."):
                value = getattr(value, part)
            if value not in need.values:
                raise HoldfastError(
                    f"{flag.name} has no effect where {need.path} is {_text(value)}; add "
                    f"{need.words}, or remove it"
                )


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
