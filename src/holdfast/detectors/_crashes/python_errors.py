"""Errors of python itself: names, attributes, arguments, keys, imports."""

from __future__ import annotations

import re

from .._memory import amount
from ..kills import limit_advice, limit_words
from .division import divided
from .facts import Crash, CrashCause


def imports(crash: Crash) -> CrashCause | None:
    """A module or a name that cannot be imported."""
    found = crash.find(r"No module named '(.+?)'")
    if found:
        top = found[1].split(".")[0]
        known = {"cv2": "opencv-python", "PIL": "pillow", "sklearn": "scikit-learn",
                 "yaml": "pyyaml", "skimage": "scikit-image"}  # fmt: skip
        return CrashCause(
            headline=f"no module named {found[1]}",
            advice=f"pip install {known.get(top, top)} into the environment that runs the script "
            "(which python), or, if it is your own, start from the folder that holds it",
        )
    found = crash.find(r"cannot import name '(.+?)' from (?:partially initialized module )?'(.+?)'")
    if found:
        circle = "partially initialized" in crash.message
        return CrashCause(
            headline=f"{found[2]} has no {found[1]}",
            advice="the two modules import each other: move what both need into a third, or "
            "import inside the function"
            if circle
            else "another version of the package has moved or renamed it, or a file of yours has "
            "the name of the package: check its version and its __file__",
        )
    if crash.type == "ImportError":
        return CrashCause(
            headline=crash.message.split("\n")[0][:90],
            advice="a library of the system or another version of a package is missing: reinstall "
            "the package, and torch with the matching build",
        )
    return None


def syntax(crash: Crash) -> CrashCause | None:
    """Code that python cannot read."""
    if crash.type not in ("SyntaxError", "IndentationError", "TabError"):
        return None
    return CrashCause(
        headline=f"{crash.type} in {crash.place.where or 'a module'}",
        advice="python cannot read this line, or the one before it (an open bracket, a missing "
        "colon, mixed indentation)",
    )


def names(crash: Crash) -> CrashCause | None:
    """A name that does not exist."""
    found = crash.find(r"name '(.+?)' is not defined")
    near = crash.near()
    if found:
        akin = crash.akin()
        hint = f"did you mean {near}?" if near else "it is misspelt, not imported, or defined later"
        hint += f"; there is {akin}" if akin and not near else ""
        return CrashCause(headline=f"no variable {found[1]}", advice=f"{hint} (python reads names "
            "when "
                     "the line runs)")  # fmt: skip
    found = crash.find(r"cannot access (?:local|free) variable '(.+?)'") or crash.find(
        r"local variable '(.+?)' referenced before assignment"
    )
    if found:
        return CrashCause(
            headline=f"{found[1]} is read before it has a value",
            advice="the branch or the loop that sets it did not run (an empty loader, a "
            "condition), or the function assigns it later and hides the outer one: set it before",
        )
    return None


def attributes(crash: Crash) -> CrashCause | None:
    """An attribute that an object does not have."""
    found = crash.find(r"'(.+?)' object has no attribute '(.+?)'") or crash.find(
        r"module '(.+?)' has no attribute '(.+?)'"
    )
    if found is None:
        return None
    owner, name = found[1], found[2]
    near = crash.near()
    if owner == "NoneType" and crash.data.steps and (holder := _without_gradient(crash, name)):
        return _no_gradient(holder)
    if owner == "NoneType":
        wanting = next((v for v in crash.operands if v.text == "None"), None)
        who = wanting.name if wanting else "the object"
        made = crash.origin(who).reported()
        return CrashCause(
            headline=f"{who} is None",
            advice=f"what should have made it returned nothing{made}: a function without return, "
            "a .grad before backward, a dictionary's get, a branch that did not run",
        )
    if near:
        return CrashCause(headline=f"{owner} has no {name}", advice=f"did you mean {near}? Names "
            "of "
                     "attributes are checked when the line runs")  # fmt: skip
    if owner in ("DataParallel", "DistributedDataParallel"):
        return CrashCause(
            headline=f"{owner} has no {name}", advice=f"the model is inside: model.module.{name}"
        )
    if owner in ("tuple", "list", "dict"):
        return CrashCause(
            headline=f"a {owner} where a tensor or an object is expected",
            advice=f"{name} belongs to a part of it: unpack it (output, state = lstm(x)), index "
            "it, or join it with torch.stack",
        )
    if akin := crash.akin():
        return CrashCause(
            headline=f"{owner} has no {name}",
            advice=f"nothing has set it; {owner} has {akin}: use one of these, or assign "
            f"self.{name} before this line runs",
        )
    return CrashCause(
        headline=f"{owner} has no {name}",
        advice="it was renamed or removed in this version of the library, or never set: in a class "
        "assign self." + name + " in __init__",
    )


