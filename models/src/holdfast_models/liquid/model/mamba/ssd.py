"""State-space duality (Mamba-2): the recurrence with one rate per head, by matrix products.

It is the selective recurrence in which the channels of a head share ``delta`` and ``a``. Inside a
chunk the outputs are a masked product of ``c`` and ``b``, as in attention; between chunks only
the state is carried on.

Shape suffixes: B batch, T tokens, D = G x P channels, G heads, P channels of a head, N states per
channel, K chunks, Q tokens of a chunk.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from ...scan import scan

_CHUNK = 64  # tokens: the matrix products are large enough for tensor cores, the mask is small


def ssd(
    x_BTD: Tensor, delta_BTG: Tensor, b_BTN: Tensor, c_BTN: Tensor, a_G: Tensor, h_BDN: Tensor
) -> tuple[Tensor, Tensor]:
    """Outputs (B, T, D) and the state after the last token."""
    tokens, heads = x_BTD.shape[1], delta_BTG.shape[2]
    chunk = min(_CHUNK, tokens)
    padding = (0, 0, 0, -tokens % chunk)  # with delta 0, which leaves the state as it is
    x_BKQD, delta_BKQG, b_BKQN, c_BKQN = (
        functional.pad(of, padding).unflatten(1, (-1, chunk))
        for of in (x_BTD, delta_BTG, b_BTN, c_BTN)
    )
    x_BKGQP = (x_BKQD.unflatten(-1, (heads, -1)) * delta_BKQG[..., None]).transpose(2, 3)
    past_BKGQ = (delta_BKQG * a_G).cumsum(2).transpose(2, 3)  # logarithm of the decay so far
    end_BKG1 = past_BKGQ[..., -1:]

    # Masked before the exponential, which would overflow there and give NaN gradients.
    later_QQ = torch.ones(chunk, chunk, dtype=torch.bool, device=x_BTD.device).triu(1)
    between_BKGQQ = past_BKGQ[..., :, None] - past_BKGQ[..., None, :]
    decay_BKGQQ = torch.exp(between_BKGQQ.masked_fill(later_QQ, -torch.inf))
    overlap_BKQQ = c_BKQN @ b_BKQN.transpose(-1, -2)
    within_BKGQP = (overlap_BKQQ[:, :, None] * decay_BKGQQ) @ x_BKGQP

    weighted_BKGQP = torch.exp(end_BKG1 - past_BKGQ)[..., None] * x_BKGQP
    added_BKGPN = weighted_BKGQP.transpose(-1, -2) @ b_BKQN[:, :, None]
    first_BGPN = h_BDN.unflatten(1, (heads, -1))
    ends_BKGPN = scan(torch.exp(end_BKG1)[..., None], added_BKGPN, first_BGPN)
    before_BKGPN = torch.cat((first_BGPN[:, None], ends_BKGPN[:, :-1]), dim=1)

    carried_BKGQP = c_BKQN[:, :, None] @ before_BKGPN.transpose(-1, -2)
    y_BKGQP = within_BKGQP + torch.exp(past_BKGQ)[..., None] * carried_BKGQP
    y_BTD = y_BKGQP.transpose(2, 3).flatten(3).flatten(1, 2)[:, :tokens]
    return y_BTD, ends_BKGPN[:, -1].flatten(1, 2)
