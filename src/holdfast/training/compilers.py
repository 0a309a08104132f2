"""Whether this machine can compile a model, found out before anything is compiled.

Each reason not to is one line: what is missing, and what happens instead.
"""

from __future__ import annotations

import importlib.util
import os
import platform
import shutil
import subprocess
import sys
from dataclasses import dataclass

import torch

from .batch_size.memory import host_memory

GIB = 2.0**30
# Autotuning keeps many variants of a kernel at once; below this much it has been seen to end runs.
AUTOTUNE_BYTES = 16 * GIB
ARM = ("aarch64", "arm64")
# A first compilation takes seconds; one that takes minutes for three lines hangs.
_PATIENCE = 180.0
_TRIAL = """
import sys, torch
x = torch.ones(64, device=sys.argv[1], requires_grad=True)
torch.compile(lambda x: (x * 2 + 1).sin().sum())(x).backward()
"""


@dataclass(frozen=True)
class Choice:
    """How a model will be compiled.

    Args:
        mode: of ``torch.compile``, or "none".
        why: one line on what is not as it was asked for; empty when all is.
        threads: False: kernels are compiled one after the other, without further threads.
    """

    mode: str
    why: str = ""
    threads: bool = True


def choose(
    mode: str,
    device: torch.device,
    *,
    workers: int = 0,
    start: str = "auto",
    accumulate: int = 1,
    force: bool = False,
) -> Choice:
    """The mode that will work here.

    Args:
        mode: what was asked for.
        device: where the model lives.
        workers: how many processes load data.
        start: how they are started; "fork" is the kind that does not go with compile threads.
        accumulate: micro-batches to one optimizer step.
        force: take it as it was asked for.
    """
    if mode == "none" or force:
        return Choice(mode)
    missing = missing_for(device)
    if missing:
        return Choice("none", f"{missing}: the model is not compiled")
    mode, reasons = _lighter(mode, device, accumulate)
    alone = workers > 0 and start == "fork"
    if alone:
        reasons.append(
            f"{workers} workers of kind fork beside compile threads: kernels are compiled one "
            f"after the other, which takes longer (data.start=forkserver avoids that)"
        )
    return Choice(mode, "; ".join(reasons), threads=not alone)


def _lighter(mode: str, device: torch.device, accumulate: int) -> tuple[str, list[str]]:
    """The mode without what this machine or this loop cannot bear, and why."""
    total = host_memory().total
    if mode == "max-autotune" and total < AUTOTUNE_BYTES:
        needs, there = AUTOTUNE_BYTES / GIB, total / GIB
        return "default", [
            f"max-autotune needs {needs:.0f} GB of host memory, {there:.0f} GB are there: "
            f"default instead"
        ]
    if accumulate > 1 and replays(mode, device):
        plain, why = without_graphs(mode, accumulate)
        return plain, [why]
    return mode, []


def without_graphs(mode: str, accumulate: int) -> tuple[str, str]:
    """The mode for several micro-batches to a step, and why."""
    # The first gradients of a window lie in memory of the graph: the next replay takes it.
    plain = "max-autotune-no-cudagraphs" if mode == "max-autotune" else "default"
    return plain, (
        f"{mode} replays CUDA graphs, which overwrite the gradients that {accumulate} "
        f"accumulated micro-batches add up: {plain} instead"
    )


def replays(mode: str, device: torch.device) -> bool:
    """Whether a step becomes a CUDA graph, whose results last until the next step only."""
    return device.type == "cuda" and mode in ("reduce-overhead", "max-autotune")


def missing_for(device: torch.device) -> str:
    """What this machine lacks for compiling; empty when nothing."""
    if device.type == "cuda":
        missing = _no_triton() or _no_compiler("CC", ("gcc", "clang"), "C")
    else:
        name = "clang++" if sys.platform == "darwin" else "g++"
        missing = _no_compiler("CXX", (name,), "C++")
    if not missing and platform.machine().lower() in ARM:
        # There a compiler that does not work may take the process with it: tried in another.
        failed = fails_apart(device)
        missing = f"ARM CPU: {failed}" if failed else ""
    return missing


def _no_triton() -> str:
    if importlib.util.find_spec("triton") is None:
        return "no Triton: the package is not installed"
    from torch.utils._triton import has_triton

    try:
        return "" if has_triton() else "no Triton: the one installed does not support this GPU"
    except Exception as error:  # a Triton that does not fit raises anything when it is imported
        return f"no Triton: {shortened(error)}"


def _no_compiler(variable: str, names: tuple[str, ...], language: str) -> str:
    asked = os.environ.get(variable)
    if any(shutil.which(name) for name in ([asked] if asked else names)):
        return ""
    looked = f"{variable}={asked}" if asked else " or ".join(names)
    return f"no {language} compiler found: looked for {looked}"


def fails_apart(device: torch.device) -> str:
    """Compile three lines in a process of its own; what went wrong, empty when nothing did."""
    # The child is no part of the run that is being recorded.
    environment = {k: v for k, v in os.environ.items() if not k.startswith("HOLDFAST_")}
    try:
        done = subprocess.run(
            [sys.executable, "-c", _TRIAL, str(device)],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_PATIENCE,
            env=environment,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"a trial compilation did not end ({shortened(error)})"
    if done.returncode == 0:
        return ""
    said = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
    return f"a trial compilation failed ({said[-1][:200]})"


def shortened(error: BaseException) -> str:
    """An exception in one line that fits a message."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    text = " ".join(lines[:2])
    return f"{type(error).__name__}: {text[:200]}" if text else type(error).__name__