def arguments(crash: Crash) -> CrashCause | None:
    """A call with the wrong arguments."""
    if crash.type != "TypeError":
        return None
    found = crash.find(r"argument '(\w+)' \(position \d+\) must be Tensor, not (\w+(?:\.\w+)?)")
    if found and found[2] == "NoneType" and (holder := _without_gradient(crash)):
        return _no_gradient(holder)
    if found:
        made = crash.first_origin().reported() or _made(crash)
        advice = {
            "tuple": "take one of its parts: recurrent layers return output and state, "
            "output, _ = rnn(x)",
            "list": "make one tensor of it with torch.stack or torch.tensor",
            "NoneType": "the module or function before it returns nothing: check for a missing "
            "return in forward",
            "ndarray": "use torch.from_numpy(x).float()",
        }.get(found[2].rpartition(".")[2], "convert it to a tensor first")
        return CrashCause(
            headline=f"a {found[2]} where a tensor is expected", advice=f"{advice}{made}"
        )
    found = crash.find(
        r"(\S+)\(\) missing (\d+) required (?:positional|keyword-only) arguments?: (.+)"
    )
    if found:
        return CrashCause(
            headline=f"{found[1]} is called without {found[3]}",
            advice="pass what is missing, or give it a default; forward is called with exactly "
            "what model(...) is called with",
        )
    found = crash.find(r"(\S+)\(\) (?:takes .* but (\d+) (?:was|were) given|got an unexpected "
                       r"keyword argument '(.+?)'|got multiple values)")  # fmt: skip
    if found:
        what = f"the argument {found[3]}" if found[3] else "other arguments than it takes"
        hint = crash.find(r"Did you mean '(.+?)'")
        return CrashCause(
            headline=f"{found[1]} gets {what}",
            advice=(f"did you mean {hint[1]}? " if hint else "")
            + "compare the call with the definition; the argument may belong to another version "
            "of the library, and a method needs self",
        )
    found = crash.find(r"unsupported operand type\(s\) for (.+?): '(.+?)' and '(.+?)'")
    if found:
        none = "NoneType" in (found[2], found[3])
        return CrashCause(
            headline=f"{found[2]} {found[1]} {found[3]}",
            advice="one of the two is None: a function without return, a value that was never set"
            if none
            else "convert one of the two: numbers from files and arguments are texts, float(x)",
        )
    if crash.find(r"cannot unpack non-iterable NoneType object"):
        called = re.search(r"=\s*([\w.]+)\(", crash.place.code)
        who = f"{called[1]}()" if called else "the right side"
        return CrashCause(
            headline=f"{who} has returned None here, which cannot be unpacked",
            advice=f"look for a way through {who} without a return, or with a bare one: a branch "
            "or a loop that finds nothing; return something there, or ask for None before "
            "unpacking",
        )
    found = crash.find(r"'(\w+)' object is not (callable|subscriptable|iterable)")
    if found:
        none = found[1] == "NoneType"
        return CrashCause(
            headline=f"a {found[1]} is used as if it were {found[2]}",
            advice="the value is None: a function without return, or one that works in place"
            if none
            else f"a name now holds a {found[1]}: it may hide a function or a list of the same "
            f"name{crash.first_origin().reported()}",
        )
    return None


