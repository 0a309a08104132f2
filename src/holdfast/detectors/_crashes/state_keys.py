"""A state dict whose keys are not those of the model: prefixes, other sizes, another model."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Mapping

from ...source.files import parsed
from .facts import Crash, CrashCause, clip

_BUILD = "build the model with the settings it was saved with"
_HEAD = (
    "; for another number of classes drop the keys of the head from the state and load with "
    "strict=False"
)
_WRAPS = {
    "module.": " (saved from DataParallel or DDP: save model.module.state_dict())",
    "_orig_mod.": " (saved from a compiled model: save model._orig_mod.state_dict())",
}
# Part of the model's tensors that a load must fill for strict=False to be worth a word. A guess.
_ENOUGH = 0.5

Sizes = Mapping[str, tuple[int, ...]]


def keys(crash: Crash) -> CrashCause | None:
    """Missing and unexpected keys, or other sizes, in a state dict."""
    found = crash.find(r"Error\(s\) in loading state_dict for (\w+)")
    if found is None:
        return None
    saved, own = crash.data.saved_sizes or {}, crash.data.model_sizes or {}
    # The message of a large model is cut; what was recorded of both is not.
    missing = _names(crash, "Missing") or sorted(own.keys() - saved.keys())
    unexpected = _names(crash, "Unexpected") or sorted(saved.keys() - own.keys())
    if prefix := _prefix(unexpected, missing):
        return _to_strip(crash, prefix, unexpected, missing)
    if prefix := _prefix(missing, unexpected):
        part = prefix.rstrip(".")
        rest = [name for name in missing if not name.startswith(prefix)]
        some = "the model's keys" if not rest else f"{len(missing) - len(rest)} keys of the model"
        others = f"; {_few(rest)} stay as they are" if rest else ""
        return CrashCause(
            headline=f"{some} begin with {prefix!r}, those of the state do not",
            advice="load the state before wrapping or compiling the model, or into the wrapped "
            f"part (model.{part}.load_state_dict){others}",
        )
    inside = {"model", "state_dict", "model_state_dict", "net", "weights", "ema"} & set(unexpected)
    if inside and missing:
        key = sorted(inside)[0]
        return CrashCause(
            headline="the file is a whole checkpoint, not a state dict",
            advice=f"load its part: model.load_state_dict(checkpoint[{key!r}])",
        )
    said = re.findall(r"size mismatch for (\S+): .*?Size\((.*?)\) from checkpoint, .*?"
                      r"Size\((.*?)\)", crash.message)  # fmt: skip
    if said:
        return CrashCause(headline=_reported_sizes(said), advice=_build(saved, own))
    kinds = [
        f"{len(each)} {word}"
        for each, word in ((missing, "missing"), (unexpected, "unexpected"))
        if each
    ]
    few = ", ".join((missing or unexpected)[:3])
    return CrashCause(
        headline=f"state of another {found[1]}: {' and '.join(kinds)} keys ({few})",
        advice="the model is not built as the saved one was: build the same, or rename the keys"
        + _not_strict(saved, own),
    )


def _to_strip(crash: Crash, prefix: str, unexpected: list[str], missing: list[str]) -> CrashCause:
    """The state has the model's keys behind a prefix, and perhaps others."""
    saved, own = crash.data.saved_sizes or {}, crash.data.model_sizes or {}
    others = [name for name in unexpected if not name.startswith(prefix)]
    plain = {name.removeprefix(prefix) for name in unexpected}
    left = [name for name in missing if name not in plain]
    known = saved.keys() & own.keys()
    only = f" if k.startswith({prefix!r})" if others and not known else ""
    owner, state = _call(crash.place.code)
    line = f"{{k.removeprefix({prefix!r}): v for k, v in {state}.items(){only}}}"
    stripped = {name.removeprefix(prefix): size for name, size in saved.items()}
    sizes = [
        (name, _plain(size), _plain(own[name]))
        for name, size in stripped.items()
        if name in own and own[name] != size
    ]
    some = f"{len(unexpected) - len(others)} keys" if others else "every key"
    more = f"; this leaves out {_few(others)}, which the model does not have" if only else ""
    more += f"; {_few(left)} would be missing still" if left else ""
    return CrashCause(
        headline=f"{some} of the state {'have' if others else 'has'} the prefix {prefix!r}"
        + (f", and {_reported_sizes(sizes)}" if sizes else ""),
        advice=f"strip it: {owner}.load_state_dict({line}){_WRAPS.get(prefix, '')}{more}"
        + (f"; then {_build(stripped, own)}" if sizes else ""),
    )


def _prefix(longer: list[str], shorter: list[str]) -> str:
    """What stands before most of the shorter names among the longer ones; empty for nothing."""
    wanted = set(shorter)
    found: Counter[str] = Counter()
    for name in longer:
        parts = name.split(".")
        for at in range(1, len(parts)):
            if ".".join(parts[at:]) in wanted:
                found[".".join(parts[:at]) + "."] += 1
    best, count = found.most_common(1)[0] if found else ("", 0)
    return best if count >= max(1, len(wanted) * _ENOUGH) else ""


def _fills(saved: Sizes, own: Sizes) -> int:
    """How many tensors of the model a state would fill, without those of another size."""
    return sum(saved.get(name) == size for name, size in own.items())


def _build(saved: Sizes, own: Sizes) -> str:
    return _BUILD + (_HEAD if own and _fills(saved, own) >= _ENOUGH * len(own) else "")


def _not_strict(saved: Sizes, own: Sizes) -> str:
    """What ``strict=False`` would do, where that is known."""
    if not own:
        return ""
    filled = _fills(saved, own)
    if filled >= _ENOUGH * len(own):
        return (
            f"; strict=False fills {filled} of {len(own)} tensors, the others stay as they were "
            "initialised"
        )
    return f"; strict=False would fill {filled or 'none'} of {len(own)} tensors"


def _call(code: str) -> tuple[str, str]:
    """The model and the state of a call of ``load_state_dict``, as they are written."""
    for node in ast.walk(parsed(code.strip().rstrip(":")) or ast.Pass()):
        match node:
            case ast.Call(
                func=ast.Attribute(value=owner, attr="load_state_dict"), args=[state, *_]
            ):
                plain = isinstance(state, ast.Name | ast.Attribute | ast.Subscript | ast.Call)
                shown = ast.unparse(state)
                return clip(ast.unparse(owner), 60), shown if plain and len(shown) < 60 else "state"
            case _:
                pass
    return "model", "state"


def _few(names: list[str]) -> str:
    more = f" and {len(names) - 2} more" if len(names) > 2 else ""
    return ", ".join(names[:2]) + more


def _plain(size: tuple[int, ...]) -> str:
    return ", ".join(map(str, size))


def _reported_sizes(sizes: list[tuple[str, str, str]]) -> str:
    layer, saved, here = sizes[0]
    more = f", {len(sizes)} sizes differ" if len(sizes) > 1 else ""
    return f"{layer} is {saved} in the checkpoint and {here} in the model{more}"


def _names(crash: Crash, word: str) -> list[str]:
    found = crash.find(rf"{word} key\(s\) in state_dict: (.+)")
    return re.findall(r'"(.+?)"', found[1]) if found else []
