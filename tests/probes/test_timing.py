"""The clock of a loop on the host."""

from __future__ import annotations

import threading

import pytest

from holdfast.probes.timing import Phases


@pytest.fixture
def phases() -> Phases:
    """In a step since the clock showed 10."""
    clock = Phases()
    clock.mark("optimizer", 10.0)
    clock.take_host()
    return clock


def test_waiting_for_other_ranks_is_kept_out_of_the_phase_it_falls_into(phases: Phases):
    phases.waited(2.0)
    phases.waited(1.0)
    phases.mark("forward", 14.0)
    phases.mark("backward", 15.0)
    reported = phases.take_host()
    assert (reported["forward"], reported["collective"], reported["backward"]) == (1.0, 3.0, 1.0)
    phases.mark("forward", 16.0)
    assert "collective" not in phases.take_host()


def test_a_thread_beside_the_training_does_not_keep_it_waiting(phases: Phases):
    beside = threading.Thread(target=phases.waited, args=(2.0,))
    beside.start()
    beside.join()
    phases.mark("forward", 14.0)
    assert phases.take_host() == {"forward": 4.0, "guard": 0.0}


def test_what_we_wait_for_is_counted_as_ours(phases: Phases):
    phases.ours = True
    phases.waited(2.0)
    phases.ours = False
    phases.mark("forward", 14.0)
    assert "collective" not in phases.take_host()
