"""B batch, S cells, P places of a text, V pieces, K beams."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from holdfast_models.energy_flow.text.decoder import TextDecoder
from holdfast_models.energy_flow.text.generation import Marks, search
from holdfast_models.energy_flow.text.settings import BridgeSettings

MARKS = Marks(pad=0, unknown=1, begin=2, end=3)


def small(words: int = 20, cells: int = 12, seed: int = 0) -> TextDecoder:
    torch.manual_seed(seed)
    return TextDecoder(words, cells, BridgeSettings(width=16, heads=4, memories=3))


def sharp(words: int, seed: int = 0) -> TextDecoder:
    """One whose pieces differ in how likely they are, as after training."""
    decoder = small(words, seed=seed).eval()
    with torch.no_grad():
        decoder.words.table.weight.mul_(60)
    return decoder


def test_every_parameter_and_the_surface_get_a_gradient():
    # The predecessor's decoder loss had none: nothing in it ever learned.
    decoder = small()
    surface_BS = torch.randn(3, 12, requires_grad=True)
    decoder.loss(surface_BS, torch.randint(4, 20, (3, 7)), pad=0).backward()
    assert surface_BS.grad is not None and surface_BS.grad.any(1).all()
    assert not [
        name
        for name, parameter in decoder.named_parameters()
        if parameter.grad is None or not parameter.grad.any()
    ]


def test_the_output_table_is_the_input_table():
    decoder = small()
    assert [p.shape for p in decoder.parameters()].count(torch.Size((20, 16))) == 1
    logits_BPV = decoder(torch.randn(2, 12), torch.randint(4, 20, (2, 5)))
    assert logits_BPV.shape == (2, 5, 20)


def test_padding_does_not_count_in_the_loss():
    decoder = small().eval()
    surface_BS, ids_BP = torch.randn(2, 12), torch.randint(4, 20, (2, 5))
    padded_BP = functional.pad(ids_BP, (0, 3))
    alone = decoder.loss(surface_BS, ids_BP, pad=0)
    torch.testing.assert_close(decoder.loss(surface_BS, padded_BP, pad=0), alone)
    logits_BPV = decoder(surface_BS, ids_BP[:, :-1])
    by_hand = -logits_BPV.log_softmax(-1).gather(2, ids_BP[:, 1:, None]).mean()
    torch.testing.assert_close(alone, by_hand)


def test_a_piece_sees_only_those_before_it():
    decoder = small().eval()
    surface_BS, ids_BP = torch.randn(1, 12), torch.randint(4, 19, (1, 6))
    changed_BP = ids_BP.clone()
    changed_BP[0, 4] += 1
    first, second = decoder(surface_BS, ids_BP), decoder(surface_BS, changed_BP)
    torch.testing.assert_close(first[:, :4], second[:, :4])
    assert (first[:, 4] - second[:, 4]).abs().max() > 1e-4


def test_writing_piece_by_piece_gives_the_logits_of_the_whole():
    decoder = small().eval()
    surface_BS, ids_BP = torch.randn(2, 12), torch.randint(4, 20, (2, 6))
    past, steps = decoder.start(surface_BS), list[Tensor]()
    for place in range(6):
        logits_B1V, past = decoder.advance(ids_BP[:, place : place + 1], past)
        steps.append(logits_B1V)
    torch.testing.assert_close(
        torch.cat(steps, dim=1), decoder(surface_BS, ids_BP), rtol=0, atol=1e-5
    )


def test_one_beam_takes_the_likeliest_piece_each_time():
    decoder = sharp(20)
    surface_BS = torch.randn(5, 12)
    written = search(decoder, surface_BS, MARKS, length=8).ids_BKP[:, 0]
    for surface_S, row in zip(surface_BS, written.tolist(), strict=True):
        ids = [MARKS.begin]
        for piece in row:
            logits_V = decoder(surface_S[None], torch.tensor([ids]))[0, -1]
            logits_V[[MARKS.pad, MARKS.unknown, MARKS.begin]] = -torch.inf
            ids.append(int(logits_V.argmax()))
            assert piece == ids[-1]
            if piece == MARKS.end:
                break


@torch.no_grad()
@pytest.mark.parametrize("temperature", [0.7, 1.0, 1.5])
def test_enough_beams_find_the_likeliest_of_all_texts(temperature: float):
    decoder = sharp(6, seed=3)
    surface_BS = torch.randn(4, 12)
    found = search(decoder, surface_BS, MARKS, length=3, beams=16, temperature=temperature)
    every = [
        [*inside, *([MARKS.end] if len(inside) < 3 else [])]
        for size in range(4)
        for inside in itertools.product((4, 5), repeat=size)
    ]
    assert len(every) == 15
    for row, surface_S in enumerate(surface_BS):
        scores: list[float] = []
        for text in every:
            logits_PV = decoder(surface_S[None], torch.tensor([[MARKS.begin, *text[:-1]]]))[0]
            logits_PV[:, [MARKS.pad, MARKS.unknown, MARKS.begin]] = -torch.inf
            likely_PV = (logits_PV / temperature).log_softmax(-1)
            scores.append(float(likely_PV[range(len(text)), text].sum()))
        order = sorted(range(15), key=lambda one: -scores[one] / len(every[one]))
        texts = [[p for p in beam if p != MARKS.pad] for beam in found.ids_BKP[row].tolist()]
        assert texts[:15] == [every[one] for one in order]
        expected = torch.tensor([scores[one] for one in order])
        torch.testing.assert_close(found.likely_BK[row, :15], expected, rtol=0, atol=1e-4)
        assert found.likely_BK[row, 15] == -torch.inf  # there are only fifteen texts


def test_a_row_does_not_depend_on_its_neighbours():
    decoder, surface_BS = sharp(20), torch.randn(4, 12)
    together = search(decoder, surface_BS, MARKS, length=6, beams=3).ids_BKP
    for row in range(4):
        alone = search(decoder, surface_BS[row : row + 1], MARKS, length=6, beams=3).ids_BKP
        filled = functional.pad(alone, (0, together.shape[2] - alone.shape[2]))
        assert filled[0].tolist() == together[row].tolist()


def test_nothing_follows_the_end_and_the_length_is_kept():
    decoder, surface_BS = sharp(8, seed=4), torch.randn(20, 12)
    ids_BKP = search(decoder, surface_BS, MARKS, length=7, beams=4).ids_BKP
    assert ids_BKP.shape[2] <= 7
    ended = 0
    for row in ids_BKP.flatten(0, 1).tolist():
        end = row.index(MARKS.end) if MARKS.end in row else len(row)
        ended += end < len(row)
        assert not set(row[:end]) & {MARKS.pad, MARKS.unknown, MARKS.begin}
        assert not any(row[end + 1 :])
    assert 0 < ended < 80


def test_a_temperature_near_zero_is_no_trouble():
    decoder, surface_BS = sharp(20), torch.randn(2, 12)
    cold = search(decoder, surface_BS, MARKS, length=5, beams=3, temperature=1e-38)
    assert not cold.likely_BK.isnan().any()
    warm = search(decoder, surface_BS, MARKS, length=5, beams=1)
    assert cold.ids_BKP[:, 0].tolist() == warm.ids_BKP[:, 0].tolist()
