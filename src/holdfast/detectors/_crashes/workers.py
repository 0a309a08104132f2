"""Processes beside the training: loader workers, spawned children, ranks."""

from __future__ import annotations

from ..peers import GONE, peer_is_gone
from .facts import Cause, Crash


def pickled(crash: Crash) -> Cause | None:
    """Something that cannot be sent to another process."""
    found = crash.find(r"[Cc]an't (?:pickle|get) local object '?(.+?)'?$") or crash.find(
        r"[Cc]an't pickle (?:local object )?<?(?:function )?(.+?)(?: at 0x\w+)?>?(?:: |$)"
    )
    found = found or crash.find(r"cannot pickle '?(.+?)'? object")
    if found is None:
        return None
    name = found[1].rpartition("<locals>.")[2].strip("<>'")
    inner = crash.phase == "loading" or "multiprocessing" in str(crash.data.get("library"))
    if not inner and "save" in crash.place.code:
        return Cause(
            headline=f"{name} cannot be saved",
            advice="save plain values and state dicts; lambdas, local functions, open files and "
            "locks cannot be pickled",
        )
    return Cause(
        headline=f"{name} cannot be sent to a worker",
        advice="workers that are spawned get dataset, transform and collate_fn by pickle: define "
        "functions and classes at the top of a module instead of lambda or inside a function "
        "(functools.partial passes arguments), open files and connections in the worker",
    )


def killed(crash: Crash) -> Cause | None:
    """A worker that died without an exception."""
    found = crash.find(r"DataLoader worker \(pid\(?s?\)? ?([\d, ]+)\) (exited unexpectedly|is "
                       r"killed by signal: (.+?)\.)")  # fmt: skip
    if found is None:
        return None
    signal = (found[3] or "").strip()
    if "Bus" in signal:
        return Cause(
            headline="a loader worker died of too little shared memory",
            advice="give the container more (docker run --shm-size=8g), use fewer workers or a "
            "smaller prefetch_factor, or set_sharing_strategy('file_system')",
        )
    if "Segmentation" in signal or "Abort" in signal:
        return Cause(
            headline=f"a loader worker died ({signal})",
            advice="a library crashed in the worker: run once with num_workers=0 and python -X "
            "faulthandler to see where; cv2.setNumThreads(0) helps with OpenCV",
        )
    kills = crash.data.get("oom_kills")
    if "Killed" in signal and isinstance(kills, int) and kills > 0:
        return Cause(
            headline="a loader worker was killed by the OOM killer",
            advice="use fewer workers or a smaller prefetch_factor, keep less in the dataset "
            "(arrays instead of lists of objects, np.memmap), or give the run more memory",
        )
    how = "was killed" if "Killed" in signal else "was killed or left"
    return Cause(
        headline=f"a loader worker {how} ({signal or 'no signal'})",
        advice="mostly the machine ran out of memory (dmesg tells): use fewer workers, keep less "
        "in the dataset (arrays instead of lists of objects); num_workers=0 shows an error that "
        "the worker hides, os._exit and sys.exit in __getitem__ look the same",
    )


def started(crash: Crash) -> Cause | None:
    """Processes that are started at the wrong place."""
    if crash.find("before the current process has finished its bootstrapping phase"):
        return Cause(
            headline="workers are started while the script is imported again",
            advice="put the training under if __name__ == '__main__': main(), because a spawned "
            "worker imports the script",
        )
    if crash.find("Cannot re-initialize CUDA in forked subprocess"):
        return Cause(
            headline="CUDA is used in a forked worker",
            advice="keep tensors of the dataset on the CPU and move batches in the loop; else "
            "multiprocessing_context='spawn' for the loader",
        )
    if crash.find(r"unable to open shared memory object|unable to mmap"):
        return Cause(
            headline="shared memory for a batch could not be opened",
            advice="raise ulimit -n and the container's --shm-size, or "
            "torch.multiprocessing.set_sharing_strategy('file_system')",
        )
    if crash.find("DataLoader timed out"):
        return Cause(
            headline="no batch came within the loader's timeout",
            advice="a worker hangs or is slow: run with num_workers=0, look at locks and network "
            "reads of the dataset, or raise timeout",
        )
    return None


def ranks(crash: Crash) -> Cause | None:
    """Process groups."""
    if crash.find("Default process group has not been initialized"):
        return Cause(
            headline="a collective is called without a process group",
            advice="call torch.distributed.init_process_group() first and start with torchrun, or "
            "guard the call with torch.distributed.is_initialized()",
        )
    if crash.find(r"EADDRINUSE|[Aa]ddress already in use"):
        return Cause(
            headline="the port is already used",
            advice="another run has it, perhaps a dead one: choose another MASTER_PORT (torchrun "
            "--rdzv-endpoint=localhost:0 finds a free one)",
        )
    if crash.find(r"environment variable (\w+) expected, but not set"):
        return Cause(
            headline="the process group finds no RANK or WORLD_SIZE",
            advice="start the script with torchrun --nproc-per-node N script.py, which sets them",
        )
    if peer_is_gone(crash.data):
        return Cause(
            headline=GONE,
            advice="another rank has ended or failed first: look at its error and at its end",
        )
    if crash.find(r"NCCL|ncclSystemError|ncclUnhandledCudaError"):
        return Cause(
            headline=crash.message.split("\n")[0][:90],
            advice="another rank has mostly failed first: look at its error; NCCL_DEBUG=INFO says "
            "more about the network",
        )
    if crash.find("Expected to have finished reduction in the prior iteration"):
        found = crash.find(r"did not receive grad for rank \d+: (\d[\d ]*)")
        which = ", ".join(found[1].split()[:4]) if found else ""
        name = f" (list(model.named_parameters())[{which.split(',')[0]}] is one)" if which else ""
        return Cause(
            headline=f"parameters{f' {which}' if which else ''} of a DDP model got no gradient",
            advice=f"a branch was not used in this step{name}: let every output take part in the "
            "loss, freeze what is not trained before DDP is made, or find_unused_parameters=True",
        )
    return None


RULES = (pickled, killed, started, ranks)
