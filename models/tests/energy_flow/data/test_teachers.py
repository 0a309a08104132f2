"""Teachers: fixed vectors of length 1 that say something about their sentence."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from holdfast import HoldfastError
from holdfast_models.energy_flow.data import minilm
from holdfast_models.energy_flow.data.minilm import MiniLM
from holdfast_models.energy_flow.data.teachers import HashTeacher, Teacher, make_teacher
from holdfast_models.energy_flow.text.tokens import Vocabulary

MAN = "A young man in a red shirt is riding a bicycle on a busy city street."


def test_the_hash_teacher_makes_the_same_unit_vectors_every_time() -> None:
    teacher: Teacher = HashTeacher(33)
    rows_NE = teacher.encode([MAN, "", "?!", "word"])
    assert rows_NE.dtype == torch.float32 and rows_NE.shape == (4, 33) and teacher.dim == 33
    assert torch.allclose(rows_NE.norm(dim=1), torch.ones(4))
    assert torch.equal(rows_NE, HashTeacher(33).encode([MAN, "", "?!", "word"]))
    assert teacher.encode([]).shape == (0, 33)
    # Written down once: caches outlive versions of numpy.
    first = HashTeacher(8).encode(["holdfast"])[0, :3]
    assert torch.allclose(first, torch.tensor([-0.09789, 0.10863, 0.45872]), atol=1e-4)


def test_the_hash_teacher_hears_words_and_their_order_not_case() -> None:
    same, near, swapped, far = HashTeacher().encode(
        [MAN.upper(), MAN.replace("red", "blue"), "dog bites man", "Entirely different matters"]
    )
    man, bites = HashTeacher().encode([MAN, "man bites dog"])
    assert torch.allclose(man, same, atol=1e-6)
    assert 0.7 < man @ near < 0.99
    assert abs(float(man @ far)) < 0.25
    assert 0.5 < bites @ swapped < 0.99


def test_directions_are_gaussian() -> None:
    rows_NE = HashTeacher(64).encode([f"word{n}" for n in range(500)]) * 8  # unit variance
    assert abs(float(rows_NE.mean())) < 0.02
    assert abs(float(rows_NE.std()) - 1) < 0.02
    assert abs(float((rows_NE**4).mean()) - 3) < 0.25
    between = (rows_NE @ rows_NE.T / 64)[~torch.eye(500, dtype=torch.bool)]
    assert abs(float(between.std()) - 1 / 8) < 0.01


def test_fingerprints_tell_seeds_and_widths_apart() -> None:
    teachers = HashTeacher(), HashTeacher(seed=1), HashTeacher(128)
    assert len({teacher.fingerprint for teacher in teachers}) == 3
    assert not torch.equal(teachers[0].encode([MAN]), teachers[1].encode([MAN]))
    assert HashTeacher().fingerprint == teachers[0].fingerprint
    with pytest.raises(HoldfastError, match="dim 1, seed 0"):
        HashTeacher(1)


def test_a_missing_package_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(minilm, "PACKAGE", "no_such_package_here")
    with pytest.raises(HoldfastError, match=r"no-such-package-here.*holdfast-models\[text\]"):
        make_teacher("minilm")


VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "un", "##able", "##a", "cafe", "!", "a", "中"]


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    """A BERT of width 8 with random weights, in the files of the package."""
    generator = torch.Generator().manual_seed(0)
    config = {
        "hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2,
        "layer_norm_eps": 1e-12, "max_position_embeddings": 16,
    }  # fmt: skip

    def random(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator) * 0.4

    tables = {"word": len(VOCABULARY), "position": 16, "token_type": 2}
    weights = {f"embeddings.{n}_embeddings.weight": random(s, 8) for n, s in tables.items()}
    linear = {
        "attention.self.query": (8, 8), "attention.self.key": (8, 8),
        "attention.self.value": (8, 8), "attention.output.dense": (8, 8),
        "intermediate.dense": (12, 8), "output.dense": (8, 12),
    }  # fmt: skip
    norms = ["embeddings.LayerNorm"]
    for layer in range(2):
        at = f"encoder.layer.{layer}"
        for name, shape in linear.items():
            weights[f"{at}.{name}.weight"] = random(*shape)
            weights[f"{at}.{name}.bias"] = random(shape[0])
        norms += [f"{at}.attention.output.LayerNorm", f"{at}.output.LayerNorm"]
    for name in norms:
        weights[f"{name}.weight"], weights[f"{name}.bias"] = 1 + random(8), random(8)
    save_file(weights, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "vocab.txt").write_text("\n".join(VOCABULARY), encoding="utf-8")
    return tmp_path


def reference(weights: dict[str, Tensor], ids: list[int]) -> Tensor:
    """The same numbers through torch's own encoder layers, one text without padding."""
    x_1PE = weights["embeddings.word_embeddings.weight"][ids][None]
    x_1PE = x_1PE + weights["embeddings.position_embeddings.weight"][: len(ids)]
    x_1PE = x_1PE + weights["embeddings.token_type_embeddings.weight"][0]
    norm = weights["embeddings.LayerNorm.weight"], weights["embeddings.LayerNorm.bias"]
    x_1PE = nn.functional.layer_norm(x_1PE, (8,), *norm, eps=1e-12)
    for layer in range(2):
        block = nn.TransformerEncoderLayer(8, 2, 12, 0.0, "gelu", 1e-12, batch_first=True)
        w = {k.removeprefix(f"encoder.layer.{layer}."): v for k, v in weights.items()}
        parts = [f"attention.self.{name}" for name in ("query", "key", "value")]
        names = {
            "self_attn.out_proj": "attention.output.dense", "linear1": "intermediate.dense",
            "linear2": "output.dense", "norm1": "attention.output.LayerNorm",
            "norm2": "output.LayerNorm",
        }  # fmt: skip
        state = {f"{a}.{k}": w[f"{b}.{k}"] for a, b in names.items() for k in ("weight", "bias")}
        for kind in ("weight", "bias"):
            state[f"self_attn.in_proj_{kind}"] = torch.cat([w[f"{part}.{kind}"] for part in parts])
        block.load_state_dict(state)
        x_1PE = block(x_1PE)
    return nn.functional.normalize(x_1PE[0].mean(0), dim=0)


