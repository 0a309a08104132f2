"""Scripts that are run to their exception and explained."""

from __future__ import annotations

import linecache
import textwrap
from pathlib import Path
from typing import Any

import pytest
from torch import nn

from holdfast.detectors._crashes import Cause, Crash, explain
from holdfast.diagnosis.crash import exception

HEAD = """
import torch
from torch import nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset, TensorDataset
"""


def crash(folder: Path, script: str) -> tuple[Crash, Cause]:
    """Run a script to its exception and explain what is recorded of it."""
    path = folder / "train.py"
    text = HEAD + textwrap.dedent(script)
    path.write_text(text)
    linecache.checkcache(str(path))
    names: dict[str, Any] = {"__name__": "__main__", "__file__": str(path)}
    with pytest.raises(Exception) as caught:
        exec(compile(text, str(path), "exec"), names)
    models = [value for value in names.values() if isinstance(value, nn.Module)]
    facts = exception.facts(caught.value, (), models)
    cause = explain(facts)
    return Crash(data=facts).blaming(cause.row), cause
