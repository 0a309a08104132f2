"""Writing text: stepping is the full forward, nothing sees what comes later, seeds repeat."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from holdfast import HoldfastError
from holdfast_models.liquid.data.tokenizers import BpeTokenizer, ByteTokenizer, RandomTokenizer
from holdfast_models.liquid.generation import (
    Sampling,
    TextPieces,
    choose,
    generate,
    stream,
)
from holdfast_models.liquid.model.model import LiquidNet, Sizes
from holdfast_models.liquid.settings import ModelSettings, PlasticitySettings

NetOf = Callable[..., LiquidNet]
BACKBONES = ("cfc", "ltc", "ncp", "ltc_scan")
VOCABULARY = 19
TOKENS = 7
GATE, CROSS = {"gate": True}, {"cross_attention": True}
PATHS: dict[str | None, list[dict[str, Any]]] = {
    None: [{}],
    "sequential": [{}],
    "parallel": [{}, GATE],
    "bidirectional": [{}, GATE, CROSS, GATE | CROSS],
}
MORE: list[dict[str, Any]] = [
    {"mamba": {"on": True, "kind": "ssd"}},
    {"mamba": {"on": True, "feedback": True}},
    {"mamba": {"on": True, "form": "loop", "conv": 1}},
    {"mamba": {"on": True, "conversion": "rate"}},
    {"mamba": {"on": True, "mode": "parallel", "conversion": "potential"}},
    {"mamba": {"on": True, "exchange": "two_pass"}},
    {"spikes": {"persist": True, "reset": "none"}},
    {"attention": {"on": False}, "residual": "concatenation"},
    {"num_layers": 3, "spikes": {"decode_method": "hybrid"}},
]


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def make_text_net() -> Callable[..., LiquidNet]:
    """``make_text_net(mamba={...}, plastic=True)``: untrained, in eval mode, fp64."""

    def make(*, plastic: bool = False, vocabulary: int = VOCABULARY, **given: Any) -> LiquidNet:
        small: dict[str, Any] = {
            "num_layers": 2, "hidden_dim": 16, "liquid_units": 12, "spiking_units": 10,
            "embedding_dim": 12, "max_position_embeddings": 64,
        }  # fmt: skip
        sections: dict[str, dict[str, Any]] = {
            "spikes": {"steps": 3},
            "attention": {"heads": 2, "steps": 3},
            "mamba": {"state": 4, "gate_heads": 2, "cross_heads": 2},
        }
        for name, section in sections.items():
            small[name] = section | given.pop(name, {})
        torch.manual_seed(3)
        net = LiquidNet(
            ModelSettings(**small | given),
            Sizes("llm", vocabulary, vocabulary),
            PlasticitySettings(on=plastic),
        )
        for parameter in net.parameters():
            if not parameter.any():  # what starts at zero would hide what it does
                torch.nn.init.normal_(parameter, std=0.5)
        return net.double().eval()

    return make


def configurations() -> Iterator[Any]:
    """Backbones, modes and ways to join the paths, with both kinds of memory of the others.

    Whether membranes persist and whether the window is short goes round, so that each meets each.
    """
    for (first, backbone), (mode, paths) in itertools.product(enumerate(BACKBONES), PATHS.items()):
        on = {"on": True, "mode": mode} if mode else {}
        for second, path in enumerate(paths):
            turns = (first + second,) if len(paths) == 4 else (first + second, first + second + 2)
            for turn in turns:
                persist, window = bool(turn & 1), 3 if (turn ^ turn >> 1) & 1 else None
                named = "-".join([f"{mode}", backbone, *path])
                given: dict[str, Any] = {
                    "liquid_backbone": backbone,
                    "mamba": on | path,
                    "spikes": {"persist": persist},
                    "attention": {"window": window},
                }
                yield pytest.param(given, id=f"{named}-persist={persist}-window={window}")
    for number, more in enumerate(MORE):
        yield pytest.param({"liquid_backbone": BACKBONES[number % 4]} | more, id=f"more {number}")


def tokens_of(rows: int, tokens: int = TOKENS) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randint(0, VOCABULARY, (rows, tokens), generator=generator)


@torch.no_grad()
@pytest.mark.parametrize("given", [*configurations()])
def test_stepping_is_the_full_forward_and_nothing_sees_what_is_later(
    make_text_net: NetOf, given: dict[str, Any]
) -> None:
    spikes = {"dropout": 0.0} | given.get("spikes", {})
    net = make_text_net(dropout=0.0, embedding_dropout=0.0, **given | {"spikes": spikes})
    tokens_BT = tokens_of(2)
    whole_BTV = net(tokens_BT).y_BTV
    first = net(tokens_BT[:, :4])
    found, state = [first.y_BTV], first.state
    for token_B in tokens_BT[:, 4:].unbind(1):
        output = net(token_B[:, None], state)
        found.append(output.y_BTV)
        state = output.state
    near: dict[str, Any] = {"rtol": 1e-8, "atol": 1e-9}
    torch.testing.assert_close(torch.cat(found, 1), whole_BTV, **near)

    changed_BT = tokens_BT.clone()
    changed_BT[:, 4:] = (changed_BT[:, 4:] + 1) % VOCABULARY
    changed_BTV = net(changed_BT).y_BTV
    torch.testing.assert_close(changed_BTV[:, :4], whole_BTV[:, :4], **near)
    assert ((changed_BTV - whole_BTV)[:, 4:].abs().amax(-1) > 1e-6).all()
    net.train()
    for x_BT in (tokens_BT, changed_BT):
        torch.testing.assert_close(net(x_BT).y_BTV[:, :4], whole_BTV[:, :4], **near)


def test_generation_is_what_repeated_full_passes_give(make_text_net: NetOf) -> None:
    net = make_text_net(mamba={"on": True, "cross_attention": True, "gate": True}, plastic=True)
    prompt = tokens_of(1)[0].tolist()
    found = [token for _, token in generate(net, [prompt], 12, Sampling(temperature=0))]
    for count, token in enumerate(found):
        with torch.no_grad():
            logits_V = net(torch.tensor([prompt + found[:count]])).y_BTV[0, -1]
        assert token == int(logits_V.argmax())
    assert len(found) == 12


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_row_of_a_batch_is_the_prompt_alone(make_text_net: NetOf, temperature: float) -> None:
    net = make_text_net(mamba={"on": True}, spikes={"persist": True}, attention={"window": 4})
    prompts = [
        row.tolist()[:length] for row, length in zip(tokens_of(4), (3, 5, 1, 7), strict=True)
    ]
    how = Sampling(temperature=temperature, top_k=9, top_p=0.95, penalty=1.2, seed=5)
    stop = 4
    rows: list[list[int]] = [[] for _ in prompts]
    for row, token in generate(net, prompts, 9, how, stop):
        rows[row].append(token)
    for row, prompt in enumerate(prompts):
        alone = Sampling(temperature=temperature, top_k=9, top_p=0.95, penalty=1.2, seed=5 + row)
        assert [token for _, token in generate(net, [prompt], 9, alone, stop)] == rows[row]
    assert all(len(row) <= 9 and stop not in row for row in rows)
    assert [*generate(net, prompts, 0)] == []


def test_seeds_repeat_and_differ(make_text_net: NetOf) -> None:
    net, prompts = make_text_net(), [[1, 2], [1, 2]]
    state = torch.random.get_rng_state()
    found = [[*generate(net, prompts, 20, Sampling(seed=seed))] for seed in (1, 1, 9)]
    assert found[0] == found[1] != found[2]
    rows = [[token for row, token in found[0] if row == number] for number in (0, 1)]
    assert rows[0] != rows[1], "two samples of one prompt"
    assert torch.equal(torch.random.get_rng_state(), state), "nobody else's numbers are used"


def test_a_row_that_stops_leaves_the_others(make_text_net: NetOf) -> None:
    net, prompts = make_text_net(), [[1, 2, 3], [7, 5]]
    free = [token for row, token in generate(net, prompts, 8, Sampling(seed=2)) if row == 0]
    stop = free[3]
    ended = [*generate(net, prompts, 8, Sampling(seed=2), stop)]
    assert [token for row, token in ended if row == 0] == free[: free.index(stop)]


# ------------------------------------------------------------------ choosing


def drawn(logits: list[float], how: Sampling, seen: tuple[int, ...] = ()) -> list[float]:
    """How often each token is chosen, over draws spread evenly from 0 to 1."""
    count = 1000
    seen_BV = torch.zeros(count, len(logits), dtype=torch.bool)
    seen_BV[:, list(seen)] = True
    draw_B = (torch.arange(count) + 0.5).double() / count
    found_B = choose(torch.tensor(logits).expand(count, -1), seen_BV, draw_B, how)
    return (torch.bincount(found_B, minlength=len(logits)) / count).tolist()


def test_tokens_are_drawn_as_often_as_the_shares_say() -> None:
    logits = torch.tensor([0.5, 0.3, 0.15, 0.05]).log().tolist()
    near = pytest.approx
    assert drawn(logits, Sampling()) == near([0.5, 0.3, 0.15, 0.05], abs=2e-3)
    assert drawn(logits, Sampling(top_k=2)) == near([5 / 8, 3 / 8, 0, 0], abs=2e-3)
    assert drawn(logits, Sampling(top_p=0.7)) == near([5 / 8, 3 / 8, 0, 0], abs=2e-3)
    assert drawn(logits, Sampling(top_p=0.01)) == [1, 0, 0, 0]
    assert drawn(logits, Sampling(top_k=99)) == near([0.5, 0.3, 0.15, 0.05], abs=2e-3)
    assert drawn(logits, Sampling(temperature=0.0)) == [1, 0, 0, 0]
    assert drawn(logits, Sampling(temperature=1e-9)) == [1, 0, 0, 0]
    assert drawn(logits, Sampling(temperature=0.5))[0] == near(0.25 / 0.365, abs=2e-3)
    assert drawn(logits, Sampling(temperature=1e9)) == near([0.25] * 4, abs=2e-3)


def test_the_penalty_makes_seen_tokens_less_likely_whatever_their_sign() -> None:
    for logits in ([2.0, 1.5, 0.0], [-1.0, -1.5, -9.0]):
        assert drawn(logits, Sampling(temperature=0)) == [1, 0, 0]
        assert drawn(logits, Sampling(temperature=0, penalty=2.0), seen=(0,)) == [0, 1, 0]
    assert drawn([2.0, 1.0], Sampling(penalty=1.0), seen=(0,)) == drawn([2.0, 1.0], Sampling())


@pytest.mark.parametrize(
    "wrong",
    [{"temperature": -1.0}, {"top_k": 0}, {"top_p": 0.0}, {"top_p": 1.1}, {"penalty": 0.0},
     {"seed": -1}, {"temperature": float("nan")}],
)  # fmt: skip
def test_what_cannot_be_meant_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(HoldfastError, match=next(iter(wrong))):
        Sampling(**wrong)


def test_prompts_that_do_not_fit_are_refused(make_text_net: NetOf) -> None:
    net = make_text_net()
    for prompts, reason in (([], "0 prompts"), ([[1], []], "without a token"), ([[99]], "99")):
        with pytest.raises(HoldfastError, match=reason):
            next(generate(net, prompts, 3))
    with pytest.raises(HoldfastError, match="training mode"):
        next(generate(net.train(), [[1]], 3))


# ------------------------------------------------------------------ text


TEXT = "naïve — 漢字 🙂 done\n"


def test_pieces_never_cut_a_character() -> None:
    pytest.importorskip("tokenizers")
    bpe = BpeTokenizer.train(["naive done " * 50], 262)
    for tokenizer in (ByteTokenizer(), bpe):
        pieces = TextPieces(tokenizer)
        reported = [pieces.add(int(token)) for token in tokenizer.encode(TEXT)]
        assert "".join(reported) == TEXT and pieces.end() == ""
        assert all("\N{REPLACEMENT CHARACTER}" not in piece for piece in reported)
        assert "🙂" in reported


def test_bytes_that_are_no_text_are_reported_like_by_decode() -> None:
    tokenizer = ByteTokenizer()
    generator = torch.Generator().manual_seed(0)
    for _ in range(200):
        tokens = torch.randint(0, 258, (12,), generator=generator).tolist()
        tokens[3:5], tokens[8:9] = [0xE2, 0x82], [0xF0]
        pieces = TextPieces(tokenizer)
        reported = "".join([pieces.add(token) for token in tokens]) + pieces.end()
        assert reported == tokenizer.decode(tokens)
    random, pieces = RandomTokenizer(30), TextPieces(RandomTokenizer(30))
    assert "".join(pieces.add(token) for token in (3, 17, 4)) == random.decode([3, 17, 4])


def test_streamed_text_is_the_text_of_the_tokens(make_text_net: NetOf) -> None:
    tokenizer = ByteTokenizer()
    net = make_text_net(vocabulary=tokenizer.size)
    prompts = ["def f(", "", "é"]
    texts = ["", "", ""]
    for row, piece in stream(net, tokenizer, prompts, 30, Sampling(seed=1)):
        texts[row] += piece
    assert all(texts)
    begin = [*generate(net, [[tokenizer.end]], 30, Sampling(seed=2), tokenizer.end)]
    assert texts[1] == tokenizer.decode(token for _, token in begin), "a document begins"
