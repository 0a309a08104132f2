from __future__ import annotations

import dataclasses
import time

import numpy as np
import pytest
import torch

from holdfast_models.xec.data.light import Deposits, light_on_sensors
from holdfast_models.xec.data.synthetic import dead_sensors, generate, sensors_of
from holdfast_models.xec.geometry import layout, positions
from holdfast_models.xec.geometry.coordinates import angles_of, xyz_of
from holdfast_models.xec.settings import SynthSettings

PLAIN = SynthSettings(clean=True)


@pytest.fixture(scope="module")
def plain():
    return generate(PLAIN, 128)


def test_events_are_the_same_however_they_are_cut(plain) -> None:
    parts = [generate(PLAIN, size, first=at) for at, size in ((0, 50), (50, 20), (70, 58))]
    for key, whole in plain.items():
        assert torch.equal(torch.cat([part[key] for part in parts]), whole), key
    assert not torch.equal(generate(dataclasses.replace(PLAIN, seed=2), 8)["npho"][:8],
                           plain["npho"][:8])  # fmt: skip
    assert len(generate(PLAIN, 0)["npho"]) == 0


def test_yields_are_those_of_the_specification(plain) -> None:
    clean = plain["npho_clean"]
    per_mev = (clean.sum(1) / plain["energy"] / 1e3).mean()
    assert per_mev == pytest.approx(11200, rel=0.05)
    median, most, bright = np.quantile(clean.numpy(), [0.5, 0.9, 0.99])
    assert median == pytest.approx(8, abs=3)
    assert most == pytest.approx(181, rel=0.15)
    assert bright == pytest.approx(1400, rel=0.15)
    assert (clean > 100).float().mean() == pytest.approx(0.15, abs=0.02)
    lit = (plain["npho"] > 100) & ~plain["dead"]
    span = np.ptp(np.quantile(plain["time"][lit].numpy(), [0.01, 0.99]))
    assert span == pytest.approx(13e-9, rel=0.15)
    assert plain["timing"].std() == pytest.approx(2e-9, rel=0.2)


def test_truth_is_consistent(plain) -> None:
    energy, uvw = plain["energy"], plain["uvwFI"]
    assert energy.min() >= 0.015 and energy.max() <= 0.060
    assert (uvw[:, 0].abs() <= 23).all() and (uvw[:, 1].abs() <= 66).all()
    assert (uvw[:, 2] >= 0).all() and (uvw[:, 2] <= 38).all()
    np.testing.assert_allclose(plain["xyzTruth"], xyz_of(uvw), atol=1e-4)
    direction = plain["angleVec"].numpy()
    np.testing.assert_allclose(np.linalg.norm(direction, axis=1), 1, atol=1e-6)
    np.testing.assert_allclose(plain["angle"], angles_of(direction), atol=1e-3)
    np.testing.assert_allclose(
        plain["xyzVTX"].numpy() + 70 * direction, plain["xyzTruth"], atol=1e-3
    )
    radial = plain["xyzTruth"].numpy() * [1, 1, 0]
    cos = (direction * radial).sum(1) / np.linalg.norm(radial, axis=1)
    assert cos.min() >= np.cos(np.radians(35)) - 1e-6
    # Even over a cone: the cosine is.
    assert cos.mean() == pytest.approx((1 + np.cos(np.radians(35))) / 2, abs=0.02)


def test_photons_from_the_target_come_from_the_target() -> None:
    made = generate(SynthSettings(source="target", energy="mono"), 64)
    assert torch.allclose(made["energy"], torch.tensor(0.0528))
    vertex, way = made["xyzVTX"], made["xyzTruth"] - made["xyzVTX"]
    assert (vertex[:, :2].abs() < 5).all()
    slope = vertex[:, 2] - vertex[:, 0] / np.tan(np.radians(15))
    assert slope.std() == pytest.approx(0.3, rel=0.5)
    assert torch.allclose(torch.nn.functional.normalize(way, dim=-1), made["angleVec"], atol=1e-5)
    wide = generate(SynthSettings(energy="mono", energy_width=2.0), 64)["energy"]
    assert wide.std() == pytest.approx(2e-3, rel=0.4)


def test_light_of_a_shower_is_spread_and_some_of_it_lost() -> None:
    shower, point = (generate(SynthSettings(deposit=kind), 64) for kind in ("shower", "point"))
    peak = {}
    for name, made in (("shower", shower), ("point", point)):
        clean = made["npho"].masked_fill(made["dead"], 0.0)
        peak[name] = (clean[:, :4092].amax(1) / clean.sum(1)).median()
    assert peak["point"] > 1.2 * peak["shower"]


def plain_light(sensors, xyz, light):
    """Mean photons of section 16, in float64, one deposit after the other."""
    where, normal = positions.positions(), positions.normals()
    total = np.zeros(layout.SENSORS)
    for place, photons in zip(xyz, light, strict=True):
        way = place - where
        d = np.linalg.norm(way, axis=1)
        cos = np.maximum((normal * way).sum(1) / d, 0)
        f = 0.5 * (1 - 1 / np.sqrt(1 + positions.areas() * cos / (np.pi * d**2)))
        total += photons * f * np.exp(-d / 150)
    return total + 0.02 * total.sum() * positions.areas() / positions.areas().sum()


