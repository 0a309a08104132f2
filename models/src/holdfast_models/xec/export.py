"""Trained models as files for other programs: ONNX for the regressor, ``.pt2`` for the inpainter.

Architecture and scales come from the settings of the run; nothing is given twice.

Shapes: B events, S sensors, C channels.
"""

from __future__ import annotations

import dataclasses
import hashlib
import io
import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from holdfast import HoldfastError
from holdfast.training import resolve

from ..exporting import quiet
from .data.normalization import normalise
from .geometry.layout import SENSORS
from .geometry.survey import geometry_hash
from .loading import Loaded
from .model.masking import valid_of, with_hidden
from .predictions.columns import measured, physical
from .recipe_settings import REGRESSOR_SETTINGS
from .run_settings import InpainterRun, RegressorRun

OPSET = 18
EXPORTS = "exports.json"
"""In the run folder: the checksum of each file that was exported from it."""
_FORMS = {"reg": ".onnx", "inp": ".pt2"}
_CONFIG = "config"


class RegressorGraph(nn.Module):
    """What an exported regressor computes: values in, one tensor per task out."""

    def __init__(self, model: nn.Module, settings: RegressorRun, *, raw: bool) -> None:
        super().__init__()
        self.model, self.raw = model, raw
        self.tasks = tuple(settings.tasks.active())
        self.normalization = settings.normalization

    def forward(self, values_BSC: Tensor) -> tuple[Tensor, ...]:
        """Normalised values, or what sensors measured."""
        if self.raw:
            inputs = normalise(values_BSC[..., 0], values_BSC[..., 1], self.normalization)
            x_BSC, valid_BSC = inputs.x_BSC, valid_of(inputs)
        else:
            x_BSC = values_BSC
            # Sentinels are all that an array of numbers can say about what was measured.
            rules = self.normalization
            sentinels = (rules.sentinel_npho, rules.sentinel_time)
            valid_BSC = torch.stack([x_BSC[..., c] != s for c, s in enumerate(sentinels)], -1)
        found = self.model(x_BSC, valid_BSC=valid_BSC)
        return tuple(found[name].float() for name in self.tasks)


class InpainterGraph(nn.Module):
    """What an exported inpainter computes: raw values in, raw photons out."""

    def __init__(self, model: nn.Module, settings: InpainterRun) -> None:
        super().__init__()
        self.model, self.normalization = model, settings.normalization
        self.npho = settings.model.predict_channels.index("npho")

    def forward(self, raw_BSC: Tensor, mask_BS: Tensor) -> Tensor:
        """Photons, predicted where the mask is true and exactly as given elsewhere."""
        npho_BS, time_BS = raw_BSC.unbind(-1)
        inputs = normalise(npho_BS, time_BS, self.normalization)
        shown = with_hidden(inputs, mask_BS, self.normalization)
        pred_BSC = self.model(shown.x_BSC, mask_BS, shown.npho_valid_BS, valid_of(shown))
        filled_BS = physical(pred_BSC[..., self.npho], self.normalization, "npho")
        return torch.where(mask_BS, filled_BS, npho_BS)


def default_path(loaded: Loaded) -> Path:
    """Where an export of a run goes unless somebody says otherwise."""
    kind = loaded.settings.kind
    if kind not in _FORMS:
        raise HoldfastError(
            f"{loaded.folder} is a run of xec.{kind}; regressors are exported to ONNX and "
            "inpainters to .pt2, the encoder of an autoencoder is used with init.encoder"
        )
    return loaded.folder / f"model{_FORMS[kind]}"


def export(loaded: Loaded, path: Path, *, raw_input: bool = False) -> None:
    """Write the model of a run; complete or not at all.

    Args:
        loaded: the run.
        path: the file.
        raw_input: a regressor that takes what sensors measured and normalises it itself.
    """
    default_path(loaded)
    path.parent.mkdir(parents=True, exist_ok=True)
    model = loaded.model.to("cpu").eval()
    config = json.dumps(_config(loaded, raw_input=raw_input))
    beside = path.with_name(f".{path.name}.writing")
    with torch.no_grad(), quiet():
        if loaded.settings.kind == "reg":
            settings = cast(RegressorRun, loaded.settings)
            _write_onnx(RegressorGraph(model, settings, raw=raw_input), beside, config)
        else:
            graph = InpainterGraph(model, cast(InpainterRun, loaded.settings))
            _write_program(graph, beside, config)
    os.replace(beside, path)
    note = loaded.folder / EXPORTS
    known = json.loads(note.read_text(encoding="utf-8")) if note.exists() else {}
    note.write_text(json.dumps(known | {path.name: _checksum(path)}, indent=2), encoding="utf-8")


