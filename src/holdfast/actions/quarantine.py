"""Quarantine of samples that make non-finite values: recorded and, on request, skipped.

There are two kinds of evidence against a sample. The batch of a bad step holds such values in its
row; or an investigation reran the step and found that they arise in its row alone. Where more than
half of the rows hold such values (masks of minus infinity, gaps in a series), the data is like
that, and nothing is quarantined.
"""

from __future__ import annotations

import itertools
import weakref
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..config import QuarantineSettings
from ..probes.batches import Batch, plain_index, tensors
from ..probes.sample_files import file_of, innermost, length_of
from ..records.nonfinite import Cause
from ..records.steps import Quarantined
from ..run.batch_mark import batch_mark
from ..types import place_words

# Batches of bad steps that an investigation may still refer to.
_REMEMBERED = 16


class Quarantine:
    """The poisoned samples of this process.

    >>> import torch
    >>> from torch.utils.data import DataLoader
    >>> quarantine = Quarantine(QuarantineSettings(skip=True))
    >>> data = [1.0, float("nan"), 3.0]
    >>> batch = Batch(torch.tensor(data), [0, 1, 2], -1, 0, dataset=lambda: data)
    >>> tensors_bad, samples = quarantine.look([batch])
    >>> samples[0].index, samples[0].reason
    (1, 'batch holds non-finite values')
    >>> quarantine.kept(iter(DataLoader(data, 3)), [0, 1, 2], equal=False)
    [0, 2]
    """

    def __init__(self, settings: QuarantineSettings) -> None:
        self.left_out = 0
        """How often a quarantined sample was skipped."""
        self.skips = bool(settings.batches)
        """Whether draws must be checked: requested, and there is something to skip."""
        self.skipped: list[list[Any]] = []
        """Batches that were skipped as a whole and not told yet: their indices."""
        self._batches = frozenset(settings.batches)
        self._settings = settings
        self._known: dict[int, _Dataset] = {}
        self._recent: deque[Batch] = deque(maxlen=_REMEMBERED)
        self._charge: Cause | None = None

    # ------------------------------------------------------------------ getting in

    def look(self, batches: Sequence[Batch]) -> tuple[int, list[Quarantined]]:
        """Search the batches of a bad step: how many of their tensors are bad, and new samples."""
        lengths = [_lengths(batch) for batch in batches]
        bad = sum(batch.look() for batch in batches)
        if not self._settings.write:
            return bad, []
        suspects = [_suspects(b, known) for b, known in zip(batches, lengths, strict=True)]
        found: list[Quarantined | None] = []
        for path in dict.fromkeys(path for each in suspects for path in each):
            named = [
                (b, each[path]) for b, each in zip(batches, suspects, strict=True) if path in each
            ]
            count = sum(len(rows) for _, rows in named)
            if count > 1 and 2 * count > sum(len(b.indices or ()) for b, _ in named):
                continue
            reason = f"{path} holds non-finite values"
            found += [self._admit(b, r, reason, tensor=path) for b, rows in named for r in rows]
        self._recent.extend(batches)
        charge, self._charge = self._charge, None
        return bad, [r for r in found if r] + (self.accuse(charge) if charge else [])

    def accuse(self, cause: Cause) -> list[Quarantined]:
        """An investigation names samples in the batch of a recent bad step or the next one."""
        named = cause.samples
        if not self._settings.write or not named or not _convicts(cause):
            return []
        for batch in reversed(self._recent):
            drawn = batch.indices or []
            if all(row < len(drawn) and drawn[row] == sample for row, sample in named):
                # Alone in its batch it is the only suspect whatever happened.
                if len(drawn) == 1 and cause.phase != "input":
                    return []
                why = _reason(cause)
                records = [self._admit(batch, row, why, tensor="") for row, _ in named]
                return [record for record in records if record]
        self._charge = cause
        return []

    def _admit(
        self, batch: Batch, position: int, reason: str, *, tensor: str
    ) -> Quarantined | None:
        """Quarantine one sample; None when it is in already or cannot be identified."""
        dataset = batch.dataset() if batch.dataset is not None else None
        if dataset is None or batch.indices is None:
            return None
        index = batch.indices[position]
        inner, number = innermost(dataset, index)
        known = self._known.get(id(inner))
        if known is None or not known.is_this(inner):
            known = self._known[id(inner)] = _Dataset(inner)
        if number in known.samples:
            return None
        known.samples.add(number)
        self.skips = self._settings.skip or bool(self._batches)
        return Quarantined(
            index=index,
            file=file_of(inner, number),
            reason=reason,
            tensor=tensor,
            position=position,
            worker=batch.worker,
            dataset=type(inner).__name__,
            sample=number,
            length=length_of(inner),
            skip=self._settings.skip,
        )

    # ------------------------------------------------------------------ staying out

    def kept(self, iterator: Any, drawn: Any, *, equal: bool) -> Any:
        """What a loader should fetch instead of what its sampler gave.

        Args:
            iterator: the loader's iterator.
            drawn: one index, or those of a batch; never changed itself.
            equal: whether the number must stay: other samples of the batch then come twice.

        Returns:
            ``drawn`` itself where nothing is skipped; None when nothing would remain.
        """
        dataset = getattr(iterator, "_dataset", None)
        together = isinstance(drawn, list) or (
            isinstance(drawn, tuple) and getattr(iterator, "_auto_collation", True)
        )
        indices: list[Any] = list(drawn) if together else [drawn]
        # Ranks must make the same number of steps.
        if self._batches and not equal:
            plain = [i if type(i) is int else plain_index(i) for i in indices]
            if batch_mark(plain) in self._batches:
                self.skipped.append(plain)
                return None
        bad = [self._holds(dataset, i if type(i) is int else plain_index(i)) for i in indices]
        if not any(bad):
            return drawn
        good = [i for i, out in zip(indices, bad, strict=True) if not out]
        # A full batch was promised, or BatchNorm would refuse the only sample left.
        equal = equal or getattr(iterator, "_drop_last", False) or len(good) == 1 < len(indices)
        if not good and equal:
            return drawn
        self.left_out += sum(bad)
        if not good:
            return None
        if equal:
            others = itertools.cycle(good)
            good = [next(others) if out else i for i, out in zip(indices, bad, strict=True)]
        return good if isinstance(drawn, list) else tuple(good)

    def _holds(self, dataset: Any, index: Any) -> bool:
        try:
            inner, number = innermost(dataset, index)
        except (IndexError, TypeError, ValueError):
            return False  # the dataset itself will say what is wrong with this index
        known = self._known.get(id(inner))
        return known is not None and known.is_this(inner) and number in known.samples


