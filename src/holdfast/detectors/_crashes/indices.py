"""Labels, tokens and positions out of range: the value, what is allowed, and which sample."""

from __future__ import annotations

from .facts import Crash, CrashCause, LineValue


def label(crash: Crash) -> CrashCause | None:
    """A class number that the prediction has no column for."""
    found = crash.find(r"Target (-?\d+) is out of bounds") or crash.find(
        r"Class values must be (smaller than num_classes|non-negative)"
    )
    if found is None:
        return None
    target = next((t for t in crash.inner if t.name in ("target", "tensor")), None)
    target = target or next((t for t in crash.tensors if t.whole), None)
    scores = next((t for t in crash.inner if t.name == "input" and t.shape), None)
    classes = (scores.shape or (0,))[min(1, len(scores.shape or ()) - 1)] if scores else 0
    low, high = (target.lowest, target.highest) if target else (None, None)
    named = found[1] if found[1].lstrip("-").isdigit() else str(high)
    row = _row(target, int(named)) if target and named.lstrip("-").isdigit() else -1
    allowed = f"0 to {classes - 1}" if classes else "0 to the number of classes - 1"
    headline = f"label {named}, allowed are {allowed}"
    if int(named) < 0 if named.lstrip("-").isdigit() else False:
        advice = (
            f"a negative label marks what has none: pass ignore_index={named} to the loss, or drop "
            "these samples"
        )
    elif low is not None and low >= 1 and classes and high == classes:
        advice = (
            f"the labels of this batch are {low} to {high}: they begin with 1, so subtract 1 in "
            "the dataset"
        )
    elif classes and high is not None:
        advice = (
            f"the labels of this batch are {low} to {high} and the prediction has {classes} "
            f"columns: give the last layer {high + 1} outputs, or map the labels to 0 … "
            f"{classes - 1}"
        )
    else:
        advice = "map the labels to 0 … classes - 1, or give the last layer as many outputs"
    return CrashCause(headline=headline, advice=advice, row=row)


def token(crash: Crash) -> CrashCause | None:
    """An index that an embedding has no row for."""
    if not crash.find("index out of range in self"):
        return None
    module = crash.module
    table = module.weights.get("weight") if module and "Embedding" in module.module else None
    rows = table[0] if table else 0
    if not rows:
        weight = next((t for t in crash.inner if t.name == "weight" and t.shape), None)
        rows = (weight.shape or (0,))[0] if weight else 0
    indices = next((t for t in crash.inner if t.whole), None)
    indices = indices or next((t for t in crash.tensors if t.whole), None)
    if indices is None or indices.highest is None or indices.lowest is None:
        return CrashCause(
            headline="an index beyond the end of the table",
            advice="print the smallest and the largest index before this line and compare them "
            "with the size of the table",
        )
    bad = indices.lowest if indices.lowest < 0 else indices.highest
    row = _row(indices, bad)
    name, made = (module.label, module.made.reported()) if module and rows else ("the table", "")
    headline = f"index {bad}, {name} has rows 0 to {rows - 1}"
    if bad < 0:
        advice = "negative indices mark padding: replace them by a padding row (padding_idx)"
    elif indices.shape and len(indices.shape) == 1 and indices.highest == indices.shape[-1] - 1:
        advice = (
            f"positions 0 to {bad}: the sequence is longer than the {rows} positions of the table, "
            f"cut it to {rows} or make the table longer{made}"
        )
    else:
        advice = (
            f"the indices of this batch are {indices.lowest} to {indices.highest}: make the table "
            f"nn.Embedding({bad + 1}, …) or larger{made}, special tokens counted too, or map "
            "unknown tokens to one row"
        )
    return CrashCause(headline=headline, advice=advice, row=row)


def beyond(crash: Crash) -> CrashCause | None:
    """Indexing, gathering and scattering beyond the end of a dimension."""
    found = crash.find(r"index (-?\d+) is out of bounds for dimension (\d+) with size (\d+)")
    if found:
        bad, dimension, size = map(int, found.groups())
        indices = next((t for t in crash.tensors if t.whole and t.highest is not None), None)
        row = _row(indices, bad) if indices is not None else -1
        return CrashCause(
            headline=f"index {bad} of a dimension with {size} entries",
            advice=f"dimension {dimension} has 0 to {size - 1}: check where the index comes from"
            f"{crash.first_origin().reported()}, an id that begins with 1 or a size that is one "
            "short "
            "are usual",
            row=row,
        )
    found = crash.find(r"index (-?\d+) is out of bounds for axis (\d+) with size (\d+)")
    if found:
        return CrashCause(
            headline=f"index {found[1]} of an array with {found[3]} entries",
            advice=f"axis {found[2]} has 0 to {int(found[3]) - 1}: check where the index comes "
            f"from{crash.first_origin().reported()}; __len__ may be longer than the data",
        )
    if crash.type == "IndexError" and crash.find(r"^(list|tuple|string) index out of range"):
        kind = crash.message.split(" ")[0]
        loading = crash.phase == "loading" and crash.sample
        held = next((v for v in crash.operands if v.type == kind), None)
        has = f"{held.name} is a {held.text}" if held else f"the {kind} is shorter"
        return CrashCause(
            headline=f"{kind} index out of range",
            advice=f"{has}: "
            + (
                "if __len__ of the dataset says more than it has, let both come from the same list"
                if loading
                else "check its length, and a loop that counts one too far"
            ),
        )
    return None


def _row(value: LineValue | None, number: int) -> int:
    if value is None:
        return -1
    if value.lowest == number:
        return value.lowest_row
    return value.highest_row if value.highest == number else -1
