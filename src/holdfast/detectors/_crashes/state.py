"""Optimizers and schedules that are made or used wrongly, and their saved states."""

from __future__ import annotations

from .facts import Crash, CrashCause

_ITERATORS = ("generator", "filter", "map", "chain", "zip")


def schedule(crash: Crash) -> CrashCause | None:
    """A schedule that is stepped past its end."""
    found = crash.find(r"Tried to step (\d+) times\. The specified number of total steps is (\d+)")
    if found is None:
        return None
    return CrashCause(
        headline=f"the schedule has {found[2]} steps and is stepped once more",
        advice="total_steps must be epochs * len(loader), divided by the accumulation, if step() "
        "is called per batch, and epochs if it is called per epoch; after a resume set it for the "
        "whole run",
    )


def no_parameters(crash: Crash) -> CrashCause | None:
    """An optimizer that is given nothing."""
    if crash.find("optimizer got an empty parameter list"):
        consumed = next((v for v in crash.operands if v.type in _ITERATORS), None)
        hidden = next((v for v in crash.operands if v.lists), None)
        if hidden is not None:
            return CrashCause(
                headline=f"{hidden.name} has no parameters that torch can see",
                advice=f"self.{hidden.lists[0]} is a plain list or dictionary of layers: make it "
                "an nn.ModuleList or nn.ModuleDict",
            )
        return CrashCause(
            headline="the optimizer gets no parameters",
            advice=f"{consumed.name} is a {consumed.type} and was used up before: make a list "
            f"of it where it is made{crash.origin(consumed.name).reported()}"
            if consumed
            else "model.parameters() is a generator that is empty after one use, layers in a plain "
            "list are not seen (use nn.ModuleList), and a filter may have dropped all: print "
            "len(list(model.parameters()))",
        )
    return None


def refused_setting(crash: Crash) -> CrashCause | None:
    """A setting that is outside of what an optimizer takes."""
    if crash.find(r"Invalid (learning rate|beta|momentum|weight_decay|epsilon)"):
        return CrashCause(
            headline=crash.message.split("\n")[0][:80],
            advice="the value is outside what the optimizer takes: check its sign and the order of "
            f"the arguments{crash.place.reported()}",
        )
    return None
