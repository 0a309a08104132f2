"""Out-of-memory errors, and the memory that a step needs by part and by module."""

from __future__ import annotations

import ast
import re
import traceback
from collections.abc import Mapping
from types import FrameType
from typing import Any

import psutil
import torch
from torch import Tensor
from torch.optim import Optimizer

from ...probes.ranks import ranks
from ...records.memory import CodeLine, MemoryRanOut, ModelCall
from ...run.host_memory import MemoryLimit, nearest, own_limits, room, shared_limits
from ...source.ownership import kind_of
from ..crash.operands import value_of
from ..crash.traceback_frames import calls
from ..training import Training
from . import activations, expression
from .code_line import code_line

_ASKED = re.compile(r"allocate ([\d.]+) (bytes|[KMGT]iB)", re.I)
_UNITS = {"bytes": 0, "kib": 1, "mib": 2, "gib": 3, "tib": 4}
PARTS = ("weights", "gradients", "optimizer state", "activations")
# Backward passes, updates and loaders: code of torch that calls back, or is called for itself.
_NOT_LOSS = frozenset(
    {
        "torch.autograd",
        "torch.autograd.graph",
        "torch.optim.optimizer",
        "torch.utils.data.dataloader",
    }
)
# Modules that are named each; of more, numbers in their names are left open.
_NAMED = 8


def arithmetic(found: BaseException, training: Training) -> MemoryRanOut:
    """What the memory was needed for, as far as that is known, and the user's line."""
    there: dict[str, int] = dict.fromkeys(PARTS[:3], 0)
    modules: dict[str, dict[str, int]] = {}
    device = torch.device("cpu")
    for optimizer, layers in training.optimizers():
        tensors = [p for group in optimizer.param_groups for p in group["params"]]
        per_weight = state_per_weight(optimizer)
        for name, p in zip(layers, tensors, strict=False):
            device = p.device
            needs = modules.setdefault(name.rpartition(".")[0] or name, dict.fromkeys(PARTS, 0))
            size = _size(p)
            state = sum(_size(v) for v in optimizer.state.get(p, {}).values() if torch.is_tensor(v))
            there["weights"] += size
            there["gradients"] += _size(p.grad) if p.grad is not None else 0
            there["optimizer state"] += state
            needs["weights"] += size
            needs["gradients"] += size if p.requires_grad else 0
            needs["optimizer state"] += max(state, int(per_weight * size))
    if torch.cuda.is_initialized():
        rest = torch.cuda.max_memory_allocated() - sum(there.values())
        there["activations and others"] = max(0, rest)
    said = _ASKED.search(str(found))
    asked = float(said[1]) * 1024.0 ** _UNITS[said[2].lower()] if said is not None else None
    blown_up = expression.did_not_fit(found, asked)
    largest = max(modules, key=lambda name: modules[name]["weights"], default="")
    call = _of_the_call(found, modules, training)
    limit = host_limit() if device.type == "cpu" else None
    return MemoryRanOut(
        asked=asked,
        parts=there,
        needs={part: sum(m[part] for m in modules.values()) for part in PARTS},
        modules=_grouped(modules),
        largest=largest,
        limit=None if limit is None else limit.name,
        limit_bytes=None if limit is None else limit.bytes,
        capacity=capacity(device),
        **vars(call),
        **({} if blown_up is None else vars(blown_up)),
        **vars(line_of(found).replace(seen="trace")),
    )


def line_of(found: BaseException, caught: FrameType | None = None) -> CodeLine:
    """The script's line that ran out: the innermost, or else the one that called what caught it."""
    frames = [(f.f_code.co_filename, n) for f, n in traceback.walk_tb(found.__traceback__)]
    frames = list(reversed(frames))
    if caught is not None:
        frames += [(f.f_code.co_filename, n) for f, n in traceback.walk_stack(caught)]
    users = (frame for frame in frames if kind_of(frame[0]) == "user")
    return code_line(*next(users, ("", 0)))


