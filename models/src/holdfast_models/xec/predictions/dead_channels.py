"""What dead sensors do to the energy: as they are, filled with neighbours, and inpainted.

Shapes: B events, S sensors, C channels.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from holdfast import HoldfastError

from ..data.normalization import NOT_AVAILABLE, normalise
from ..export import InpainterGraph
from ..geometry.layout import SENSORS
from ..loading import Loaded
from ..model.fillings import NeighbourMean
from ..model.masking import valid_of
from ..run_settings import RegressorRun
from .file_predictions import Predictor, Say, open_files, run_predictions
from .root_writer import RootPredictions

_LARGEST = 9e9


class DeadStudy(nn.Module):
    """A regressor's energy of each event, with dead sensors treated in three ways.

    Args:
        regressor: with the task energy.
        inpainter: of sensors that are dead.
        dead: "branch": as the files flag them; "sentinels": where counts are missing; or a file
            with sensor ids, one a line or separated by spaces or commas.
    """

    listed_S: Tensor

    def __init__(self, regressor: Loaded, inpainter: Loaded, dead: str) -> None:
        super().__init__()
        run = regressor.settings
        if not isinstance(run, RegressorRun) or "energy" not in run.tasks.active():
            raise HoldfastError(f"{regressor.folder}: no regressor of the energy; give one")
        if inpainter.settings.kind != "inp":
            raise HoldfastError(f"{inpainter.folder}: is no run of xec.inp; give one")
        self.regressor = regressor.model
        self.normalization = regressor.settings.normalization
        self.fill = InpainterGraph(inpainter.model, cast(Any, inpainter.settings))
        self.average = NeighbourMean()
        self.flagged = dead == "branch"
        listed_S = torch.zeros(SENSORS, dtype=torch.bool)
        if dead not in ("branch", "sentinels"):
            listed_S[read_ids(Path(dead))] = True
        self.register_buffer("listed_S", listed_S, persistent=False)

    def forward(self, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Rows of the study for raw events."""
        npho_BS, time_BS = batch["npho"], batch["time"]
        dead_BS = ~(npho_BS.isfinite() & (npho_BS <= _LARGEST)) | self.listed_S
        if self.flagged:
            dead_BS = dead_BS | batch["dead"]
        npho_BS = torch.where(dead_BS, NOT_AVAILABLE, npho_BS)
        time_BS = torch.where(dead_BS, NOT_AVAILABLE, time_BS)
        mean_BS = self.average(torch.where(dead_BS, 0.0, npho_BS), ~dead_BS)
        ways = {
            "raw": npho_BS,
            "neighavg": torch.where(dead_BS, mean_BS, npho_BS),
            "inpainted": self.fill(torch.stack((npho_BS, time_BS), -1), dead_BS),
        }
        rows = {"run": batch["run"], "event": batch["event"], "n_dead": dead_BS.sum(1)}
        rows |= {f"energy_{how}": self._energy(one, time_BS) for how, one in ways.items()}
        return rows | ({"energy_true": batch["energy"]} if "energy" in batch else {})

    def _energy(self, npho_BS: Tensor, time_BS: Tensor) -> Tensor:
        inputs = normalise(npho_BS, time_BS, self.normalization)
        return self.regressor(inputs.x_BSC, valid_BSC=valid_of(inputs))["energy"][:, 0].float()


def read_ids(path: Path) -> list[int]:
    """Sensor ids of a text file; ``#`` begins a remark."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise HoldfastError(f"{path}: no list of dead sensors can be read ({error})") from None
    words = [word for line in lines for word in line.partition("#")[0].replace(",", " ").split()]
    strange = [word for word in words if not word.isdecimal() or int(word) >= SENSORS]
    if strange:
        raise HoldfastError(f"{path}: {strange[0]!r} is no sensor; ids are 0 to {SENSORS - 1}")
    return [int(word) for word in words]


def study_files(
    regressor: Loaded,
    inpainter: Loaded,
    path: str,
    out: str,
    *,
    dead: str = "branch",
    entries: tuple[int, int | None] = (0, None),
    chunk: int = 4096,
    batch: int = 64,
    overwrite: bool = False,
    say: Say | None = None,
) -> Any:
    """Write the study of the events of files; goes on where it was interrupted."""
    settings = cast(RegressorRun, regressor.settings)
    study = DeadStudy(regressor, inpainter, dead).eval()
    raw = dataclasses.replace(settings.data, device_transform=True)
    wanted = ("energy", "dead") if dead == "branch" else ("energy",)
    events = open_files(settings, raw, path, wanted)
    if dead == "branch" and "dead" not in events.first():
        raise HoldfastError(f"{path}: no branch 'dead'; give --dead sentinels, or a file of ids")
    weights = [regressor.checkpoint.name, inpainter.checkpoint.name]
    what = {"weights": weights, "files": path, "range": list(entries), "dead": dead}
    writer = RootPredictions(
        out, "dead", settings.normalization, what=what, first=entries[0], overwrite=overwrite
    )
    predictor = Predictor(settings, study, _asked, "")
    return run_predictions(predictor, events, writer, entries, batch, chunk, say)


def _asked(study: nn.Module, batch: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    return study(batch)
