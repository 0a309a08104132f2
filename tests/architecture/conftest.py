"""What all rules share."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from .sources import nodes


@pytest.fixture(scope="package", autouse=True)
def _parsed_sources() -> Iterator[None]:
    """Frees what was parsed when the last rule has been asked: other tests search all objects.

    The garbage collector would walk through the half million nodes again and again meanwhile; it
    took more time than the parser.
    """
    gc.disable()
    yield
    nodes.cache_clear()
    gc.enable()