def test_minilm_equals_torchs_own_layers_whatever_it_is_batched_with(tiny: Path) -> None:
    from safetensors.torch import load_file

    teacher = MiniLM(tiny)
    texts = ["Unable!", "a", "Café a a a unable", ""]
    ids = [[2, 4, 5, 8, 3], [2, 9, 3], [2, 7, 9, 9, 9, 4, 5, 3], [2, 3]]
    weights = load_file(tiny / "model.safetensors")
    with torch.no_grad():
        expected_NE = torch.stack([reference(weights, row) for row in ids])
    assert torch.allclose(teacher.encode(texts), expected_NE, atol=1e-5)
    assert teacher.dim == 8 and not teacher.encode(texts).requires_grad


def test_pieces_are_cut_as_bert_cuts_them(tiny: Path) -> None:
    words = Vocabulary.load(tiny / "vocab.txt")
    assert words.row("UNABLE una\tcafé!a", 16) == [2, 4, 5, 4, 6, 7, 8, 9, 3]
    assert words.row("a中a \u200b zzz", 16) == [2, 9, 10, 9, 1, 3]
    assert words.row("a" * 101, 16) == [2, 1, 3]
    assert words.row("a " * 50, 16) == [2, *[9] * 14, 3]


def test_the_fingerprint_of_minilm_is_of_its_files(tiny: Path) -> None:
    before = MiniLM(tiny).fingerprint
    assert MiniLM(tiny).fingerprint == before
    (tiny / "vocab.txt").write_text("\n".join([*VOCABULARY, "b"]), encoding="utf-8")
    assert MiniLM(tiny).fingerprint != before
    (tiny / "vocab.txt").unlink()
    with pytest.raises(HoldfastError, match=r"no vocab.txt"):
        MiniLM(tiny)


@pytest.mark.skipif(
    importlib.util.find_spec(minilm.PACKAGE) is None, reason="the package is not installed"
)
def test_the_real_minilm_hears_meaning() -> None:
    teacher = make_teacher("minilm")
    rows_NE = teacher.encode([MAN, "A person moves on wheels in town.", "Interest rates fell."])
    assert rows_NE[0] @ rows_NE[1] > 0.4
    assert abs(float(rows_NE[0] @ rows_NE[2])) < 0.15
    with pytest.raises(HoldfastError, match="width 384, not 768"):
        make_teacher("minilm", 768)
