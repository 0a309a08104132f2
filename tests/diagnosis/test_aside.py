from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from holdfast.diagnosis.aside import aside
from holdfast.diagnosis.throughput.line_tree import LineTree


@pytest.fixture
def collector() -> Iterator[None]:
    """As it was, whatever a test does to it."""
    was, trace = gc.isenabled(), sys.gettrace()
    yield
    sys.settrace(trace)
    (gc.enable if was else gc.disable)()


@pytest.mark.usefixtures("collector")
def test_a_trace_of_ours_is_not_told_of_what_we_do_aside():
    tree = LineTree()
    sys.settrace(None)
    assert tree.start(None)
    with aside():
        inside = sys.gettrace()
    after = sys.gettrace()
    tree.stop()
    assert inside is None and after == tree._global


@pytest.mark.usefixtures("collector")
def test_a_debugger_goes_on():
    def debugger(frame: Any, event: str, arg: Any) -> None:
        return None

    sys.settrace(debugger)
    with aside():
        inside = sys.gettrace()
    sys.settrace(None)
    assert inside is debugger


@pytest.mark.usefixtures("collector")
@pytest.mark.parametrize("collects", [True, False])
def test_the_collector_rests_and_is_as_it_was_even_after_an_error(collects: bool):
    (gc.enable if collects else gc.disable)()
    with pytest.raises(ValueError, match="us"), aside():
        assert not gc.isenabled()
        raise ValueError("us")
    assert gc.isenabled() is collects
