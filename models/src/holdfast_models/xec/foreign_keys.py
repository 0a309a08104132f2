"""The names that files for other programs of this detector use for settings of ours."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from holdfast.training import Deprecated, Ignored

Read = str | Callable[[Any], Mapping[str, Any]] | Ignored | Deprecated

_TRUE = (True, "true", "True")
_SCHEDULES = {
    **{name: name for name in ("cosine", "onecycle", "plateau")},
    **{None: "constant", "none": "constant", "cosine_restarts": "restarts"},
}


def _schedule(name: Any) -> Mapping[str, Any]:
    if name not in _SCHEDULES:
        known = ", ".join(str(one) for one in _SCHEDULES if one)
        raise ValueError(f"no schedule is called {name!r}; there are {known}")
    return {"train.schedule.name": _SCHEDULES[name]}


def _compile(mode: Any) -> Mapping[str, Any]:
    named = {True: "reduce-overhead", False: "none", None: "none"}
    return {"train.compile.mode": named.get(mode, mode)}


def _skips(most: Any) -> Mapping[str, Any]:
    """So many bad steps without a good one between them end the run."""
    rule = {"do": "skip", "budget": int(most)}
    return {"train.holdfast.policy": {"NUM001": rule, "NUM002": rule}}


_COMMON: Mapping[str, Read] = {
    "data.batch_size": "train.data.batch",
    "data.chunksize": "train.data.chunk",
    "data.num_workers": "train.data.workers",
    "data.prefetch_factor": "train.data.prefetch",
    "data.chunk_mb": "train.data.chunk_mb",
    "data.shuffle": "train.data.shuffle",
    "training.epochs": "train.epochs",
    "training.lr": "train.optimizer.lr",
    "training.weight_decay": "train.optimizer.weight_decay",
    "training.lr_scheduler": _schedule,
    "training.warmup_epochs": "train.schedule.warmup_epochs",
    "training.lr_min": "train.schedule.lowest",
    "training.max_lr": "train.schedule.max_lr",
    "training.pct_start": "train.schedule.pct_start",
    "training.lr_patience": "train.schedule.patience",
    "training.lr_factor": "train.schedule.factor",
    "training.lr_restart_period": "train.schedule.period_epochs",
    "training.lr_restart_mult": "train.schedule.mult",
    "training.amp": lambda on: {"train.precision": "auto" if on in _TRUE else "fp32"},
    "training.ema_decay": lambda decay: {"train.average.decay": float(decay or 0.0)},
    "training.grad_clip": lambda most: {"train.clip": most if float(most or 0) > 0 else None},
    "training.grad_accum_steps": "train.accumulate",
    "training.compile": _compile,
    "training.compile_fullgraph": "train.compile.fullgraph",
    "training.seed": "train.seed.seed",
    "training.deterministic": "train.seed.deterministic",
    "training.max_consecutive_skips": _skips,
    "training.auto_batch": "train.holdfast.guard.split",
    "training.spike_action": "train.validation.spike_action",
    "training.profile": Ignored("set train.profile.steps for a trace of so many steps"),
    "checkpoint.save_dir": Ignored("give --run-dir FOLDER"),
    "checkpoint.save_interval": Ignored(
        "the best, the last and one every train.holdfast.checkpoint.minutes are kept"
    ),
    "checkpoint.resume_from": Ignored("give --resume RUN"),
    "checkpoint.reset_epoch": Ignored("set init.weights=RUN to begin anew with its weights"),
    "checkpoint.refresh_lr": Ignored("set init.weights=RUN to begin a schedule anew"),
    "checkpoint.new_mlflow_run": Ignored("a run in a new folder is a new run of MLflow"),
    "checkpoint.save_artifacts": "output.artifacts",
    "checkpoint.save_predictions": "output.predictions",
    "checkpoint.save_root_predictions": "output.predictions",
    "checkpoint.root_save_interval": Ignored("predictions are written once, of the best weights"),
    "mlflow.experiment": "train.holdfast.track.experiment",
    "mlflow.run_name": "train.holdfast.track.name",
    "distributed.num_gpus": Ignored("start it with torchrun --nproc-per-node N -m holdfast train"),
}

REGRESSOR_READS: Mapping[str, Read] = {
    **_COMMON,
    "training.channel_dropout_rate": "model.channel_dropout_rate",
    "training.mae_checkpoint": "init.encoder",
    "export.onnx": "output.onnx",
}

_LOSS = (
    "npho_weight", "time.weight", "time.mask_ratio_scale", "time.use_npho_weight",
    "time.npho_threshold", "auto_channel_weight", "npho_loss_weight.enabled",
    "npho_loss_weight.alpha", "intensity_reweighting.enabled", "intensity_reweighting.nbins",
    "intensity_reweighting.target",
)  # fmt: skip
_OLD = {
    "training.time_weight": "weight",
    "training.use_npho_time_weight": "use_npho_weight",
    "training.npho_threshold": "npho_threshold",
    "model.time_mask_ratio_scale": "mask_ratio_scale",
}
HIDDEN_READS: Mapping[str, Read] = {
    **_COMMON,
    **{f"training.{name}": f"loss.{name}" for name in _LOSS},
    "training.loss_fn": "loss.fn",
    "training.loss_beta": "loss.beta",
    "training.track_mae_rmse": Ignored("errors are always measured"),
    "training.track_metrics": Ignored("errors are always measured"),
    "training.mae_checkpoint": "init.encoder",
    **{old: Deprecated(f"loss.time.{new}", f"training.time.{new}") for old, new in _OLD.items()},
}
