import pytest
import torch

from holdfast_models.liquid.model.spiking.encoder import SpikeEncoder


def made(persist, **options):
    torch.manual_seed(0)
    return SpikeEncoder(6, 5, steps=7, persist=persist, **options).double()


def tokens(steps=12):
    torch.manual_seed(1)
    return torch.randn(2, steps, 6, dtype=torch.float64)


@pytest.mark.parametrize(("persist", "steps"), [(False, 7), (True, 1)])
def test_shapes_and_means(persist, steps):
    encoded, state = made(persist)(tokens())
    assert encoded.train_SBTK.shape == (steps, 2, 12, 5)
    assert encoded.membrane_BTK.shape == (2, 12, 5)
    torch.testing.assert_close(encoded.rate_BTK, encoded.train_SBTK.mean(0))
    assert 0 < encoded.rate_BTK.mean() < 1
    assert all(0 <= part.sum() <= 1 for part in encoded.near)
    assert [x.shape for x in state] == ([(2, 10), (2, 5)] if persist else [])


def test_tokens_are_two_stages_of_linear_and_lif(lif_loop):
    encoder, x = made(False).eval(), tokens()
    hidden, _ = lif_loop(encoder.first_lif, encoder.first(x).expand(7, 2, 12, 10))
    train, membranes = lif_loop(encoder.second_lif, encoder.second(hidden))
    encoded, _ = encoder(x)
    assert torch.equal(encoded.train_SBTK, train)
    torch.testing.assert_close(encoded.membrane_BTK, membranes.mean(0))


@pytest.mark.parametrize("persist", [False, True])
@pytest.mark.parametrize("cut", [1, 5])
def test_state_passing(persist, cut):
    encoder, x = made(persist).eval(), tokens()
    whole, _ = encoder(x)
    first, state = encoder(x[:, :cut])
    second, _ = encoder(x[:, cut:], state)
    assert torch.equal(torch.cat([first.rate_BTK, second.rate_BTK], 1), whole.rate_BTK)


@pytest.mark.parametrize("persist", [False, True])
def test_later_tokens_change_nothing_earlier(persist):
    encoder, x = made(persist).eval(), tokens()
    changed = x.clone()
    changed[:, 6:] += 3
    before, after = encoder(x)[0], encoder(changed)[0]
    assert torch.equal(before.membrane_BTK[:, :6], after.membrane_BTK[:, :6])
    assert not torch.equal(before.membrane_BTK[:, 6:], after.membrane_BTK[:, 6:])


@pytest.mark.parametrize("persist", [False, True])
def test_every_parameter_is_trained_by_rate_and_by_membrane(persist):
    encoder = made(persist, slope=3, learn_beta=True, learn_threshold=True)
    for kind in ("rate_BTK", "membrane_BTK"):
        encoder.zero_grad()
        getattr(encoder(tokens())[0], kind).square().sum().backward()
        for name, parameter in encoder.named_parameters():
            assert parameter.grad is not None and parameter.grad.abs().sum() > 0, name


def test_extra_current_goes_to_the_second_stage():
    encoder, x = made(False).eval(), tokens()
    extra = torch.full((2, 12, 5), 5.0, dtype=torch.float64)
    assert encoder(x, None, extra)[0].rate_BTK.mean() > encoder(x)[0].rate_BTK.mean()


def test_dropout_acts_in_training_only():
    encoder, x = made(False), tokens()
    assert not torch.equal(encoder(x)[0].membrane_BTK, encoder(x)[0].membrane_BTK)
    encoder.eval()
    assert torch.equal(encoder(x)[0].membrane_BTK, encoder(x)[0].membrane_BTK)
