"""What TPT001 says of a loop that waits for data, and whether more or fewer workers would help.

More workers are advised only where batches were seen to take longer to make than to hand over, the
workers there are were busy, and there is a core for another one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..records.lines import StepPace
from ._timed import ms

HEADLINES = {
    "loop": "batches are made in the loop",
    "cache": "a cache misses on every pass",
    "handover": "workers hand over more slowly than they make",
}
# What a batch costs on its way out of a worker, in milliseconds: 1.2 to 1.7 were measured for two
# small tensors on two shared cores. A worker is worth a word where a batch takes longer to make.
_HANDOVER_MS = 2.0
# Share of their time that workers spend making batches above which more would help; a guess.
_BUSY = 0.6


def making(cores: int, made: float | None) -> dict[str, Any]:
    """What tells whether workers would help: the cores, and the time to make a batch."""
    return {"cores": cores} | ({} if made is None else {"made_ms": ms(made)})


def handed_over(facts: Mapping[str, Any], times: StepPace) -> bool:
    """Whether the loop waits longer for a batch than a worker takes to make it.

    Workers that cannot make batches fast enough are waited for less long than one takes to make.
    """
    made = facts.get("made_ms")
    return made is not None and made < ms(times.waiting * times.last_block)


def _workers_would_help(facts: Mapping[str, Any]) -> str:
    """Advice on workers; empty where nothing that was measured says that they help."""
    workers, cores, made = facts["workers"], facts.get("cores", 0), facts.get("made_ms")
    # The loop itself needs a core, too.
    if made is None or workers + 1 >= cores:
        return ""
    if not workers:
        pays = made >= _HANDOVER_MS
        return f"let DataLoader(..., num_workers={min(2, cores - 1)}) do it" if pays else ""
    busy = made / (workers * facts["step_ms"]) if facts["step_ms"] else 0.0
    more = min(2 * workers, cores - 1)
    return f"raise num_workers from {workers} to {more}" if busy >= _BUSY else ""


def says(facts: Mapping[str, Any]) -> str:
    """What is wrong, with its share of the time."""
    what = facts["what"]
    wait = f"{facts['share']:.0%} of the time ({facts['wait_ms']:.3g} ms per step)"
    if what == "loop":
        return f"makes the batch in the loop: {wait} before the model is called"
    if what == "loader":
        return f"the loop waits for its loader: {wait}"
    if what == "handover":
        made = f"a worker makes a batch in {facts['made_ms']:.3g} ms"
        return f"the loop waits for its loader: {wait}, although {made}"
    if what == "cache":
        return f"reads a cache that misses on every pass: {wait} spent on data"
    rare = ", on a few samples" if facts["rare"] else ""
    return f"causes {facts['line_share']:.0%} of the wait for data{rare}: {wait}"


def advice(facts: Mapping[str, Any], code: str, *, cheap: bool) -> str:
    """What to do about it; ``cheap``: a line that takes little time per sample."""
    what, workers, sample = facts["what"], facts["workers"], facts.get("sample", "")
    more = _workers_would_help(facts)
    if what == "handover":
        return (
            "handing a batch over costs more than making it: try DataLoader(..., num_workers=0), "
            "or fewer workers"
        )
    if facts.get("looked") is False:
        look = (
            "run with --fetch-samples: it fetches a few samples in the main process and names the "
            "slow line of the dataset"
        )
        return f"{more}; or {look}" if more else look
    if what == "loader":
        once = "look at transforms and collate_fn, and prepare once what they make for each sample"
        return f"no line of yours stands out: {more or once}"
    if facts["rare"] and sample:
        return (
            f"look at sample {sample} of the dataset, {code} is slow on a few: "
            "prepare those once and keep the result, or raise prefetch_factor"
        )
    if what == "cache" and workers:
        return (
            "a worker's cache dies with it: use DataLoader(..., persistent_workers=True), "
            "or prepare all samples before training"
        )
    if what == "cache":
        return f"make the cache of {code} large enough for all samples, or prepare them in advance"
    cure = f"do {code} once for all samples (in __init__ or before training) or vectorise it"
    if cheap:
        cure = (
            f"{code} takes {facts['sample_us']:.2g} µs per sample, much of it the price of making "
            "samples one by one: where the dataset can be indexed by a list, make whole batches "
            "with DataLoader(dataset, sampler=BatchSampler(...), batch_size=None)"
        )
    if what == "loop" and more:
        return f"{cure}; or move it into a Dataset and {more}"
    return f"{cure}; or {more}" if more else cure
