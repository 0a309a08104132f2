"""TPT001: the training waits for its data."""

from __future__ import annotations

from dataclasses import dataclass

from ..types import Event, Severity
from ._timed import TimedDetector, code_of, word
from ._told import number
from .base import Detector


class InputBound(TimedDetector):
    """The training waits for its data, and one line of the input code makes most of the wait.

    What it detects:
        A large share of the loop's time goes into the next batch: waiting for the loader, or
        making the batch in the loop before the model is called. The slow line is found by
        timing the lines of the dataset, of ``collate_fn`` and of the loop for a few steps; in
        forked workers a thread counts the lines that it meets their main thread at. The first
        batch of an epoch does not count: workers are started for it.

    Why it matters:
        While the loop waits, the device does nothing. A run that waits half of its time takes
        twice as long, and a faster device changes nothing.

    Evidence:
        ``share`` of the time spent for input, ``wait_ms`` per step, ``line_ms`` per batch and
        ``line_share``: the line's part of it, ``sample_us``: what the line takes for a sample,
        ``hits``: how often it runs in a step; ``what``: ``dataset``, ``collate``, ``loop``,
        ``loader`` or ``cache`` (the line asks one); ``workers``; ``rare`` when few batches make
        most of the waiting, then ``sample``: the index of a slow one and ``sample_ms``; ``makes``:
        the line is one call of torch or numpy; ``lost`` seconds so far; ``function``, ``statement``
        and ``key``; ``consequence`` when the line has become slow.

    Usual causes:
        - A transform in pure Python: a loop over pixels, tokens or rows for each sample.
        - Files that are opened and parsed for each sample again, or storage that is far away.
        - A ``collate_fn`` that makes a tensor of each element.
        - Too few workers, or none, for a dataset that has real work to do.
        - A few samples that are much larger than the others.
        - A cache in a dataset whose workers are started anew for each epoch, or one that is too
          small.

    What to do:
        1. Change the line: vectorise it, or do it once in ``__init__`` and keep the result.
        2. Let others do it meanwhile: ``num_workers`` (and ``persistent_workers=True``).
        3. For rare slow samples: look at the one that is named; raise ``prefetch_factor``.

    False alarms:
        What fills a cache is not reported in the first pass over the data. Below ``share`` of the
        time, or where the line takes less than ``sample_us`` per sample, it is information: small
        models on small data always wait a little. Thresholds were set with the scripts of the
        catalogue.

    Cost:
        A microsecond per step; lines are timed on three to eight steps of a run, and on as many
        more when waits show.

    Reproduce:
        ``holdfast run -m holdfast.faults.input_bound`` names the line that makes
        ``python -m holdfast.faults.input_bound`` wait.
    """

    code = "TPT001"
    name = "input_bound"
    kind = "input_bound"

    @dataclass(frozen=True, kw_only=True)
    class Options(Detector.Options):
        """From when on waiting is a warning; set with the scripts of the catalogue."""

        share: float = 0.35
        sample_us: float = 30.0
        loop_ms: float = 2.5
        loop_share: float = 0.45
        hits: float = 40.0

    def judge(self, event: Event) -> tuple[str, str, Severity, float] | None:
        """Name the line; a warning when it is the line that is slow."""
        share, what = number(event, "share"), word(event, "what")
        workers = max(0, int(number(event, "workers") if number(event, "workers") >= 0 else 0))
        if what == "loader" and not workers and number(event, "wait_ms") < self.options.loop_ms:
            return None  # nothing stands out, and little is to be gained
        wait = f"{share:.0%} of the time ({number(event, 'wait_ms'):.3g} ms per step)"
        if what == "loop":
            said = f"makes the batch in the loop: {wait} before the model is called"
        elif what == "loader":
            said = f"the loop waits for its loader {wait}"
        elif what == "cache":
            said = f"asks a cache that does not have it, pass after pass: {wait} for data"
        else:
            part = number(event, "line_share")
            rare = ", on few samples" if event.data.get("rare") is True else ""
            said = f"makes {part:.0%} of the wait for data{rare}: {wait}"
        bad = self._slow(event, what, share)
        severity = Severity.WARNING if bad else Severity.INFO
        return said, _advice(event, what, workers), severity, 0.9 if bad else 0.6

    def _slow(self, event: Event, what: str, share: float) -> bool:
        options = self.options
        if not share >= options.share or what == "loader":
            return False
        if what == "loop":
            work = number(event, "hits") >= options.hits or event.data.get("makes") is not True
            enough = number(event, "wait_ms") >= options.loop_ms and share >= options.loop_share
            return work and enough
        return number(event, "sample_us") >= options.sample_us


def _advice(event: Event, what: str, workers: int) -> str:
    code = code_of(event)
    if event.data.get("looked") is False:
        return (
            f"raise num_workers from {workers}, or run with --look-out: it fetches a few samples "
            "in the main process and names the slow line of the dataset"
        )
    if what == "loader":
        more = "num_workers=2" if not workers else f"num_workers={2 * workers}"
        return f"no line of yours stands out: try DataLoader(..., {more}, persistent_workers=True)"
    if event.data.get("rare") is True and word(event, "sample"):
        return (
            f"look at sample {word(event, 'sample')} of the dataset, {code} is slow on few: "
            "prepare those once and keep the result, or raise prefetch_factor"
        )
    if what == "cache" and workers:
        return (
            "what a worker has cached is gone with it: DataLoader(..., persistent_workers=True), "
            "or prepare all samples before training"
        )
    if what == "cache":
        return f"{code}: give the cache room for all samples, or prepare them before training"
    cure = f"do {code} once for all samples (in __init__ or before training) or vectorise it"
    if what == "loop":
        return f"{cure}; or move it into a Dataset and let DataLoader(..., num_workers=2) do it"
    if workers:
        return f"{cure}; or raise num_workers from {workers}"
    return f"{cure}; or let DataLoader(..., num_workers=2) do it beside the training"
