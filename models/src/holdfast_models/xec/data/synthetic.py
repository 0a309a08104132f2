"""Events of photons in liquid xenon: energy deposits, light on sensors, counts and times.

Event n of a seed is the same however many are asked for at once: random numbers belong to
groups of ``GROUP`` events. Gains and dead sensors follow from the seed too, so that all events of
a set share them.

Lengths in cm, times in ns, energies in MeV; what comes out is in the units of files. Shapes:
B events of a group, K deposits, S sensors.
"""

from __future__ import annotations

import hashlib
import math
from typing import NamedTuple

import torch
from torch import Tensor

from ..geometry import layout, positions
from ..geometry.coordinates import angles_of, in_xenon
from ..settings import SynthSettings
from .light import Deposits, Sensors, light_on_sensors
from .normalization import NOT_AVAILABLE

GROUP = 64
"""Events that are made together: small enough for the caches of a CPU."""

_DEPOSITS = 8
_FLAT = 15.0, 60.0
_U, _V, _W_MEAN, _W_MOST = 23.0, 66.0, 4.2, 38.0  # of the first interaction
_CONE, _BACK = 35.0, 70.0  # degrees of the gun; how far back its vertex is
_TARGET_XY, _TARGET_Z, _TARGET_SLOPE = 0.8, 0.3, 15.0  # widths of the vertex; degrees
_PHOTONS, _PHOTON_SPREAD = 34500.0, 0.006  # per MeV
_EXCESS = 0.2  # of the variance of photoelectrons
_EVENT_TIME, _PILEUP_TIME, _DARK_TIME = 2.0, 50.0, 60.0
_SIGMA_ONE, _SIGMA_LEAST = 2.2, 0.06  # of the time of one photoelectron, and of many
_FEWEST = 3  # photoelectrons for a time
_REFERENCE = 50.0  # photons of a sensor that relative times may begin with
_CORRUPTED_SENSORS = 0.01  # of a corrupted event


class Photon(NamedTuple):
    """Gamma rays that enter, and where their energy goes."""

    mev_B: Tensor
    uvw_B3: Tensor
    xyz_B3: Tensor
    vertex_B3: Tensor
    direction_B3: Tensor
    deposits: Deposits


