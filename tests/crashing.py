"""Scripts that are run to their exception and explained."""

from __future__ import annotations

import linecache
import textwrap
from pathlib import Path
from typing import Any

import pytest
from torch import nn

from holdfast.detectors._crashes import Crash, CrashCause, explain
from holdfast.diagnosis.crash import exception
from holdfast.records.crash import RaisedException
from holdfast.run import encode
from holdfast.run.jsonl import decode

HEAD = """
import torch
from torch import nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset, TensorDataset
"""


def crash(folder: Path, script: str) -> tuple[Crash, CrashCause]:
    """Run a script to its exception and explain what another process reads of it."""
    path = folder / "train.py"
    text = HEAD + textwrap.dedent(script)
    path.write_text(text)
    linecache.checkcache(str(path))
    names: dict[str, Any] = {"__name__": "__main__", "__file__": str(path)}
    with pytest.raises(Exception) as caught:
        exec(compile(text, str(path), "exec"), names)
    models = [value for value in names.values() if isinstance(value, nn.Module)]
    written = exception.facts(caught.value, (), models)
    facts = RaisedException.from_dict(decode(encode(written.to_dict())))
    assert facts == written
    cause = explain(facts)
    return Crash(data=facts).blaming(cause.row), cause