def state_per_weight(optimizer: Optimizer) -> float:
    """Numbers that an optimizer keeps for each weight once it has stepped; 0 where unknown."""
    options = optimizer.defaults
    extra = float(bool(options.get("amsgrad"))) + float(bool(options.get("centered")))
    extra += float(bool(options.get("momentum")))
    kind = type(optimizer).__name__
    if kind in ("Adam", "AdamW", "NAdam", "RAdam", "Adamax", "Adadelta"):
        return 2 + extra
    return {"RMSprop": 1 + extra, "Adagrad": 1.0, "SGD": extra, "Muon": 1.0}.get(kind, 0.0)


def capacity(device: torch.device) -> int:
    """Bytes that there are, as far as this process may use them."""
    if device.type == "cuda":
        share = torch.cuda.get_per_process_memory_fraction(device)
        return int(torch.cuda.mem_get_info(device)[1] * min(1.0, share))
    # Addresses count against a limit, of which libraries take more than they use.
    return room() + psutil.Process().memory_info().rss


def in_use() -> int:
    """Bytes that tensors take on the device, or this process on the host."""
    if torch.cuda.is_initialized():
        return torch.cuda.memory_allocated()
    return psutil.Process().memory_info().rss


def host_limit() -> MemoryLimit | None:
    """The limit of host memory that has the fewest bytes left."""
    return nearest([*own_limits(), *shared_limits()])


def _of_the_call(
    found: BaseException, modules: dict[str, dict[str, int]], training: Training
) -> ModelCall:
    """Where the model was when it happened, and what its pass would have kept."""
    call = activations.last_call(found.__traceback__)
    if call is None:
        return ModelCall(phase="loss" if _after_the_model(found) else "")
    names = {id(m): name for root in training.models() for name, m in root.named_modules()}
    prefix = names.get(id(call.model), "")
    at_work = ModelCall(within=names.get(id(call.inner), ""), batch=call.batch)
    if ranks() > 1:
        return at_work.replace(not_counted="ranks wait for each other in a forward pass")
    try:
        kept, outputs = activations.kept(call)
    except Exception as error:  # a model that asks for values, or an operation without a shape
        return at_work.replace(not_counted=f"{type(error).__name__}: {error}"[:200])
    for name, size in kept.items():
        full = ".".join(filter(None, [prefix, name])) or type(call.model).__name__
        needs = modules.setdefault(full, dict.fromkeys(PARTS, 0))
        needs["activations"] += size
    return at_work.replace(outputs=outputs)


def _after_the_model(found: BaseException) -> bool:
    """Whether the script's own code ran out, on something with a graph: what a model gave it."""
    entries = calls(found.__traceback__)
    if any(entry.frame.f_globals.get("__name__") in _NOT_LOSS for entry in entries):
        return False
    held: list[Any] = []
    for entry in entries:
        if kind_of(entry.file) == "torch":
            # What a function of torch was given may have no name in the script.
            held += entry.frame.f_locals.values()
        elif (node := entry.expression()) is not None:
            held += [value_of(n, entry) for n in ast.walk(node) if isinstance(n, ast.expr)]
    return any(isinstance(value, Tensor) and value.grad_fn is not None for value in held)


def _grouped(modules: Mapping[str, Mapping[str, int]]) -> dict[str, dict[str, int]]:
    """The largest first; where there are many, equal ones of a stack together."""
    found: dict[str, dict[str, int]] = {}
    for name, needs in modules.items():
        key = re.sub(r"(?<=\.)\d+(?=\.|$)", "*", name) if len(modules) > _NAMED else name
        sums = found.setdefault(key, dict.fromkeys(PARTS, 0))
        for part in PARTS:
            sums[part] += needs[part]
    ranked = sorted(found, key=lambda name: -sum(found[name].values()))
    return {name: found[name] for name in ranked[:_NAMED]}


def _size(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()
