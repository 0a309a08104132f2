"""Reading a checkpoint of either form for live objects whose tensors may be ``DTensor``s."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._dtensor_spec import TensorMeta

from ..file import load
from ..record import data_path, read_record, record_path
from ..tree import flatten, paths, unflatten
from .loading import load_folder
from .places import PartPlace, place_of, sharded_like


def load_for(live: Mapping[str, Any], path: Path, *, rank: int = 0) -> tuple[Any, dict[str, Any]]:
    """Read what this rank needs of a checkpoint, whatever number of ranks has saved it.

    Gives what ``file.load`` does; a tensor that is a ``DTensor`` in the live state comes as one,
    sharded alike, its local part in host memory. State that an optimizer has not made yet is
    sharded as its parameter is.

    Args:
        live: the live state, of ``TrainingState.state``; nothing in it is changed.
        path: a checkpoint of either form.
        rank: of this process.
    """
    like = sharded_like(live)

    def place(name: str, shape: Sequence[int]) -> PartPlace:
        one = _nearest(like, name, shape)
        return (None if one is None else place_of(one, name)) or PartPlace.whole(shape)

    fields = read_record(path)
    if "files" in fields:
        folder = data_path(record_path(path), fields)
        tree, fields = load_folder(folder, rank=rank, place=place)
        shapes = fields["tensors"]
        skeleton, tensors = flatten(tree)
    else:
        tree, fields = load(path)
        skeleton, whole = flatten(tree)
        names = paths(skeleton)
        shapes = {name: (None, one.shape) for name, one in zip(names, whole, strict=True)}
        tensors = [_cut(t, place(name, t.shape)) for name, t in zip(names, whole, strict=True)]
    found: list[Tensor] = []
    for name, part in zip(paths(skeleton), tensors, strict=True):
        one = _nearest(like, name, shapes[name][1]) if name in shapes else None
        found.append(part if one is None else _sharded(part, one))
    return unflatten(skeleton, found), fields


def _nearest(like: Mapping[str, DTensor], name: str, shape: Sequence[int]) -> DTensor | None:
    """The live tensor of that name, or the one that it belongs to, if it has the same shape."""
    while name and name not in like:
        name = name.rpartition(".")[0]
    found = like.get(name)
    return found if found is not None and tuple(found.shape) == tuple(shape) else None


def _cut(tensor: Tensor, place: PartPlace) -> Tensor:
    """The part of a whole tensor at that place."""
    if place.size == tuple(tensor.shape):
        return tensor
    for dimension, (at, length) in enumerate(zip(place.offset, place.size, strict=True)):
        tensor = tensor.narrow(dimension, at, length)
    return tensor.clone()


def _sharded(part: Tensor, like: DTensor) -> Tensor:
    """A local part as a ``DTensor`` that is sharded as another one."""
    meta = TensorMeta(like.shape, like.stride(), part.dtype)
    make: Any = DTensor  # from_local would move the part to the device of the mesh
    return make(part, replace(like._spec, tensor_meta=meta), requires_grad=False)
