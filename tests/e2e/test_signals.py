"""Signals reach the script once, as they would without us, and end us as they end it."""

from __future__ import annotations

import os
import signal
import subprocess
import time

import pytest

from .conftest import TRAIN, Bench, Outcome, Terminal, await_line, child_of

# Counts every KeyboardInterrupt and every signal, and takes its time to clean up.
COUNTING = """
import os, signal, sys, time
seen = []
def note(number, frame):
    seen.append(signal.Signals(number).name)
    os.write(1, b"got %d\\n" % len(seen))
for name in sys.argv[1:]:
    signal.signal(getattr(signal, name), note)
try:
    print("ready", flush=True)
    until = time.monotonic() + 60
    while not seen and time.monotonic() < until:
        time.sleep(0.01)
    # Long enough after the last for one that is passed on by somebody who had it too.
    count, wait = 0, 0.0
    while time.monotonic() < wait or count < len(seen):
        if count < len(seen):
            count, wait = len(seen), time.monotonic() + 1.2
        time.sleep(0.01)
except KeyboardInterrupt:
    seen.append("KeyboardInterrupt")
    try:
        time.sleep(0.5)
    except KeyboardInterrupt:
        seen.append("and another")
print(*seen, flush=True)
sys.exit(5)
"""

FORWARDED = ("SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2", "SIGQUIT", "SIGINT")


def signalled(bench: Bench, process: subprocess.Popen[bytes], *numbers: int) -> Outcome:
    await_line(process, b"ready")
    for number in numbers:
        process.send_signal(number)
    return bench.end(process)


def test_a_signal_to_the_parent_reaches_the_handler_of_the_script(bench: Bench):
    script = bench.write(COUNTING)
    guarded = ["-m", "holdfast", "run", "--quiet", script]
    running = {name: bench.start([*guarded, name]) for name in FORWARDED}
    for name, process in running.items():
        await_line(process, b"ready")
        process.send_signal(getattr(signal, name))
    for name, process in running.items():
        seen = bench.end(process)
        assert (seen.code, seen.lines[-1:], seen.err) == (5, [name], b"")


def test_a_signal_nobody_handles_ends_both_the_same_way(bench: Bench):
    script = bench.write("print('ready', flush=True)\nimport time\ntime.sleep(60)")
    for name in ("SIGTERM", "SIGHUP", "SIGUSR1", "SIGINT", "SIGQUIT"):
        number = getattr(signal, name)
        plain = signalled(bench, bench.start([script]), number)
        guarded = signalled(bench, bench.start_guarded(script), number)
        assert plain.code == guarded.code == -number
        assert guarded.err.splitlines()[-1:] == plain.err.splitlines()[-1:]


def test_sigint_to_the_parent_only_interrupts_the_script_once(bench: Bench):
    seen = signalled(bench, bench.start_guarded(bench.write(COUNTING)), signal.SIGINT)
    assert (seen.code, seen.lines[-1]) == (5, "KeyboardInterrupt")


def test_ctrl_c_on_a_terminal_interrupts_the_script_once(bench: Bench):
    script = bench.write(COUNTING)
    terminal = Terminal(bench.under_holdfast([script], ["--quiet"]), bench.folder)
    terminal.read_until(b"ready")
    terminal.type(b"\x03")
    assert terminal.end() == 5
    assert terminal.seen.replace(b"^C", b"").split() == [b"ready", b"KeyboardInterrupt"]


def test_ctrl_c_on_a_terminal_ends_a_script_that_does_nothing_about_it(bench: Bench):
    script = bench.write("print('ready', flush=True)\nimport time\ntime.sleep(60)")
    terminal = Terminal(bench.under_holdfast([script], ["--quiet"]), bench.folder)
    terminal.read_until(b"ready")
    terminal.type(b"\x03")
    assert terminal.end() == -signal.SIGINT
    assert terminal.seen.count(b"KeyboardInterrupt") == 1
    assert b"holdfast" not in terminal.seen


