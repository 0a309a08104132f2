"""The losses of the text bridge as a CUDA graph, beside eager passes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from holdfast_models.energy_flow.text.bridge import BridgeSettings, TextBridge
from holdfast_models.energy_flow.text.tokens import Vocabulary

pytestmark = pytest.mark.gpu

DEVICE = torch.device("cuda")
TEXTS = ["a man rides a bicycle", "a dog sleeps", "two women read in a park", "a cat"]


def make(**more: object) -> TextBridge:
    torch.manual_seed(0)
    settings = BridgeSettings(width=64, heads=4, **{"decoder_every": 2} | more)  # type: ignore[arg-type]
    return TextBridge(Vocabulary.build(TEXTS), (6, 6, 4), settings).to(DEVICE)


def passes(bridge: TextBridge, steps: int, *, half: bool) -> Iterator[tuple[Tensor, list[Tensor]]]:
    """The loss and all gradients of some steps, on other surfaces each."""
    ids_BP = bridge.vocabulary.encode(TEXTS).ids_BP.to(DEVICE)
    torch.manual_seed(1)
    for step in range(steps):
        surface_BS, out_BS = torch.randn(2, len(TEXTS), 36, device=DEVICE)
        out_BS.requires_grad_()
        bridge.zero_grad()
        with torch.autocast("cuda", torch.bfloat16, enabled=half):
            loss, _ = bridge.loss(ids_BP, surface_BS, ids_BP, out_BS, step=step)
        loss.backward()
        found = [out_BS.grad, *(one.grad for one in bridge.parameters())]
        yield loss.detach(), [torch.zeros(()) if g is None else g.clone() for g in found]


@pytest.mark.parametrize("half", [False, True], ids=["fp32", "bf16"])
def test_a_replayed_pass_is_the_eager_one(half: bool) -> None:
    replayed, plain = make(), make(graph=False)
    for bridge in (replayed, plain):
        bridge.eval()  # no dropout: its numbers are drawn anew in each pass
    # One after the other: both draw their surfaces from the same numbers.
    found = [list(passes(bridge, 10, half=half)) for bridge in (replayed, plain)]
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one[0], other[0], atol=1e-5, rtol=1e-4)
        for own, theirs in zip(one[1], other[1], strict=True):
            torch.testing.assert_close(own, theirs, atol=3e-3 if half else 1e-5, rtol=1e-2)
    assert replayed.graphs.reason is None and replayed.graphs.replays == 6
    assert plain.graphs.replays == 0


def test_dropout_differs_from_replay_to_replay_and_gradients_of_micro_batches_add_up() -> None:
    bridge = make(decoder_every=1)
    losses = [float(loss) for loss, _ in passes(bridge, 8, half=True)]
    assert bridge.graphs.replays == 6 and len(set(losses)) == 8
    bridge.eval()
    list(passes(bridge, 3, half=False))  # captured
    ids_BP = bridge.vocabulary.encode(TEXTS).ids_BP.to(DEVICE)
    grads: list[Tensor] = []
    for window in (1, 2):
        torch.manual_seed(2)
        surface_BS, out_BS = torch.randn(2, len(TEXTS), 36, device=DEVICE)
        bridge.zero_grad()
        for _ in range(window):
            out_BS = out_BS.detach().requires_grad_()
            bridge.loss(ids_BP, surface_BS, ids_BP, out_BS, step=100)[0].backward()
        assert bridge.graphs.reason is None
        grad = bridge.encoder.words.positions.grad
        assert grad is not None
        grads.append(grad.clone())
    torch.testing.assert_close(2 * grads[0], grads[1])
