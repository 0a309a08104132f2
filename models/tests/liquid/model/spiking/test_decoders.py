import pytest
import torch

from holdfast import HoldfastError
from holdfast_models.liquid.model.spiking.decoders import METHODS, SpikeDecoder

S, B, T, K, H = 6, 2, 3, 4, 5
EVERY = pytest.mark.parametrize("method", METHODS)


def made(method):
    torch.manual_seed(0)
    return SpikeDecoder(method, K, S, H)


def train():
    torch.manual_seed(1)
    return (torch.rand(S, B, T, K) < 0.3).float()


@EVERY
def test_features_per_token_and_every_parameter_trained(method):
    decoder, spikes = made(method), train().requires_grad_()
    y = decoder(spikes)
    assert y.shape == (B, T, H)
    (y * torch.randn_like(y)).sum().backward()
    for name, parameter in decoder.named_parameters():
        assert parameter.grad is not None and parameter.grad.abs().sum() > 0, name
    if method != "first_spike":
        assert spikes.grad is not None and spikes.grad.isfinite().all() and spikes.grad.any()


@EVERY
def test_a_token_is_decoded_from_its_own_spikes(method):
    decoder, spikes = made(method).eval(), train()
    changed = spikes.clone()
    changed[:, :, 1] = 1 - changed[:, :, 1]
    before, after = decoder(spikes), decoder(changed)
    assert torch.equal(before[:, [0, 2]], after[:, [0, 2]])
    assert not torch.equal(before[:, 1], after[:, 1])


def test_first_spike_is_the_step_of_the_first_spike_or_silent():
    decoder = made("first_spike")
    spikes = torch.zeros(S, 1, 1, K)
    spikes[2, ..., 0] = spikes[4, ..., 0] = 1
    spikes[0, ..., 1] = 1
    spikes[S - 1, ..., 2] = 1
    inner = decoder.decoder
    buckets = inner.get_parameter("buckets.weight")[[2, 0, S - 1, S]].flatten()
    torch.testing.assert_close(decoder(spikes)[0, 0], inner.get_submodule("read")(buckets))


def test_temporal_weighs_late_spikes_more():
    weights = made("temporal").decoder.get_buffer("weights_S")
    torch.testing.assert_close(weights[1:] / weights[:-1], torch.full((S - 1,), 2 / S).exp())
    assert weights.sum() == pytest.approx(1)


def test_probabilistic_is_noisy_in_training_only():
    decoder, spikes = made("probabilistic"), train()
    assert not torch.equal(decoder(spikes), decoder(spikes))
    decoder.eval()
    assert torch.equal(decoder(spikes), decoder(spikes))


def test_hybrid_begins_as_half_the_mean_of_three_and_half_their_fusion():
    decoder, spikes = made("hybrid"), train()
    inner = decoder.decoder
    read = [part(spikes, spikes.mean(0)) for part in inner.get_submodule("parts").children()]
    fused = inner.get_submodule("fusion")(torch.cat(read, -1))
    torch.testing.assert_close(decoder(spikes), (sum(read) / 3 + fused) / 2)


def test_one_step_is_enough_for_every_method():
    for method in METHODS:
        assert SpikeDecoder(method, K, 1, H)(train()[:1]).isfinite().all()


def test_wrong_shapes_and_names_are_refused():
    with pytest.raises(AssertionError, match=r"not \(6, B, T, 4\)"):
        made("rate")(train()[:3])
    with pytest.raises(HoldfastError, match="no spike decoder 'mean'"):
        made("mean")
