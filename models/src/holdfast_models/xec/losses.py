"""Losses: of predicted quantities, and of hidden sensors.

Every mean is a sum over a count of at least one, on tensors: no step waits for a number.

Shapes: B events, S sensors, K components of a quantity, F faces.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from .data.normalization import npho_from_scale
from .geometry import layout
from .model.light import spread_of
from .settings import HiddenLossSettings, IntensitySettings, LossName, NormalizationSettings

_LEAST_RELATIVE = 1e-3  # of a scale: a target of nothing has no relative error
_LOG_VARIANCE = 10.0  # largest that is believed, either way
_NLL_BETA = 0.5


def elementwise(
    name: LossName,
    pred_BK: Tensor,
    target_BK: Tensor,
    beta_K: Tensor | float,
    size_BK: Tensor | None = None,
) -> Tensor:
    """The loss of each component.

    Args:
        name: which; ``gaussian_nll`` expects twice as many predictions, means first.
        pred_BK: in the units of ``target_BK``.
        target_BK: what is right.
        beta_K: of smooth_l1, where it turns from squared to absolute.
        size_BK: what relative losses are relative to; ``target_BK`` by default.
    """
    if name == "gaussian_nll":
        mean_BK, log_variance_BK = pred_BK.chunk(2, dim=-1)
        return _gaussian_nll(mean_BK - target_BK, log_variance_BK)
    d_BK = pred_BK - target_BK
    match name.removeprefix("relative_"):
        case "smooth_l1" | "huber":
            loss_BK, power = _smooth_l1(d_BK, beta_K), 1
        case "l1":
            loss_BK, power = d_BK.abs(), 1
        case "mse" | "l2":
            loss_BK, power = d_BK.square(), 2
        case _:
            raise ValueError(f"{name} is no loss of single components")
    if not name.startswith("relative_"):
        return loss_BK
    size_BK = (target_BK if size_BK is None else size_BK).abs().clamp(min=_LEAST_RELATIVE)
    return loss_BK / size_BK**power


def one_minus_cosine(pred_B3: Tensor, target_B3: Tensor) -> Tensor:
    """How far directions are apart, 0 to 2."""
    return 1.0 - nn.functional.cosine_similarity(pred_B3, target_B3, dim=-1)


def _smooth_l1(d_BK: Tensor, beta_K: Tensor | float) -> Tensor:
    # torch's own takes one beta for all components.
    far_BK = d_BK.abs()
    return torch.where(far_BK < beta_K, 0.5 * d_BK.square() / beta_K, far_BK - 0.5 * beta_K)


def _gaussian_nll(d_BK: Tensor, log_variance_BK: Tensor) -> Tensor:
    """Beta-NLL: without the factor, events that are called uncertain would teach nothing."""
    log_variance_BK = log_variance_BK.clamp(-_LOG_VARIANCE, _LOG_VARIANCE)
    variance_BK = log_variance_BK.exp()
    nll_BK = 0.5 * (log_variance_BK + d_BK.square() / variance_BK)
    return variance_BK.detach() ** _NLL_BETA * nll_BK


class Balance(nn.Module):
    """Weighs several losses by how uncertain each is: 0.5 exp(-s) L + 0.5 s, s learned."""

    def __init__(self, names: tuple[str, ...]) -> None:
        super().__init__()
        self.names = names
        self.s_N = nn.Parameter(torch.zeros(len(names)))

    def forward(self, losses: dict[str, Tensor]) -> Tensor:
        """The sum; ``losses`` has all the names."""
        loss_N = torch.stack([losses[name] for name in self.names])
        return (0.5 * (-self.s_N).exp() * loss_N + 0.5 * self.s_N).sum()


class HiddenLoss(NamedTuple):
    """The loss on hidden sensors, and what it is made of."""

    total: Tensor
    faces: dict[str, Tensor]
    """By channel, the mean of each face."""
    errors: dict[str, tuple[Tensor, Tensor]]
    """By channel, the error of each sensor in the network's scale, and whether it counts."""


