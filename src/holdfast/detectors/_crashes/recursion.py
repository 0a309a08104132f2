"""A recursion without end: what repeats, and whether a higher limit could help."""

from __future__ import annotations

from .facts import Crash, CrashCause


def endless(crash: Crash) -> CrashCause | None:
    """The function that calls itself, and what its arguments say."""
    if crash.type != "RecursionError":
        return None
    found = crash.data.recursion
    if found is None:
        return CrashCause(
            headline="a function calls itself without end",
            advice="the lines that repeat in the traceback are the circle: look at what should "
            "end it, and at the arguments of the innermost calls",
        )
    name, functions = found.function, found.functions
    getter = next((each for each in functions if each in ("__getattr__", "__getattribute__")), "")
    if getter:
        return CrashCause(
            headline=f"{getter} calls itself without end",
            advice="it reads an attribute of self that is missing, for which python calls it "
            "again: read it by self.__dict__, or by super().__getattr__(name) in a module",
        )
    if name == "forward" and found.modules:
        return CrashCause(
            headline="forward calls its own module without end",
            advice="self(...) calls forward again, as do two modules that call each other: call "
            "the layer that is meant",
        )
    if not found.users and found.modules:
        return CrashCause(
            headline=f"{name} of a module goes around without end",
            advice="a module holds its parent, or itself: assigned as an attribute it becomes a "
            "child; keep it in a tuple or a weakref, or pass it as an argument",
        )
    every = found.every
    values = "; ".join(f"{each.name} = {', '.join(each.values)}" for each in found.arguments)
    around = [each for each in functions if each != name]
    who = f"{name} calls itself" + (f" through {', '.join(around[:2])}" if around else "")
    if every > 1:
        return CrashCause(
            headline=f"{who} without end, its arguments repeat every {every} calls",
            advice=f"the last calls have {values}: what it follows leads back to where it was (a "
            "circle in the data), so look at what made these links; a higher recursion limit "
            "does not help",
        )
    if every == 1 and found.fixed:
        return CrashCause(
            headline=f"{who} without end, each time with the same arguments",
            advice="nothing changes from call to call, so nothing can end it, and a higher "
            "recursion limit does not help: look at which other function or argument was meant",
        )
    last = f"the last calls have {values}: " if values else ""
    return CrashCause(
        headline=f"{who} deeper than python allows",
        advice=f"{last}look at whether they come nearer to what ends it; if they do, the data are "
        "deeper than the limit: a loop with a list of what is left needs none",
    )
