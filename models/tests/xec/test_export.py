"""Exported models: the same numbers as the model, whatever the batch; a wrong file is noticed."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from holdfast import HoldfastError
from holdfast_models.xec.assembly import make_model
from holdfast_models.xec.data.normalization import NOT_AVAILABLE, normalise
from holdfast_models.xec.export import (
    EXPORTS,
    InpainterGraph,
    OnnxRegressor,
    RegressorGraph,
    default_path,
    export,
    load_program,
)
from holdfast_models.xec.loading import Loaded
from holdfast_models.xec.model.masking import valid_of
from holdfast_models.xec.run_settings import InpainterRun, MaeRun, RegressorRun
from holdfast_models.xec.settings import (
    NORMALIZATIONS,
    DataSettings,
    InpainterSettings,
    NormalizationSettings,
    RegressorSettings,
    TaskSettings,
    TasksSettings,
)
from holdfast_models.xec.verification import ALLOWED, SameEvents, Verification, verify

NORM = NormalizationSettings(**NORMALIZATIONS["synthetic"])
SIZE: dict[str, Any] = {"encoder_dim": 64, "num_fusion_layers": 1, "outer_fine_pool": (3, 3)}


@pytest.fixture(autouse=True)
def one_thread() -> Any:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def regressor(folder: Path, seed: int = 0, **model: Any) -> Loaded:
    settings = RegressorRun(
        data=DataSettings(time_branch="time"),
        normalization=NORM,
        model=RegressorSettings(**(SIZE | model), hidden_dim=16),
        tasks=TasksSettings(
            energy=TaskSettings(enabled=True, loss_fn="gaussian_nll", loss_beta=0.005),
            timing=TaskSettings(enabled=True, loss_beta=1e-10),
        ),
    )
    return _loaded("reg", settings, folder, seed)


def inpainter(folder: Path, head: Any = "cross_attention", **model: Any) -> Loaded:
    settings = InpainterRun(
        normalization=NORM,
        model=InpainterSettings(
            **(SIZE | model), head_type=head, freeze_encoder=False, cross_attn_hidden=8
        ),
    )
    return _loaded("inp", settings, folder, 0)


def _loaded(kind: str, settings: Any, folder: Path, seed: int) -> Loaded:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = make_model(settings).eval()
    folder.mkdir(parents=True, exist_ok=True)
    return Loaded(settings, model, folder / "step-0000000001.safetensors", folder)


def raw(synth: Any, count: int) -> torch.Tensor:
    return torch.stack((synth.events["npho"][:count], synth.events["time"][:count]), -1)


# ------------------------------------------------------------------ what is computed


@torch.no_grad()
def test_the_graph_reads_validity_from_sentinels_as_the_model_from_masks(
    tmp_path: Path, synth: Any
) -> None:
    loaded, values = regressor(tmp_path), raw(synth, 3)
    inputs = normalise(values[..., 0], values[..., 1], NORM)
    wanted = loaded.model(inputs.x_BSC, valid_BSC=valid_of(inputs))
    settings: Any = loaded.settings
    for graph, given in (
        (RegressorGraph(loaded.model, settings, raw=False), inputs.x_BSC),
        (RegressorGraph(loaded.model, settings, raw=True), values),
    ):
        found = dict(zip(graph.tasks, graph(given), strict=True))
        assert found.keys() == wanted.keys() == {"energy", "timing"}
        assert found["energy"].shape == (3, 2)
        for name, one in found.items():
            torch.testing.assert_close(one, wanted[name])


@torch.no_grad()
def test_an_inpainter_fills_what_is_masked_and_leaves_the_rest(tmp_path: Path, synth: Any) -> None:
    graph = InpainterGraph(inpainter(tmp_path).model, _settings(tmp_path))
    for count in (1, 7):
        values = raw(synth, count)
        mask = torch.zeros(count, 4760, dtype=torch.bool)
        mask[:, ::50] = True
        found = graph(values, mask)
        assert torch.equal(found[~mask], values[..., 0][~mask]), "1e10 of others stays as well"
        assert found[mask].isfinite().all() and (found[mask] < 1e9).all()
        other = values.clone()
        other[..., 0][mask] = 123.0
        assert torch.equal(graph(other, mask), found), "what is masked is not looked at"


def _settings(folder: Path) -> Any:
    return inpainter(folder).settings


def test_only_regressors_and_inpainters_are_exported(tmp_path: Path) -> None:
    loaded = regressor(tmp_path)
    assert default_path(loaded).name == "model.onnx"
    assert default_path(inpainter(tmp_path)).name == "model.pt2"
    with pytest.raises(HoldfastError, match=r"run of xec\.mae"):
        default_path(loaded._replace(settings=MaeRun()))


def test_a_difference_or_a_change_elsewhere_is_no_agreement() -> None:
    good = SameEvents("synthetic", 64, 0.5 * ALLOWED)
    assert Verification(Path("m"), [good]).ok
    for bad in (good._replace(worst=2 * ALLOWED), good._replace(worst=float("nan")),
                good._replace(unchanged=False)):  # fmt: skip
        found = Verification(Path("m"), [good, bad])
        assert not found.ok and not found.plain()["ok"] and "DOES NOT" in found.lines()[-1]


def test_a_program_of_unknown_origin_is_not_loaded(tmp_path: Path) -> None:
    path = tmp_path / "model.pt2"
    with pytest.raises(HoldfastError, match="is not there"):
        load_program(path, tmp_path)
    path.write_bytes(b"anything at all")
    (tmp_path / EXPORTS).write_text(json.dumps({"model.pt2": "0" * 64}))
    with pytest.raises(HoldfastError, match="is not what"):
        load_program(path, tmp_path)


def test_files_that_are_no_models_are_refused_in_a_line(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    path = tmp_path / "model.onnx"
    with pytest.raises(HoldfastError, match="no such file"):
        OnnxRegressor(path)
    path.write_bytes(b"this is not ONNX")
    with pytest.raises(HoldfastError, match="cannot read it"):
        OnnxRegressor(path)


# ------------------------------------------------------------------ whole files


class Sums(nn.Module):
    """In the place of a regressor, whose graph takes twenty seconds to write."""

    def __init__(self, whole: nn.Module) -> None:
        super().__init__()
        self.targets = whole.targets
        self.last = nn.Linear(2, 3)

    def forward(self, x_BSC: Tensor, *, valid_BSC: Tensor) -> dict[str, Tensor]:
        said_B3 = self.last(torch.where(valid_BSC, x_BSC, 0.5).mean(1))
        return {"energy": said_B3[:, :2], "timing": 1e-9 * said_B3[:, 2:]}


@pytest.mark.parametrize(
    "whole", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["small", "whole"]
)
def test_a_regressor_as_onnx_says_the_same_and_names_its_inputs(
    tmp_path: Path, synth: Any, whole: bool
) -> None:
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    onnx: Any = pytest.importorskip("onnx")

    def made(folder: str, seed: int) -> Loaded:
        one = regressor(tmp_path / folder, seed)
        torch.manual_seed(seed)
        return one if whole else one._replace(model=Sums(one.model))

    loaded, path = made("run", 0), tmp_path / "out" / "model.onnx"
    export(loaded, path)
    assert [one.name for one in path.parent.iterdir()] == ["model.onnx"], "nothing half written"
    found = verify(loaded, path)
    assert found.ok, found.lines()
    assert [(c.name, c.events) for c in found.cases] == [
        ("synthetic", 64), ("all dead", 2), ("none dead", 4), ("batch of 1", 1), ("batch of 7", 7),
    ]  # fmt: skip
    assert not verify(made("other", 1), path).ok, "other weights are noticed"

    model = onnx.load(path)
    assert [one.name for one in model.graph.input] == ["input"]
    assert [one.name for one in model.graph.output] == ["output_energy", "output_timing"]
    sizes = [
        one.dim_value or one.dim_param for one in model.graph.input[0].type.tensor_type.shape.dim
    ]
    assert sizes == ["batch", 4760, 2] and model.opset_import[0].version >= 18
    config = json.loads({one.key: one.value for one in model.metadata_props}["config"])
    assert config["settings"]["model"]["outer_fine_pool"] == [3, 3], "as it was trained"

    exported = OnnxRegressor(path)
    assert exported.settings == loaded.settings
    values = raw(synth, 5)
    inputs = normalise(values[..., 0], values[..., 1], NORM)
    with torch.no_grad():
        wanted = loaded.model(inputs.x_BSC, valid_BSC=valid_of(inputs))["energy"]
    said = exported(inputs.x_BSC, valid_BSC=None)["energy"]
    torch.testing.assert_close(said, wanted, rtol=1e-4, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("pool", [None, (2, 2)])
def test_raw_input_is_normalised_inside_the_file(tmp_path: Path, synth: Any, pool: Any) -> None:
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    loaded, path = regressor(tmp_path / "run", outer_fine_pool=pool), tmp_path / "model.onnx"
    export(loaded, path, raw_input=True)
    assert verify(loaded, path).ok
    exported, values = OnnxRegressor(path), raw(synth, 2)
    x = normalise(values[..., 0], values[..., 1], NORM).x_BSC
    torch.testing.assert_close(exported(x)["energy"], exported.run(values)["energy"],
                               rtol=1e-4, atol=1e-5)  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(
    ("head", "channels"),
    [
        ("cross_attention", ("npho",)),
        ("per_face", ("npho", "time")),
        ("masked_attention", ("npho",)),
    ],
)
def test_an_inpainter_as_a_program_says_the_same(tmp_path: Path, head: Any, channels: Any) -> None:
    loaded = inpainter(tmp_path, head, predict_channels=channels)
    path = default_path(loaded)
    export(loaded, path)
    found = verify(loaded, path)
    assert found.ok, found.lines()
    other = dataclasses.replace(loaded.settings, normalization=NormalizationSettings())
    assert not verify(loaded._replace(settings=other), path).ok
    program = load_program(path, tmp_path)
    dead = torch.full((3, 4760, 2), NOT_AVAILABLE)
    assert program(dead, torch.zeros(3, 4760, dtype=torch.bool)).eq(NOT_AVAILABLE).all()
