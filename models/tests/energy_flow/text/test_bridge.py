"""B batch, S cells, P places of a text."""

from __future__ import annotations

import copy
import dataclasses
from collections import Counter
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from holdfast import HoldfastError, Section
from holdfast_models.energy_flow.text import bridge as bridge_module
from holdfast_models.energy_flow.text.bridge import BRIDGE_PRESETS, BridgeSettings, TextBridge
from holdfast_models.energy_flow.text.generation import WrittenTexts
from holdfast_models.energy_flow.text.tokens import Vocabulary

LATTICE = (4, 3, 2)
TEXTS = ["a man is riding", "a dog sleeps at home", "two people eat", "the girl", "an old car"]
SMALL = BridgeSettings(width=32, heads=4, length=8, memories=4, decoder_most=5, decoder_every=1)


def small(**changes: Any) -> TextBridge:
    torch.manual_seed(0)
    settings = dataclasses.replace(SMALL, **changes)
    return TextBridge(Vocabulary.build(TEXTS), LATTICE, settings)


def trained() -> tuple[TextBridge, Tensor]:
    """A bridge that knows the five texts by heart, and their surfaces."""
    bridge = small()
    surface_BS = torch.rand(5, 12) - 0.5
    ids_BP = bridge.vocabulary.encode(TEXTS).ids_BP
    optimizer = torch.optim.AdamW(bridge.parameters(), lr=3e-3)
    for _ in range(150):
        optimizer.zero_grad()
        loss = bridge.encoder_loss(ids_BP, surface_BS) + bridge.decoder_loss(surface_BS, ids_BP)
        loss.backward()
        optimizer.step()
    return bridge.eval(), surface_BS


def test_it_learns_to_read_and_to_write():
    bridge, surface_BS = trained()
    left = (bridge.read(TEXTS) - surface_BS).square().mean()
    assert left < 0.25 * (surface_BS - surface_BS.mean(0)).square().mean()
    assert bridge.write(surface_BS) == TEXTS


def test_the_surface_read_towards_is_not_moved():
    bridge = small()
    surface_BS = torch.rand(5, 12, requires_grad=True)
    loss = bridge.encoder_loss(TEXTS, surface_BS)
    loss.backward()
    assert surface_BS.grad is None and bridge.encoder.words.table.weight.grad is not None
    assert loss.shape == ()


def test_the_surface_written_from_gets_a_gradient_in_the_samples_taken():
    bridge = small(decoder_most=2)
    surface_BHW = torch.rand(5, 3, 4, requires_grad=True)
    bridge.decoder_loss(surface_BHW, TEXTS).backward()
    assert surface_BHW.grad is not None
    assert surface_BHW.grad.flatten(1).any(1).tolist() == [True, True, False, False, False]


def test_texts_and_their_numbers_give_the_same_losses():
    bridge, surface_BS = small().eval(), torch.rand(5, 12)
    ids_BP = bridge.vocabulary.encode(TEXTS).ids_BP
    torch.testing.assert_close(
        bridge.encoder_loss(TEXTS, surface_BS), bridge.encoder_loss(ids_BP, surface_BS)
    )
    torch.testing.assert_close(
        bridge.decoder_loss(surface_BS, TEXTS), bridge.decoder_loss(surface_BS, ids_BP)
    )


def test_the_loss_of_a_step_is_weighted_and_decodes_when_it_is_due():
    bridge = small(weight=0.5, warmup=10, decoder_every=3).eval()
    surface_BS, out_BS = torch.rand(5, 12), torch.rand(5, 12)
    encoder = bridge.encoder_loss(TEXTS, surface_BS)
    decoder = bridge.decoder_loss(out_BS, TEXTS)
    for step, share in ((0, 0.1), (3, 0.4), (30, 1.0)):
        loss, parts = bridge.loss(TEXTS, surface_BS, TEXTS, out_BS, step=step)
        torch.testing.assert_close(loss, 0.5 * share * (encoder + 0.1 * decoder))
        torch.testing.assert_close(parts["text_decoder"], decoder.detach())
    loss, parts = bridge.loss(TEXTS, surface_BS, TEXTS, out_BS, step=4)
    torch.testing.assert_close(loss, 0.5 * 0.5 * encoder)
    assert parts.keys() == {"text_encoder", "text_loss"} and not parts["text_encoder"].requires_grad


