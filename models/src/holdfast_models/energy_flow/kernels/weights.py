"""The weights as the fused loop wants them: folded, in few tensors.

C carrier width, H hidden width of the neuron, o its output, A width of the merged heads, U columns
that layer 0 reads, K width of a layer's input.

Order of a layer's gates everywhere: new from the input, reset, update, new from the state
(n_i, r, z, n_h). So what the input feeds (n_i, r, z) and what the state feeds (r, z, n_h) are each
one block of columns.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from ..model.carrier import GruLayer
from ..model.stepping import Parts
from .plan import KernelPlan

__all__ = ["Half", "Layer", "Weights", "fold", "halve"]

_ONE_PRODUCT = 512
"""Carrier width up to which layer 0 is one product; measured on an H200 at 512 and at 1024."""


class Layer(NamedTuple):
    """Weights of a layer of the GRU in fp32."""

    input_w: Tensor  # [3C, K]: n_i, r, z
    state_w: Tensor  # [3C, C]: r, z, n_h
    bias: Tensor  # [4C]


class Weights(NamedTuple):
    """All that is learned in the loop, in fp32, with a graph to the parameters."""

    neuron: Tensor  # W1 [4, H], b1, gain1, shift1, W2 [H, H], b2, gain2, shift2
    ends: Tensor  # bias of the heads [A], w_energy [C/2], w_move [3, 64], b_energy, b_move [3]
    heads: Tensor  # [A, C]
    layers: tuple[Layer, ...]
    answer_w: Tensor  # [o, H], no gradient: only to measure the GRU's input
    answer_b: Tensor

    def flat(self) -> list[Tensor]:
        """Those with a gradient, one after the other."""
        return [
            self.neuron,
            self.ends,
            self.heads,
            *(one for layer in self.layers for one in layer),
        ]


class Half(NamedTuple):
    """A layer's weights in the dtype of the products; those that its products do not use are None.

    Layers above the first have ``new_w`` on a GPU.
    """

    input_w: Tensor  # [3C, K]
    state_w: Tensor  # [3C, C]
    both_w: Tensor  # of input and state side by side, K + C columns: r, z; or all four gates
    new_w: Tensor | None  # [2, C, C]: n_i and n_h


def fold(parts: Parts, plan: KernelPlan) -> Weights:
    """Plain torch in fp32, so that autograd leads back.

    The coordinate map is multiplied into the neuron's first layer, its last layer into the input
    weights of the GRU, and the two biases of a gate become one.
    """
    neuron, carrier = parts.neuron, parts.carrier
    first, norm1, _, second, norm2, _, last = neuron.response
    assert isinstance(first, nn.Linear) and isinstance(second, nn.Linear)
    assert isinstance(last, nn.Linear)
    assert isinstance(norm1, nn.LayerNorm) and isinstance(norm2, nn.LayerNorm)
    place = neuron.coordinates
    first_w = torch.cat((first.weight[:, :3] @ place.weight, first.weight[:, 3:]), dim=1)
    first_b = first.bias + first.weight[:, :3] @ place.bias
    flat = [first_w.t(), first_b, norm1.weight, norm1.bias]
    flat += [second.weight, second.bias, norm2.weight, norm2.bias]
    ends = [carrier.heads.bias, carrier.energy_end.weight, carrier.move_end.weight]
    ends += [carrier.energy_end.bias, carrier.move_end.bias]
    layers = []
    for number, layer in enumerate(carrier.layers):
        assert isinstance(layer, GruLayer)
        input_w, bias_i = layer.weight_ih, layer.bias_ih
        if number == 0:
            from_u, from_e = input_w[:, :-1], input_w[:, -1:]
            bias_i = bias_i + from_u @ last.bias
            pad = input_w.new_zeros(input_w.shape[0], plan.inputs - plan.neuron - 1)
            input_w = torch.cat((from_u @ last.weight, from_e, pad), dim=1)
        layers.append(_layer(input_w, layer.weight_hh, bias_i, layer.bias_hh))
    return Weights(
        neuron=torch.cat([one.reshape(-1) for one in flat]),
        ends=torch.cat([one.reshape(-1) for one in ends]),
        heads=carrier.heads.weight,
        layers=tuple(layers),
        answer_w=last.weight.detach(),
        answer_b=last.bias.detach(),
    )


def halve(layer: Layer, number: int, dtype: torch.dtype) -> Half:
    """A layer's weights for the products.

    Layer 0 reads few columns beside its state. Up to ``_ONE_PRODUCT`` a product of its own for n_i
    costs nearly as much as one that is twelve times as long, so zeros stand where a gate reads
    nothing, and one product makes all four.
    """
    input_w, state_w = layer.input_w.to(dtype), layer.state_w.to(dtype)
    wide = state_w.shape[1]
    if number > 0:
        both_w = torch.cat((input_w[wide:], state_w[: 2 * wide]), dim=1)
        new_w = None
        if input_w.is_cuda:  # a CPU has no product of such strides in 16 bits
            new_w = torch.stack((input_w[:wide], state_w[2 * wide :]))
        return Half(input_w, state_w, both_w, new_w)
    from_input, from_state = input_w[wide:], state_w[: 2 * wide]
    if wide <= _ONE_PRODUCT:
        none = torch.zeros_like
        from_input = torch.cat((input_w, none(input_w[:wide])))
        from_state = torch.cat((none(state_w[:wide]), state_w))
    return Half(input_w, state_w, torch.cat((from_input, from_state), dim=1), None)


def _layer(input_w: Tensor, state_w: Tensor, bias_i: Tensor, bias_h: Tensor) -> Layer:
    """From the order of torch (r, z, n) to ours."""
    wide = state_w.shape[1]
    return Layer(
        input_w=torch.cat((input_w[2 * wide :], input_w[: 2 * wide])),
        state_w=state_w,
        bias=torch.cat(
            (bias_i[2 * wide :], bias_i[: 2 * wide] + bias_h[: 2 * wide], bias_h[2 * wide :])
        ),
    )
