"""Record the batch of each step, after a bad one the samples to blame, and unreadable ones."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

from ..actions.quarantine import Quarantine
from ..actions.replace_sample import SampleReplacement, loader_began, loader_begins
from ..config import QuarantineSettings
from ..diagnosis.crash import exception
from ..probes.batches import Batch
from ..probes.step_record import StepRecord
from ..records.nonfinite import Cause
from ..records.steps import Quarantined, QuarantineKeptOut
from ..run import Recorder


class BadBatches:
    """Records batches and samples; the quarantine remembers them."""

    def __init__(self, settings: QuarantineSettings) -> None:
        self.quarantine = Quarantine(settings)
        self._replace = settings.replace
        self._beginning: SampleReplacement | None = None
        self.feeding: SampleReplacement | None = None
        """Of the loader that feeds the loop, where samples of it may be replaced."""
        self._reading: weakref.WeakKeyDictionary[Any, SampleReplacement]
        self._reading = weakref.WeakKeyDictionary()

    def loader_begins(self, loader: Any, *, trains: bool = False) -> None:
        """A loop over a loader is about to begin: what it cannot read may be replaced."""
        self._beginning = None
        if self._replace:
            self._beginning = loader_begins(loader, exception.facts, trains=trains)

    def loader_began(self, iterator: Any) -> None:
        """Its iterator is there, with its workers; None where that failed."""
        loader_began()
        if iterator is not None and self._beginning is not None:
            self._reading[iterator] = self._beginning
        self._beginning = None

    def feeds(self, iterator: Any) -> None:
        """The loader that the loop is fed by."""
        self.feeding = self._reading.get(iterator)

    def write_unreadable(self, recorder: Recorder, step: int) -> None:
        """Record the samples that could not be read."""
        for one in set(self._reading.values()):
            for sample in one.fresh():
                recorder.event(step, sample)

    def write(self, recorder: Recorder, records: Sequence[StepRecord]) -> None:
        """Which batches they were; those of a bad step are searched and its samples are named."""
        for record in records:
            if not record.batches:
                continue
            batch = record.batches[-1]
            # A bad loss alone does not make the step bad: a scaler may have skipped it already.
            if record.bad or record.loss_bad:
                batch = self._incident(recorder, record)
            elif record.outlier:
                recorder.batch({"step": record.step, "opt": record.opt, **batch.record()})
            record.row["batch"] = float(batch.fingerprint)
            record.row["worker"] = float(batch.worker)

    def _incident(self, recorder: Recorder, record: StepRecord) -> Batch:
        """The batch of a bad step that holds bad values, or the last one."""
        found, samples = self.quarantine.look(record.batches)
        record.row["input_bad"] = float(found)
        self._set_aside(recorder, record.step, record.opt, samples)
        batch = next((b for b in record.batches if b.bad), record.batches[-1])
        incident = {"step": record.step, "opt": record.opt, **batch.record()}
        if not batch.bad:
            # Nothing shows which micro-batch it was: name the samples of all.
            drawn = [b.indices for b in record.batches]
            known = [i for i in drawn if i is not None]
            every = len(known) == len(drawn)
            incident["indices"] = [i for some in known for i in some] if every else None
        recorder.batch(incident)
        return batch

    def explained(self, recorder: Recorder, step: int, cause: Cause) -> None:
        """An investigation has found the cause of a bad step; it may name a sample."""
        self._set_aside(recorder, step, cause.opt, self.quarantine.accuse(cause))

    def close(self, recorder: Recorder, step: int) -> None:
        """Record how often a quarantined sample was skipped, and what could not be read last."""
        self.write_unreadable(recorder, step)
        if self.quarantine.left_out:
            recorder.event(step, QuarantineKeptOut(times=self.quarantine.left_out))

    @staticmethod
    def _set_aside(recorder: Recorder, step: int, opt: int, samples: Sequence[Quarantined]) -> None:
        for sample in samples:
            recorder.event(step, sample.replace(opt=opt))
