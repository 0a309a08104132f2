"""The kernels themselves, on a GPU: every width, hidden places, whole models, the compiler."""

from __future__ import annotations

import pytest
import torch

from holdfast_models.xec.kernels import check
from holdfast_models.xec.model.blocks import ConvNeXtBlock
from holdfast_models.xec.model.mae import MaskedAutoencoder
from holdfast_models.xec.settings import MaeSettings

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU"),
]
DEVICE = torch.device("cuda", 0)


@pytest.mark.parametrize("channels", [8, 24, 64])
def test_values_and_gradients_are_those_of_plain_torch(channels):
    assert check.fault(channels, DEVICE) is None


@pytest.fixture
def no_cudnn_attention():
    """As the trainer compiles: its backward gives the second of two layouts wrong gradients."""
    usual = torch.backends.cuda.cudnn_sdp_enabled()
    torch.backends.cuda.enable_cudnn_sdp(False)
    yield
    torch.backends.cuda.enable_cudnn_sdp(usual)


@pytest.mark.filterwarnings("ignore")  # of the compiler's own
@pytest.mark.parametrize("compiled", [False, True])
def test_a_whole_autoencoder_is_the_plain_one_to_the_rounding_of_bf16(compiled, no_cudnn_attention):
    torch.manual_seed(0)
    model = MaskedAutoencoder(MaeSettings(encoder_dim=256, fusion_dropout=0.0)).to(DEVICE)
    x_BSC, hidden_BS = torch.rand(4, 4760, 2).to(DEVICE), (torch.rand(4, 4760) < 0.6).to(DEVICE)
    found = []
    for fused in (False, True):
        if fused:
            assert check.take(model, DEVICE) == ""
            assert all(one.fused for one in model.modules() if isinstance(one, ConvNeXtBlock))
        call = torch.compile(model, fullgraph=True) if fused and compiled else model
        with torch.autocast("cuda", torch.bfloat16, enabled=fused):
            out = call(x_BSC, hidden_BS)
        weights = list(model.encoder.backbone.parameters())
        found.append((out, torch.autograd.grad(out.float().square().mean(), weights)))
    (plain, plain_grads), (own, my_grads) = found
    assert (own - plain).norm() / plain.norm() < 0.03
    names = [name for name, _ in model.encoder.backbone.named_parameters()]
    apart = {
        name: float((one - other).norm() / other.norm())
        for name, one, other in zip(names, my_grads, plain_grads, strict=True)
    }
    assert max(apart.values()) < 0.1, apart
