"""Signals that end a process: saved first, and ended as without us."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from holdfast.recovery.end_signals import EndSignals


@pytest.fixture(autouse=True)
def default() -> Iterator[None]:
    ours: dict[int, Any] = {signal.SIGTERM: signal.SIG_DFL, signal.SIGHUP: signal.SIG_DFL}
    ours[signal.SIGINT] = signal.default_int_handler
    before = {number: signal.signal(number, default) for number, default in ours.items()}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


class Stub:
    """A training: ``save`` gets the names of signals, ``soon`` says that a step is at work."""

    def __init__(self, save: Callable[[str], object], *, soon: bool = False) -> None:
        self._save, self._soon = save, soon
        self.now = False
        self.at: list[Any] = []
        self.agrees = True
        self.alone = ""
        self.asked: list[str] = []
        self.lost: list[str] = []

    def ends_together(self, why: str) -> bool:
        self.asked.append(why)
        return self.agrees

    def left_alone(self) -> str:
        return self.alone

    def not_saved(self, why: str) -> None:
        self.lost.append(why)

    def waits_at(self, frame: Any) -> Any:
        return frame if self.now else None

    def asks_soon(self) -> bool:
        return self._soon

    def save_last_state(self, why: str, at: Any = None) -> None:
        self.at.append(at)
        self._save(why)


@pytest.fixture
def raised(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, Any]]:
    """Signals that would have ended this process, with the handler they would have met."""
    found: list[tuple[int, Any]] = []
    monkeypatch.setattr(
        signal, "raise_signal", lambda number: found.append((number, signal.getsignal(number)))
    )
    return found


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_it_saves_once_and_ends_by_the_same_signal(number: int, raised: list[Any]) -> None:
    saved: list[str] = []

    def save(name: str) -> None:
        os.kill(os.getpid(), number)  # `timeout` sends it to the process and to its group
        assert not raised, "that is one request"
        saved.append(name)

    EndSignals(Stub(save)).install()
    os.kill(os.getpid(), number)
    assert saved == [signal.Signals(number).name]
    assert raised == [(number, signal.SIG_DFL)]


def test_the_signal_of_a_scheduler_is_handled_where_it_is_named(raised: list[Any]) -> None:
    saved: list[str] = []
    before = signal.signal(signal.SIGUSR1, signal.SIG_DFL)
    try:
        EndSignals(Stub(saved.append), ["SIGUSR1"]).install()
        os.kill(os.getpid(), signal.SIGUSR1)
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert saved == ["SIGUSR1"] and raised == [(signal.SIGUSR1, signal.SIG_DFL)]


def test_a_second_request_ends_at_once(raised: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("holdfast.recovery.end_signals.time.monotonic", lambda: now[0])

    def save(name: str) -> None:
        now[0] += 1.5
        os.kill(os.getpid(), signal.SIGTERM)
        assert raised == [(signal.SIGTERM, signal.SIG_DFL)]

    EndSignals(Stub(save)).install()
    os.kill(os.getpid(), signal.SIGTERM)


def test_workers_that_end_with_it_do_not_disturb_the_saving(raised: list[Any]) -> None:
    saved: list[str] = []

    def workers_died(number: int, frame: Any) -> None:
        raise RuntimeError("DataLoader worker is killed by signal: Terminated")

    def save(name: str) -> None:
        os.kill(os.getpid(), signal.SIGCHLD)
        saved.append(name)

    before = signal.signal(signal.SIGCHLD, workers_died)
    try:
        EndSignals(Stub(save)).install()
        os.kill(os.getpid(), signal.SIGTERM)
    finally:
        signal.signal(signal.SIGCHLD, before)
    assert saved == ["SIGTERM"] and raised


def test_a_failure_or_ctrl_c_while_saving_changes_nothing_about_the_end(raised: list[Any]) -> None:
    def save(name: str) -> None:
        raise KeyboardInterrupt

    EndSignals(Stub(save)).install()
    with pytest.raises(KeyboardInterrupt):
        os.kill(os.getpid(), signal.SIGTERM)
    assert raised == [(signal.SIGTERM, signal.SIG_DFL)]


@pytest.mark.parametrize("own", [signal.SIG_IGN, lambda *_: None])
def test_what_the_script_has_set_is_left_alone(own: Any) -> None:
    signal.signal(signal.SIGTERM, own)
    signals = EndSignals(Stub(lambda name: None))
    signals.install()
    assert signal.getsignal(signal.SIGTERM) is own
    signals.remove()
    assert signal.getsignal(signal.SIGTERM) is own


def test_a_script_that_sets_its_own_later_replaces_ours(raised: list[Any]) -> None:
    saved: list[str] = []
    signals = EndSignals(Stub(saved.append))
    signals.install()
    ours = signal.getsignal(signal.SIGTERM)

    def own(number: int, frame: Any) -> None:
        if callable(ours):
            ours(number, frame)  # scripts call what was there before them, where that can be called

    signal.signal(signal.SIGTERM, own)
    os.kill(os.getpid(), signal.SIGTERM)
    signals.remove()
    assert saved == [] and raised == [] and signal.getsignal(signal.SIGTERM) is own


def test_a_forked_child_ends_at_once() -> None:
    signals = EndSignals(Stub(lambda name: os._exit(3)))
    signals.install()
    pid = os.fork()
    if pid == 0:
        os.kill(os.getpid(), signal.SIGTERM)
        os._exit(4)
    _, status = os.waitpid(pid, 0)
    signals.remove()
    assert os.waitstatus_to_exitcode(status) == -signal.SIGTERM


def test_a_training_that_was_not_closed_gives_way(raised: list[Any]) -> None:
    saved: list[str] = []
    first, second = (
        EndSignals(Stub(lambda name: saved.append("first"))),
        EndSignals(Stub(saved.append)),
    )
    first.install()
    second.install()
    handler: Any = signal.getsignal(signal.SIGTERM)
    handler(signal.SIGTERM, None)
    assert saved == ["SIGTERM"]
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL and len(raised) == 1


def test_it_waits_for_the_end_of_the_step(raised: list[Any]) -> None:
    saved: list[str] = []
    training = Stub(saved.append, soon=True)
    signals = EndSignals(training, wait=60.0)
    signals.install()
    os.kill(os.getpid(), signal.SIGTERM)
    os.kill(os.getpid(), signal.SIGTERM)  # `timeout` sends it twice
    assert signals.pending and not saved and not raised
    here = sys._getframe()
    signals.finish(here)  # the loop asks for its next batch
    assert saved == ["SIGTERM"] and training.at == [here]
    assert raised == [(signal.SIGTERM, signal.SIG_DFL)] and not signals.pending


def test_a_loop_that_waits_for_its_loader_is_saved_at_once(raised: list[Any]) -> None:
    saved: list[str] = []
    training = Stub(saved.append, soon=True)
    training.now = True
    EndSignals(training, wait=60.0).install()
    os.kill(os.getpid(), signal.SIGTERM)
    assert saved == ["SIGTERM"] and training.at[0] is not None and raised


def test_a_step_that_takes_too_long_is_saved_amid_it(raised: list[Any]) -> None:
    saved: list[str] = []
    training = Stub(saved.append, soon=True)
    EndSignals(training, wait=0.1).install()
    os.kill(os.getpid(), signal.SIGTERM)
    until = time.monotonic() + 10
    while not raised and time.monotonic() < until:
        time.sleep(0.01)
    assert saved == ["SIGTERM"] and training.at == [None] and len(raised) == 1


def test_a_second_request_does_not_wait_any_longer(
    raised: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    monkeypatch.setattr("holdfast.recovery.end_signals.time.monotonic", lambda: now[0])
    saved: list[str] = []
    EndSignals(Stub(saved.append, soon=True), wait=60.0).install()
    os.kill(os.getpid(), signal.SIGTERM)
    assert not saved
    now[0] = 2.0
    os.kill(os.getpid(), signal.SIGTERM)
    assert saved == ["SIGTERM"] and len(raised) == 1


def test_a_script_that_ends_by_itself_meanwhile_ends_well(raised: list[Any]) -> None:
    signals = EndSignals(Stub(lambda name: pytest.fail("nothing is lost"), soon=True), wait=60.0)
    signals.install()
    os.kill(os.getpid(), signal.SIGTERM)
    signals.remove()
    assert not raised and not signals.pending


# ---------------------------------------------------------------------- Ctrl-C


def test_ctrl_c_amid_a_step_waits_for_its_end_and_is_the_same_exception() -> None:
    saved: list[str] = []
    training = Stub(saved.append, soon=True)
    signals = EndSignals(training, wait=60.0)
    signals.install()
    os.kill(os.getpid(), signal.SIGINT)
    assert not saved and signals.pending == signal.SIGINT
    with pytest.raises(KeyboardInterrupt):
        signals.finish(sys._getframe())
    assert saved == ["KeyboardInterrupt"] and training.at[0] is not None
    # A script that caught it and trains on is saved again at the next one.
    os.kill(os.getpid(), signal.SIGINT)
    assert signals.pending == signal.SIGINT
    signals.remove()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.parametrize("soon", [False, True])
def test_ctrl_c_that_need_not_or_may_not_wait_is_raised_at_once(
    soon: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [5.0]
    monkeypatch.setattr("holdfast.recovery.end_signals.time.monotonic", lambda: now[0])
    signals = EndSignals(Stub(lambda name: pytest.fail(name), soon=soon), wait=60.0)
    signals.install()
    if soon:
        os.kill(os.getpid(), signal.SIGINT)
        now[0] += 2.0
    with pytest.raises(KeyboardInterrupt):
        os.kill(os.getpid(), signal.SIGINT)
    assert not signals.pending


# ---------------------------------------------------------------------- several ranks


@pytest.fixture
def company(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")


@pytest.fixture
def ended(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Signals by which a thread would have ended this process."""
    found: list[int] = []
    monkeypatch.setattr("holdfast.recovery.end_signals.end_now", found.append)
    return found