class HiddenLosses(nn.Module):
    """The sum over faces of the mean loss of their hidden sensors.

    Args:
        settings: weights and form.
        channels: what is predicted, in the order of the predictions.
        normalization: of what is predicted; its threshold is the number of photons below which
            bright sensors do not weigh less, unless the settings have one.
    """

    face_SF: Tensor

    def __init__(
        self,
        settings: HiddenLossSettings,
        channels: tuple[str, ...],
        normalization: NormalizationSettings,
    ) -> None:
        super().__init__()
        self.settings, self.channels, self.normalization = settings, channels, normalization
        given = settings.time.npho_threshold
        self.threshold = normalization.npho_threshold if given is None else given
        face_S = torch.from_numpy(layout.face_of_sensor().copy())
        one_hot_SF = nn.functional.one_hot(face_S, len(layout.FACES)).float()
        self.register_buffer("face_SF", one_hot_SF, persistent=False)
        self.balance = Balance(channels) if settings.auto_channel_weight else None

    def forward(
        self,
        pred_BSC: Tensor,
        x_BSC: Tensor,
        hidden_BS: Tensor,
        time_valid_BS: Tensor,
        npho_BS: Tensor,
    ) -> HiddenLoss:
        """The loss of dense predictions; ``x_BSC`` and ``npho_BS`` are what was hidden."""
        settings = self.settings
        event_B1 = intensity_weights(npho_BS, settings.intensity_reweighting)[:, None]
        faces: dict[str, Tensor] = {}
        errors: dict[str, tuple[Tensor, Tensor]] = {}
        for index, channel in enumerate(self.channels):
            target_BS = x_BSC[..., ("npho", "time").index(channel)]
            d_BS = pred_BSC[..., index].float() - target_BS
            counted_BS = hidden_BS if channel == "npho" else hidden_BS & time_valid_BS
            off_BS = d_BS
            if channel == "npho" and settings.npho_unit == "spread":
                off_BS = self._in_spreads(pred_BSC[..., index].float(), target_BS)
            loss_BS = elementwise(settings.fn, off_BS, torch.zeros_like(off_BS), settings.beta)
            weight_BS = counted_BS * self._weight(channel, npho_BS) * event_B1
            summed_F = (weight_BS * loss_BS).sum(0) @ self.face_SF
            weights_F = weight_BS.sum(0) @ self.face_SF
            # Where nothing is hidden both are zero.
            faces[channel] = summed_F / torch.where(weights_F > 0, weights_F, 1.0)
            errors[channel] = d_BS.detach(), counted_BS
        factors = {"npho": settings.npho_weight, "time": settings.time.weight}
        weighed = {name: factors[name] * mean_F.sum() for name, mean_F in faces.items()}
        total = sum(weighed.values()) if self.balance is None else self.balance(weighed)
        assert isinstance(total, Tensor)
        return HiddenLoss(total, faces, errors)

    def _in_spreads(self, pred_BS: Tensor, target_BS: Tensor) -> Tensor:
        """Errors in photons over what a count scatters by where so many are predicted.

        Of a root or logarithm a squared error finds the mean, and that is not the mean of photons.
        """
        pred_BS, target_BS = (
            npho_from_scale(one_BS, self.normalization) for one_BS in (pred_BS, target_BS)
        )
        return (pred_BS - target_BS) / spread_of(pred_BS.detach())

    def _weight(self, channel: str, npho_BS: Tensor) -> Tensor | float:
        settings = self.settings
        if channel == "time" and settings.time.use_npho_weight:
            return npho_BS.clamp(min=self.threshold).sqrt()
        if channel == "npho" and settings.npho_loss_weight.enabled:
            return (npho_BS.clamp(min=0.0) + 1.0) ** settings.npho_loss_weight.alpha
        return 1.0


def intensity_weights(npho_BS: Tensor, settings: IntensitySettings) -> Tensor:
    """Weights of mean one that make rare totals of light count as much as frequent ones."""
    total_B = npho_BS.sum(1)
    if not settings.enabled:
        return torch.ones_like(total_B)
    low, high = total_B.quantile(0.01), total_B.quantile(0.99)
    place_B = (total_B - low) / (high - low).clamp(min=1e-6) * settings.nbins
    bin_B = place_B.long().clamp(0, settings.nbins - 1)
    # Not torch's one_hot, which on a CPU reads the smallest bin.
    bins_N = torch.arange(settings.nbins, device=bin_B.device)
    one_hot_BN = (bin_B[:, None] == bins_N).to(total_B)
    count_B = one_hot_BN @ one_hot_BN.sum(0)
    weight_B = 1.0 / (count_B if settings.target == "uniform" else count_B.sqrt())
    return weight_B / weight_B.mean()
