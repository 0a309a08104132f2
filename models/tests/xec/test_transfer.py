"""Weights from one run into another: what arrives, what is new, what is refused and why."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from holdfast import HoldfastError
from holdfast.training import Place, Trainer, read_weights
from holdfast.training.loop.progress import Progress
from holdfast_models.xec.assembly import make_model
from holdfast_models.xec.recipes import task_of
from holdfast_models.xec.transfer import apply_init, check_init

QUIET = Place(torch.device("cpu"), rank=1)
RunOf = Callable[[str], Path]


def encoder_of(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: one for name, one in weights.items() if name.startswith("encoder.")}


def test_19_4_an_autoencoder_gives_its_encoder_to_a_regressor(
    run_of: RunOf, settings_of: Any, rows_of: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = settings_of("reg", f"init.encoder={run_of('mae')}")
    torch.manual_seed(3)
    fresh = make_model(settings).state_dict()
    torch.manual_seed(3)
    task = task_of(settings, Place(torch.device("cpu")), rows_of(1), None)
    found, saved = task.model.state_dict(), read_weights(run_of("mae"))[0]
    encoder = encoder_of(found)
    assert encoder and all(torch.equal(one, saved[name]) for name, one in encoder.items())
    assert not all(torch.equal(one, fresh[name]) for name, one in encoder.items())
    heads = {name: one for name, one in found.items() if name not in encoder}
    assert heads and all(torch.equal(one, fresh[name]) for name, one in heads.items())
    line = f"{len(encoder)} tensors loaded, {len(heads)} new"
    assert line in capsys.readouterr().out
    assert all(one.requires_grad for one in task.model.parameters())


def test_a_regressor_gives_its_encoder_to_an_autoencoder_averaged(
    run_of: RunOf, settings_of: Any
) -> None:
    """The weights that were validated, which are not those of the last step."""
    settings = settings_of("mae", f"init.encoder={run_of('reg')}")
    model = make_model(settings)
    (line,) = apply_init(model, settings)
    averaged = read_weights(run_of("reg"), averaged=True)[0]
    plain = read_weights(run_of("reg"), averaged=False)[0]
    encoder = encoder_of(model.state_dict())
    assert all(torch.equal(one, averaged[name]) for name, one in encoder.items())
    assert not all(torch.equal(one, plain[name]) for name, one in encoder.items())
    assert f"{len(encoder)} tensors loaded" in line and str(run_of("reg")) in line


def test_a_frozen_encoder_does_not_change_and_stays_in_evaluation_mode(
    run_of: RunOf, settings_of: Any, rows_of: Any, tmp_path: Path
) -> None:
    settings = settings_of(
        "inp", f"init.encoder={run_of('mae')}", "model.freeze_encoder=true", "train.steps=2",
        "train.data.batch=1", "train.optimizer.weight_decay=0.5",
    )  # fmt: skip
    task = task_of(settings, QUIET, rows_of(2), None)
    before = {name: one.clone() for name, one in task.model.state_dict().items()}
    modes: list[tuple[bool, bool]] = []

    def stepped(step: int) -> None:
        modes.append((task.model.training, task.model.encoder.training))  # type: ignore[union-attr]

    task.stepped = stepped
    Trainer.of(task, settings.train, run_dir=tmp_path / "run", progress=Progress()).fit()
    assert modes == [(True, False)] * 2
    after, given = task.model.state_dict(), encoder_of(read_weights(run_of("mae"))[0])
    assert all(torch.equal(after[name], given[name]) for name in encoder_of(after))
    moved = [name for name in after if not torch.equal(after[name], before[name])]
    assert moved and not encoder_of(dict.fromkeys(moved))  # type: ignore[arg-type]
    assert not any(one.requires_grad for one in task.model.encoder.parameters())  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("now", "named"),
    [
        ("model.outer_mode=split", "model.outer_mode run finegrid, now split"),
        ("model.encoder_dim=96", "model.encoder_dim run 64, now 96"),
        ("model.outer_fine_pool=null", "model.outer_fine_pool run (3, 3), now None"),
        ("model.num_fusion_layers=2", "model.num_fusion_layers run 1, now 2"),
        ("normalization.npho_scale=1", "normalization.npho_scale was 20000.0, is 1.0"),
        ("data.time_branch=relative_time", "data.time_branch was time, is relative_time"),
    ],
)
def test_19_4_what_does_not_fit_is_refused_with_its_key(
    now: str, named: str, run_of: RunOf, settings_of: Any
) -> None:
    settings = settings_of("reg", f"init.encoder={run_of('mae')}", now)
    with pytest.raises(HoldfastError) as refused:
        check_init(settings)
    assert named in str(refused.value) and "\n" not in str(refused.value)


def test_another_normalisation_may_be_allowed_and_another_shape_may_not(
    run_of: RunOf, settings_of: Any, rows_of: Any, batch_of: Any
) -> None:
    allowed = [f"init.encoder={run_of('mae')}", "init.allow_norm_mismatch=true",
               "normalization.npho_scale=10000"]  # fmt: skip
    settings = settings_of("reg", *allowed)
    task = task_of(settings, QUIET, rows_of(2), None)
    with torch.no_grad():
        found: Any = task.loss(task.model, batch_of(2))
    assert found[1]["norm_mismatch"] == 1.0, "the record keeps that somebody allowed it"
    with pytest.raises(HoldfastError, match=r"model\.pool run adaptive, now bilinear"):
        check_init(settings_of("reg", *allowed, "model.pool=bilinear"))


def test_whole_weights_do_not_go_where_heads_mean_something_else(
    run_of: RunOf, settings_of: Any
) -> None:
    weights = f"init.weights={run_of('reg')}"
    check_init(settings_of("reg", weights))
    check_init(settings_of("reg", f"init.encoder={run_of('reg')}", "tasks.energy.scale=[1]"))
    with pytest.raises(HoldfastError, match=r"tasks\.energy\.against_light run True, now False"):
        check_init(settings_of("reg", weights, "tasks.energy.against_light=false"))
    with pytest.raises(HoldfastError, match=r"tasks\.energy\.scale run None, now \(1\.0,\)"):
        check_init(settings_of("reg", weights, "tasks.energy.scale=[1]"))


def test_whole_weights_go_to_the_same_model_alone(run_of: RunOf, settings_of: Any) -> None:
    mae = run_of("mae")
    settings = settings_of("mae", f"init.weights={mae}")
    model = make_model(settings)
    (line,) = apply_init(model, settings)
    saved = read_weights(mae)[0]
    assert all(torch.equal(one, saved[name]) for name, one in model.state_dict().items())
    assert line.endswith(" 0 new")
    with pytest.raises(
        HoldfastError, match=r"a run of xec\.mae, not of xec\.reg; .*init\.encoder="
    ):
        check_init(settings_of("reg", f"init.weights={mae}"))
    with pytest.raises(HoldfastError, match="both given"):
        check_init(settings_of("mae", f"init.weights={mae}", f"init.encoder={mae}"))
    with pytest.raises(HoldfastError, match="decoder") as refused:
        wider = settings_of("mae", f"init.weights={mae}", "model.decoder_dim=16")
        apply_init(make_model(wider), wider)
    assert "instead of" in str(refused.value) and "\n" not in str(refused.value)


def test_another_family_and_no_run_at_all_are_one_line(
    tmp_path: Path, run_of: RunOf, settings_of: Any
) -> None:
    (tmp_path / "empty").mkdir()
    for source in ("nowhere", "empty"):
        with pytest.raises(HoldfastError) as refused:
            check_init(settings_of("reg", f"init.encoder={tmp_path / source}"))
        assert source in str(refused.value) and "\n" not in str(refused.value)


def test_training_begins_anew_from_foreign_weights(
    run_of: RunOf, settings_of: Any, rows_of: Any, tmp_path: Path
) -> None:
    """The average too: it begins with what was loaded, and steps are counted from one."""
    settings = settings_of("reg", f"init.encoder={run_of('mae')}", "train.data.batch=2",
                           "train.average.decay=0.9")  # fmt: skip
    with contextlib.redirect_stdout(io.StringIO()):
        task = task_of(settings, QUIET, rows_of(2), None)
    began = {name: one.clone() for name, one in task.model.state_dict().items()}
    result = Trainer.of(task, settings.train, run_dir=tmp_path / "run", progress=Progress()).fit()
    assert result.step == 1
    averaged, plain = (read_weights(tmp_path / "run", averaged=how)[0] for how in (True, False))
    kept = 1 / 10  # of the warm-up: (1 + n) / (10 + n)
    for name, one in dict(task.model.named_parameters()).items():
        expected = kept * began[name] + (1 - kept) * plain[name]
        torch.testing.assert_close(averaged[name], expected, msg=name)
        assert torch.equal(plain[name], one)