def test_ctrl_c_is_ignored_where_the_script_ignores_it(bench: Bench):
    script = bench.write(
        """
        import signal, time
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        print("ready", flush=True)
        time.sleep(1)
        print("unimpressed", flush=True)
        """
    )
    terminal = Terminal(bench.under_holdfast([script], []), bench.folder)
    terminal.read_until(b"ready")
    terminal.type(b"\x03")
    assert terminal.end() == 0
    assert b"unimpressed" in terminal.seen and b"Traceback" not in terminal.seen


def test_sigint_to_the_whole_group_interrupts_the_script_once(bench: Bench):
    process = bench.start_guarded(bench.write(COUNTING), start_new_session=True)
    await_line(process, b"ready")
    os.killpg(process.pid, signal.SIGINT)
    seen = bench.end(process)
    assert (seen.code, seen.lines[-1]) == (5, "KeyboardInterrupt")


def test_signals_to_the_whole_group_reach_the_script_once_each(bench: Bench):
    """Elastic agents and batch systems signal every process of a job, ours and the script's.

    Several, because whether one that is passed on a second time is seen is a race.
    """
    process = bench.start_guarded(bench.write(COUNTING), "SIGTERM", start_new_session=True)
    await_line(process, b"ready")
    for count in range(1, 5):
        # Two that wait for a busy machine would become one.
        os.killpg(process.pid, signal.SIGTERM)
        await_line(process, b"got %d" % count)
    seen = bench.end(process)
    assert (seen.code, seen.lines[-1]) == (5, " ".join(["SIGTERM"] * 4))


def test_a_signal_to_the_script_alone_is_left_alone(bench: Bench):
    process = bench.start_guarded(bench.write(COUNTING), "SIGUSR1")
    await_line(process, b"ready")
    os.kill(child_of(process), signal.SIGUSR1)
    seen = bench.end(process)
    assert (seen.code, seen.lines[-1]) == (5, "SIGUSR1")


def test_signals_that_were_ignored_stay_ignored(bench: Bench):
    """``nohup holdfast run …``: a hangup must not end the script."""
    script = bench.write(
        "import time\nprint('ready', flush=True)\ntime.sleep(1)\nprint('went on', flush=True)"
    )
    process = bench.start_guarded(
        script, preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN)
    )
    seen = signalled(bench, process, signal.SIGHUP)
    assert (seen.code, seen.text) == (0, "went on\n")


def test_stopping_and_going_on(bench: Bench):
    """Ctrl-Z and fg: the terminal's stop reaches both, and the script goes on with us."""
    script = bench.write(COUNTING)
    process = bench.start_guarded(script, "SIGUSR1", start_new_session=True)
    await_line(process, b"ready")
    child = child_of(process)
    os.killpg(process.pid, signal.SIGSTOP)
    until = time.monotonic() + 10
    while state(child) != "T" or state(process.pid) != "T":
        assert time.monotonic() < until
        time.sleep(0.01)
    os.killpg(process.pid, signal.SIGCONT)
    process.send_signal(signal.SIGUSR1)
    seen = bench.end(process)
    assert (seen.code, seen.lines[-1]) == (5, "SIGUSR1")


def state(pid: int) -> str:
    with open(f"/proc/{pid}/stat") as file:
        return file.read().rpartition(")")[2].split()[0]


@pytest.mark.slow
def test_a_training_that_saves_on_sigterm_is_recorded_to_its_last_step(bench: Bench):
    script = bench.write(
        TRAIN
        + """
import signal, sys
stop = []
signal.signal(signal.SIGTERM, lambda *_: stop.append(1))
train(3)
print("ready", flush=True)
steps = 3
while not stop:
    train(1)
    steps += 1
print("saved after", steps, flush=True)
sys.exit(143)
"""
    )
    seen = signalled(bench, bench.start_guarded(script), signal.SIGTERM)
    assert seen.code == 143
    assert len(bench.record.steps()) == int(seen.lines[-1].split()[-1])
    assert bench.record.events("end")
