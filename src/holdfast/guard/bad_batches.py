"""Which batch a step was made of and, after a bad one, which of its samples are to blame."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..actions.quarantine import Quarantine, Record
from ..config import QuarantineSettings
from ..probes.step_record import StepRecord
from ..run import Recorder


class BadBatches:
    """Writes down batches and samples; the quarantine is its memory."""

    def __init__(self, settings: QuarantineSettings) -> None:
        self.quarantine = Quarantine(settings)

    def tell(self, recorder: Recorder, record: StepRecord) -> None:
        """Which batch it was; after a bad step it is searched and its samples are named."""
        batch = record.batches[-1]
        # A bad loss need not condemn the step: a scaler may have left it out already.
        if record.bad or record.loss_bad:
            found, samples = self.quarantine.look(record.batches)
            record.row["input_bad"] = float(found)
            self._set_aside(recorder, record.step, record.opt, samples)
            batch = next((b for b in record.batches if b.bad), batch)
            incident = {"step": record.step, "opt": record.opt, **batch.record()}
            if not batch.bad:
                # Nothing shows which micro-batch it was: name the samples of all.
                drawn = [b.indices for b in record.batches]
                known = [i for i in drawn if i is not None]
                every = len(known) == len(drawn)
                incident["indices"] = [i for some in known for i in some] if every else None
            recorder.batch(incident)
        elif record.outlier:
            recorder.batch({"step": record.step, "opt": record.opt, **batch.record()})
        record.row["batch"] = float(batch.fingerprint)
        record.row["worker"] = float(batch.worker)

    def explained(self, recorder: Recorder, step: int, cause: Mapping[str, Any]) -> None:
        """An exam has found the cause of a bad step; it may name a sample."""
        self._set_aside(recorder, step, cause.get("opt", 0), self.quarantine.accuse(cause))

    def close(self, recorder: Recorder, step: int) -> None:
        """Say how often a sample was left out of a batch."""
        if self.quarantine.left_out:
            recorder.event("quarantine_kept_out", step, {"times": self.quarantine.left_out})

    @staticmethod
    def _set_aside(recorder: Recorder, step: int, opt: int, samples: Sequence[Record]) -> None:
        for sample in samples:
            recorder.event("quarantine", step, {"opt": opt, **sample})