def wait_for(done: Callable[[], object]) -> None:
    until = time.monotonic() + 10
    while not done():
        assert time.monotonic() < until
        time.sleep(0.01)


@pytest.mark.usefixtures("company")
def test_ranks_are_asked_and_end_after_a_step_of_all(raised: list[Any], ended: list[int]) -> None:
    saved: list[str] = []
    training = Stub(lambda name: pytest.fail("not by itself"))
    signals = EndSignals(training, wait=60.0)
    signals.install()
    other = signal.signal(signal.SIGRTMIN + 5, lambda number, frame: None)
    os.kill(os.getpid(), signal.SIGRTMIN + 5)  # somebody's own, without a name
    time.sleep(0.05)
    signal.signal(signal.SIGRTMIN + 5, other)
    os.kill(os.getpid(), signal.SIGTERM)
    wait_for(lambda: training.asked)
    assert signals.pending and not raised and not signals.alone
    signals.finish_together("SIGTERM", lambda: saved.append("all") is None)
    assert saved == ["all"] and training.asked == ["SIGTERM"]
    assert raised == [(signal.SIGTERM, signal.SIG_DFL)] and not ended
    assert signal.set_wakeup_fd(-1) == -1, "the pipe is taken back"


@pytest.mark.usefixtures("company")
def test_a_rank_that_was_not_told_ends_with_the_others(raised: list[Any]) -> None:
    signals = EndSignals(Stub(lambda name: pytest.fail("saved with the others")))
    signals.install()
    signals.finish_together("SIGTERM", lambda: True)
    assert raised == [(signal.SIGTERM, signal.SIG_DFL)]