def test_light_agrees_with_a_plain_computation() -> None:
    uvw = np.array([[3.0, -20.0, 2.0], [4.0, -18.0, 6.0], [-10.0, 40.0, 30.0]])
    xyz, light = xyz_of(uvw).numpy(), np.array([1e6, 4e5, 0.0])
    sensors = sensors_of(PLAIN)
    deposits = Deposits(
        torch.tensor(xyz, dtype=torch.float32)[None],
        torch.tensor(light, dtype=torch.float32)[None],
        torch.tensor([[0.0, 0.2, 0.0]]),
    )
    mean, arrival = light_on_sensors(sensors, deposits, exact=False)
    np.testing.assert_allclose(mean[0], plain_light(sensors, xyz, light), rtol=1e-4, atol=1e-3)
    distance = np.linalg.norm(xyz[:, None] - positions.positions(), axis=2)
    near = distance[0] < 10
    np.testing.assert_allclose(arrival[0][near], distance[0][near] / 12, rtol=1e-5)
    # No deposit without light sets a time, however near it is.
    assert (arrival[0].numpy() >= distance[:2].min(0) / 12 - 1e-5).all()


@pytest.mark.parametrize("height", [0.3, 1.0, 4.0])
def test_the_four_chips_have_the_solid_angle_of_four_chips(height: float) -> None:
    sensor = int(layout.inner()[46, 22])
    where, normal = positions.positions()[sensor], positions.normals()[sensor]
    along = np.array([-normal[1], normal[0], 0.0])
    place = where + height * normal + 0.4 * along + [0, 0, 0.2]
    edges = np.linspace(0.025, 0.615, 400)
    middle = (edges[1:] + edges[:-1]) / 2
    cells = np.concatenate((-middle[::-1], middle))
    a, b = np.meshgrid(cells - 0.4, cells - 0.2)
    omega = (height / (a**2 + b**2 + height**2) ** 1.5).sum() * (edges[1] - edges[0]) ** 2
    deposits = Deposits(
        torch.tensor(place, dtype=torch.float32)[None, None],
        torch.full((1, 1), 1e6),
        torch.zeros(1, 1),
    )
    found, _ = light_on_sensors(sensors_of(PLAIN), deposits, exact=True)
    disc, _ = light_on_sensors(sensors_of(PLAIN), deposits, exact=False)
    expected = 1e6 * omega / (4 * np.pi) * np.exp(-np.linalg.norm(place - where) / 150)
    diffuse = 0.02 * float(found.sum()) / 1.02 * 1.392 / positions.areas().sum()
    assert float(found[0, sensor]) - diffuse == pytest.approx(expected, rel=2e-3)
    far = torch.from_numpy(np.linalg.norm(positions.positions() - place, axis=1) > 12)
    torch.testing.assert_close(found[0][far], disc[0][far], rtol=0.02, atol=5.0)


def test_dead_sensors_have_no_values_and_are_the_same_in_all_events(plain) -> None:
    dead = plain["dead"]
    assert int(dead[0].sum()) == 61 and (dead == dead[0]).all()
    for key in ("npho", "time", "relative_time"):
        assert (plain[key][dead] == 1e10).all() and (plain[key][~dead] < 9e9).all()
    assert (plain["npho_clean"].abs() < 1e7).all()


def test_dead_clusters_and_changes_from_run_to_run() -> None:
    some = SynthSettings(dead_share=0.0, dead_blocks=1, dead_rows=1, dead_per_run=7, run_events=40)
    always = dead_sensors(some)
    image = always[torch.from_numpy(layout.inner())].int()
    blocks = image[:-1, :-1] + image[1:, :-1] + image[:-1, 1:] + image[1:, 1:]
    assert int(always.sum()) in range(8, 13) and int(blocks.max()) == 4
    assert int(image.unfold(1, 8, 1).sum(-1).max()) == 8
    made = generate(some, 80)
    first, second = made["dead"][0], made["dead"][79]
    assert made["run"].tolist() == [1] * 40 + [2] * 40
    assert (first & always).equal(always) and not first.equal(second)
    assert int((first & ~always).sum()) in range(1, 8)
    assert torch.equal(dead_sensors(some, 2), second)


def test_relative_times_begin_with_the_first_sensor_that_has_light(plain) -> None:
    lit = (plain["npho"] > 50) & ~plain["dead"]
    earliest = torch.where(lit, plain["relative_time"], torch.inf).amin(1)
    assert (earliest == 0).all()


def test_pile_up_adds_a_second_photon() -> None:
    alone, with_more = generate(SynthSettings(), 64), generate(SynthSettings(pileup=0.5), 64)
    assert (alone["n_gamma"] == 1).all()
    two = with_more["n_gamma"] == 2
    assert 15 < int(two.sum()) < 50
    light = with_more["npho"].masked_fill(with_more["dead"], 0.0).sum(1) / with_more["energy"]
    assert light[two].mean() > 1.5 * light[~two].mean()


def test_corrupted_events_hold_values_that_are_no_numbers() -> None:
    made = generate(SynthSettings(corrupted=0.5), 64)
    for key in ("npho", "time"):
        values = made[key]
        assert values.isnan().any() and (values == torch.inf).any() and (values == -torch.inf).any()
        assert 15 < int((~values.isfinite()).any(1).sum()) < 50


@pytest.mark.gpu
def test_a_gpu_makes_more_than_five_thousand_events_a_second(plain) -> None:
    generate(PLAIN, 64, device="cuda")
    torch.cuda.synchronize()
    begin = time.perf_counter()
    made = generate(PLAIN, 4096, device="cuda")
    torch.cuda.synchronize()
    assert 4096 / (time.perf_counter() - begin) > 5000
    assert torch.equal(made["dead"][0].cpu(), plain["dead"][0])
    per_mev = (made["npho_clean"].sum(1) / made["energy"] / 1e3).mean()
    assert per_mev.item() == pytest.approx(11200, rel=0.05)