class _Dataset:
    """The poisoned samples of one dataset, which is recognised but not kept alive."""

    def __init__(self, dataset: Any) -> None:
        self.samples: set[Any] = set()
        self.is_this = _recogniser(dataset)


def _recogniser(dataset: Any) -> Callable[[Any], bool]:
    try:
        reference = weakref.ref(dataset)
    except TypeError:  # a list; what is in it tells it from a later one at the same place
        mark = _mark(dataset)
        return lambda other: _mark(other) == mark
    return lambda other: reference() is other


def _mark(dataset: Any) -> tuple[Any, ...]:
    kind, ends = type(dataset), list[Any]()
    if isinstance(dataset, list | tuple):
        ends = [*dataset[:1], *dataset[-1:]]
    return (kind, length_of(dataset), *map(id, ends))


def _lengths(batch: Batch) -> dict[str, int]:
    """Rows of every tensor of a batch, by its path."""
    return {path: t.shape[0] if t.dim() else 1 for path, t in tensors(batch.content)}


def _suspects(batch: Batch, lengths: Mapping[str, int]) -> dict[str, list[int]]:
    """Positions of the samples that hold bad values, for each tensor that has one row for each."""
    bad, drawn = dict(batch.bad), len(batch.indices or ())
    if drawn == 1:  # whatever the rows are, they are of this sample
        return {path: [0] if path in bad else [] for path in lengths}
    return {path: bad.get(path, []) for path, rows in lengths.items() if rows == drawn}


def _convicts(cause: Cause) -> bool:
    """Whether this cause says something about the sample and not about the weights or the scale."""
    # In half precision a large scale overflows on the way back whatever the sample.
    return cause.phase in ("input", "forward") or (cause.backward and cause.dtype != "float16")


def _reason(cause: Cause) -> str:
    if cause.phase == "input":
        return "it holds non-finite values"
    where = f" at {place_words(cause.file, cause.line)}" if cause.file else ""
    return f"{cause.op or 'an operation'}{where} makes non-finite values from it"
