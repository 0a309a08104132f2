"""The text bridge: feeds the lattice with words and reads it in words.

    bridge = TextBridge(Vocabulary.build(texts), (20, 20, 10), BridgeSettings())
    loss, parts = bridge.loss(ids_in, surface_in, ids_out, surface_out, step=step)  # training
    surface_BS = bridge.read(["A man is riding a bicycle."])
    texts = bridge.write(surface_BS)

The core runs once per step; what it put out is given here.

Shape suffixes: B batch, S cells W*H, P places of a text, K candidates.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from holdfast import HoldfastError
from holdfast.training import Graphs

from .cache import TextCache, surface_key, text_key, weights_digest
from .decoder import TextDecoder
from .encoder import TextEncoder
from .generation import Marks, search
from .settings import BRIDGE_PRESETS, BridgeSettings
from .tokens import Vocabulary

__all__ = ["BRIDGE_PRESETS", "BridgeSettings", "TextBridge"]

_READ_AT_ONCE = 32  # texts; bounds the memory of a long list
_DECODER_SHARE = 0.1  # of the decoder's loss in the text loss
# How likely, beside the likeliest text, one must be to take its place. Without a limit a slip that
# the decoder itself gave no chance won, because it reads much like the right text. A guess.
_RIVAL = 0.1


class TextBridge(nn.Module):
    """Text encoder and decoder over one vocabulary, with a cache for inference.

    Args:
        vocabulary: of both.
        lattice: width, height and depth.
        settings: see ``BridgeSettings``.
    """

    def __init__(
        self, vocabulary: Vocabulary, lattice: tuple[int, int, int], settings: BridgeSettings
    ) -> None:
        super().__init__()
        self.vocabulary, self.settings = vocabulary, settings
        self.cells = lattice[0] * lattice[1]
        self.encoder = TextEncoder(len(vocabulary), self.cells, settings)
        self.decoder = TextDecoder(len(vocabulary), self.cells, settings)
        self.cache = TextCache(settings.cache, lattice) if settings.cache else None
        self.graphs = Graphs()
        self._known: tuple[object, str] | None = None

    def forward(self, ids_BP: Tensor) -> Tensor:
        """The surface ``[B, S]`` of texts as numbers, with gradient."""
        return self.encoder(ids_BP, ids_BP != self.vocabulary.pad)

    def encoder_loss(self, texts: Sequence[str] | Tensor, surface_BS: Tensor) -> Tensor:
        """Squared error of the surfaces read from texts; the surface itself is not moved.

        Args:
            texts: the input texts, or their numbers ``[B, P]`` from ``Vocabulary.encode``.
            surface_BS: what the input mapper makes of the same texts; ``[B, H, W]`` will do.
        """
        target_BS = self._surface(surface_BS).detach().float()
        return functional.mse_loss(self(self._ids(texts)).float(), target_BS)

    def decoder_loss(self, surface_BS: Tensor, texts: Sequence[str] | Tensor) -> Tensor:
        """Cross-entropy of writing the target texts, with gradient to the surface.

        Taken of the first ``decoder_most`` samples.

        Args:
            surface_BS: what came out of the core; ``[B, H, W]`` will do.
            texts: the target texts, or their numbers ``[B, P]`` from ``Vocabulary.encode``.
        """
        most = self.settings.decoder_most
        ids_BP = self._ids(texts[:most])
        return self.decoder.loss(self._surface(surface_BS)[:most], ids_BP, pad=self.vocabulary.pad)

    def loss(
        self,
        read: Sequence[str] | Tensor,
        surface_BS: Tensor,
        written: Sequence[str] | Tensor,
        out_BS: Tensor,
        *,
        step: int,
        whole: bool = False,
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """What the bridge adds to the loss of a step, weighted, and its parts unweighted.

        Args:
            read: the input texts or their numbers.
            surface_BS: what the input mapper makes of them.
            written: the target texts or their numbers.
            out_BS: what came out of the core.
            step: the optimizer step; decides on the weight and whether the decoder takes part.
            whole: give the decoder's parameters a gradient, of zero, where it takes no part:
                ranks that train together wait for every gradient.
        """
        decodes = self.settings.decodes_at(step)
        inputs = (self._ids(read), surface_BS.detach(), self._ids(written), out_BS)
        found = self._losses(inputs, decodes)
        total = found[0]
        parts = {"text_encoder": found[1]}
        if decodes:
            parts["text_decoder"] = found[2]
        elif whole:
            total = total + 0.0 * sum(one.float().sum() for one in self.decoder.parameters())
        parts["text_loss"] = total.detach()
        return self.settings.weight_at(step) * total, parts

    def _losses(self, inputs: tuple[Tensor, ...], decodes: bool) -> Sequence[Tensor]:
        """Their sum, and its parts without gradients; on a GPU replayed as a graph."""
        if not self.settings.graph:
            return self._plain_losses(inputs, decodes)
        kind = inputs[0].device.type
        half = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None

        def run(*given: Tensor) -> Sequence[Tensor]:
            return self._plain_losses(given, decodes)

        key = (decodes, self.training, half)
        found = self.graphs.run(run, inputs, [self], carries=1, key=key)
        return self._plain_losses(inputs, decodes) if found is None else found

    def _plain_losses(self, inputs: Sequence[Tensor], decodes: bool) -> Sequence[Tensor]:
        read_BP, surface_BS, written_BP, out_BS = inputs
        encoder = self.encoder_loss(read_BP, surface_BS)
        if not decodes:
            return encoder, encoder.detach()
        decoder = self.decoder_loss(out_BS, written_BP)
        return encoder + _DECODER_SHARE * decoder, encoder.detach(), decoder.detach()

    @torch.no_grad()
    def read(self, texts: Sequence[str]) -> Tensor:
        """The surfaces ``[B, S]`` of texts; kept in the cache, which a training model passes by."""
        cache = None if self.training else self.cache
        with _resting(self):
            if cache is None:
                return self._read(texts)
            fingerprint = self._fingerprint()
            keys = [text_key(fingerprint, text) for text in texts]
            rows = cache.surfaces.answers(
                keys,
                # A row by itself would keep the whole batch alive.
                lambda places: [
                    row_S.clone() for row_S in self._read([texts[i] for i in places]).cpu()
                ],
            )
            cache.tell()
            return torch.stack(rows).to(self._device) if rows else self._read(())

    @torch.no_grad()
    def write(self, surface_BS: Tensor) -> list[str]:
        """The texts of surfaces; kept in the cache, which a training model passes by."""
        cache = None if self.training else self.cache
        surface_BS = self._surface(surface_BS).to(self.encoder.words.positions)  # and its dtype
        if bad := (~surface_BS.isfinite().all(1)).nonzero().flatten().tolist():
            raise HoldfastError(
                f"surfaces to write have values that are not finite, in rows {bad[:8]}; "
                "check the model that made them"
            )
        with _resting(self):
            if cache is None:
                return self._write(surface_BS)
            said = {
                name: getattr(self.settings, name)
                for name in ("length", "beams", "temperature", "corrections")
            }
            fingerprint = self._fingerprint()
            keys = [surface_key(fingerprint, row, **said) for row in surface_BS.cpu()]
            texts = cache.texts.answers(keys, lambda places: self._write(surface_BS[places]))
            cache.tell()
            return texts

    def train(self, mode: bool = True) -> TextBridge:
        """As of any module; what is known of the weights is forgotten, they may have changed."""
        self._known = None
        return super().train(mode)

    def _read(self, texts: Sequence[str]) -> Tensor:
        parts = [
            self(self._ids(texts[first : first + _READ_AT_ONCE])).float()
            for first in range(0, len(texts), _READ_AT_ONCE)
        ]
        return torch.cat(parts) if parts else torch.empty(0, self.cells, device=self._device)

    def _write(self, surface_BS: Tensor) -> list[str]:
        if not len(surface_BS):
            return []
        settings = self.settings
        written = search(
            self.decoder,
            surface_BS,
            Marks.of(self.vocabulary),
            length=settings.length,
            beams=settings.beams,
            temperature=settings.temperature,
        )
        written_BKP = written.ids_BKP[:, : settings.corrections + 1]
        count, candidates = written_BKP.shape[:2]
        texts = self.vocabulary.decode(written_BKP.flatten(0, 1))
        if candidates == 1:
            return texts
        again_BKS = self._read(texts).unflatten(0, (count, candidates))
        apart_BK = (again_BKS - surface_BS.float()[:, None]).square().mean(-1)
        likely_BK = written.likely_BK[:, :candidates]
        apart_BK = apart_BK.masked_fill(likely_BK < likely_BK[:, :1] + math.log(_RIVAL), torch.inf)
        # Stable: of equally close texts the likelier one.
        best = apart_BK.sort(dim=1, stable=True).indices[:, 0].tolist()
        return [texts[row * candidates + one] for row, one in enumerate(best)]

    def _surface(self, surface: Tensor) -> Tensor:
        flat_BS = surface.flatten(1)
        if flat_BS.shape[1] != self.cells:
            raise HoldfastError(
                f"a surface has {flat_BS.shape[1]} cells, the text bridge {self.cells}; "
                "build it for the lattice of the model"
            )
        return flat_BS

    def _ids(self, texts: Sequence[str] | Tensor) -> Tensor:
        ids_BP = texts if isinstance(texts, Tensor) else self.vocabulary.encode(texts).ids_BP
        return ids_BP.to(self._device, non_blocking=True)

    @property
    def _device(self) -> torch.device:
        return self.encoder.words.positions.device

    def _fingerprint(self) -> str:
        """What a cached answer depends on beside its question: weights, vocabulary, precision."""
        tensors = [*self.parameters(), *self.buffers()]
        # Reading every weight costs more than an answer: only after one may have been written.
        state = tuple((t.data_ptr(), 0 if t.is_inference() else t._version) for t in tensors)
        if self._known is None or self._known[0] != state:
            self._known = state, weights_digest(self)
        kind = self._device.type
        half = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None
        return f"{self._known[1]} {self.vocabulary.fingerprint} {half}"


@contextlib.contextmanager
def _resting(module: nn.Module) -> Iterator[None]:
    """Evaluation mode for a while: no dropout in what is read or written."""
    training = [part for part in module.modules() if part.training]
    if not training:
        yield
        return
    module.eval()
    try:
        yield
    finally:
        # Part by part: some may have been in evaluation mode on purpose.
        for part in training:
            part.training = True
