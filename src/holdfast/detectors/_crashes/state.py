"""Saved states that do not fit, and optimizers and schedules that are made or used wrongly."""

from __future__ import annotations

import re

from .facts import Cause, Crash, listed, mapping, text

_BUILD = (
    "build the model with the settings it was saved with; for another number of classes drop the "
    "keys of the head from the state and load with strict=False"
)
_ITERATORS = ("generator", "filter", "map", "chain", "zip")
_PREFIXES = ("module.", "_orig_mod.", "model.", "net.", "encoder.", "backbone.")


def keys(crash: Crash) -> Cause | None:
    """Missing and unexpected keys, or other sizes, in a state dict."""
    found = crash.find(r"Error\(s\) in loading state_dict for (\w+)")
    if found is None:
        return None
    missing = _names(crash, "Missing")
    unexpected = _names(crash, "Unexpected")
    sizes = re.findall(r"size mismatch for (\S+): .*?Size\((.*?)\) from checkpoint, .*?"
                       r"Size\((.*?)\)", crash.message)  # fmt: skip
    name = found[1]
    if prefix := _prefix(unexpected, missing):
        wraps = {
            "module.": " (saved from DataParallel or DDP: save model.module.state_dict())",
            "_orig_mod.": " (saved from a compiled model: save model._orig_mod.state_dict())",
        }.get(prefix, "")
        sizes = sizes or _other_sizes(crash, prefix)
        return Cause(
            headline=f"every key of the state has the prefix {prefix!r}{_and_sizes(sizes)}",
            advice=f"strip it: {{k.removeprefix({prefix!r}): v for k, v in state.items()}}{wraps}"
            + (f"; then {_BUILD}" if sizes else ""),
        )
    if prefix := _prefix(missing, unexpected):
        return Cause(
            headline=f"the model's keys begin with {prefix!r}, those of the state do not",
            advice="load the state before wrapping or compiling the model, or into the wrapped "
            f"part (model.{prefix.rstrip('.')}.load_state_dict)",
        )
    inside = {"model", "state_dict", "model_state_dict", "net", "weights", "ema"} & set(unexpected)
    if inside and missing:
        key = sorted(inside)[0]
        return Cause(
            headline="the file is a whole checkpoint, not a state dict",
            advice=f"load its part: model.load_state_dict(checkpoint[{key!r}])",
        )
    if sizes:
        return Cause(headline=_told_sizes(sizes), advice=_BUILD)
    few = ", ".join((missing or unexpected)[:3])
    kinds = [
        f"{len(each)} {word}"
        for each, word in ((missing, "missing"), (unexpected, "unexpected"))
        if each
    ]
    return Cause(
        headline=f"state of another {name}: {' and '.join(kinds)} keys ({few})",
        advice="the model was changed since it was saved: build the same one, rename the keys, or "
        "load with strict=False where the missing ones may stay as they are",
    )


def _other_sizes(crash: Crash, prefix: str) -> list[tuple[str, str, str]]:
    """Tensors that have another size once the prefix is gone: torch does not come to compare them.

    With the name, the size in the state and the size in the model.
    """
    saved, own = mapping(crash.data.get("saved_sizes")), mapping(crash.data.get("model_sizes"))
    found: list[tuple[str, str, str]] = []
    for name, size in saved.items():
        here = own.get(plain := name.removeprefix(prefix))
        if here is not None and listed(here) != listed(size):
            there, own_size = (", ".join(map(str, listed(each))) for each in (size, here))
            found.append((plain, there, own_size))
    return found


def _told_sizes(sizes: list[tuple[str, str, str]]) -> str:
    layer, saved, here = sizes[0]
    more = f", {len(sizes)} sizes differ" if len(sizes) > 1 else ""
    return f"{layer} is {saved} in the checkpoint and {here} in the model{more}"


def _and_sizes(sizes: list[tuple[str, str, str]]) -> str:
    return f", and {_told_sizes(sizes)}" if sizes else ""


def _names(crash: Crash, word: str) -> list[str]:
    found = crash.find(rf"{word} key\(s\) in state_dict: (.+)")
    return re.findall(r'"(.+?)"', found[1]) if found else []


def _prefix(longer: list[str], shorter: list[str]) -> str:
    """What stands before every one of the longer names."""
    for name in longer[:1]:
        for prefix in (*_PREFIXES, f"{name.split('.')[0]}."):
            plain = {each.removeprefix(prefix) for each in longer}
            if all(each.startswith(prefix) for each in longer) and plain & set(shorter):
                return prefix
    return ""


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
    if "optim/" in text(crash.data.get("library")) and crash.find(
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
