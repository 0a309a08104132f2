"""How good a trained model is on held-out pairs, beside what needs no lattice at all.

Shapes: M held-out pairs, N training pairs, B batch, E teacher width.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ..data.pairs import Pairs
from ..data.splits import Part
from ..data.targets import mean_target
from ..text.bridge import TextBridge
from .baselines import ComparedNetwork, train_baseline
from .loading import Loaded
from .metrics import Quality, quality

__all__ = ["Evaluation", "evaluate"]

_MODEL = "this model"
_FLOWS = ("completion", "mean_steps", "filled")
# Of the ridge regression; the value of the reference points in the specification, section 18.
_RIDGE = 0.1


class Evaluation(NamedTuple):
    """Measures of one part of the data.

    Args:
        part: which one.
        pairs: how many.
        model: of the trained model.
        references: of predictors without a lattice, by name.
        parameters: of what was trained: "this model" and the baselines.
        flows: how the flows ended, means over the pairs; empty without a core.
        texts: of the written texts against the targets; empty without a text bridge.
    """

    part: Part
    pairs: int
    model: Quality
    references: dict[str, Quality]
    parameters: dict[str, int]
    flows: dict[str, float]
    texts: dict[str, float]

    def plain(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "part": self.part,
            "pairs": self.pairs,
            "model": dataclasses.asdict(self.model),
            "references": {name: dataclasses.asdict(q) for name, q in self.references.items()},
            "parameters": self.parameters,
            "flows": self.flows,
            "texts": self.texts,
        }

    def lines(self) -> list[str]:
        """For people: one row for each predictor, then flows and texts."""
        rows = [(_MODEL, self.model), *self.references.items()]
        lines = [
            f"{self.part}: {self.pairs} pairs, {self.model.candidates} different targets",
            "",
            f"{'':<18}{'cosine':>8}{'FVU':>8}{'R@1':>8}{'MRR':>8}  parameters",
            *(
                f"{name:<18}{q.cosine:8.3f}{q.fvu:8.3f}{q.r1:8.3f}{q.mrr:8.3f}"
                f"{self.parameters.get(name, ''):>12}".rstrip()
                for name, q in rows
            ),
        ]
        if self.flows or self.texts:
            lines.append("")
        if self.flows:
            lines += [
                f"flows: {self.flows['completion']:.1%} reached a face, after "
                f"{self.flows['mean_steps']:.1f} steps; {self.flows['filled']:.1%} of cells filled",
            ]
        if self.texts:
            lines += [
                f"texts: {self.texts['exact']:.1%} of {self.texts['written']:.0f} written exactly, "
                f"F1 of their pieces {self.texts['f1']:.3f}",
            ]
        return lines


def evaluate(
    loaded: Loaded,
    part: Part = "test",
    *,
    texts: int = 64,
    baselines: Sequence[ComparedNetwork] = (),
) -> Evaluation:
    """Measure a run on one part of its data, without noise.

    Args:
        loaded: from ``load_run``.
        part: test, validation or train.
        texts: at most so many are written out, the first of the part.
        baselines: from ``baselines_of``; they are trained now, which takes its time.
    """
    pairs: Pairs = getattr(loaded.sets, part)
    x_ME, y_ME = pairs.tensors()
    train = loaded.sets.train
    mean_E = mean_target(train)
    device = next(loaded.model.parameters()).device
    # As in training: where flows are scarce, their share depends on the size of a batch.
    batch = loaded.settings.train.data.batch
    predicted: list[Tensor] = []
    sums = dict.fromkeys(_FLOWS, 0.0) if loaded.model.core is not None else {}
    written: list[str] = []
    for x_BE in x_ME.split(batch):
        with torch.no_grad():
            out = loaded.model(x_BE.to(device))
        predicted.append(out.y_BE.cpu())
        if out.flows is not None:
            for name in sums:
                sums[name] += float(getattr(out.flows.stats, name)) * len(x_BE)
        if loaded.model.bridge is not None and len(written) < texts and pairs.has_texts:
            written += loaded.model.bridge.write(out.out_BS[: texts - len(written)])
    references = {
        "training mean": quality(mean_E.expand_as(y_ME), y_ME, mean_E),
        "copied input": quality(x_ME, y_ME, mean_E),
        "ridge regression": quality(_ridge(train, x_ME, mean_E), y_ME, mean_E),
    }
    parameters = {_MODEL: _counted(loaded.model)}
    for one in baselines:
        trained = train_baseline(one, loaded.sets)
        parameters[one.name] = _counted(trained)
        with torch.no_grad():
            y_hat_ME = torch.cat([trained(x_BE.to(device)).y_BE for x_BE in x_ME.split(batch)])
        references[one.name] = quality(y_hat_ME.cpu(), y_ME, mean_E)
    return Evaluation(
        part=part,
        pairs=len(pairs),
        model=quality(torch.cat(predicted), y_ME, mean_E),
        references=references,
        parameters=parameters,
        flows={name: total / len(pairs) for name, total in sums.items()},
        texts=_compared(loaded.model.bridge, pairs, written) if written else {},
    )


def _counted(model: nn.Module) -> int:
    return sum(weight.numel() for weight in model.parameters())


def _ridge(train: Pairs, x_ME: Tensor, to_E: Tensor) -> Tensor:
    """The linear map of the training pairs, applied; they may be more than fit into memory."""
    from_E = sum(x_BE.double().sum(0) for x_BE, _ in train.blocks()) / len(train)
    gram_EE = _RIDGE * torch.eye(train.width, dtype=torch.float64)
    moment_EE = torch.zeros_like(gram_EE)
    for x_BE, y_BE in train.blocks():
        centred_BE = x_BE - from_E
        gram_EE += centred_BE.mT @ centred_BE
        moment_EE += centred_BE.mT @ (y_BE - to_E).double()
    return (x_ME - from_E) @ torch.linalg.solve(gram_EE, moment_EE) + to_E


def _compared(bridge: TextBridge | None, pairs: Pairs, written: list[str]) -> dict[str, float]:
    """Pieces, not characters: case and spacing are not the decoder's to choose."""
    assert bridge is not None  # who else wrote them
    exact, f1 = 0, 0.0
    for index, text in enumerate(written):
        own = bridge.vocabulary.pieces(text)
        right = bridge.vocabulary.pieces(pairs.text(index).target)
        exact += own == right
        f1 += 2 * (Counter(own) & Counter(right)).total() / max(1, len(own) + len(right))
    count = len(written)
    return {"written": count, "exact": exact / count, "f1": f1 / count}
