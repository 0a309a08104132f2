"""What the tests of all frameworks ask."""

from __future__ import annotations

import gc
import importlib
import inspect
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch.utils.data.dataloader import _BaseDataLoaderIter

from holdfast.boot import session
from holdfast.types import Finding


@pytest.fixture
def untouched() -> Iterator[None]:
    """After the test torch is what it was, and nobody guards this process."""
    names = (
        (torch.autograd, "backward"),
        (_BaseDataLoaderIter, "__next__"),
        (torch.nn.Module, "train"),
    )
    before = [getattr(owner, name) for owner, name in names]
    yield
    assert session.current() is None
    assert [getattr(owner, name) for owner, name in names] == before


def framework(name: str, form: str) -> tuple[Any, Any]:
    """A framework and our form for it; what it has loaded is nobody's garbage."""
    with warnings.catch_warnings(action="ignore"):
        found: tuple[ModuleType, ModuleType] = (
            importlib.import_module(name),
            importlib.import_module(f"holdfast.integrations.{form}"),
        )
    gc.freeze()  # neither the collector nor a guard in search of models goes through it
    return found


def same_weights(one: torch.nn.Module, other: torch.nn.Module) -> bool:
    """Bit for bit."""
    pairs = zip(one.state_dict().values(), other.state_dict().values(), strict=True)
    return all(torch.equal(a, b) for a, b in pairs)


def finite(model: torch.nn.Module) -> bool:
    return all(bool(value.isfinite().all()) for value in model.state_dict().values())


@pytest.fixture
def assert_explained() -> Callable[[Finding, Callable[..., Any], int], None]:
    """NUM001 with the line that is marked in a function, the sample and the action."""

    def check(finding: Finding, function: Callable[..., Any], sample: int) -> None:
        lines, start = inspect.getsourcelines(function)
        marked = start + next(i for i, line in enumerate(lines) if "# HERE" in line)
        assert (finding.code, finding.action) == ("NUM001", "skip_update")
        assert (Path(finding.file).name, finding.line) == (
            Path(inspect.getsourcefile(function) or "").name,
            marked,
        )
        assert finding.evidence["samples"] == [sample]

    return check
