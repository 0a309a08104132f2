"""Reference model families that train under holdfast; they arrive one package at a time.

What they offer is named here and imported when somebody asks for it.
"""

RECIPES = (
    "holdfast_models.energy_flow.recipe:RECIPE",
    "holdfast_models.xec.recipes:REGRESSOR",
    "holdfast_models.xec.recipes:MAE",
    "holdfast_models.xec.recipes:INPAINTER",
    "holdfast_models.liquid.recipe:RECIPE",
)
COMMANDS = (
    "holdfast_models.energy_flow.commands:EnergyFlowCommand",
    "holdfast_models.xec.commands:XecCommand",
    "holdfast_models.liquid.commands:LiquidCommand",
)
_BY_FAMILY = {
    "energy_flow": (
        "UnfinishedFlows", "EmptySurface", "CarrierInput", "EnergyDrift", "IdleMapper",
    ),
    "liquid": (
        "ConstantSpikes", "ShortTimeConstants", "IdlePlasticity", "StillWeights", "Forgetting",
    ),
    "xec": ("SentinelTarget", "InputOutOfRange", "BetaTooLarge", "DeadSensorDrift"),
}  # fmt: skip
DETECTORS = tuple(
    f"holdfast_models.{family}.detectors:{name}"
    for family, names in _BY_FAMILY.items()
    for name in names
)
