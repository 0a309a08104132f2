"""Optimizers and schedules that are made or used wrongly, and their saved states."""

from __future__ import annotations

from .facts import Cause, Crash
from .state_keys import keys

_ITERATORS = ("generator", "filter", "map", "chain", "zip")


def optimizer_state(crash: Crash) -> Cause | None:
    """A saved optimizer of another model."""
    if not crash.find("loaded state dict (contains a parameter group|has a different number)"):
        return None
    return Cause(
        headline="the saved optimizer has other parameters than this one",
        advice="make the optimizer from the same parameters in the same groups as when it was "
        "saved (frozen layers and new heads change them), or do not load its state",
    )


def schedule(crash: Crash) -> Cause | None:
    """A schedule that is stepped past its end."""
    found = crash.find(r"Tried to step (\d+) times\. The specified number of total steps is (\d+)")
    if found is None:
        return None
    return Cause(
        headline=f"the schedule has {found[2]} steps and is stepped once more",
        advice="total_steps must be epochs * len(loader), divided by the accumulation, if step() "
        "is called per batch, and epochs if it is called per epoch; after a resume set it for the "
        "whole run",
    )


def parameters(crash: Crash) -> Cause | None:
    """What an optimizer is given."""
    if crash.find("optimizer got an empty parameter list"):
        consumed = next((v for v in crash.operands if v.type in _ITERATORS), None)
        hidden = next((v for v in crash.operands if v.lists), None)
        if hidden is not None:
            return Cause(
                headline=f"{hidden.name} has no parameters that torch can see",
                advice=f"self.{hidden.lists[0]} is a plain list or dictionary of layers: make it "
                "an nn.ModuleList or nn.ModuleDict",
            )
        return Cause(
            headline="the optimizer gets no parameters",
            advice=f"{consumed.name} is a {consumed.type} and was used up before: make a list "
            f"of it where it is made{crash.origin(consumed.name).told()}"
            if consumed
            else "model.parameters() is a generator that is empty after one use, layers in a plain "
            "list are not seen (use nn.ModuleList), and a filter may have dropped all: print "
            "len(list(model.parameters()))",
        )
    if crash.find("some parameters appear in more than one parameter group"):
        return Cause(
            headline="a parameter is in two groups of the optimizer",
            advice="tied weights or overlapping modules: build the groups from named_parameters() "
            "and put each parameter into one of them",
        )
    if crash.find("can't optimize a non-leaf Tensor"):
        return Cause(
            headline="the optimizer is given a computed tensor",
            advice="make it a leaf: torch.nn.Parameter(x), or x.detach().requires_grad_(); "
            ".to(device) of a parameter makes a new tensor, so move it before",
        )
    if crash.find(r"Invalid (learning rate|beta|momentum|weight_decay|epsilon)"):
        return Cause(
            headline=crash.message.split("\n")[0][:80],
            advice="the value is outside what the optimizer takes: check its sign and the order of "
            f"the arguments{crash.place.told()}",
        )
    if "optim/" in crash.library and crash.find(
        r"(not supported between|bad operand type|unsupported operand|can't multiply).*'?str'?"
    ):
        return Cause(
            headline="a setting of the optimizer is a text",
            advice="YAML reads 1e-4 as text (write 1.0e-4), and arguments of a command line are "
            "text: use float(...)",
        )
    return None


def usage(crash: Crash) -> Cause | None:
    """Schedulers and scalers that are called wrongly."""
    if crash.find(r"ReduceLROnPlateau.step\(\) missing 1 required .*'metrics'"):
        return Cause(
            headline="ReduceLROnPlateau is stepped without its metric",
            advice="call scheduler.step(val_loss) once per epoch, after the validation",
        )
    if crash.find("No inf checks were recorded for this optimizer"):
        return Cause(
            headline="GradScaler finds no gradients of this optimizer",
            advice="scaler.scale(loss).backward() must come before scaler.step(optimizer), and its "
            "parameters must have gradients: check that the loss depends on them",
        )
    if crash.find(r"unscale_\(\) (has already been called|is being called after step)"):
        return Cause(
            headline="gradients are unscaled twice",
            advice="call scaler.unscale_(optimizer) once per step and scaler.update() at its end, "
            "also when a step is skipped",
        )
    return None


RULES = (keys, optimizer_state, schedule, parameters, usage)
