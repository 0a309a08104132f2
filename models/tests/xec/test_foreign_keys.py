"""Files of other programs of this detector are understood, key by key."""

from pathlib import Path

import pytest
import yaml

from holdfast import HoldfastError
from holdfast.training import Recipe, resolve
from holdfast_models.xec.foreign_keys import HIDDEN_READS, REGRESSOR_READS
from holdfast_models.xec.recipes import INPAINTER, MAE, REGRESSOR

# Everything that the specification lists for the regressor, with other values than the defaults.
REGRESSOR_FILE = {
    "data": {
        "train_path": "train.root", "val_path": "val.root", "tree_name": "t", "batch_size": 64,
        "npho_branch": "nphe", "time_branch": "time", "chunksize": 1000, "num_workers": 2,
        "num_threads": 3, "prefetch_factor": 4, "chunk_mb": 100, "shuffle": False, "cache": "ram",
        "device_transform": True, "log_invalid_npho": False,
        "fiducial": {"enabled": True, "u_max": 20.0, "v_max": 60.0, "w_min": 1.0, "w_max": 30.0},
    },
    "normalization": {"npho_scheme": "sqrt", "npho_scale": 20000, "time_scale": "2e-8"},
    "model": {
        "outer_mode": "split", "encoder_dim": 256, "dim_feedforward": 512, "num_fusion_layers": 3,
        "hidden_dim": 128, "drop_path_rate": 0.1, "pool": "bilinear",
    },
    "tasks": {"energy": {"enabled": True, "loss_fn": "gaussian_nll", "loss_beta": "2e-3"}},
    "loss_balance": "auto",
    "reweighting": {"energy": {"enabled": True, "nbins": 10}},
    "training": {
        "epochs": 7, "lr": "1e-4", "weight_decay": 0.01, "lr_scheduler": "cosine_restarts",
        "warmup_epochs": 1, "lr_min": "1e-6", "max_lr": 1e-3, "pct_start": 0.2, "lr_patience": 3,
        "lr_factor": 0.3, "lr_restart_period": 5, "lr_restart_mult": 3, "amp": False,
        "ema_decay": None, "grad_clip": 0, "grad_accum_steps": 4, "compile": True,
        "compile_fullgraph": True, "profile": False, "seed": 7, "deterministic": True,
        "max_consecutive_skips": 5, "auto_batch": True, "channel_dropout_rate": 0.2,
    },
    "checkpoint": {"resume_from": None, "save_dir": "a", "save_interval": 1,
                   "save_artifacts": False,
                   "reset_epoch": False, "refresh_lr": False, "new_mlflow_run": False},
    "distributed": {"num_gpus": 2},
    "export": {"onnx": None},
    "mlflow": {"experiment": "gamma_angle", "run_name": "first"},
}  # fmt: skip
EXPECTED = {
    "train.data.batch": 64, "train.data.chunk": 1000, "train.data.workers": 2,
    "train.data.prefetch": 4, "train.data.chunk_mb": 100.0, "train.data.shuffle": False,
    "train.epochs": 7, "train.optimizer.lr": 1e-4, "train.optimizer.weight_decay": 0.01,
    "train.schedule.name": "restarts", "train.schedule.warmup_epochs": 1.0,
    "train.schedule.lowest": 1e-6, "train.schedule.max_lr": 1e-3, "train.schedule.pct_start": 0.2,
    "train.schedule.patience": 3, "train.schedule.factor": 0.3, "train.schedule.period_epochs": 5,
    "train.schedule.mult": 3.0, "train.precision": "fp32", "train.average.decay": 0.0,
    "train.clip": None, "train.accumulate": 4, "train.compile.mode": "reduce-overhead",
    "train.compile.fullgraph": True, "train.seed.seed": 7, "train.seed.deterministic": True,
    "train.holdfast.guard.split": True, "model.channel_dropout_rate": 0.2,
    "output.artifacts": False,
    "train.holdfast.track.experiment": "gamma_angle", "train.holdfast.track.name": "first",
    "output.onnx": None, "normalization.time_scale": 2e-8, "tasks.energy.loss_beta": 2e-3,
}  # fmt: skip