def generate(
    settings: SynthSettings, count: int, *, first: int = 0, device: torch.device | str = "cpu"
) -> dict[str, Tensor]:
    """Events ``first`` to ``first + count`` of a set, as a raw batch with everything known."""
    sensors = sensors_of(settings, device)
    groups = []
    for number in range(first // GROUP, -(-(first + count) // GROUP)):
        made = _group(settings, sensors, number)
        low, high = (min(max(n - number * GROUP, 0), GROUP) for n in (first, first + count))
        groups.append({key: value[low:high] for key, value in made.items()})
    if not groups:
        groups = [{key: value[:0] for key, value in _group(settings, sensors, 0).items()}]
    return {key: torch.cat([group.pop(key) for group in groups]) for key in tuple(groups[0])}


def sensors_of(settings: SynthSettings, device: torch.device | str = "cpu") -> Sensors:
    """The sensors of a set: their places, gains and efficiencies."""
    random = _Random(settings.seed, "gains", 0, "cpu")
    sipm_S = torch.from_numpy(positions.is_sipm())
    return Sensors(
        xyz_S3=torch.from_numpy(positions.positions().copy()).float().to(device),
        normal_S3=torch.from_numpy(positions.normals().copy()).float().to(device),
        area_S=torch.from_numpy(positions.areas().copy()).float().to(device),
        efficiency_S=torch.where(sipm_S, 0.12, 0.16).to(device),
        noise_S=torch.where(sipm_S, 12.0, 4.0).to(device),
        gain_S=(1 + 0.02 * random.normal(layout.SENSORS)).to(device),
    )


def dead_sensors(settings: SynthSettings, run: int | None = None) -> Tensor:
    """Which sensors are dead, in every run or in one of them."""
    random = _Random(settings.seed, "dead", 0, "cpu")
    dead_S = torch.zeros(layout.SENSORS, dtype=torch.bool)
    dead_S[random.order(layout.SENSORS)[: int(settings.dead_share * layout.SENSORS)]] = True
    inner = torch.from_numpy(layout.inner())
    for number, (rows, columns) in ((settings.dead_blocks, (2, 2)), (settings.dead_rows, (1, 8))):
        for _ in range(number):
            row, column = random.below(inner.shape[0] // rows), random.below(44 // columns)
            block = inner[row * rows : (row + 1) * rows, column * columns : (column + 1) * columns]
            dead_S[block.flatten()] = True
    if run is not None and settings.dead_per_run:
        own = _Random(settings.seed, "dead in run", run, "cpu").order(layout.SENSORS)
        dead_S[own[: settings.dead_per_run]] = True
    return dead_S


def _group(settings: SynthSettings, sensors: Sensors, number: int) -> dict[str, Tensor]:
    random = _Random(settings.seed, "events", number, sensors.xyz_S3.device)
    photon = _photon(settings, random)
    deposits, n_gamma_B = photon.deposits, torch.ones_like(photon.mev_B).long()
    if settings.pileup:
        second = _photon(settings, random).deposits
        there_B1 = random.uniform(GROUP, 1) < settings.pileup
        offset_B1 = random.uniform(GROUP, 1, low=-_PILEUP_TIME, high=_PILEUP_TIME)
        second = Deposits(second.xyz_BK3, second.light_BK * there_B1, second.ns_BK + offset_B1)
        deposits = Deposits(*(torch.cat(parts, 1) for parts in zip(deposits, second, strict=True)))
        n_gamma_B = n_gamma_B + there_B1[:, 0]
    light_B1 = _PHOTONS * (1 + _PHOTON_SPREAD * random.normal(GROUP, 1))
    deposits = deposits._replace(light_BK=deposits.light_BK * light_B1)
    mean_BS, arrival_BS = light_on_sensors(sensors, deposits, exact=settings.exact_solid_angle)
    event_B1 = _EVENT_TIME * random.normal(GROUP, 1)
    npho_BS, time_BS = _measured(sensors, random, mean_BS, arrival_BS.add_(event_B1))
    index_B = torch.arange(number * GROUP, (number + 1) * GROUP, device=npho_BS.device)
    run_B = 1 + index_B // settings.run_events
    made = _with_dead(settings, npho_BS, time_BS, run_B)
    if settings.corrupted:
        _corrupt(made, random, settings.corrupted)
    return made | {
        "energy": photon.mev_B * 1e-3,
        "timing": event_B1[:, 0] * 1e-9,
        "uvwFI": photon.uvw_B3,
        "xyzTruth": photon.xyz_B3,
        "xyzVTX": photon.vertex_B3,
        "angle": angles_of(photon.direction_B3),
        "angleVec": photon.direction_B3,
        "n_gamma": n_gamma_B,
        "run": run_B,
        "event": index_B,
    }


def _photon(settings: SynthSettings, random: _Random) -> Photon:
    if settings.energy == "flat":
        mev_B = random.uniform(GROUP, low=_FLAT[0], high=_FLAT[1])
    else:
        # A width that is not small must not make an energy of nothing or less.
        spread_B = settings.energy_width * random.normal(GROUP)
        mev_B = (settings.energy_mev + spread_B).clamp_min(0.01 * settings.energy_mev)
    u_B, v_B = (random.uniform(GROUP, low=-most, high=most) for most in (_U, _V))
    inside = -math.expm1(-_W_MOST / _W_MEAN)
    w_B = -_W_MEAN * torch.log1p(-inside * random.uniform(GROUP))
    phi_B, radius_B = v_B / positions.R_INNER, positions.R_INNER + w_B
    radial_B3 = torch.stack((-phi_B.cos(), phi_B.sin(), torch.zeros_like(phi_B)), -1)
    xyz_B3 = radial_B3 * radius_B[:, None]
    xyz_B3[:, 2] = u_B
    if settings.source == "gun":
        direction_B3 = _in_cone(radial_B3, random)
        vertex_B3 = xyz_B3 - _BACK * direction_B3
    else:
        x_B, y_B = (_TARGET_XY * random.normal(GROUP) for _ in range(2))
        z_B = x_B / math.tan(math.radians(_TARGET_SLOPE)) + _TARGET_Z * random.normal(GROUP)
        vertex_B3 = torch.stack((x_B, y_B, z_B), -1)
        direction_B3 = torch.nn.functional.normalize(xyz_B3 - vertex_B3, dim=-1)
    deposits = _deposits(settings, random, mev_B, xyz_B3, direction_B3)
    uvw_B3 = torch.stack((u_B, v_B, w_B), -1)
    return Photon(mev_B, uvw_B3, xyz_B3, vertex_B3, direction_B3, deposits)


def _in_cone(axis_B3: Tensor, random: _Random) -> Tensor:
    """Directions spread evenly over a cone about an axis that is perpendicular to z."""
    cos_B = 1 - random.uniform(GROUP) * (1 - math.cos(math.radians(_CONE)))
    sin_B = (1 - cos_B.square()).sqrt()
    turn_B = random.uniform(GROUP, high=2 * math.pi)
    z_3 = axis_B3.new_tensor((0.0, 0.0, 1.0))
    side_B3 = torch.linalg.cross(axis_B3, z_3.expand_as(axis_B3))
    across_B3 = turn_B.cos()[:, None] * side_B3 + turn_B.sin()[:, None] * z_3
    return cos_B[:, None] * axis_B3 + sin_B[:, None] * across_B3


def _deposits(
    settings: SynthSettings, random: _Random, mev_B: Tensor, xyz_B3: Tensor, direction_B3: Tensor
) -> Deposits:
    if settings.deposit == "point":
        return Deposits(xyz_B3[:, None], mev_B[:, None], torch.zeros_like(mev_B)[:, None])
    # Gamma(2) is a sum of two exponentials, Gamma(1.5) half a sum of three squared normals.
    depth_BK = -1.6 * random.uniform(2, GROUP, _DEPOSITS).clamp_min(1e-30).log().sum(0)
    depth_BK = depth_BK * (1 + 0.15 * torch.log(mev_B / 52.8))[:, None]
    share_BK = 0.5 * random.normal(3, GROUP, _DEPOSITS).square().sum(0)
    width_BK = 0.25 + 0.22 * depth_BK
    depth_BK[:, 0], width_BK[:, 0] = 0.0, 0.0
    share_BK[:, 0] += 0.5
    xyz_BK3 = xyz_B3[:, None] + depth_BK[..., None] * direction_B3[:, None]
    xyz_BK3 = xyz_BK3 + width_BK[..., None] * random.normal(GROUP, _DEPOSITS, 3)
    mev_BK = mev_B[:, None] * share_BK / share_BK.sum(1, keepdim=True)
    return Deposits(xyz_BK3, mev_BK * in_xenon(xyz_BK3), depth_BK / 30.0)


def _measured(
    sensors: Sensors, random: _Random, mean_BS: Tensor, arrival_BS: Tensor
) -> tuple[Tensor, Tensor]:
    """Photons and times as the sensors report them."""
    electrons_BS = torch.poisson(mean_BS * sensors.efficiency_S, generator=random.generator)
    npho_BS = random.normal(*mean_BS.shape).mul_((_EXCESS * electrons_BS).sqrt_())
    npho_BS.add_(electrons_BS).mul_(sensors.gain_S / sensors.efficiency_S)
    npho_BS.addcmul_(random.normal(*mean_BS.shape), sensors.noise_S)
    sigma_BS = (_SIGMA_ONE**2 / electrons_BS.clamp_min(1.0)).add_(_SIGMA_LEAST**2).sqrt_()
    time_BS = arrival_BS.addcmul_(random.normal(*mean_BS.shape), sigma_BS)
    dark_BS = random.uniform(*mean_BS.shape, low=-_DARK_TIME, high=_DARK_TIME)
    return npho_BS, torch.where(electrons_BS < _FEWEST, dark_BS, time_BS).mul_(1e-9)


def _with_dead(
    settings: SynthSettings, npho_BS: Tensor, time_BS: Tensor, run_B: Tensor
) -> dict[str, Tensor]:
    """What files hold: dead sensors without values, and times after the first one."""
    runs, which_B = run_B.unique(return_inverse=True)
    dead_RS = torch.stack([dead_sensors(settings, run) for run in runs.tolist()])
    dead_BS = dead_RS.to(npho_BS.device)[which_B]
    early_BS = torch.where(dead_BS | (npho_BS <= _REFERENCE), torch.inf, time_BS)
    start_B1 = early_BS.amin(1, keepdim=True)
    relative_BS = time_BS - torch.where(start_B1.isfinite(), start_B1, 0.0)
    made = {
        "npho": npho_BS.masked_fill(dead_BS, NOT_AVAILABLE),
        "time": time_BS.masked_fill(dead_BS, NOT_AVAILABLE),
        "relative_time": relative_BS.masked_fill_(dead_BS, NOT_AVAILABLE),
        "dead": dead_BS,
    }
    return made | ({"npho_clean": npho_BS} if settings.clean else {})


def _corrupt(made: dict[str, Tensor], random: _Random, share: float) -> None:
    there_B1 = random.uniform(GROUP, 1) < share
    for key in ("npho", "time", "relative_time"):
        hit_BS = random.uniform(*made[key].shape)
        for part, value in enumerate((math.nan, math.inf, -math.inf)):
            low = part * _CORRUPTED_SENSORS / 3
            own_BS = (hit_BS >= low) & (hit_BS < low + _CORRUPTED_SENSORS / 3) & there_B1
            made[key].masked_fill_(own_BS, value)


class _Random:
    """Random numbers of one purpose; the same for the same seed, purpose and number."""

    def __init__(self, seed: int, what: str, number: int, device: torch.device | str) -> None:
        digest = hashlib.sha256(f"{seed} {what} {number}".encode()).digest()
        self.device = torch.device(device)
        self.generator = torch.Generator(self.device)
        self.generator.manual_seed(int.from_bytes(digest[:7], "little"))

    def uniform(self, *shape: int, low: float = 0.0, high: float = 1.0) -> Tensor:
        """Between ``low`` and ``high``."""
        made = torch.empty(shape, device=self.device)
        return made.uniform_(low, high, generator=self.generator)

    def normal(self, *shape: int) -> Tensor:
        """Of mean 0 and width 1."""
        return torch.empty(shape, device=self.device).normal_(generator=self.generator)

    def order(self, count: int) -> Tensor:
        """The numbers below ``count`` in any order."""
        return torch.randperm(count, generator=self.generator, device=self.device)

    def below(self, count: int) -> int:
        """A number below ``count``."""
        return int(torch.randint(count, (), generator=self.generator, device=self.device))
