"""TPT001: training is input-bound; it waits for data."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from ..records.lines import StepPace, TimedLoader
from ..types import Event, Severity
from ._examples import rows
from ._input_words import (
    HEADLINES,
    advice,
    handed_over,
    making,
    says,
)
from ._line_examples import called, costs, timed_lines
from ._lines import (
    CostlyLine,
    LineTimesEvent,
    SourceLine,
    by_place,
    line_at,
    look_of,
    places_of,
    work_before_model,
)
from ._timed import (
    TimeClaim,
    TimedDetector,
    ms,
    quoted,
)

_USE = called(55, 0.0005, "model"), called(57, 0.0005, "optimizer")
_WAITS = timed_lines("waits", [costs(7, 0.0012, mark="fetch"), *_USE], times={"waiting": 0.6})
_READY = timed_lines("waits", [costs(7, 0.0002, mark="fetch"), *_USE], times={"waiting": 0.02})


class InputBound(TimedDetector):
    """Input-bound training: the loop waits for data, mostly because of one line of input code.

    What it detects:
        The loop spends a large share of its time on the next batch: waiting for the loader, or
        making the batch before it calls the model. The slow line is found by timing the lines of
        the dataset, of ``collate_fn`` and of the loop for a few steps; in forked workers a thread
        samples the current line of the main thread. The first batch of an epoch, for which
        workers start, does not count.

    Why it matters:
        While the loop waits, the device is idle. A run that waits half of its time takes
        twice as long, and a faster device changes nothing.

    Evidence:
        ``share`` of the time spent on input, ``wait_ms`` per step, ``line_ms`` per batch and
        ``line_share``: the line's part of it, ``sample_us``: time of the line per sample, ``hits``:
        how often it runs in a step; ``what``: ``dataset``, ``loop``, ``loader``, ``handover``
        (workers make batches faster than they hand them over) or ``cache`` (the line asks one);
        ``workers``, ``cores`` that the process may use, ``made_ms`` to make a batch and
        ``step_ms``, which tell whether more workers would help; ``rare`` when few batches make most
        of the waiting, then ``sample``: the index of a slow one and ``sample_ms``; ``looked``:
        False where the lines of the workers were not timed; ``lost`` seconds so far; ``function``,
        ``statement`` and ``key``; ``headline`` and ``source``, the statement and the lines around
        it.

    Usual causes:
        - A transform in pure Python: a loop over pixels, tokens or rows for each sample.
        - Files that are opened and parsed again for each sample, or slow remote storage.
        - A ``collate_fn`` that makes a tensor of each element.
        - Too few workers, or none, for a dataset that has real work to do.
        - Workers for a dataset that has none: handing a batch over takes a millisecond or more.
        - A few samples that are much larger than the others.
        - A cache in a dataset whose workers restart every epoch, or one that is too
          small.

    What to do:
        1. Change the line: vectorise it, or do it once in ``__init__`` and keep the result.
        2. Move it to worker processes: ``num_workers`` (and ``persistent_workers=True``), where a
           batch takes longer to make than to hand over and there are cores for them; the finding
           says so only where it was measured. Where handing over takes longer, use none.
        3. For rare slow samples: look at the named one; raise ``prefetch_factor``.

    False alarms:
        Nothing is reported before ``worth`` seconds are lost (``unnamed`` seconds where no line of
        the script stands out), nor a line that fills a cache during the first pass over the data.
        Below ``share`` of the time, before ``seconds`` are lost, or where the line takes less than
        ``sample_us`` per sample, it is information: small models on small data always wait a
        little. A batch made in the loop itself is reported when measured twice.

    Cost:
        A microsecond per step; lines are timed on two to eight steps of a run and, as long as
        the loop waits, on some more at growing intervals.

    Reproduce:
        ``holdfast run -m holdfast.faults.input_bound`` names the line that makes
        ``python -m holdfast.faults.input_bound`` wait.
    """

    code = "TPT001"
    name = "input_bound"
    other_severities = ((Severity.INFO, "where little time is lost, or a cheap line takes it"),)
    kinds = ("line_times", "loader_times")
    fires = rows(8, _WAITS, _WAITS)
    silent = rows(8, _READY, _READY)

    @dataclass(frozen=True, kw_only=True)
    class Options(TimedDetector.Options):
        """Measured with benchmarks/results/detection_cpu_arm_2026-11-16.md unless it says guess."""

        worth: float = 0.15
        """Seconds that must be lost; a guess."""
        named: float = 0.25
        """Smallest share of the wait for which a line is named; a guess."""
        left: float = 0.5
        """Share of the earlier wait that the timed steps must still show; a guess."""
        share: float = 0.35
        """Share of the time above which it is a warning."""
        seconds: float = 1.0
        """Seconds lost so far above which it is a warning: what is over in less is not worth a
        change of the script. A guess."""
        sample_us: float = 30.0
        """Time of the line per sample above which it is a warning."""
        unnamed: float = 3.0
        """Seconds that must be lost where no line of the script's own stands out: the cure is more
        workers, which take as long to start. A guess."""
        stands_out: float = 5.0
        """Factor by which a slow sample exceeds the others; a guess."""
        loop: float = 0.3
        """Share of a step spent making the batch in the loop, above which it is reported."""
        loop_ms: float = 2.0
        """The same in milliseconds; shorter waits are not reported."""
        loop_share: float = 0.45
        """Share of a step spent making the batch in the loop, above which it is a warning."""

    def claims(self, event: Event) -> Iterator[TimeClaim]:
        """The line of the dataset, of a worker's dataset, or of the loop that makes batches."""
        if (reported := TimedLoader.of(event)) is not None:
            yield from self._workers(reported)
        elif (look := look_of(event)) is not None:
            if look.record.look == "waits":
                yield from self._waits(look)
            yield from self._loop(look)

    def _waits(self, look: LineTimesEvent) -> Iterator[TimeClaim]:
        """A loader without workers: its lines are among those of the step."""
        reported, times = look.record, look.record.times
        fetched = [line for line in look.now.lines if line.mark == "fetch"]
        seconds = sum(line.seconds for line in fetched)
        if not seconds or seconds < self.options.left * times.waiting * look.now.seconds:
            return  # it is over: the timed steps hardly wait
        inside = by_place(line for line in fetched if line.direct).values()
        best = max(inside, key=lambda line: line.seconds, default=None)
        facts = {"rare": reported.rare, "workers": 0, "what": "dataset"}
        facts |= making(reported.cores, seconds)
        if best is not None and best.seconds >= self.options.named * seconds:
            facts |= {"line_ms": ms(best.seconds), "line_share": round(best.seconds / seconds, 3)}
            facts["sample_us"] = round(best.seconds / max(1, reported.batch) * 1e6, 1)
            yield from self._line(best, times, reported.passes, facts)
        elif ms(times.waiting * times.last_block) >= self.options.loop_ms:
            asks = max(fetched, key=lambda line: line.seconds)
            yield from self._claim(asks.at, asks, times, facts | {"what": "loader"})

    def _workers(self, reported: TimedLoader) -> Iterator[TimeClaim]:
        """A loader with workers: lines sampled by their own threads, or samples fetched again."""
        places, times = places_of(reported), reported.times
        lines = by_place(line_at(cost, places) for cost in reported.lines).values()
        asks, (index, slowest) = line_at(reported.asks, places), reported.slowest
        samples, per_sample = reported.samples, reported.per_sample
        facts: dict[str, Any] = {"rare": reported.rare, "workers": reported.workers}
        facts |= making(reported.cores, reported.made)
        if handed_over(facts, times):
            yield from self._claim(asks.at, asks, times, facts | {"what": "handover"}, sure=False)
            return
        if not samples:
            if not reported.may_fetch:  # the workers may report later: believed when measured again
                facts |= {"what": "loader", "looked": False}
                yield from self._claim(asks.at, asks, times, facts, sure=False)
            return
        facts |= {"what": "dataset", "sample_ms": ms(per_sample)}
        others = (per_sample * samples - slowest) / max(1, samples - 1)
        known = index is not None
        if known and samples > 2 and slowest > self.options.stands_out * others:
            facts |= {"rare": True, "sample": index, "sample_ms": ms(slowest)}
        elif reported.rare and known:
            return  # the batch of a slow sample has not been caught
        total = sum(line.seconds for line in lines)
        # A line without a hit is that of the loop, which waits.
        inside = [line for line in lines if line.hits]
        best = max(inside, key=lambda line: line.seconds, default=None)
        if best is None or best.seconds < self.options.named * total:
            return
        facts |= {
            "line_share": round(best.seconds / total, 3),
            "line_ms": ms(best.seconds * samples),
            "sample_us": round(best.seconds * 1e6, 1),
        }
        yield from self._line(best, times, reported.passes, facts)

    def _line(
        self, best: CostlyLine, times: StepPace, passes: int, facts: dict[str, Any]
    ) -> Iterator[TimeClaim]:
        """Where the line fills a cache, the line that reads the cache; from the second pass on."""
        if best.cache is None:
            yield from self._claim(best.at, best, times, facts)
        elif passes > 1:
            yield from self._claim(best.cache, best, times, facts | {"what": "cache"})

    def _loop(self, look: LineTimesEvent) -> Iterator[TimeClaim]:
        """The line that makes most of a batch in the loop itself."""
        before = work_before_model(look)
        seconds = sum(line.seconds for line in before)
        share = seconds / look.now.seconds if look.now.seconds else 0.0
        if share < self.options.loop or seconds * 1e3 < self.options.loop_ms:
            return
        best = max(before, key=lambda line: line.seconds)
        if best.seconds < self.options.named * seconds:
            return
        facts = {
            "share": round(share, 3),
            "wait_ms": ms(seconds),
            "workers": 0,
            "what": "loop",
            "rare": False,
            "line_share": round(best.seconds / seconds, 3),
            "line_ms": ms(best.seconds),
            "hits": round(best.hits, 1),
            **making(look.record.cores, seconds),
        }
        yield from self._claim(best.at, best, look.record.times, facts, sure=False)

    def _claim(
        self,
        place: SourceLine,
        line: CostlyLine,
        times: StepPace,
        facts: dict[str, Any],
        *,
        sure: bool = True,
    ) -> Iterator[TimeClaim]:
        """Information at once; a warning as soon as it has cost enough to be worth a change."""
        share = float(facts.get("share", times.waiting))
        facts = {"share": share, "wait_ms": ms(share * times.last_block), **facts}
        facts |= {"step_ms": ms(times.last_block)}
        unnamed = facts["what"] == "loader" and not facts["workers"]
        cheap = facts.get("sample_us", math.inf) < self.options.sample_us
        known = TimeClaim(
            what=says(facts),
            advice=advice(facts, quoted(place), cheap=cheap),
            severity=Severity.INFO,
            confidence=0.6,
            share=share,
            seconds=times.seconds,
            place=place,
            function=line.function,
            headline=HEADLINES.get(str(facts["what"]), "the loop waits for its data"),
            evidence=facts,
            sure=sure,
            worth=self.options.unnamed if unnamed else 0.0,
            case="" if facts["what"] == "loop" else "loader",
        )
        bad = self._bad(facts)
        if not bad or share * times.seconds < self.options.seconds:
            yield known
        if bad:
            worth = self.options.seconds
            yield replace(known, severity=Severity.WARNING, confidence=0.9, worth=worth)

    def _bad(self, facts: dict[str, Any]) -> bool:
        options, what = self.options, facts["what"]
        if what == "loop":
            return facts["share"] >= options.loop_share
        enough = what not in ("loader", "handover") and facts["share"] >= options.share
        return enough and facts["sample_us"] >= options.sample_us
