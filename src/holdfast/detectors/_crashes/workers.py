"""Processes beside the training: loader workers, spawned children, ranks."""

from __future__ import annotations

import signal as signals

from ...records.crash import Died, MemoryReading
from ..kills import Kill, limit_advice
from ..peers import ENDED_PROCESS, GONE, many_ranks, peer_is_gone
from .bus_error import bus_error
from .facts import Crash, CrashCause

# What the system calls them, as torch prints it.
_SIGNALS = {
    "Killed": "SIGKILL", "Bus error": "SIGBUS", "Segmentation": "SIGSEGV", "Abort": "SIGABRT",
    "Terminated": "SIGTERM", "Illegal": "SIGILL", "Floating": "SIGFPE", "Interrupt": "SIGINT",
}  # fmt: skip


def pickled(crash: Crash) -> CrashCause | None:
    """Something that cannot be sent to another process."""
    found = crash.find(r"[Cc]an't (?:pickle|get) local object '?(.+?)'?$") or crash.find(
        r"[Cc]an't pickle (?:local object )?<?(?:function )?(.+?)(?: at 0x\w+)?>?(?:: |$)"
    )
    found = found or crash.find(r"cannot pickle '?(.+?)'? object")
    if found is None:
        return None
    name = found[1].rpartition("<locals>.")[2].strip("<>'")
    inner = crash.phase == "loading" or "multiprocessing" in crash.library
    if not inner and "save" in crash.place.code:
        return CrashCause(
            headline=f"{name} cannot be saved",
            advice="save plain values and state dicts; lambdas, local functions, open files and "
            "locks cannot be pickled",
        )
    return CrashCause(
        headline=f"{name} cannot be sent to a worker",
        advice="workers that are spawned get dataset, transform and collate_fn by pickle: define "
        "functions and classes at the top of a module instead of lambda or inside a function "
        "(functools.partial passes arguments), open files and connections in the worker",
    )


def ended_worker(crash: Crash) -> CrashCause | None:
    """A loader worker that died without an exception: killed, or left by itself."""
    found = crash.find(r"DataLoader worker \(pid\(?s?\)? ?([\d, ]+)\) (exited unexpectedly|is "
                       r"killed by signal: (.+?)\.)")  # fmt: skip
    dead = crash.data.dead_workers
    number, pid, code = dead[0] if dead else (None, found[1].strip(", ") if found else "", None)
    if not found and (not dead or crash.data.process):
        return None
    signal = _signal(code, (found[3] or "").strip() if found else "")
    who = "a loader worker" if number is None else f"loader worker {number} (pid {pid})"
    if signal == "SIGBUS":
        return bus_error(crash, who)
    if signal in ("SIGSEGV", "SIGABRT", "SIGILL", "SIGFPE"):
        return CrashCause(
            headline=f"{who} died ({signal})",
            advice="a library crashed in the worker: run once with num_workers=0 and python -X "
            "faulthandler to see where; cv2.setNumThreads(0) helps with OpenCV",
        )
    if signal:
        return _killed(crash, who, signal)
    if isinstance(code, int):
        return CrashCause(
            headline=f"{who} left with exit code {code}",
            advice="something in the worker ended it (os._exit, sys.exit in __getitem__, a library "
            "that gives up): num_workers=0 shows the line",
        )
    return CrashCause(
        headline=f"{who} is gone, by a signal or by itself is not known",
        advice="num_workers=0 shows an error that the worker hides, os._exit and sys.exit in "
        "__getitem__; dmesg tells of a kill for lack of memory",
    )


def _signal(code: object, said: str) -> str:
    """The signal that ended a process, by its exit code or in the words of the system."""
    if isinstance(code, int) and code < 0:
        try:
            return signals.Signals(-code).name
        except ValueError:
            return f"signal {-code}"
    return next((name for word, name in _SIGNALS.items() if word in said), said)


def _killed(crash: Crash, who: str, signal: str) -> CrashCause:
    """A worker that got a signal: by the kernel for lack of memory, as far as this was read."""
    memory = crash.data.memory or MemoryReading()
    counted, machine = crash.data.oom_kills, crash.data.machine_oom_kills
    less = (
        "use fewer workers or a smaller prefetch_factor, keep less in the dataset (arrays instead "
        "of lists of objects, np.memmap)"
    )
    if signal == "SIGKILL" and counted:
        return CrashCause(
            headline=f"{who} was killed by the OOM killer (SIGKILL)",
            advice=f"{less}, or give the run more memory: {limit_advice(memory.limit or '')}",
        )
    read = Kill(data=Died(**vars(memory))).used.replace("were used", "were in use afterwards")
    if signal == "SIGKILL" and machine:
        why = (
            f"perhaps for lack of memory, the kernel counted {machine} such kill"
            f"{'s' * (machine != 1)} on this machine meanwhile"
        )
        return CrashCause(headline=f"{who} was killed (SIGKILL)", advice=f"{why}: {less}")
    asked = "no" if counted == 0 else "not known whether a"
    kernel = f"; {asked} kill for lack of memory was counted" if signal == "SIGKILL" else ""
    more = f"; {less} if it was memory" if signal == "SIGKILL" and counted is None else ""
    return CrashCause(
        headline=f"{who} was killed ({signal})",
        advice=f"who sent the signal is not known{kernel}{f', {read}' if read else ''}: look at "
        f"what else runs here (a scheduler, a script that kills){more}",
    )


def ended_process(crash: Crash) -> CrashCause | None:
    """A process of ``torch.multiprocessing.spawn`` that ended without an exception."""
    found = crash.find(r"process (\d+) terminated with (signal \w+|exit code \d+)")
    if crash.type != ENDED_PROCESS or found is None:
        return None
    return CrashCause(
        headline=f"process {found[1]} of spawn ended with {found[2]}",
        advice="it left no traceback: a kill (dmesg tells of one for lack of memory), a crash in "
        "native code or os._exit; its own output before that says how far it came",
    )


def lost_rank(crash: Crash) -> CrashCause | None:
    """Another rank that is gone."""
    if peer_is_gone(crash.data):
        return CrashCause(
            headline=GONE,
            advice="another rank has ended or failed first: look at its error and at its end",
        )
    return None


def nccl(crash: Crash) -> CrashCause | None:
    """Any other error of NCCL."""
    if crash.find(r"\bNCCL\b|ncclSystemError|ncclUnhandledCudaError"):
        other = "another rank has mostly failed first: look at its error; "
        return CrashCause(
            headline=crash.message.split("\n")[0][:90],
            advice=f"{other if many_ranks(crash.data) else ''}NCCL_DEBUG=INFO says more about the "
            "devices and the network",
        )
    return None


def unused_parameters(crash: Crash) -> CrashCause | None:
    """Parameters of a DDP model that took no part in the loss."""
    if crash.find("Expected to have finished reduction in the prior iteration"):
        found = crash.find(r"did not receive grad for rank \d+: (\d[\d ]*)")
        which = ", ".join(found[1].split()[:4]) if found else ""
        name = f" (list(model.named_parameters())[{which.split(',')[0]}] is one)" if which else ""
        return CrashCause(
            headline=f"parameters{f' {which}' if which else ''} of a DDP model got no gradient",
            advice=f"a branch was not used in this step{name}: let every output take part in the "
            "loss, freeze what is not trained before DDP is made, or find_unused_parameters=True",
        )
    return None
