"""Logging channels of the lattice, beside those of the trainer; their numbers are a contract.

    holdfast train energy_flow --set train.log.channels=spawn,convergence

Reading a number waits for the device, so it happens only in messages that are written.
"""

from __future__ import annotations

from holdfast.training import add_channel

from .model.ending import Stats

_spatial = add_channel("spatial", 13)
_energy = add_channel("energy", 18)
_spawn = add_channel("spawn", 19)
_convergence = add_channel("convergence", 20)


def tell_flows(stats: Stats) -> None:
    """What the flows of a batch did, on the channels that are on."""
    _spatial(lambda: f"{float(stats.filled):.0%} of the surface is filled")
    _energy(lambda: f"energies spread by {float(stats.energy_std):.3g}")
    _spawn(lambda: f"{int(stats.made)} flows, {int(stats.spawned)} of them children")
    _convergence(
        lambda: f"{float(stats.completion):.0%} of flows ended in {int(stats.steps)} steps"
    )
