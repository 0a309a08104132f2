"""The change for a line that makes a variable hold more and more."""

from __future__ import annotations

from ..records.memory import GraphChain, HeldValue, ValueGrowth
from ..source.diffs import carried_together, detached, target_in
from ._memory import code_of, place_of

# By kind: how the last few are kept, and how it becomes empty.
_ENDS = {
    "list": ("keep the last few (collections.deque(maxlen=...))", "call {path}.clear() in between"),
    "deque": ("give it a maxlen", "call {path}.clear() in between"),
    "dict": ("drop the oldest keys", "call {path}.clear() in between"),
    "tensor": ("keep its last part ({path}[-n:])", "start it anew in between"),
    "_lru_cache_wrapper": ("give the cache a maxsize", "call its cache_clear() in between"),
    "": ("keep the last few", "empty it in between"),
}


def how_to_bound(grown: ValueGrowth) -> str:
    """The change for a container that only grows."""
    path, line, one = grown.path or "the container", code_of(grown), grown.single
    many = f" ({grown.size:.0f} {'values' if one else 'items'} now)"
    where = f" at `{line}`" if line else ""
    few, end = _ENDS.get("tensor" if one else grown.type, _ENDS[""])
    few, end = few.format(path=path), end.format(path=path)
    return f"bound {path}{many}: {few}, reduce them to numbers{where}, or {end}"


def how_to_write(grown: ValueGrowth) -> str:
    """The change for plain objects that are collected."""
    path, line = grown.path or "the container", code_of(grown)
    where = f" at `{line}`" if line else ""
    if grown.read:
        return (
            f"the loop reads {path}: where its newest items are enough, take the old ones out"
            f"{where}; where all are needed, it grows on purpose"
        )
    if grown.single:
        return (
            f"write each part to a file instead of joining it to {path}{where}, or begin "
            f"{path} anew when it has been used"
        )
    # A deque takes the place of a list, not of a dictionary or a set.
    listed = any(word in line for word in (".append(", ".extend(", "+="))
    bound = "collections.deque(maxlen=...), or " if listed else ""
    return (
        f"write it to a file instead of keeping it in {path}{where}, or bound it: "
        f"{bound}{path}.clear() after use"
    )


def detached_line(held: HeldValue, code: str) -> str:
    """The line without the graph, where what it stores is a tensor itself."""
    return detached(code, single=held.single) if held.plain else ""


def how_to_detach(held: HeldValue) -> str:
    """The change for the line that stores."""
    line = code_of(held)
    path = held.path or "the tensor"
    if held.feeds:
        return (
            f"a backward pass goes through what {path} holds: empty it after that pass, and detach "
            "what is kept for longer"
        )
    new = detached_line(held, line)
    if new:
        return f"cut the graph: `{line}` -> `{new}`"
    where = f" in `{line}`" if line else ""
    return f"store numbers, not graphs, in {path}: .item() or .detach() each tensor{where}" + (
        f", {place_of(held)}" if place_of(held) else ""
    )


def how_to_cut(chain: GraphChain) -> str:
    """Where to detach a state that is carried from step to step."""
    line = code_of(chain)
    then = "; then remove retain_graph" if chain.retains else ""
    if not chain.again:
        # Behind a line that runs more often, it would cut within the step.
        cut = detaching(chain, (chain.path or "the state").split("[")[0])
        return f"add `{cut}` once in a step, after its backward pass and nowhere else{then}"
    after = f" after `{line}`" if line else ""
    return f"add `{detaching(chain)}`{after}, before the next step uses it{then}"


def detaching(chain: GraphChain, name: str = "") -> str:
    """``h = h.detach()``, for a tuple of states each of them."""
    data = chain.to_dict()
    if beside := carried_together(data):
        return f"{', '.join(beside)} = {', '.join(f'{one}.detach()' for one in beside)}"
    name = name or target_in(data) or "the state"
    many = "[" in chain.path
    return f"{name} = " + (f"tuple(s.detach() for s in {name})" if many else f"{name}.detach()")
