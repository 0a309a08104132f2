from __future__ import annotations

import math

import pytest
import torch

from holdfast import HoldfastError
from holdfast_models.xec.geometry.layout import outer_fine, sensors_of
from holdfast_models.xec.geometry.neighbours import nearest, within_hops
from holdfast_models.xec.model.faces import Faces
from holdfast_models.xec.model.inpainter import Inpainter
from holdfast_models.xec.model.inpainting.attention_heads import AttentionHead
from holdfast_models.xec.model.inpainting.cross_attention import (
    CrossAttentionHead,
    encoded_positions,
)
from holdfast_models.xec.model.inpainting.face_heads import (
    LocalHexHead,
    LocalImageHead,
    TokenNodeHead,
)
from holdfast_models.xec.model.inpainting.features import CellPooling, ImageFeatures
from holdfast_models.xec.settings import EncoderSettings, InpainterSettings


def attention_head(face: str) -> AttentionHead:
    """The head that an inpainter has for a face."""
    settings = InpainterSettings(encoder_dim=32, head_type="masked_attention", freeze_encoder=False)
    head = Inpainter(settings).heads[face]
    assert isinstance(head, AttentionHead)
    return head


def attended(own: torch.Tensor, seen: torch.Tensor, face: str, sharpness: float) -> torch.Tensor:
    """What each sensor of one event reads of those around it, one by one."""
    place = {sensor: index for index, sensor in enumerate(sensors_of(face).tolist())}
    read = torch.zeros_like(own)
    for index, sensor in enumerate(place):
        near = [place[other] for other in within_hops(2)[sensor].tolist() if other >= 0]
        near = [other for other in near if seen[other]]
        if near:
            scores = own[near] @ own[index] * sharpness / math.sqrt(own.shape[-1])
            read[index] = scores.softmax(0) @ own[near]
    return read


@pytest.mark.parametrize("face", ["us", "top", "outer"])
def test_a_sensor_attends_to_those_within_two_steps_that_are_seen(face):
    shape = {"us": (24, 6), "top": (73,), "outer": (45, 72)}[face]
    head = attention_head(face)
    torch.nn.init.constant_(head.attention.sharpness, 3.0)
    x, token = torch.randn(1, *shape, 2), torch.randn(1, 32)
    seen = torch.rand(1, len(sensors_of(face))) < 0.5
    seen[:, :20] = False  # some have nobody around them
    features, token_BC = head.features(x, token)
    if head.pooling is not None:
        features = head.pooling(features)
    own = features.reshape(-1, features.shape[-1])
    read = attended(own, seen[0], face, 3.0)
    expected = head.attention.out(torch.cat((read, token_BC.expand_as(read)), -1))
    torch.testing.assert_close(head(x, token, seen)[0], expected, atol=1e-4, rtol=1e-4)


def test_cross_attention_is_attention_over_the_nearest_sensors_and_the_tokens():
    settings = InpainterSettings(encoder_dim=32)
    head = CrossAttentionHead(settings, 1)
    x, tokens, seen = torch.randn(1, 4760, 2), torch.randn(1, 6, 32), torch.rand(1, 4760) < 0.5
    sensors = torch.tensor([0, 2000, 4200, 4750, 4600])
    query = torch.cat((head.place_SP, head.face(head.face_S)), -1)[sensors]
    near = torch.as_tensor(nearest(16).copy())[sensors]
    known = torch.cat((x[0, near], head.place_SP[near]), -1)
    scores = torch.einsum("sh,skh->sk", head.query(query), head.key(known)) / math.sqrt(64)
    scores = scores.masked_fill(~seen[0, near], -torch.inf)
    local = torch.einsum("sk,skh->sh", scores.softmax(-1), head.value(known))
    latent = head.tokens(tokens[0])
    parts = []
    for one in range(4):
        part = slice(32 * one, 32 * one + 32)
        q, k = head.token_query(query)[:, part], head.token_key(latent)[:, part]
        weights = (q @ k.T / math.sqrt(32)).softmax(-1)
        parts.append(weights @ head.token_value(latent)[:, part])
    expected = head.out(torch.cat((local, head.token_out(torch.cat(parts, -1))), -1))
    found = head(x, tokens, seen)[0, sensors]
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)


def test_dead_and_hidden_sensors_do_not_contribute_to_cross_attention():
    head = CrossAttentionHead(InpainterSettings(encoder_dim=32), 1)
    tokens, seen = torch.randn(1, 6, 32), torch.rand(1, 4760) < 0.7
    x = torch.randn(1, 4760, 2)
    with torch.no_grad():
        found = head(x, tokens, seen)
        unseen = head(torch.where(seen[..., None], x, 50.0), tokens, seen)
        others = head(torch.where(seen[..., None], 50.0, x), tokens, seen)
    torch.testing.assert_close(unseen, found)
    assert ((others - found).abs() > 1e-3).float().mean() > 0.9


def test_a_place_is_encoded_by_sixteen_waves_per_coordinate():
    encoded = encoded_positions(96)
    assert encoded.shape == (4760, 96)
    waves = encoded.unflatten(-1, (3, 2, 16)).square().sum(2)
    torch.testing.assert_close(waves, torch.ones(4760, 3, 16))
    distance = torch.cdist(encoded[:500], encoded)
    assert (distance + 10 * torch.eye(500, 4760)).min() > 0.5  # no two are alike
    with pytest.raises(HoldfastError, match="cross_attn_pos_dim is 100"):
        CrossAttentionHead(InpainterSettings(encoder_dim=32, cross_attn_pos_dim=100), 1)


@pytest.mark.parametrize("pool", [None, (3, 3)])
def test_cells_are_pooled_for_the_sensor_that_covers_them(pool):
    faces = Faces(EncoderSettings(encoder_dim=32, outer_fine_pool=pool))
    pooling = CellPooling(faces, 4, bias=True)
    image = torch.randn(1, *faces.shapes["outer"], 4)
    found = pooling(image)
    assert found.shape == (1, 234, 4)
    if pool is None:
        ids = torch.as_tensor(outer_fine())
        for place, sensor in enumerate(sensors_of("outer").tolist()):
            own_part = image[0][ids == sensor]
            expected = pooling.score(own_part).softmax(0).T @ own_part
            torch.testing.assert_close(found[0, place : place + 1], expected)


def test_local_heads_read_the_cells_around_a_hidden_one():
    seen = torch.ones(1, 144, dtype=torch.bool)
    for head, places in ((LocalImageHead(32, 1), (24, 6)), (LocalHexHead(32, 1), (73,))):
        x, token = torch.randn(1, *places, 2), torch.randn(1, 32)
        other = x.clone()
        other[(0, *(1 for _ in places))] += 3
        assert (head(x, token, seen) != head(other, token, seen)).any()


def test_a_head_without_surroundings_tells_nodes_apart():
    values = TokenNodeHead(32, 1, 73)(torch.zeros(1), torch.randn(1, 32), torch.zeros(1))
    assert values.shape == (1, 73, 1)
    assert len(values.unique()) == 73


def test_a_token_in_every_cell_is_what_the_filter_sees():
    features = ImageFeatures(32).double()
    x_BHWC, token_BC = torch.randn(2, 5, 4, 2).double(), torch.randn(2, 64).double()
    there = token_BC[:, None, None].expand(-1, 5, 4, -1)
    plain_BHWO = features.enter(torch.cat((x_BHWC, there), -1).permute(0, 3, 1, 2))
    found_BHWO = features._entered(x_BHWC, token_BC)
    torch.testing.assert_close(found_BHWO, plain_BHWO.permute(0, 2, 3, 1))
