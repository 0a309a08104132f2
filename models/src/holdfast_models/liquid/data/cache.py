"""Files that are there whole or not at all."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterable
from pathlib import Path

from holdfast import HoldfastError


def write_whole(path: Path, blocks: Iterable[bytes]) -> None:
    """Write a file under another name in its folder, then give it its own."""
    part = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with part.open("wb") as file:
                file.writelines(blocks)
                file.flush()
                os.fsync(file.fileno())
            part.replace(path)
        finally:
            part.unlink(missing_ok=True)
    except OSError as error:
        raise HoldfastError(f"{path}: {error.strerror}; name a folder you can write to") from None