class OnnxRegressor(nn.Module):
    """An exported regressor in the place of the model, computed by ONNX Runtime."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        super().__init__()
        self.session = _session(path)
        found = self.session.get_modelmeta().custom_metadata_map.get(_CONFIG)
        if found is None:
            raise HoldfastError(f"{path}: is no ONNX model of `holdfast xec export`")
        self.config: dict[str, Any] = json.loads(found)
        self.settings = _settings_of(self.config)
        self.raw = bool(self.config["raw_input"])

    def forward(self, x_BSC: Tensor, *_: Any, **__: Any) -> dict[str, Tensor]:
        """By task, in its unit, as the model itself; validity is read from the sentinels."""
        values_BSC = x_BSC.float().cpu()
        if self.raw:
            channels = enumerate(("npho", "time"))
            rules = self.settings.normalization
            raw = [measured(values_BSC[..., index], rules, name) for index, name in channels]
            values_BSC = torch.stack(raw, -1)
        return self.run(values_BSC)

    def run(self, values_BSC: Tensor) -> dict[str, Tensor]:
        """What the file says about its own kind of input."""
        names = [one.name for one in self.session.get_outputs()]
        found = self.session.run(names, {"input": values_BSC.contiguous().numpy()})
        pairs = zip(names, found, strict=True)
        return {name.removeprefix("output_"): torch.from_numpy(one) for name, one in pairs}


def load_program(path: Path, folder: Path) -> nn.Module:
    """An exported inpainter; only a file that this run wrote, because loading one runs code."""
    note = folder / EXPORTS
    known = json.loads(note.read_text(encoding="utf-8")) if note.exists() else {}
    if not path.exists():
        raise HoldfastError(f"{path}: is not there; export the run first")
    if _checksum(path) not in known.values():
        raise HoldfastError(
            f"{path}: is not what `holdfast xec export {folder}` wrote; export the run again"
        )
    return torch.export.load(path).module()


def _config(loaded: Loaded, *, raw_input: bool) -> dict[str, Any]:
    return {
        "kind": loaded.settings.kind,
        "format": 1,
        "settings": dataclasses.asdict(loaded.settings),
        "geometry": geometry_hash(),
        "checkpoint": loaded.checkpoint.name,
        "raw_input": raw_input,
    }


def _settings_of(config: Mapping[str, Any]) -> RegressorRun:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "settings.yaml"
        path.write_text(json.dumps(config["settings"]), encoding="utf-8")
        return resolve(REGRESSOR_SETTINGS, str(path), platform="none")


def _write_onnx(graph: RegressorGraph, path: Path, config: str) -> None:
    _need("onnxscript")
    program = torch.onnx.export(
        graph,
        (torch.zeros(2, SENSORS, 2),),
        dynamo=True,
        opset_version=OPSET,
        input_names=["input"],
        output_names=[f"output_{name}" for name in graph.tasks],
        dynamic_shapes=({0: torch.export.Dim("batch")},),
        verbose=False,
    )
    assert program is not None
    program.model.metadata_props[_CONFIG] = config
    program.save(path, external_data=False)


def _write_program(graph: InpainterGraph, path: Path, config: str) -> None:
    batch = torch.export.Dim("batch")
    examples = torch.zeros(2, SENSORS, 2), torch.zeros(2, SENSORS, dtype=torch.bool)
    program = torch.export.export(graph, examples, dynamic_shapes=({0: batch}, {0: batch}))
    buffer = io.BytesIO()  # by name it would want the ending .pt2
    torch.export.save(program, buffer, extra_files={f"{_CONFIG}.json": config})
    path.write_bytes(buffer.getvalue())


def _session(path: str | os.PathLike[str]) -> Any:
    runtime = _need("onnxruntime")
    if not Path(path).is_file():
        raise HoldfastError(f"{path}: there is no such file")
    try:
        return runtime.InferenceSession(os.fspath(path), providers=["CPUExecutionProvider"])
    except Exception as error:
        first = str(error).splitlines()[0][:120]
        raise HoldfastError(f"{path}: ONNX Runtime cannot read it ({first})") from None


def _need(name: str) -> Any:
    try:
        return __import__(name)
    except ImportError:
        raise HoldfastError(
            f'exported models need {name}, which is missing; pip install "holdfast-models[onnx]"'
        ) from None


def _checksum(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
