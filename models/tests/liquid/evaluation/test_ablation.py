from __future__ import annotations

import json

import pytest

from holdfast_models.liquid.evaluation.ablation import FEATURES, Measured, ablate, changed
from holdfast_models.liquid.run_settings import LiquidSettings


def switches(settings: LiquidSettings) -> dict[str, bool]:
    found = {}
    for feature in FEATURES:
        value = settings
        for name in feature.switch.split("."):
            value = getattr(value, name)
        found[feature.name] = value
    return found


def test_every_feature_is_switched_alone_with_what_it_needs() -> None:
    seen: list[dict[str, bool]] = []

    def run(settings: LiquidSettings) -> Measured:
        seen.append(switches(settings) | {"seed": settings.train.seed.seed == 7})
        on = switches(settings)
        return Measured(5.0 - on["mamba"] - 0.25 * on["gate"], 100.0 - 50 * on["mamba"])

    table = ablate(LiquidSettings(), run, seeds=(7,))
    assert list(table.runs) == [f.name for f in FEATURES if f.needs != "continual.on"]
    assert all(one["seed"] for one in seen)
    losses = {
        name: [both[key][0].loss for key in ("on", "off")] for name, both in table.runs.items()
    }
    assert (losses["mamba"], losses["gate"]) == ([4.0, 5.0], [3.75, 4.0])
    different = {json.dumps(one) for one in seen}
    assert len(different) == len(seen) == 7, "equal settings run once"


def test_what_needs_a_feature_goes_off_with_it() -> None:
    base = LiquidSettings(plasticity={"on": True, "meta": {"on": True}})  # type: ignore[arg-type]
    seen: list[tuple[bool, bool]] = []

    def run(settings: LiquidSettings) -> Measured:
        seen.append((settings.plasticity.on, settings.plasticity.meta.on))
        return Measured(1.0, 1.0)

    ablate(base, run, features=[f for f in FEATURES if f.name == "plasticity"], seeds=(0,))
    assert seen == [(True, True), (False, False)]


def test_a_continual_run_has_its_features_and_forgetting() -> None:
    base = changed(
        LiquidSettings(),
        {"continual.on": True, "continual.num_tasks": 2, "train.epochs": 2, "train.steps": None},
    )

    def run(settings: LiquidSettings) -> Measured:
        noise = 0.01 * settings.train.seed.seed
        kept = 0.2 * settings.continual.replay + 0.1 * settings.continual.consolidation
        return Measured(2.0 + noise, 12_345.0, 0.4 - kept)

    table = ablate(base, run, seeds=(0, 1))
    assert {"consolidation", "replay"} < set(table.runs)
    lines = table.lines()
    replay = next(line for line in lines if line.startswith("replay")).split()
    assert replay[1:] == [
        "2.0050", "2.0050", "12,345", "12,345", "0.1000", "0.3000", "+0.0000", "±", "0.0000",
    ]  # fmt: skip
    assert len({len(line) for line in lines[:-1]}) == 1, "columns are aligned"
    assert json.loads(json.dumps(table.plain()))["features"]["replay"]["off"][1] == {
        "loss": 2.01, "tokens_per_second": 12345.0, "forgetting": pytest.approx(0.3),
    }  # fmt: skip


def test_what_a_run_does_not_have_is_a_dash() -> None:
    table = ablate(LiquidSettings(), lambda _: Measured(2.0, 1.0), seeds=(0,))
    assert table.lines()[1].split()[5:7] == ["-", "-"] and "± nan" in table.lines()[1]
    assert table.plain()["features"]["mamba"]["on"][0]["forgetting"] is None


def test_settings_that_do_not_exist_are_refused() -> None:
    with pytest.raises(TypeError, match="nothing"):
        changed(LiquidSettings(), {"model.nothing": 1})
