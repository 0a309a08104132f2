"""Reference model families that train under holdfast; they arrive one package at a time.

What they offer is named here and imported when somebody asks for it.
"""

RECIPES = ("holdfast_models.energy_flow.recipe:RECIPE",)
COMMANDS = ("holdfast_models.energy_flow.commands:EnergyFlowCommand",)
DETECTORS = tuple(
    f"holdfast_models.energy_flow.detectors:{name}"
    for name in ("UnfinishedFlows", "EmptySurface", "CarrierInput", "EnergyDrift", "IdleMapper")
)
