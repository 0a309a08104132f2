"""Compiled and eager passes of one model, by turns, on a real device."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from holdfast.training.compiling import CompiledModel, CompileSettings

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA"),
    pytest.mark.filterwarnings("ignore"),  # of the compiler's own
]


class Attention(nn.Module):
    """As the encoder of a detector has it: few tokens, their heads side by side in memory."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(256)
        self.read, self.out = nn.Linear(256, 768), nn.Linear(256, 256)

    def forward(self, x_BTD: Tensor) -> Tensor:
        heads = self.read(x_BTD).unflatten(-1, (3, 8, -1)).permute(2, 0, 3, 1, 4)
        read_BATE = scaled_dot_product_attention(*heads.unbind(0))
        return self.norm(x_BTD + self.out(read_BATE.transpose(1, 2).flatten(2)))


@pytest.mark.parametrize("eager_first", [False, True])
def test_gradients_do_not_depend_on_what_ran_before(eager_first: bool) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(Attention(), Attention()).cuda()
    x_BTD = torch.randn(4, 6, 256, device="cuda")

    def gradients(*_: Any) -> Tensor:
        model.zero_grad()
        with torch.autocast("cuda", torch.bfloat16):
            y_BTD = model(x_BTD)
        y_BTD.float().square().flatten(1).cumsum(1).mean().backward()
        return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])

    said: list[str] = []
    compiled = CompiledModel(model, CompileSettings(mode="default"), x_BTD.device, 0, said.append)
    found: list[Tensor] = []
    for eager in (eager_first, not eager_first):
        if eager:
            with compiled.paused():
                found.append(gradients())
        else:
            found.append(compiled.run(gradients, x_BTD))
    compiled.undo()
    assert not said
    assert (found[0] - found[1]).norm() < 0.03 * found[0].norm()
