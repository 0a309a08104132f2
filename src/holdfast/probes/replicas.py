"""What ranks that train one model must have in common: weights bit for bit, and how they train.

Each rank measures for itself and no rank waits for another one: a checksum of every layer on some
steps, the same step numbers on all ranks, and some facts at the start. Whoever reads the run folder
compares them. A checksum is a sum of the bits as whole numbers, so that equal weights (in the same
memory format) give equal ones whatever kernel, device or number of threads adds them up.
"""

from __future__ import annotations

import gc
import hashlib
import sys
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DistributedSampler

from ..records.ranks import Parallel
from ..shards import is_sharded

EVERY = 64
"""One step in this many is looked at."""

# A float32 column holds whole numbers up to 2**24; this is the largest prime below, since a
# remainder by a power of two would not see sign and exponent.
_MODULUS = (1 << 24) - 3
_WHOLE = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def checksums(parameters: Sequence[Tensor]) -> Tensor | None:
    """One whole number per parameter, where the parameters are; None where they are sharded."""
    if not parameters or any(map(is_sharded, parameters)):
        return None
    device = parameters[0].device
    sums = torch.stack([_sum_of_bits(p.detach()).to(device) for p in parameters])
    return sums.remainder(_MODULUS).double()


def _sum_of_bits(tensor: Tensor) -> Tensor:
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor)
    whole = _WHOLE.get(tensor.element_size())
    if whole is None or tensor.layout is not torch.strided:
        return torch.zeros((), dtype=torch.int64, device=tensor.device)
    if tensor.is_contiguous() and tensor.nbytes % 8 == 0 and tensor.storage_offset() == 0:
        # Without a conversion a CPU adds seventeen times as fast.
        return tensor.view(-1).view(torch.int64).sum()
    return tensor.view(whole).sum(dtype=torch.int64)


def parallel_facts(parameters: Sequence[Tensor], layers: Sequence[str], group: int) -> Parallel:
    """How this rank trains together with others, ``group`` in all; compared between ranks."""
    wrapped, samplers = _alive(parameters)
    sharded = any(is_sharded(p) or hasattr(p, "_is_flat_param") for p in parameters)
    shapes = [(name, tuple(p.shape)) for name, p in zip(layers, parameters, strict=False)]
    first = wrapped[0] if wrapped else None
    return Parallel(
        group=group,
        backend=str(torch.distributed.get_backend()),
        wrapper="ddp" if wrapped else "fsdp" if sharded else "",
        model=_digest(shapes),
        dtype=", ".join(sorted({str(p.dtype).removeprefix("torch.") for p in parameters})),
        source=source_digest(),
        find_unused=None if first is None else bool(first.find_unused_parameters),
        static_graph=None if first is None else bool(first.static_graph),
        join=None if first is None else bool(first._join_config.enable),
        sampler=any(sampler.shuffle for sampler in samplers),
    )


def _alive(
    parameters: Sequence[Tensor],
) -> tuple[list[DistributedDataParallel], list[DistributedSampler[Any]]]:
    """Wrappers of the model and samplers of its data, among all live objects; once in a run.

    An optimizer may be made before its model is wrapped, so that nobody has told of the wrapper.
    """
    own = {id(parameter) for parameter in parameters}
    wrapped: list[DistributedDataParallel] = []
    samplers: list[DistributedSampler[Any]] = []
    for one in gc.get_objects():
        kinds = type(one).__mro__  # asking an abstract class takes ten times as long
        if DistributedDataParallel in kinds and any(id(p) in own for p in one.parameters()):
            wrapped.append(one)
        elif DistributedSampler in kinds:
            samplers.append(one)
    return wrapped, samplers


def source_digest() -> str:
    """Eight digits of the script that this process runs; empty where it is no file."""
    path = getattr(sys.modules.get("__main__"), "__file__", None)
    try:
        with open(str(path), "rb") as source:
            return hashlib.sha256(source.read()).hexdigest()[:8]
    except OSError:
        return ""


def _digest(value: object) -> str:
    return hashlib.sha256(repr(value).encode()).hexdigest()[:8]
