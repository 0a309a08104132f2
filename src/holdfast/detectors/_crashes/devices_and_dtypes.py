"""Devices and dtypes that are mixed, a GPU that is not there, errors of CUDA itself."""

from __future__ import annotations

from ...records.crash import CodeLine
from .facts import Crash, CrashCause, CrashLine, LineValue, lines

_WORDS = {
    "Double": "float64", "Float": "float32", "Half": "float16", "Long": "int64", "Int": "int32",
    "Byte": "uint8", "Bool": "bool", "BFloat16": "bfloat16", "unsigned char": "uint8",
    "double": "float64", "float": "float32", "c10::Half": "float16", "c10::BFloat16": "bfloat16",
    "long int": "int64", "int": "int32",
}  # fmt: skip


def devices(crash: Crash) -> CrashCause | None:
    """Tensors of one operation on two devices."""
    found = (
        crash.find(r"same device, but found at least two devices, (\S+) and (\S+?)!")
        or crash.find(r"Tensor on device (\S+) is not on the expected device (\S+?)!")
        or crash.find(r"Input type \(torch\.(cuda\.|)\w+\) and weight type \(torch\.(cuda\.|)\w+\)")
    )
    if found is None:
        return None
    if found[1] == found[2]:
        return None  # the dtypes differ
    named = [v for v in (*crash.operands, *crash.inner) if v.device and v.device != "numpy"]
    seen: dict[str, LineValue] = {}
    for value in named:
        seen.setdefault(value.device, value)
    reported = " and ".join(f"{value.name} on {device}" for device, value in seen.items())
    if len(seen) < 2:
        one, other = (each.rstrip(".") or "cpu" for each in found.groups())
        reported = f"{one} and {other}"
    headline = f"tensors on two devices: {reported}"
    for line in lines(crash.data.plain_attributes):
        device = next((v.device for v in named if v.name == line.name), "")
        if len(seen) > 1 and device in seen:
            return CrashCause(headline=headline, advice=_buffer(line, device))
    empty = seen.get("meta")
    lagging = empty if empty and not empty.module else seen.get("cpu")
    move = f"{lagging.name}.to(device)" if lagging and not lagging.module else "x.to(device)"
    if lagging and lagging.module:
        move = f"{lagging.name}.to(device) before the loop"
    if lagging and lagging.device == "meta":
        move = f"{lagging.name} has no data on meta: make it outside of torch.device('meta')"
    origin = crash.origin(lagging.name).reported() if lagging else ""
    return CrashCause(
        headline=headline,
        advice=f"move what lags behind: {move}{origin}; new tensors take device=x.device, "
        "constants of a module belong into register_buffer, layers into a ModuleList",
    )


def _buffer(line: CrashLine[CodeLine], device: str) -> str:
    """A tensor that a module holds as a plain attribute, and how it would move with the module."""
    name = line.name.rpartition(".")[2]
    value = line.code.partition("=")[2].strip() if line.code.startswith(f"{line.name} =") else "…"
    after = " and fill it after to_empty, which leaves no data" if device == "meta" else ""
    return (
        f"{line.name} is a plain attribute, which .to(device) and to_empty do not move: register "
        f"it, self.register_buffer({name!r}, {value}){after}"
        f"{line.reported() if value == '…' else ''}"
        + (f", at {line.where}" if line.where and value != "…" else "")
    )


def dtypes(crash: Crash) -> CrashCause | None:
    """Tensors of one operation with two dtypes."""
    found = (
        crash.find(r"mat1 and mat2 must have the same dtype, but got (\w+) and (\w+)")
        or crash.find(r"Input type \((.+?)\) and (?:bias|weight) type \((.+?)\) should be the same")
        or crash.find(r"expected m1 and m2 to have the same dtype, but got: (.+?) != (.+)")
        or crash.find(r"input dtype \((.+?)\) does not match weight dtype \((.+?)\)")
    )
    if found:
        plain = [each.removeprefix("torch.") for each in found.groups()]
        one, other = (_WORDS.get(each, each) for each in plain)
        given = next((v for v in crash.operands if v.shape is not None and v.dtype == one), None)
        name = given.name if given else "the input"
        cast = {"float64": ".float()", "uint8": ".float() / 255"}.get(one, f".to(torch.{other})")
        half = "float16" in (one, other) or "bfloat16" in (one, other)
        why = (
            "run the forward pass inside torch.autocast, or give both one dtype"
            if half
            else f"use {name}{cast} where it is made"
        )
        numpy = " (numpy makes float64)" if one == "float64" else ""
        origin = crash.origin(name).reported()
        return CrashCause(
            headline=f"{name} is {one}, the weights are {other}", advice=f"{why}{numpy}{origin}"
        )
    return None


def class_numbers(crash: Crash) -> CrashCause | None:
    """Labels or indices that are no whole numbers of 64 bits."""
    found = (
        crash.find(r"expected target dtype to be Long or Byte, but got (\w+)")
        or crash.find(r"expected scalar type (?:Long|Int) but found (\w+)")
        or crash.find(r"'indices' to have one of the following scalar types: .*?but got "
                      r"torch\.(?:cuda\.)?(\w+)Tensor")
        or crash.find(r"tensors used as indices must be (long)")
    )  # fmt: skip
    if found:
        got = _WORDS.get(found[1], found[1])
        return CrashCause(
            headline=f"class numbers or indices are {got}, expected int64",
            advice="use target.long() for labels and tokens.long() for indices, best where the "
            "dataset makes them; class probabilities need the shape of the prediction",
        )
    return None


def not_implemented(crash: Crash) -> CrashCause | None:
    """An operation that does not exist for a dtype."""
    found = crash.find(r'"(\w+)" not implemented for \'(\w+)\'')
    if found:
        return CrashCause(
            headline=f"{found[1]} does not exist for {_WORDS.get(found[2], found[2])} here",
            advice="convert the input, mostly x.float() (or .long() for indices); half precision "
            "on a CPU is incomplete, use bfloat16 or float32 there",
        )
    return None


def to_numpy(crash: Crash) -> CrashCause | None:
    """A tensor as an array that cannot be one."""
    found = crash.find(r"unsupported ScalarType (BFloat16|Float8\w*|ComplexHalf)")
    if found:
        dtype = _WORDS.get(found[1], found[1])
        return CrashCause(
            headline=f"numpy has no {dtype}",
            advice="put .float() before .numpy(), as in x.detach().float().cpu().numpy()"
            + ("; under torch.autocast results are bfloat16" if dtype == "bfloat16" else ""),
        )
    if not crash.find(r"can't convert \S+ device type tensor to numpy"):
        return None
    name = next((t.name for t in crash.operands if t.shape is not None), "x")
    return CrashCause(
        headline=f"numpy of {name}, which is on a device",
        advice=f"use {name}.detach().cpu().numpy(); for a number for the log {name}.item()",
    )


def of_cuda(crash: Crash) -> CrashCause | None:
    """Errors that a GPU reports after the fact."""
    if crash.find(r"illegal memory access|misaligned address|CUBLAS_STATUS_(?!ALLOC)|CUDNN_STATUS"):
        return CrashCause(
            headline=crash.message.split("\n")[0][:90],
            advice="run once with CUDA_LAUNCH_BLOCKING=1 to get the line; wrong shapes or indices, "
            "a full GPU and mixed CUDA libraries are usual, one step on the CPU tells the first",
        )
    return None
