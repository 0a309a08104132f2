"""Environment of a run and its files, read from the run folder, never from this machine."""

from __future__ import annotations

from . import words
from .cost import cost_note
from .summary import RunSummary

_COMMAND = 2000
_MEMORY = {"mem_allocated": "GPU allocated", "mem_reserved": "GPU reserved", "rss": "host"}


def environment_of(summary: RunSummary) -> dict[str, str]:
    """Label and text of every fact that is known. The command was redacted when recorded."""
    facts = summary.facts
    made = [f"{name} {facts[name]}" for name in ("holdfast", "python", "torch") if name in facts]
    rows = {
        "command": words.clip(facts.get("command", ""), _COMMAND),
        "started": facts.get("started", ""),
        "resumed": facts.get("resumed", ""),
        "with": ", ".join([*made, *([facts["device"]] if "device" in facts else [])]),
        "ranks": facts.get("world", "") if facts.get("world", "1") != "1" else "",
        "guard": "; ".join(summary.changes),
        "memory": _memory(summary),
        "norms": facts.get("gradients", ""),
        "files": "{}, {}, in {}".format(
            words.plural(summary.files[0], "file"), words.size(summary.files[1]), summary.path
        ),
        "lost": f"{words.number(summary.dropped)} records: the ring was full"
        if summary.dropped
        else "",
    }
    return {label: text for label, text in rows.items() if text}


def guard_cost_words(summary: RunSummary) -> str:
    """Guard cost, and how it was measured."""
    return cost_note(summary.cost)


def lane_notes(summary: RunSummary) -> tuple[str, ...]:
    """Processes, where there is more than one, or where one is incomplete."""
    notes: list[str] = []
    for lane in summary.lanes:
        parts = [
            f"{words.plural(lane.steps, 'step')}, {words.plural(lane.skipped, 'step')} skipped"
        ]
        if lane.steps > lane.rows > 0:
            parts.append(f"{words.number(lane.rows)} rows kept of a long run")
        if not lane.ended:
            parts.append("ended without a final record")
        if lane.corrupt:
            parts.append(f"{words.plural(lane.corrupt, 'line')} unreadable")
        if lane.unread:
            few = "of kinds with very many only the first and the last are read"
            parts.append(f"{words.plural(lane.unread, 'event')} passed over: {few}")
        if len(parts) > 1 or (len(summary.lanes) > 1 and not summary.ranks):
            notes.append(f"{lane.lane}: {', '.join(parts)}")
    return tuple(notes)


def _memory(summary: RunSummary) -> str:
    peaks = {
        name: max((lane.peak_bytes.get(name, 0.0) for lane in summary.lanes), default=0.0)
        for name in _MEMORY
    }
    most = [f"{_MEMORY[name]} {words.size(peak)}" for name, peak in peaks.items() if peak > 0]
    return f"at most {', '.join(most)}" if most else ""
