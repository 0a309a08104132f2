from __future__ import annotations

import io
import math
import os
import re
import sys

import pytest
import torch

from holdfast.training.device import Place
from holdfast.training.loop.progress import (
    Bar,
    PlainLines,
    Progress,
    Tick,
    make_progress,
)
from holdfast.training.loop.terminal import CLEAR

CPU = torch.device("cpu")


class Stream(io.StringIO):
    """A stream that says what it is."""

    encoding = "utf-8"

    def __init__(self, terminal=False, encoding="utf-8"):
        super().__init__()
        self._terminal, self.encoding = terminal, encoding

    def isatty(self):
        return self._terminal

    def write(self, text):
        text.encode(self.encoding)
        return super().write(text)

    @property
    def lines(self):
        return self.getvalue().splitlines()

    @property
    def screen(self):
        """What a person sees: lines as they stand after all that was drawn over them."""
        seen = [""]
        for sign in re.split(r"(\x1b\[2K|\r|\n)", re.sub(r"\x1b\[[\d;]*m", "", self.getvalue())):
            if sign == "\n":
                seen.append("")
            elif sign == "\x1b[2K":
                seen[-1] = ""
            elif sign != "\r":
                seen[-1] += sign
        return seen


class Clock:
    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


class Broken(Stream):
    def write(self, text):
        raise BrokenPipeError


@pytest.fixture(autouse=True)
def surroundings(monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)


@pytest.fixture
def clock():
    return Clock()


def tick(step=120, **changes):
    values = {
        "steps": 1000, "epoch": 2, "epochs": 5, "loss": 2.31, "rate": 1234.5, "wait": 0.12,
        "memory": 3.14e9, "skipped": 0, "lr": 3e-4, "norm": 1.2345,
    }  # fmt: skip
    return Tick(step, **{**values, **changes})


# plain lines


def test_a_line_tells_every_number_readably(clock):
    stream = Stream()
    lines = PlainLines(stream, clock=clock)
    lines.begins(1000, "gru on text")
    lines.tick(tick(skipped=2))
    assert stream.lines == [
        "gru on text: 1000 steps",
        "step 120/1000 (12 %)  epoch 2/5  loss 2.310  skipped 2  1.2k/s  wait 12 %  3.1 GB  "
        "lr 0.0003  norm 1.234",
    ]
    assert "\x1b" not in stream.getvalue() and "\r" not in stream.getvalue()


def test_what_is_not_known_is_left_out_and_a_loss_that_is_none_is_a_dash(clock):
    stream = Stream()
    PlainLines(stream, clock=clock).tick(Tick(7))
    PlainLines(stream, clock=clock).tick(Tick(7, loss=math.nan, rate=math.nan, lr=math.inf))
    assert stream.lines == ["step 7  loss -"] * 2


@pytest.mark.parametrize(
    ("each", "expected"),
    [(0.4, [1, 14, 27, 40, 53, 66, 79, 92, 100]), (9.0, [*range(1, 100, 10), 100])],
)
def test_lines_come_at_most_every_so_many_steps_and_seconds(clock, each, expected):
    stream = Stream()
    lines = PlainLines(stream, every=10, seconds=5.0, clock=clock)
    lines.begins(100)
    reported = []
    for step in range(1, 101):
        before = len(stream.lines)
        due = lines.due(step)
        lines.tick(tick(step, steps=100))
        assert due == (len(stream.lines) > before)
        if due:
            reported.append(step)
        clock.now += each
    # The first, then every 10th or 5 seconds, and the last whatever its time.
    assert reported == expected


def test_a_run_that_is_rolled_back_goes_on_telling(clock):
    stream = Stream()
    lines = PlainLines(stream, every=10, seconds=1.0, clock=clock)
    lines.tick(Tick(500))
    clock.now += 2
    lines.tick(Tick(400))
    assert [line.split()[1] for line in stream.lines] == ["500", "400"]


