from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.collections import PolyCollection

from holdfast import Run
from holdfast_models.drawing import Drawn
from holdfast_models.xec.evaluation.scoring import score
from holdfast_models.xec.figures.detector_figures import (
    dead_channels,
    face_weights_figure,
    input_distributions,
    saliency_profile,
)
from holdfast_models.xec.figures.drawing import paper
from holdfast_models.xec.figures.event_display import ShownEvent, event_display, event_of
from holdfast_models.xec.figures.hidden_figures import baselines, reconstruction, residuals
from holdfast_models.xec.figures.learning import learning_curves
from holdfast_models.xec.figures.resolution_figures import resolution
from holdfast_models.xec.figures.tank import draw_tank
from holdfast_models.xec.geometry.layout import FACES, SENSORS

MakeRows = Callable[..., dict[str, Any]]


@pytest.fixture
def npho_S() -> Any:
    return np.random.default_rng(1).exponential(100.0, SENSORS)


def rendered(drawn: Drawn) -> Drawn:
    """Drawn once, at a size that takes no time: every artist has to work."""
    assert drawn.title and drawn.caption.endswith(".") and "nan" not in drawn.title
    drawn.figure.set_layout_engine("none")
    drawn.figure.set_dpi(20)
    drawn.figure.canvas.draw()
    return drawn


def texts(drawn: Drawn) -> str:
    legends = [panel.get_legend() for panel in drawn.figure.axes]
    found = [text.get_text() for one in legends if one is not None for text in one.get_texts()]
    labels = [
        label for panel in drawn.figure.axes for label in (panel.get_xlabel(), panel.get_ylabel())
    ]
    return "\n".join(found + labels)


def test_every_sensor_has_a_cell_and_cells_do_not_overlap() -> None:
    from matplotlib.colors import Normalize

    _, (panel,) = paper()
    cells = draw_tank(
        panel, np.arange(SENSORS) * 1.0, norm=Normalize(0, SENSORS), colours="viridis"
    )
    assert isinstance(cells, PolyCollection) and len(cells.get_paths()) == SENSORS
    corners = [np.asarray(path.vertices)[:-1] for path in cells.get_paths()]
    assert {len(one) for one in corners} == {4, 6} and sum(len(one) == 6 for one in corners) == 146

    def area(one: Any) -> float:
        x, y = one.T
        return 0.5 * abs(float(x @ np.roll(y, 1) - y @ np.roll(x, 1)))

    # No cell is inside another: the centre of each is in its own alone.
    centres = np.array([one.mean(0) for one in corners])
    low, high = (np.array([getattr(one, end)(0) for one in corners]) for end in ("min", "max"))
    for sensor in range(0, SENSORS, 37):
        inside = ((centres > low[sensor] + 1e-6) & (centres < high[sensor] - 1e-6)).all(1)
        assert inside.sum() == 1 and inside[sensor] and area(corners[sensor]) > 1


def test_an_event_is_named_and_its_points_are_drawn(npho_S: Any) -> None:
    npho_S[:60] = 1e10
    event = ShownEvent(npho_S, npho_S * 1e-11, 12, 345, np.array([1.0, 2, 3]),
                       np.array([1.5, 2.5, 3]),
                  0.0528, 0.0531, 0.25)  # fmt: skip
    drawn = rendered(event_display(event, name="worst_events/worst_01"))
    title = drawn.figure.get_suptitle()
    for part in ("run 12", "event 345", "52.80 MeV", "53.10 MeV", "(1.0, 2.0, 3.0)", "loss 0.25"):
        assert part in title
    assert "60 dead" in drawn.caption and {"true", "predicted"} <= set(texts(drawn).split("\n"))
    assert "time [ns]" in texts(drawn) and "photons per sensor" in texts(drawn)


@pytest.mark.parametrize("npho", [1e10, -3.0])
def test_events_that_are_dead_or_dark_are_drawn(npho: float) -> None:
    event = ShownEvent(np.full(SENSORS, npho), np.full(SENSORS, 1e10), true_uvw=np.full(3, np.nan))
    rendered(event_display(event))


def test_an_event_from_arrays_of_batches_and_predictions(npho_S: Any) -> None:
    arrays = {"npho": npho_S, "run": np.int64(3), "event_id": np.int64(4), "uvwFI": np.ones(3)}
    arrays |= {"energy": np.float32(0.05), "pred_u": 1.0, "pred_v": 2.0, "pred_w": 3.0}
    event = event_of(arrays, loss=2.0)
    assert (event.run, event.number, event.loss) == (3, 4, 2.0)
    assert event.true_energy == pytest.approx(0.05) and event.pred_energy is None
    assert event.pred_uvw is not None and event.pred_uvw.tolist() == [1, 2, 3]


