"""A trained network as a file that needs none of this code: ``.pt2`` or ONNX.

The file holds the full forward of a batch of any size: tokens, images or signals in, logits or
signals out. The length of a sequence is that of training, because a recurrence is written out.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from holdfast import HoldfastError

from ..answers import reported_as
from ..exporting import quiet
from .loading import Loaded
from .model.model import LiquidNet, Sizes

_ALLOWED = 1e-3  # difference of an output, in units of the spread of all
_OFTEN = 0.01  # share that may differ by more: a spike at its threshold may fall either way
_BATCHES = (2, 1, 5)  # the first is what the file is made from


class _Graph(nn.Module):
    """What the file computes."""

    def __init__(self, net: LiquidNet) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: Tensor, dt_BT: Tensor | None = None) -> Tensor:
        return self.net(x, None, dt_BT).y_BTV


class Verification(NamedTuple):
    """How far the file is from the model."""

    file: str
    worst: float  # difference, in units of the spread of the outputs
    apart: float  # share of outputs that differ by more than is allowed

    @property
    def ok(self) -> bool:
        """NaN is not."""
        return self.apart <= _OFTEN

    def line(self) -> str:
        """For people."""
        return (
            f"{self.file} {'agrees' if self.ok else 'DOES NOT agree'} with the model: largest "
            f"difference {self.worst:.2g} of the spread, {self.apart:.2%} above {_ALLOWED:g}"
        )


def export(loaded: Loaded, path: Path) -> Verification:
    """Write the network of a run, complete or not at all, and compare the file with it."""
    writers = {".pt2": _write_program, ".onnx": _write_onnx}
    if path.suffix not in writers:
        raise HoldfastError(f"{path}: name a file that ends in .pt2 or .onnx")
    graph = _Graph(loaded.net.cpu().eval())
    length = loaded.settings.data.sequence_length
    given = [_examples(loaded.net.sizes, length, rows) for rows in _BATCHES]
    beside = path.with_name(f".{path.name}.writing")
    try:
        with torch.no_grad(), reported_as(str(path)):
            with quiet():
                call = writers[path.suffix](graph, given[0], beside)
            own = torch.cat([graph(*inputs).flatten() for inputs in given])
            theirs = torch.cat([call(*inputs).flatten() for inputs in given])
            os.replace(beside, path)
    except ImportError as error:
        raise HoldfastError(
            f'ONNX needs {error.name}, which is missing; pip install "holdfast-models[onnx]"'
        ) from None
    off = (own - theirs).abs() / own.std()
    near = off <= _ALLOWED  # NaN is not
    return Verification(str(path), float(off.max()), 1 - float(near.float().mean()))


def _examples(sizes: Sizes, length: int, rows: int) -> tuple[Tensor, ...]:
    """What a network of these sizes can be called with."""
    generator = torch.Generator().manual_seed(rows)
    if sizes.task == "llm":
        return (torch.randint(0, sizes.inputs, (rows, length), generator=generator),)
    if sizes.task == "vision":
        shape = (rows, sizes.inputs, sizes.side, sizes.side)
        return (torch.rand(shape, generator=generator),)
    x_BTI = torch.randn((rows, length, sizes.inputs), generator=generator)
    return x_BTI, 0.5 + torch.rand((rows, length), generator=generator)


def _write_program(graph: _Graph, inputs: tuple[Tensor, ...], path: Path) -> Callable[..., Tensor]:
    program = torch.export.export(graph, inputs, dynamic_shapes=_any_batch(inputs))
    with path.open("wb") as file:  # by name it would want the ending .pt2
        torch.export.save(program, file)
    with path.open("rb") as file:
        return torch.export.load(file).module()


def _write_onnx(graph: _Graph, inputs: tuple[Tensor, ...], path: Path) -> Callable[..., Tensor]:
    import onnxruntime

    shapes = _any_batch(inputs)
    try:
        program = torch.onnx.export(
            graph, inputs, dynamo=True, opset_version=18, verbose=False,
            input_names=[*shapes], output_names=["output"], dynamic_shapes=shapes,
        )  # fmt: skip
    except torch.onnx.OnnxExporterError as error:
        first = str(error).splitlines()[0][:160]
        raise HoldfastError(f"this network has no form in ONNX ({first}); write .pt2") from None
    assert program is not None
    program.save(path, external_data=False)
    session: Any = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])

    def call(*given: Tensor) -> Tensor:
        named = {name: one.numpy() for name, one in zip(shapes, given, strict=True)}
        return torch.from_numpy(session.run(None, named)[0])

    return call


def _any_batch(inputs: tuple[Tensor, ...]) -> dict[str, Any]:
    return {name: {0: torch.export.Dim("batch")} for name, _ in zip(("x", "dt_BT"), inputs)}  # noqa: B905