def test_a_file_with_every_key_of_the_regressor(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "reg.yaml"
    path.write_text(yaml.safe_dump(REGRESSOR_FILE))
    settings = resolve(REGRESSOR, str(path), platform="none")
    for key, expected in EXPECTED.items():
        value = settings
        for name in key.split("."):
            value = getattr(value, name)
        assert value == expected, key
    assert {rule.budget for rule in settings.train.holdfast.policy.values()} == {5}
    said = capsys.readouterr().err
    assert "torchrun" in said and "--resume" in said and "--run-dir" in said


@pytest.mark.parametrize(("recipe", "reads"), [(MAE, HIDDEN_READS), (REGRESSOR, REGRESSOR_READS)])
def test_every_name_leads_to_a_setting(recipe: Recipe, reads: dict[str, object]) -> None:
    for key, meaning in reads.items():
        if isinstance(meaning, str):
            value = settings_value(recipe, meaning)
            assert value is not KeyError, key


def settings_value(recipe: Recipe, key: str) -> object:
    overrides = ["tasks.energy.enabled=true"] if recipe is REGRESSOR else []
    value: object = resolve(recipe, overrides=overrides, platform="none")
    for name in key.split("."):
        value = getattr(value, name)
    return value


def test_deprecated_flat_names_are_read_with_a_warning(capsys: pytest.CaptureFixture[str]) -> None:
    settings = resolve(MAE, overrides=["training.time_weight=0.25"], platform="none")
    assert settings.loss.time.weight == 0.25
    assert "training.time.weight" in capsys.readouterr().err


def test_unknown_names_get_the_nearest(tmp_path: Path) -> None:
    path = tmp_path / "mae.yaml"
    path.write_text("training:\n  lr_schedulr: cosine\n")
    with pytest.raises(HoldfastError, match=r"training\.lr_scheduler"):
        resolve(MAE, str(path), platform="none")
    settings = resolve(MAE, str(path), platform="none", lenient=True)
    assert settings.train.schedule.name == "constant"


def test_a_schedule_that_does_not_exist() -> None:
    with pytest.raises(HoldfastError, match=r"no schedule is called 'cosin'"):
        resolve(MAE, overrides=["training.lr_scheduler=cosin"], platform="none")


@pytest.mark.parametrize(
    ("recipe", "overrides", "said"),
    [
        (REGRESSOR, [], "no task is enabled"),
        (REGRESSOR, ["tasks.timing.enabled=true"], "data.time_branch=time"),
        (REGRESSOR, ["tasks.energy.enabled=true", "tasks.energy.loss_fn=cosine"], "directions"),
        (REGRESSOR, ["tasks.energy.enabled=true", "tasks.energy.loss_fn=hubr"], "huber"),
        (INPAINTER, [], "init.encoder"),
        (MAE, ["model.encoder_dim=100"], "divisible by 32"),
        (MAE, ["model.encoder_dim=32"], "at least 64"),
        (MAE, ["model.outer_fine_pool=[50,2]"], "outer_fine_pool"),
    ],
)
def test_what_cannot_work_is_refused_in_one_line(
    recipe: Recipe, overrides: list[str], said: str
) -> None:
    with pytest.raises(HoldfastError, match=said) as caught:
        resolve(recipe, overrides=overrides, platform="none")
    assert "\n" not in str(caught.value)


def test_defaults_are_those_of_the_specification() -> None:
    regressor = resolve(REGRESSOR, overrides=["tasks.energy.enabled=true"], platform="none")
    inpainter = resolve(INPAINTER, overrides=["model.freeze_encoder=false"], platform="none")
    mae = resolve(MAE, platform="none")
    runs = (regressor, mae, inpainter)
    assert [run.train.epochs for run in runs] == [20, 20, 50]
    assert [run.train.data.batch for run in runs] == [256, 1024, 1024]
    assert [run.train.optimizer.lr for run in runs] == [3e-4, 1e-4, 1e-4]
    assert [run.train.average.decay for run in runs] == [0.999, 0, 0]
    assert [run.train.schedule.lowest for run in runs] == [1e-7, 1e-6, 1e-6]
    assert [run.train.seed.seed for run in runs] == [42, 42, 42]
    assert (mae.model.mask_ratio, inpainter.model.mask_ratio) == (0.6, 0.05)