@pytest.mark.usefixtures("company")
@pytest.mark.parametrize("why", ["cannot ask", "no answer of rank 1", "too late", "not written"])
def test_a_rank_without_company_saves_by_itself(why: str, raised: list[Any]) -> None:
    saved: list[str] = []
    training = Stub(saved.append)
    training.agrees = why != "cannot ask"
    training.alone = why if why.startswith("no answer") else ""
    signals = EndSignals(training, wait=0.1 if why == "too late" else 60.0)
    signals.install()
    os.kill(os.getpid(), signal.SIGTERM)
    if why == "not written":
        wait_for(lambda: training.asked)
        signals.finish_together("SIGTERM", lambda: False)
    wait_for(lambda: raised)
    assert saved == ["SIGTERM"] and len(raised) == 1 and not training.lost


@pytest.mark.usefixtures("company")
def test_a_rank_that_is_stuck_in_native_code_is_ended(
    raised: list[Any], ended: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """No handler runs there; a thread hears of the signal even so."""
    monkeypatch.setattr("holdfast.recovery.end_signals._STUCK", 0.1)
    seen: list[Any] = []
    training = Stub(lambda name: seen.append((list(ended), list(training.lost))))
    training.alone = "no answer of rank 1"
    EndSignals(training, wait=60.0).install()
    send = signal.pthread_kill

    def come() -> None:
        time.sleep(0.05)
        send(threading.get_ident(), signal.SIGTERM)

    # The signal comes to another thread, and the main one cannot be interrupted.
    monkeypatch.setattr(signal, "pthread_kill", lambda thread, number: None)
    threading.Thread(target=come).start()
    ctypes.CDLL(None).usleep(600_000)  # native code: no instruction of Python meanwhile
    wait_for(lambda: raised)  # the handler runs afterwards, in a process that is gone by then
    assert seen == [([signal.SIGTERM], ["SIGTERM"])]


@pytest.mark.usefixtures("company")
def test_a_script_that_replaces_our_handler_is_not_ended(ended: list[int]) -> None:
    training = Stub(lambda name: pytest.fail("the script has its own way"))
    signals = EndSignals(training)
    signals.install()
    seen: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, frame: seen.append(number))
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(0.1)
    signals.remove()
    assert seen and not training.asked and not ended


@pytest.mark.usefixtures("company")
def test_where_somebody_else_hears_of_signals_the_default_stays() -> None:
    read, write = os.pipe()
    os.set_blocking(write, False)
    signal.set_wakeup_fd(write)
    try:
        EndSignals(Stub(lambda name: None)).install()
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    finally:
        assert signal.set_wakeup_fd(-1) == write
        os.close(read)
        os.close(write)


def test_the_end_by_a_thread_is_the_one_by_the_signal() -> None:
    code = (
        "import signal, threading, time\n"
        "from holdfast.recovery.signal_watch import end_now\n"
        "signal.signal(signal.SIGTERM, lambda *_: None)\n"
        "threading.Thread(target=end_now, args=(signal.SIGTERM,)).start()\n"
        "time.sleep(9)\n"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == -signal.SIGTERM
