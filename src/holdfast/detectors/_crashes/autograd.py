"""Errors of backward: tensors overwritten in place, graphs used twice, losses without a graph."""

from __future__ import annotations

import re

from ...records.crash import CodeLine, OverwritingLine, StepLine
from .facts import Crash, CrashCause, CrashLine, lines, numbers

_OPS = {"relu": ("relu",), "sigmoid": ("sigmoid",), "exp": ("exp",), "softmax": ("softmax",),
        "tanh": ("tanh",), "sqrt": ("sqrt",), "div": ("/",), "mul": ("*",)}  # fmt: skip


def overwritten(crash: Crash) -> CrashCause | None:
    """A tensor that backward needs was changed in place after its use."""
    found = crash.find(r"modified by an inplace operation: \[torch\.\S+ \[?(.*?)\]\]?, which is "
                       r"output (\d+) of (\w+), is at version (\d+)")  # fmt: skip
    version = 0
    if found is None:
        if not crash.find("modified by an inplace operation"):
            return None
        shape, op = (), ""
    else:
        shape, op = numbers(found[1]), found[3].removesuffix("0").removesuffix("Backward")
        version = int(found[4])
    weights: list[str] = []
    if op in ("", "T", "AsStrided", "Transpose", "View"):
        weights = _weights(crash, shape, version)
    if weights and crash.data.step_lines:
        return _stepped(crash, weights)
    line = _guilty(crash, op)
    what = f"the output of {op.lower()} {tuple(shape)}" if op else "a tensor"
    if line is not None and line.line:
        fix = _out_of_place(line)
        return CrashCause(
            headline=f"{what} was overwritten in place at {line.where}",
            advice=f"backward needs the old value: {fix}",
        )
    return CrashCause(
        headline=f"{what} was overwritten in place after its use",
        advice="backward needs the old value: replace +=, x[i] = ..., .add_() and inplace=True "
        "after this operation by a new tensor; torch.autograd.set_detect_anomaly(True) names the "
        "line of the operation",
    )


def _stepped(crash: Crash, weights: list[str]) -> CrashCause:
    """A step that changed weights between a forward pass and its backward."""
    steps = lines(crash.data.step_lines)

    def changed(line: CrashLine[StepLine]) -> list[str]:
        return [name for name in weights if name in (line.about.changes or ())]

    # The last one before this backward, of an optimizer that has such a weight.
    here = crash.place.line
    step = max(steps, key=lambda line: (bool(changed(line)), line.line < here, line.line))
    weight = " or ".join((changed(step) or weights)[:2])
    name = step.name or "optimizer"
    loss = _loss_name(crash) or "this loss"
    headline = f"weight {weight} changed between forward and backward"
    ran = f"{name}.step() at {step.where} changed it, and {loss} was computed before that step"
    if len({line.name for line in steps}) > 1:
        return CrashCause(
            headline=headline,
            advice=f"{ran}: finish one optimizer first (forward, backward, {name}.step()), then "
            f"compute what {loss} is made of again with the new weights, and only then call its "
            "backward; detach() what the first loss must not train",
        )
    return CrashCause(
        headline=headline,
        advice=f"{ran}: call every backward before {name}.step(), or compute {loss} again after it",
    )


def _weights(crash: Crash, shape: tuple[int, ...], version: int) -> list[str]:
    """Weights of this shape, which a layer may use transposed, that were changed so often."""
    return [
        each[0]
        for each in crash.data.weights or ()
        if each[1] in (shape, shape[::-1])
        if not version or len(each) < 3 or each[2] == version
    ]


def _loss_name(crash: Crash) -> str:
    loss = crash.data.loss
    return (loss.name or "") if loss is not None else ""


def _made(crash: Crash) -> str:
    """The line that made the loss, for the end of a phrase."""
    loss = crash.data.loss
    return CrashLine(about=loss).reported() if loss is not None else ""


def _guilty(crash: Crash, op: str) -> CrashLine[OverwritingLine] | None:
    """The line that overwrites the result of this operation."""
    found = lines(crash.data.in_place)
    words = _OPS.get(op.lower(), (op.lower(),)) if op else ()
    for line in found:
        made = line.about.made or ""
        if any(word and word in made.lower() for word in words):
            return line
    inside = [line for line in found if line.about.how == "inplace=True"]
    if inside and not any(line.about.made for line in found):
        return inside[0]
    return found[0] if len(found) == 1 else None


def _out_of_place(line: CrashLine[OverwritingLine]) -> str:
    how, name = line.about.how or "", line.name
    if how == "inplace=True":
        return "take inplace=True out of this line"
    if how == "augmented":
        found = re.match(r"(.+?)\s*([-+*/@]|\*\*|//)=\s*(.+)", line.code)
        if found and found[1].strip() == name:
            return f"write {name} = {name} {found[2]} {found[3]}"
        return f"work on a copy, {name} = {name}.clone(), or compute a new tensor"
    if how == "item":
        return f"assign into a copy, {name} = {name}.clone() before it, or use torch.where"
    return f"use the form without the underscore, {name} = {name}.{how.replace('_()', '')}(…)"