class Counted(TorchDispatchMode):
    """Counts the operations that are dispatched."""

    def __init__(self) -> None:
        super().__init__()
        self.counts = Counter[str]()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.counts[func.overloadpacket.__name__] += 1
        return func(*args, **(kwargs or {}))


def test_a_training_step_reads_nothing_back_to_the_host():
    bridge = small()
    ids_BP = bridge.vocabulary.encode(TEXTS).ids_BP
    surface_BS = torch.rand(5, 12, requires_grad=True)
    with Counted() as seen:
        loss, _ = bridge.loss(ids_BP, surface_BS, ids_BP, surface_BS, step=0)
        loss.backward()
    assert seen.counts["addmm"] > 0
    assert not seen.counts.keys() & {"_local_scalar_dense", "nonzero", "item"}
    with Counted() as seen:
        loss.item()
    assert seen.counts["_local_scalar_dense"] == 1


def test_a_long_list_is_read_in_parts_with_the_same_result():
    bridge = small().eval()
    texts = [TEXTS[n % 5] + " " + TEXTS[n % 3] for n in range(70)]
    rows = list[int]()
    bridge.encoder.register_forward_hook(lambda _, args, out: rows.append(len(out)))
    surface_BS = bridge.read(texts)
    assert rows == [32, 32, 6]
    torch.testing.assert_close(surface_BS[40], bridge.read([texts[40]])[0], rtol=0, atol=1e-5)
    assert bridge.read([]).shape == (0, 12) and bridge.write(torch.empty(0, 12)) == []


def test_the_candidate_whose_surface_is_closer_is_kept(monkeypatch):
    bridge = small(corrections=2).eval()
    order = ["the girl", "two people eat", "an old car", "a dog sleeps at home"]
    ids_KP = bridge.vocabulary.encode(order).ids_BP[:, 1:]
    candidates = WrittenTexts(ids_KP[None], torch.zeros(1, 4))
    monkeypatch.setattr(bridge_module, "search", lambda *_, **__: candidates)
    assert bridge.write(bridge.read(["an old car"])) == ["an old car"]
    # The fourth is one more than the corrections allow; the likeliest is taken where none are.
    assert bridge.write(bridge.read(["a dog sleeps at home"])) != ["a dog sleeps at home"]
    bridge.settings = dataclasses.replace(bridge.settings, corrections=0)
    assert bridge.write(bridge.read(["an old car"])) == ["the girl"]


def test_a_closer_text_that_is_far_less_likely_is_not_kept(monkeypatch):
    # Seen with five texts known by heart: "two two people eat" won over the right text.
    bridge = small(corrections=2).eval()
    ids_KP = bridge.vocabulary.encode(["two people eat", "two two people eat"]).ids_BP[:, 1:]
    surface_BS = bridge.read(["two two people eat"])
    for chance, expected in ((0.2, "two two people eat"), (0.05, "two people eat")):
        candidates = WrittenTexts(ids_KP[None], torch.tensor([[0.8, 0.8 * chance]]).log())
        monkeypatch.setattr(bridge_module, "search", lambda *_, found=candidates, **__: found)
        assert bridge.write(surface_BS) == [expected]


def test_generation_settings_reach_the_search(monkeypatch):
    # The predecessor ignored those of its configuration.
    given = dict[str, Any]()

    def note(*args: Any, **settings: Any) -> WrittenTexts:
        given.update(settings)
        return WrittenTexts(torch.tensor([[[5]]]), torch.zeros(1, 1))

    monkeypatch.setattr(bridge_module, "search", note)
    small(length=7, beams=3, temperature=0.9).eval().write(torch.rand(1, 12))
    assert given == {"length": 7, "beams": 3, "temperature": 0.9}


def test_reading_in_the_middle_of_training_has_no_dropout_and_leaves_the_mode():
    bridge = small(cache=10)
    bridge.decoder.eval()
    first, second = bridge.read(TEXTS), bridge.read(TEXTS)
    torch.testing.assert_close(first, second)
    assert bridge.write(first) == bridge.write(first)
    assert bridge.training and bridge.encoder.training and not bridge.decoder.training