def _without_gradient(crash: Crash, attribute: str = "") -> str:
    """The parameter whose missing gradient, or its attribute, is read; empty for none."""
    then = rf"\.{re.escape(attribute)}\b" if attribute else ""
    for value in crash.operands:
        if value.shape is not None and re.search(
            rf"\b{re.escape(value.name)}\.grad\b{then}", crash.place.code
        ):
            return value.name
    return ""


def _no_gradient(holder: str) -> CrashCause:
    """A parameter that the last backward pass has given no gradient."""
    return CrashCause(
        headline=f"{holder}.grad is None: nothing has a gradient for it here",
        advice=f"what {holder} stands for took no part in this loss (a head that is not used, "
        "a frozen layer), and zero_grad() sets gradients to None: an optimizer leaves those "
        f"out, if {holder}.grad is None: continue",
    )


def _made(crash: Crash) -> str:
    value = next((v for v in crash.operands if v.type in ("tuple", "list", "NoneType")), None)
    return crash.origin(value.name).reported() if value is not None else ""


def key(crash: Crash) -> CrashCause | None:
    """A key that a mapping does not have."""
    if crash.type != "KeyError":
        return None
    named = crash.message[:60]
    near, keys = crash.near(), crash.data.keys or ()
    if crash.data.other_type:
        advice = f"the mapping has {near}, of another type: convert one of them, int(k) or str(k)"
    elif crash.data.numbers:
        advice = _among_numbers(crash, *crash.data.numbers)
    elif near:
        advice = f"did you mean {near!r}? The mapping has {', '.join(keys[:8])}"
    elif keys:
        more = ", …" if len(keys) > 8 else ""
        advice = (
            f"the mapping has {', '.join(keys[:8])}{more}: add the key, or use .get(key, default)"
        )
    elif "environ" in crash.place.code:
        advice = "set this environment variable, or read it with os.environ.get(name, default)"
    else:
        advice = "print the keys before this line; use .get(key, default) where it may be missing"
    return CrashCause(headline=f"no key {named}", advice=advice)


def _among_numbers(crash: Crash, low: str, high: str) -> str:
    """What a mapping of numbers has, and why one of them may be missing."""
    count = crash.data.key_count or 0
    has = f"the mapping has {count} {'numbers' if count > 1 else 'number'}, {low} to {high}"
    has = has if count > 1 else has.partition(",")[0] + f", {low}"
    if crash.data.side == "above":
        return (
            f"{has}, and this one comes after the last: what fills it ended earlier, or what was "
            "added is not all read back (a file that is written must be flushed or closed first)"
        )
    if crash.data.side == "below":
        return f"{has}, and this one comes before the first: look where they begin"
    return f"{has}, and this one is left out: look at what fills it, and at what it leaves out"


def division(crash: Crash) -> CrashCause | None:
    """A division by zero."""
    return divided(crash) if crash.type == "ZeroDivisionError" else None


def assertion(crash: Crash) -> CrashCause | None:
    """An assertion, of the script or of a library."""
    if crash.type != "AssertionError":
        return None
    said = crash.message.split("\n")[0][:80]
    condition = re.sub(r"^assert\s+", "", crash.place.code) if "assert" in crash.place.code else ""
    shapes = [f"{v.name} {v.size if v.shape is not None else v.text}" for v in crash.operands[:4]]
    reported = f": {', '.join(shapes)}" if shapes else ""
    return CrashCause(
        headline=f"assertion failed{': ' + (said or condition[:80]) if said or condition else ''}",
        advice=f"the values of the line{reported}; the condition is what the code relies on, so "
        "look at where they come from",
    )


def memory(crash: Crash) -> CrashCause | None:
    """Python's own out of memory; where torch trains it is MEM008."""
    if "MemoryError" not in crash.type:
        return None
    limit, size = crash.data.limit or "", crash.data.limit_bytes
    reported = "" if size is None else f" at {limit_words(limit)}, {amount(size)}"
    return CrashCause(
        headline=f"out of memory{reported}",
        advice="read the data when it is needed (np.memmap, one file per sample) and keep arrays "
        f"instead of lists of objects; or {limit_advice(limit)}",
    )