def test_the_last_step_is_reported_when_a_run_ends_early_and_only_once(clock):
    stream = Stream()
    lines = PlainLines(stream, clock=clock)
    lines.begins(1000)
    lines.tick(tick(1))
    lines.tick(tick(2))
    lines.ends()
    lines.ends()
    assert [line.split()[1] for line in stream.lines] == ["1/1000", "2/1000"]


def test_the_time_left_is_counted_from_the_first_tick(clock):
    stream = Stream()
    lines = PlainLines(stream, every=1, seconds=0, clock=clock)
    lines.begins(100)
    clock.now += 1000  # compiling
    lines.tick(Tick(1, steps=100))
    clock.now += 20
    lines.tick(Tick(11, steps=100))
    assert stream.lines == ["step 1/100 (1 %)  loss -", "step 11/100 (11 %)  loss -  2:58 min left"]


def test_a_narrow_line_keeps_what_matters_most(clock, monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    stream = Stream()
    PlainLines(stream, clock=clock).tick(tick(skipped=2))
    assert stream.lines == ["step 120/1000 (12 %)  loss 2.310  skipped 2  1.2k/s"]


def test_validations_epochs_and_lines_of_others_are_reported_whole(clock, monkeypatch):
    monkeypatch.setenv("COLUMNS", "20")
    stream = Stream()
    lines = PlainLines(stream, clock=clock)
    lines.validated(500, {"loss": 1.92345, "accuracy": 0.61}, best=True)
    lines.validated(600, {"loss": math.nan}, best=False)
    lines.epoch("epoch 2/5  loss 2.310  in 42 s")
    lines.say(f"{CLEAR}step 412  skipped: gradient is NaN [NUM002]")
    assert stream.lines == [
        "step 500  validation  loss 1.923  accuracy 0.6100  best so far",
        "step 600  validation  loss -",
        "epoch 2/5  loss 2.310  in 42 s",
        "step 412  skipped: gradient is NaN [NUM002]",
    ]


# the bar


def test_the_bar_is_one_line_with_every_number(clock):
    stream = Stream(terminal=True)
    bar = Bar(stream, clock)
    bar.begins(1000, "gru")
    assert stream.screen == ["gru  starting"]
    clock.now += 1
    bar.tick(tick(500, skipped=2))
    (seen,) = stream.screen
    assert re.sub("[━─]+", "BAR", seen) == (
        "gru  BAR  step 500/1000  epoch 2/5  loss 2.310  skipped 2  1.2k/s  wait 12 %  3.1 GB  "
        "lr 0.0003  norm 1.234"
    )
    bars = "".join(sign for sign in seen if sign in "━─")
    assert abs(bars.count("━") - bars.count("─")) <= 1
    bar.ends()
    assert stream.screen == [seen, ""]


@pytest.mark.parametrize("width", [1, 10, 24, 40, 60, 80, 100, 132, 200])
def test_the_bar_never_needs_a_second_line(clock, monkeypatch, width):
    monkeypatch.setenv("COLUMNS", str(width))
    stream = Stream(terminal=True)
    bar = Bar(stream, clock)
    bar.begins(1000, "a name that is much longer than any bar has room for")
    for step in (1, 120, 1000, 1001):
        clock.now += 1
        bar.tick(tick(step, skipped=12))
        (seen,) = stream.screen
        assert len(seen) <= max(1, width - 1)
        if width >= 80:
            assert all(
                part in seen for part in ("loss 2.310", "1.2k/s", "wait 12 %", "3.1 GB", "12")
            )
            assert "━" in seen or "─" in seen
    bar.ends()


def test_wide_characters_are_counted_as_the_terminal_counts_them(clock, monkeypatch):
    from rich.cells import cell_len

    monkeypatch.setenv("COLUMNS", "90")
    stream = Stream(terminal=True)
    bar = Bar(stream, clock)
    bar.begins(10, "訓練訓練訓練訓練訓練")
    clock.now += 1
    bar.tick(Tick(3, steps=10, loss=1.0))
    assert "訓練" in stream.screen[0] and cell_len(stream.screen[0]) <= 89
    bar.ends()


@pytest.mark.parametrize(("variable", "green"), [("", True), ("1", False)])
def test_the_bar_has_colours_but_where_nobody_wants_them(clock, monkeypatch, variable, green):
    monkeypatch.setenv("NO_COLOR", variable)
    stream = Stream(terminal=True)
    bar = Bar(stream, clock)
    bar.begins(10, "demo")
    bar.tick(Tick(5, steps=10, loss=1.0))
    bar.ends()
    assert "\x1b[1mdemo\x1b[0m" in stream.getvalue()
    assert "\x1b[1mloss 1.000\x1b[0m" in stream.getvalue()
    assert ("\x1b[32m━" in stream.getvalue()) is green


def test_without_a_known_end_there_is_no_bar_but_its_numbers(clock):
    stream = Stream(terminal=True)
    bar = Bar(stream, clock)
    bar.begins(None)
    assert stream.screen == ["starting"]
    clock.now += 1
    bar.tick(Tick(7, loss=1.5, rate=0.25))
    assert stream.screen == ["step 7  loss 1.500  0.25/s"]
    bar.ends()


def test_the_bar_is_drawn_no_more_often_than_an_eye_follows(clock):
    stream = Stream(terminal=True)
    bar = Bar(stream, clock)
    bar.begins(1001)
    for step in range(1, 1001):
        clock.now += 0.001
        bar.tick(tick(step, steps=1001))
    assert stream.getvalue().count(CLEAR) <= 6
    bar.tick(tick(1001, steps=1001))
    assert "step 1001/1001" in stream.screen[0]
    bar.ends()


def test_lines_of_the_guard_and_prints_go_above_the_bar(clock, monkeypatch):
    stream = Stream(terminal=True)
    monkeypatch.setattr(sys, "stdout", stream)
    monkeypatch.setattr(sys, "stderr", stream)
    bar = Bar(stream, clock)
    bar.begins(10, "gru")
    print("printed [red]by the user[/red]")
    clock.now += 1
    bar.tick(Tick(1, steps=10, loss=1.0))
    bar.say(f"{CLEAR}step 1  skipped: gradient is NaN  [NUM002]")
    print("two\nlines", file=sys.stderr)
    clock.now += 1
    bar.tick(Tick(2, steps=10, loss=1.0))
    bar.validated(2, {"loss": 0.5}, best=True)
    # What the parent of `holdfast run` does from another process:
    stream.write(f"{CLEAR}step 2  rolled back\n")
    clock.now += 1
    bar.tick(Tick(3, steps=10, loss=1.0))
    bar.ends()
    assert sys.stdout is stream and sys.stderr is stream
    print("afterwards")
    seen = [re.sub("[━─]+", "BAR", line) for line in stream.screen]
    assert seen == [
        "printed [red]by the user[/red]",
        "step 1  skipped: gradient is NaN  [NUM002]",
        "two",
        "lines",
        "step 2  validation  loss 0.5000  best so far",
        "step 2  rolled back",
        seen[6],
        "afterwards",
        "",
    ]
    assert seen[6].startswith("gru  BAR  step 3/10  loss 1.000")


def test_the_bar_waits_while_somebody_writes_a_line(clock, monkeypatch):
    stream = Stream(terminal=True)
    monkeypatch.setattr(sys, "stdout", stream)
    bar = Bar(stream, clock)
    bar.begins(10)
    print("50 % of", end="")
    clock.now += 1
    bar.tick(Tick(1, steps=10))
    print(" something", end="")
    assert stream.screen == ["50 % of something"]
    # An own line is not put into theirs.
    bar.say("step 1  skipped")
    assert stream.screen[:2] == ["50 % of something", "step 1  skipped"]
    bar.ends()


def test_output_that_goes_to_a_file_is_left_alone(clock, monkeypatch):
    terminal, file = Stream(terminal=True), Stream()
    monkeypatch.setattr(sys, "stdout", file)
    monkeypatch.setattr(sys, "stderr", terminal)
    bar = Bar(terminal, clock)
    bar.begins(10)
    assert sys.stdout is file and sys.stderr is not terminal
    print("result 1")
    bar.ends()
    assert file.getvalue() == "result 1\n" and sys.stderr is terminal


def test_streams_that_somebody_replaced_meanwhile_are_not_put_back(clock, monkeypatch):
    stream, other = Stream(terminal=True), Stream()
    monkeypatch.setattr(sys, "stderr", stream)
    bar = Bar(stream, clock)
    bar.begins(10)
    sys.stderr = other
    bar.ends()
    assert sys.stderr is other


def test_beginning_twice_leaves_the_streams_as_they_were(clock, monkeypatch):
    stream = Stream(terminal=True)
    monkeypatch.setattr(sys, "stderr", stream)
    bar = Bar(stream, clock)
    bar.begins(10, "one")
    bar.begins(20, "two")
    bar.ends()
    bar.ends()
    assert sys.stderr is stream
    assert stream.screen == ["one  starting", "two  starting", ""]


def test_a_forked_worker_may_speak_but_draws_no_bar(clock, monkeypatch):
    stream = Stream(terminal=True)
    monkeypatch.setattr(sys, "stdout", stream)
    bar = Bar(stream, clock)
    bar.begins(10, "gru")
    with monkeypatch.context() as worker:
        worker.setattr(os, "getpid", lambda: -1)
        bar.say("from a worker")
        # Meanwhile the parent draws, of which a worker's copy does not know.
        stream.write("BAR")
        bar.say("again")
        stream.write("BAR")
        print("printed", "there")
    assert stream.screen == ["from a worker", "again", "printed there", ""]
    bar.ends()


# streams


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_a_stream_without_these_characters_gets_others(clock, encoding):
    stream = Stream(terminal=True, encoding=encoding)
    bar = Bar(stream, clock)
    bar.begins(10, "训练 of a model with a long name")
    clock.now += 1
    bar.tick(Tick(5, steps=10, loss=1.0))
    bar.say("loss 2 → 1")
    bar.ends()
    assert "loss 2 ? 1" in stream.screen[0]
    assert "##---" in stream.screen[1] and "step 5/10" in stream.screen[1]
    plain = Stream(encoding=encoding)
    PlainLines(plain, clock=clock).say("loss 2 → 1")
    assert plain.lines == ["loss 2 ? 1"]


@pytest.mark.parametrize("kind", [Bar, PlainLines])
def test_a_broken_pipe_or_a_closed_stream_ends_nothing(clock, kind):
    closed = Stream()
    closed.close()
    for stream in (Broken(terminal=True), closed):
        progress = kind(stream, clock=clock)
        progress.begins(10, "gru")
        for step in range(1, 11):
            clock.now += 10
            progress.tick(Tick(step, steps=10, loss=1.0))
        progress.validated(10, {"loss": 1.0}, best=True)
        progress.epoch("epoch 1")
        progress.ends()


def test_the_right_kind_is_chosen(monkeypatch):
    main, terminal = Place(CPU), Stream(terminal=True)
    assert type(make_progress(main, terminal)) is Bar
    assert type(make_progress(main, Stream())) is PlainLines
    assert type(make_progress(main, terminal, quiet=True)) is Progress
    assert type(make_progress(Place(CPU, 1, 2), terminal)) is Progress
    monkeypatch.setenv("TERM", "dumb")
    assert type(make_progress(main, terminal)) is PlainLines
    monkeypatch.setattr(sys, "stderr", None)
    assert type(make_progress(main)) is Progress