def leaf(crash: Crash) -> CrashCause | None:
    """A weight that is changed in place under autograd."""
    if not crash.find("leaf Variable that requires grad is being used in an in-place operation"):
        return None
    name = crash.operands[0].name if crash.operands else "the parameter"
    return CrashCause(
        headline=f"{name} requires grad and is changed in place",
        advice="wrap initialisation and manual updates of weights in with torch.no_grad():, or use "
        "torch.nn.init",
    )


def second_time(crash: Crash) -> CrashCause | None:
    """A graph that was freed by an earlier backward."""
    if not crash.find("backward through the graph a second time"):
        return None
    headline = "backward through a graph that an earlier backward has freed"
    carried, loss = lines(crash.data.carried), crash.data.loss
    name = _loss_name(crash) or "the loss"
    others = [line for line in carried if line.name != name]
    if others:
        line = others[0]
        detached = f"{line.name} = {line.name}.detach()"
        return CrashCause(
            headline=f"{line.name} carries the graph of an earlier step{line.reported()}",
            advice=f"detach it at the start of each step: {detached} (each tensor of a tuple), or "
            "make it anew for every batch",
        )
    if carried:
        return CrashCause(
            headline=f"{name} is summed up over steps whose graphs are freed",
            advice=f"call backward on the loss of this step alone and keep {name} for the log with "
            ".item() or .detach()",
        )
    if loss is not None and loss.in_loop is False:
        return CrashCause(
            headline=f"{name} is computed once and backward is called every turn",
            advice=f"compute {name} inside the loop{CrashLine(about=loss).reported()}, together "
            "with what "
            "it is made of",
        )
    calls = lines(crash.data.backward_lines)
    if len(calls) > 1:
        where = " and ".join(line.where for line in calls[:2])
        first, second = calls[0].line, calls[1].line
        steps = (line for line in lines(crash.data.step_lines) if first < line.line < second)
        if (step := next(steps, None)) is not None:
            # Neither one sum nor a graph that is kept: its weights are others by now.
            return CrashCause(
                headline=headline,
                advice=f"two losses share part of one graph ({where}), and {step.name}.step() "
                f"between them changed weights: detach() what the second loss must not train, "
                f"or compute it again after the step{_made(crash)}",
            )
        return CrashCause(
            headline=headline,
            advice=f"two losses share part of one graph ({where}): add them and call backward "
            "once, or pass retain_graph=True to the first; detach() what the second does not train",
        )
    return CrashCause(
        headline=headline,
        advice="something from an earlier step is still part of this loss: detach() it (a hidden "
        "state, a running mean, a cached embedding), or compute it again in this step",
    )


def without_graph(crash: Crash) -> CrashCause | None:
    """A loss that nothing leads back from."""
    if not crash.find("does not require grad and does not have a grad_fn"):
        return None
    cuts = [line for line in lines(crash.data.cuts) if line.line]
    name = _loss_name(crash) or "the loss"
    headline = f"{name} has no graph"
    if crash.data.trainable == 0:
        return CrashCause(
            headline=f"{headline}: every parameter is frozen",
            advice="no parameter of the model requires grad: set requires_grad = True for those "
            "that are to be trained, or put a new head on the frozen part",
        )
    off = CrashLine(about=crash.data.no_grad or CodeLine())
    if off.line:
        return CrashCause(
            headline=f"{headline}: gradients are off since {off.where}",
            advice=f"what needs derivatives must run outside of it{off.reported()}, or inside of "
            "with "
            "torch.enable_grad():; detach() the result where only its value is wanted",
        )
    if cuts:
        what = cuts[0].about.what or ""
        fixes = {
            "argmax": "argmax has no gradient: compute the loss from the scores",
            "no_grad": "the forward pass must not be inside no_grad",
            "inference_mode": "the forward pass must not be inside inference_mode",
            "tensor": "torch.tensor(...) loses the graph: use the tensor itself",
        }
        fix = fixes.get(what, f"{what} cuts the graph: take it out of what the loss is made of")
        return CrashCause(
            headline=f"{headline}: cut at {cuts[0].where}", advice=f"{fix}{cuts[0].reported()}"
        )
    frozen = "every parameter may have requires_grad=False (a frozen model)"
    return CrashCause(
        headline=headline,
        advice=f"nothing it is made of requires grad: {frozen}, the forward pass may run in "
        "no_grad, or a detach(), .data, .item() or argmax lies between model and loss",
    )


def not_scalar(crash: Crash) -> CrashCause | None:
    """Backward of a tensor with several values."""
    if not crash.find("grad can be implicitly created only for scalar outputs"):
        return None
    loss = next((t for t in crash.operands if t.shape), None)
    size = f" {loss.name} {loss.size}" if loss else ""
    return CrashCause(
        headline=f"backward of{size or ' a tensor'} that is no single number",
        advice="reduce it first: loss.mean().backward(); a loss made with reduction='none', or "
        "one value per GPU of DataParallel, is the usual reason",
    )


def to_numpy(crash: Crash) -> CrashCause | None:
    """A conversion that would lose the graph."""
    if crash.find(r"Can't call numpy\(\) on Tensor that requires grad"):
        name = next((t.name for t in crash.operands if t.grad), "x")
        return CrashCause(
            headline=f"numpy of {name}, which requires grad",
            advice=f"use {name}.detach().cpu().numpy(), and evaluate inside torch.no_grad()",
        )
    return None