def test_the_cache_answers_a_resting_model_and_is_passed_by_in_training():
    bridge = small(cache=10).eval()
    assert bridge.cache is not None
    first = bridge.read([*TEXTS, TEXTS[0]])
    calls = list[int]()
    bridge.encoder.register_forward_hook(lambda _, args, out: calls.append(len(out)))
    torch.testing.assert_close(bridge.read([*TEXTS, TEXTS[0]]), first, rtol=0, atol=0)
    assert not calls and bridge.cache.surfaces.counts.hits == 6
    bridge.read(["new", TEXTS[1]])
    assert calls == [1]
    bridge.train().read(TEXTS)
    assert calls == [1, 5] and bridge.cache.surfaces.counts.hits == 7


def test_a_written_text_is_kept_under_the_settings_it_was_written_with():
    bridge = small(cache=10).eval()
    assert bridge.cache is not None
    surface_BS = torch.rand(3, 12)
    first = bridge.write(surface_BS)
    assert bridge.write(surface_BS) == first and bridge.cache.texts.counts[:2] == (3, 3)
    for name, value in (("length", 3), ("beams", 2), ("temperature", 0.5), ("corrections", 0)):
        before = bridge.cache.texts.counts.hits
        bridge.settings = dataclasses.replace(SMALL, cache=10, **{name: value})
        bridge.write(surface_BS)
        assert bridge.cache.texts.counts.hits == before, name
    assert len(bridge.cache.texts) == 10


def final(bridge: TextBridge) -> nn.Linear:
    layer = bridge.encoder.surface[4]
    assert isinstance(layer, nn.Linear)
    return layer


def test_no_answer_of_former_weights_is_given():
    bridge = small(cache=100).eval()
    first = bridge.read(TEXTS)
    with torch.no_grad():
        nn.init.ones_(final(bridge).bias)  # without a change of mode
    assert (bridge.read(TEXTS) - first).abs().max() > 0.1
    bridge.load_state_dict(small().state_dict())
    torch.testing.assert_close(bridge.read(TEXTS), first)
    final(bridge).bias.data.add_(0.5)  # which torch does not count as a change
    assert (bridge.train().eval().read(TEXTS) - first).abs().max() > 0.1


def test_a_copy_of_a_model_with_a_cache_is_a_model_of_its_own():
    bridge = small(cache=10).eval()
    surface_BS = bridge.read(TEXTS)
    other = copy.deepcopy(bridge)
    assert other.cache is not None and len(other.cache.surfaces) == 0
    torch.testing.assert_close(other.read(TEXTS), surface_BS)


def test_a_surface_of_another_size_or_that_is_not_finite_is_one_line():
    bridge = small().eval()
    with pytest.raises(HoldfastError, match="13 cells, the text bridge 12"):
        bridge.write(torch.rand(1, 13))
    with pytest.raises(HoldfastError, match=r"not finite, in rows \[1\]"):
        bridge.write(torch.tensor([[0.0] * 12, [torch.nan] * 12]))


def test_half_precision_trains_it_too():
    bridge, surface_BS = small(), torch.rand(5, 12, requires_grad=True)
    with torch.autocast("cpu", torch.bfloat16):
        loss, _ = bridge.loss(TEXTS, surface_BS, TEXTS, surface_BS, step=0)
    loss.backward()
    assert loss.dtype == torch.float32 and loss.isfinite()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in bridge.parameters())


def test_a_surface_of_half_precision_can_be_written():
    bridge, surface_BS = small().eval(), torch.rand(2, 12).bfloat16()
    assert bridge.write(surface_BS) == bridge.write(surface_BS.float())


def test_presets_are_those_of_the_specification():
    made = {name: BridgeSettings(**values) for name, values in BRIDGE_PRESETS.items()}
    assert made.keys() == {"debug", "experiment", "optimized", "exp50", "max80"}
    debug = made["debug"]
    assert (debug.weight, debug.length, debug.beams, debug.temperature) == (0.2, 32, 2, 0.8)
    assert debug.corrections == 2 and made["exp50"] == made["experiment"]
    assert made["optimized"].cache == made["max80"].cache == 10_000 and made["debug"].cache == 0


def test_a_width_that_heads_cannot_share_is_an_error_with_numbers():
    assert issubclass(BridgeSettings, Section)
    with pytest.raises(ValueError, match="width 30 cannot be shared by 8 heads"):
        BridgeSettings(width=30)
