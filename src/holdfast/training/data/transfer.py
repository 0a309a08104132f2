"""Batches on their way to the device, without making the step that still runs wait.

Batches stay on the CPU until the step that needs them. On a GPU the copy runs on a stream of its
own, beside the kernels of the step before; the stream of the model waits for it, the host never
does. That takes pinned memory: from pageable memory CUDA copies in its own time.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar, cast

import torch
from torch import Tensor

B = TypeVar("B")


class Transfer:
    """Brings batches to one device: ``batch = transfer(batch)``.

    >>> x, names = Transfer(torch.device("cpu"))((torch.ones(2), ["a", "b"]))
    >>> x, names
    (tensor([1., 1.]), ['a', 'b'])
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._stream: torch.cuda.Stream | None = None

    def __call__(self, batch: B) -> B:
        """The same batch with its tensors on the device; what lies there already is not copied."""
        if self.device.type == "cpu":
            return batch
        if self.device.type == "cuda" and self._stream is None:
            self._stream = torch.cuda.Stream(self.device)
        return to_device(batch, self.device, self._stream)


def to_device(batch: B, device: torch.device, stream: torch.cuda.Stream | None = None) -> B:
    """Move every tensor of a nested batch; tuples, lists, dicts and dataclasses keep their kind.

    Args:
        batch: anything; what is no tensor and holds none stays as it is.
        device: where to.
        stream: a CUDA stream to copy on, beside the current one, which waits for it.
    """
    if stream is None:
        return changed(batch, lambda value: value.to(device, non_blocking=True))
    main = torch.cuda.current_stream(device)

    def move(value: Any) -> Any:
        if isinstance(value, Tensor):
            return value.to(device, non_blocking=True)
        with torch.cuda.stream(main):  # what it holds cannot be told to the allocator
            return value.to(device, non_blocking=True)

    with torch.cuda.stream(stream):
        moved = changed(batch, move)
        ready = stream.record_event()
    main.wait_event(ready)
    for tensor in tensors(moved):
        if tensor.is_cuda:
            # The memory belongs to the side stream: without this it would be handed out there
            # again as soon as the host lets go, while kernels of the main stream still read it.
            tensor.record_stream(main)
    return moved


def tensors(batch: Any) -> Iterator[Tensor]:
    """Every tensor in a nested batch, in its order."""
    if isinstance(batch, Tensor):
        yield batch
        return
    for part in _parts(batch):
        yield from tensors(part)


def leaves(batch: Any) -> Iterator[Any]:
    """Every part of a nested batch that has no parts of its own, in its order.

    >>> [type(one).__name__ for one in leaves({"x": torch.ones(2), "names": ["a", "b"]})]
    ['Tensor', 'str', 'str']
    """
    parts = [] if is_leaf(batch) else _parts(batch)
    if not parts:
        yield batch
    for part in parts:
        yield from leaves(part)


def count(batch: Any) -> int:
    """How many samples a batch holds: the length of its first tensor, or 1 where there is none.

    >>> count({"name": "x", "pixels": torch.zeros(3, 8, 8)})
    3
    """
    for tensor in tensors(batch):
        return tensor.shape[0] if tensor.ndim else 1
    return 1


def _parts(batch: Any) -> list[Any]:
    if isinstance(batch, Mapping):
        return list(cast(Mapping[Any, Any], batch).values())
    if isinstance(batch, list | tuple):
        return list(cast("list[Any]", batch))
    if dataclasses.is_dataclass(batch) and not isinstance(batch, type):
        return [getattr(batch, field.name) for field in dataclasses.fields(batch)]
    return []


def is_leaf(value: Any) -> bool:
    """Whether it is a tensor or moves itself, as a packed sequence or a graph does.

    What moves itself knows best which of its tensors stay behind.
    """
    return isinstance(value, Tensor) or callable(getattr(value, "to", None))


def changed(batch: Any, change: Callable[[Any], Any], leaf: Callable[[Any], bool] = is_leaf) -> Any:
    """The batch with every leaf changed; parts that stay the same are not made anew."""
    if leaf(batch):
        return change(batch)
    parts = _parts(batch)
    fresh = [changed(part, change, leaf) for part in parts]
    if all(new is old for new, old in zip(fresh, parts, strict=True)):
        return batch
    if isinstance(batch, Mapping):
        return _mapping(cast(Mapping[Any, Any], batch), fresh)
    if isinstance(batch, tuple):
        # A namedtuple takes its parts one by one.
        return type(batch)(*fresh) if hasattr(batch, "_fields") else type(batch)(fresh)
    if isinstance(batch, list):
        return fresh if type(batch) is list else type(batch)(fresh)
    return _dataclass(batch, fresh)


def _mapping(batch: Mapping[Any, Any], changed: list[Any]) -> Any:
    values = dict(zip(batch, changed, strict=True))
    if type(batch) is dict:
        return values
    try:
        copied = cast(Any, batch).copy()  # a defaultdict or a tokenizer's batch keeps its extras
        copied.update(values)
    except (AttributeError, TypeError):
        return values
    return copied


def _dataclass(batch: Any, changed: list[Any]) -> Any:
    names = [field.name for field in dataclasses.fields(batch)]
    copied = object.__new__(type(batch))  # past __init__ and its checks: the values are the same
    values = {**getattr(batch, "__dict__", {}), **dict(zip(names, changed, strict=True))}
    for name, value in values.items():
        object.__setattr__(copied, name, value)
    return copied
