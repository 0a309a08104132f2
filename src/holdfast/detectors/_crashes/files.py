"""Files that are missing, damaged or may not be read, and disks that are full."""

from __future__ import annotations

import re

from .._memory import amount
from .facts import Crash, CrashCause, base_name

# Free bytes below which a disk is full for a file that was being written; a guess.
_FULL = 16 << 20
_SAVED = re.compile(r"\.(pt|pth|ckpt|pkl|pickle|safetensors|joblib)$")
_WRITING = r"PytorchStreamWriter failed|unexpected pos|file write failed"


def truncated(crash: Crash) -> CrashCause | None:
    """A checkpoint that is damaged."""
    if crash.find(r"PytorchStreamReader failed|failed finding central directory"):
        name = base_name(crash.data.checkpoint or "") or "the checkpoint"
        return CrashCause(
            headline=f"{name} is truncated or damaged",
            advice=f"saving it was interrupted, or the copy is incomplete: {_earlier(crash)}; save "
            "to another name and os.replace it (holdfast's own checkpoints do)",
        )
    return None


def not_only_weights(crash: Crash) -> CrashCause | None:
    """A checkpoint with objects that torch does not load by itself."""
    found = crash.find(r"Unsupported global: GLOBAL (\S+)")
    if found is None or not crash.find("Weights only load failed"):
        return None
    return CrashCause(
        headline=f"the checkpoint holds a {found[1].rpartition('.')[2]}, not only weights",
        advice="for a file that you made yourself pass weights_only=False to torch.load; "
        "better, save model.state_dict() and plain values",
    )


def ends_early(crash: Crash) -> CrashCause | None:
    """A file that torch reads to its end too soon."""
    if crash.type == "EOFError" and crash.inner_function in ("load", "_legacy_load", "_load"):
        return CrashCause(
            headline="the file is empty or ends too early",
            advice=f"saving it was interrupted: {_earlier(crash)}; write to another name and "
            "os.replace it",
        )
    return None


def _earlier(crash: Crash) -> str:
    """What to load instead."""
    found = crash.data.readable
    if found is None:
        return "use an earlier one, compare sizes"
    if found:
        return f"{found} is the newest of that folder that can be read"
    return "no other file of that folder can be read"


def missing(crash: Crash) -> CrashCause | None:
    """A file or folder that is not there."""
    if crash.type != "FileNotFoundError":
        return None
    if "subprocess" in crash.library:
        found = crash.find(r"No such file or directory: '?(.+?)'?$")
        return CrashCause(
            headline=f"the program {found[1] if found else ''} is not there".replace("  ", " "),
            advice="install it, or give its whole path; the script starts it as a command",
        )
    found = crash.find(r"No such file or directory: '?(.+?)'?$")
    name = found[1] if found else crash.data.error_file or "a file"
    near = crash.near()
    hint = f"did you mean {near}? " if near else ""
    missing = crash.data.missing_folder
    folder = f"the folder {missing} does not exist (os.makedirs makes it); " if missing else ""
    relative = "" if name.startswith(("/", "\\")) else "it is looked for in the working directory; "
    # A script loads such a file where it, or another one, has saved it.
    made = "what saves it has run" if _SAVED.search(name) else "the data was downloaded or unpacked"
    return CrashCause(
        headline=f"{base_name(name)} does not exist",
        advice=f"{hint}{folder}{relative}check the path and that {made}",
    )


def not_permitted(crash: Crash) -> CrashCause | None:
    """A file or a call that the system does not permit."""
    if crash.type != "PermissionError":
        return None
    found = crash.find(r"'(.+?)'$")
    if found is None and not crash.data.error_file:
        return CrashCause(
            headline="the system does not permit this call",
            advice="it names no file: signals to processes of others, ports below 1024 and "
            f"limits of a container are usual{crash.place.reported()}",
        )
    return CrashCause(
        headline=f"{base_name(found[1]) if found else 'a file'} may not be read or written",
        advice="check its owner and mode (ls -l); in a container or on a cluster write below a "
        "folder of your own",
    )