@pytest.mark.parametrize("task", ["energy", "angle", "timing", "uvwFI"])
def test_resolution_shows_fits_with_units(make_rows: MakeRows, task: str) -> None:
    rows = make_rows(500)
    rows["pred_energy_log_var"] = rows.pop("energy_log_var")
    drawn = resolution(task, rows)
    assert [one.name for one in drawn] == [f"resolution_{task}"] + ["pulls_energy"] * (
        task == "energy"
    )
    reported = texts(drawn[0])
    unit = {"energy": "MeV", "angle": "deg", "timing": "ps", "uvwFI": "cm"}[task]
    for part in (
        "Gaussian core",
        "double Gaussian",
        r"$\sigma_{eff}$",
        f"[{unit}]",
        "mean residual",
    ):
        assert part in reported
    if task == "energy":
        assert r"\sqrt{(a/\sqrt{E})^2 + b^2 + (c/E)^2}" in reported and "true w [cm]" in reported
    if task == "angle":
        rendered(drawn[0])
        assert "opening angle [deg]" in reported


@pytest.mark.parametrize("count", [0, 1])
def test_resolution_of_few_events_is_drawn(make_rows: MakeRows, count: int) -> None:
    rows = make_rows(3)
    rows["pred_u"][count:] = np.nan
    rows["pred_energy"][count:] = np.inf
    rows = {name: one for name, one in rows.items() if name not in ("true_v", "pred_v", "true_w")}
    for drawn in resolution("energy", rows):
        rendered(drawn)


def test_reconstructions_of_photons(npho_S: Any) -> None:
    hidden = np.arange(SENSORS) % 2 == 0
    drawn = reconstruction(npho_S, hidden, npho_S + 1)
    assert "2,380 sensors were hidden" in drawn.caption and "photons" in texts(drawn)
    dead = np.full(SENSORS, 1e10)
    rendered(reconstruction(dead, hidden, dead))


def test_fillings_and_their_baselines(npho_S: Any) -> None:
    face = np.arange(600) % 6
    truth = npho_S[:600]
    assert "600 hidden sensors" in residuals(truth, truth + 1, face).caption
    rendered(residuals(truth[:1], truth[:1] + 1, face[:1]))
    found = score(
        truth, {"model": truth + 1, "neighbours": truth * 1.2}, face, np.arange(600) // 20
    )
    reported = texts(rendered(baselines(found)))
    assert "model" in reported and "neighbours" in reported and "[photons]" in reported


def test_pictures_of_the_detector(npho_S: Any) -> None:
    dead = np.zeros((4, SENSORS), dtype=bool)
    dead[:, :5], dead[0, 5] = True, True
    assert "5 always (0.1%), 1 at times" in rendered(dead_channels(dead)).caption
    rendered(dead_channels(np.ones(SENSORS, dtype=bool)))
    x = np.stack((npho_S, npho_S), axis=-1)[None]
    valid = np.ones((1, SENSORS), dtype=bool)
    rendered(input_distributions(x, valid, ~valid))
    shares = np.full((2, 6, 2), 1 / 12)
    drawn = rendered(saliency_profile(("energy", "uvwFI u"), shares, run="mine"))
    assert drawn.name == "saliency_profile_mine" and "uvwFI u" in texts(drawn)
    rendered(saliency_profile((), np.zeros((0, 6, 2))))
    rendered(face_weights_figure({"energy": [1.0] * 6}, FACES))


def note(run: Run, kind: str, step: int, data: Mapping[str, Any], *, rank: int = 0) -> None:
    event = {"time": 1.7e9, "rank": rank, "step": step, "kind": kind, "data": data}
    with run.stream_path("events", f"r{rank}").open("a") as file:
        file.write(json.dumps(event) + "\n")


def test_learning_curves_are_read_from_the_record(tmp_path: Path) -> None:
    run = Run.create(tmp_path / "run", {})
    assert learning_curves(run.path) == []
    note(run, "validation", 5, {"loss": "NaN"})
    rendered(learning_curves(run.path)[0])
    for step in (10, 20, 30):
        note(run, "numbers", step, {"loss": 1 / step})
        note(run, "validation", step, {"loss": 2 / step, "uvw_u_res_68pct": 3.0, "best": True})
    note(run, "validation", 30, {"loss": "NaN", "energy_rel_res_68pct": 0.02})
    note(run, "numbers", 30, {"loss": 99.0}, rank=1)
    with run.stream_path("events", "r0").open("a") as file:
        file.write('5\n{"kind": "validation", "step": 40, "da')
    (drawn,) = learning_curves(run.path)
    rendered(drawn)
    reported = texts(drawn)
    assert "lowest validation loss was 0.1" in drawn.caption
    assert "uvw_u_res_68pct" in reported and "relative energy resolution" in reported