def too_large(crash: Crash) -> CrashCause | None:
    """A file that is larger than the limit of this process."""
    writing = crash.find(_WRITING)
    limit = crash.data.file_limit or 0
    if crash.find(r"File too large|Errno 27") or (writing and limit):
        size = f" of {limit / 2**20:.1f} MiB" if limit else ""
        return CrashCause(
            headline=f"a file would be larger than the limit{size} for this process",
            advice=f"write less into it{_largest(crash)}; or raise the limit (ulimit -f, "
            "resource.RLIMIT_FSIZE; on the file system a quota)",
        )
    return None


def no_space(crash: Crash) -> CrashCause | None:
    """A disk, or a quota, that is full."""
    writing = crash.find(_WRITING)
    disk = crash.data.disk
    free, files = (disk.free, disk.files) if disk is not None else (None, None)
    folder = f"{disk.folder} has {amount(disk.free)} free" if disk is not None else ""
    said = crash.find(r"No space left on device|Errno 28|Disk quota exceeded|Errno 122")
    full = free is not None and (free < _FULL or files == 0)
    if writing and not said and not full:
        return CrashCause(
            headline="the file could not be written",
            advice=f"why is not known{f': {folder}' if folder else ''}; a quota, a network file "
            "system or a lost disk say no more than this; what was written is cut off",
        )
    if said or writing:
        reported = f" ({folder})" if folder else ""
        where = "/dev/shm" in crash.message
        if free is not None and not full and not where:
            return CrashCause(
                headline="no space for the file, although the disk is not full",
                advice=f"{folder}: a quota (quota -s, of a user, a folder or a container), a limit "
                "of the script's own, or room that was freed since; keep fewer files"
                f"{_largest(crash)}; a file that was being written may be cut off",
            )
        return CrashCause(
            headline="shared memory is full" if where else "the disk is full",
            advice="give the container more (--shm-size), or use fewer loader workers"
            if where
            else f"free space or write elsewhere{reported} (df -h, also inodes: df -i); keep fewer "
            f"checkpoints{_largest(crash)}; a file that was being written is cut off",
        )
    return None


def mixed_up(crash: Crash) -> CrashCause | None:
    """A folder where a file is expected, or the other way around."""
    if crash.type in ("IsADirectoryError", "NotADirectoryError", "FileExistsError"):
        return CrashCause(
            headline=crash.message.split("\n")[0][:90],
            advice="a folder and a file are mixed up: check the path; os.makedirs(..., "
            "exist_ok=True) for folders that may be there",
        )
    return None


def _largest(crash: Crash) -> str:
    """`` (largest in state: hard_samples 1.2 MiB)``, where a dictionary with tensors is written."""
    for value in crash.operands:
        if value.parts:
            name, size = value.parts[0]
            return f" (largest in {value.name}: {name!r}, {size / 2**20:.1f} MiB)"
    return ""


def damaged(crash: Crash) -> CrashCause | None:
    """Data files that cannot be decoded."""
    known = crash.find(r"cannot identify image file|image file is truncated|broken data stream|"
                       r"Truncated File Read")  # fmt: skip
    if known or crash.type in ("UnidentifiedImageError", "BadZipFile", "BadGzipFile"):
        return CrashCause(
            headline="a damaged or truncated file",
            advice="open every file once before training and drop those that fail; fetch this one "
            "again (PIL: ImageFile.LOAD_TRUNCATED_IMAGES = True reads what is there)",
        )
    return None


def no_input(crash: Crash) -> CrashCause | None:
    """A question that nobody answers."""
    if crash.type == "EOFError" and re.search(r"\binput\(", crash.place.code):
        return CrashCause(
            headline="input() has nothing to read",
            advice="standard input is at its end (a job without a terminal, | or < that ended): "
            "take the answer from an argument",
        )
    return None


def not_decoded(crash: Crash) -> CrashCause | None:
    """Data of another format."""
    if crash.type in (
        "JSONDecodeError",
        "UnpicklingError",
        "EOFError",
        "UnicodeDecodeError",
        "error",
    ):
        if crash.type == "error" and not crash.find("unpack requires|decompress"):
            return None
        return CrashCause(
            headline="data that cannot be decoded",
            advice="a file is empty, cut off or of another format or encoding, or a text is not "
            "what it should be: look at its first bytes; write files to another name before "
            "os.replace",
        )
    return None
