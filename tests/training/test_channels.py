from __future__ import annotations

import contextlib
import importlib.util
import io
import logging
import sys

import pytest
import torch

from holdfast.config import from_dict, load
from holdfast.errors import SettingsError
from holdfast.training import channels
from holdfast.training.channels import LogSettings
from holdfast.training.device import Place

CPU = torch.device("cpu")
MAIN = Place(CPU)


@pytest.fixture(autouse=True)
def as_it_was(monkeypatch):
    """Every test finds the logger as an import leaves it, with our own channels alone."""
    own = {n: c for n, c in channels._channels.items() if f"DEBUG_{n.upper()}" in vars(channels)}
    monkeypatch.setattr(channels, "_channels", own)
    monkeypatch.setattr(channels, "_by_number", {c.number: c for c in own.values()})
    level = channels.logger.level
    yield
    channels.disable()
    for handler in list(channels.logger.handlers):
        channels.logger.removeHandler(handler)
    channels.logger.setLevel(level)


@pytest.fixture
def setup():
    undone = []

    def call(place=MAIN, say=None, **settings):
        undone.append(channels.setup(LogSettings(**settings), place, say))
        return undone[-1]

    yield call
    for undo in reversed(undone):
        undo()


@contextlib.contextmanager
def bare_root():
    """The root logger as a script finds it, without what pytest adds for each test."""
    root = logging.getLogger()
    before, root.handlers = root.handlers, []
    level = root.level
    try:
        yield root
    finally:
        root.handlers = before
        root.setLevel(level)


class Untouched:
    def __str__(self):
        raise AssertionError("formatted")


def never():
    raise AssertionError("called")


def test_the_numbers_are_those_of_the_contract():
    table = {name: value for name, value in vars(channels).items() if name.startswith("DEBUG_")}
    assert list(table.values()) == [11, 12, 14, 15, 16, 17, 21, 22]
    assert table["DEBUG_PERFORMANCE"] == 21 and table["DEBUG_PROFILING"] == 22
    assert all(channels.get(name).number == number for name, number in table.items())


def test_info_keeps_its_name_and_every_channel_can_be_chosen_as_a_level():
    assert logging.getLevelName(20) == "INFO"
    assert channels.add("settling", 20).number == 20
    assert logging.getLevelName(20) == "INFO"
    assert logging.getLevelName("DEBUG_SETTLING") == 20
    channels.logger.setLevel("DEBUG_PERFORMANCE")
    assert channels.logger.level == 21
    channels.logger.setLevel("DEBUG_PROFILING")
    assert channels.logger.level == 22


def test_a_channel_that_is_off_formats_nothing_and_counts_nothing(capsys):
    performance = channels.get("performance")
    assert performance.on is False
    performance("%s", Untouched())
    performance(never)
    assert capsys.readouterr().err == ""


def test_a_channel_that_is_on_writes_text_and_what_functions_make(setup):
    said = []
    setup(say=said.append, channels=("performance",))
    channels.get("performance")("forward %.1f ms of %d", 1.25, 3)
    channels.get("performance")(lambda: "100 % made")
    channels.get("performance")("{}, {}".format, 1, 2)
    channels.get("profiling")(never)
    assert said == [
        "[performance] forward 1.2 ms of 3",
        "[performance] 100 % made",
        "[performance] 1, 2",
    ]


def test_the_first_are_written_then_every_kth_and_the_rest_is_not_even_formatted(setup):
    said, made = [], []
    setup(say=said.append, channels=("training",), first=3, every=5)
    training = channels.get("training")

    def text(step):
        made.append(step)
        return f"step {step}"

    for step in range(1, 17):
        training(text, step)
    assert made == [1, 2, 3, 5, 10, 15]
    assert said == [f"[training] step {step}" for step in made]


def test_each_place_in_the_code_is_counted_by_itself_and_so_is_each_key(setup):
    said = []
    setup(say=said.append, channels=("training",), first=1, every=100)
    training = channels.get("training")
    for _ in range(3):
        training("one")
        training("two")
        for key in ("a", "b"):
            training("key %s", key, key=key)
    assert said == [f"[training] {text}" for text in ("one", "two", "key a", "key b")]


def test_info_on_does_not_switch_channels_on(setup, caplog):
    said = []
    setup(say=said.append)
    channels.logger.setLevel(logging.INFO)
    channels.logger.log(channels.DEBUG_PERFORMANCE, "by number")
    logging.getLogger("holdfast.family").log(channels.DEBUG_PROFILING, "by number, below")
    channels.add("settling", 20)(never)
    channels.logger.info("epoch 1")
    assert said == ["epoch 1"]
    assert "by number" not in [record.message for record in caplog.records]


def test_a_record_of_channel_20_is_reported_from_info(setup, caplog):
    settling = channels.add("settling", 20)
    setup(channels=("settling",), say=lambda line: None)
    settling("settled")
    channels.logger.info("epoch 1")
    assert [(r.levelno, r.levelname) for r in caplog.records] == [
        (20, "DEBUG_SETTLING"),
        (20, "INFO"),
    ]


def test_enabling_works_without_a_setup_and_in_any_spelling(capsys):
    channels.enable("performance", "DEBUG_Profiling")
    channels.get("performance")("a")
    channels.get("profiling")("b")
    channels.disable("performance")
    channels.get("performance")(never)
    assert capsys.readouterr().err == "[performance] a\n[profiling] b\n"


def test_an_unknown_name_is_reported_with_the_nearest_and_changes_nothing():
    with pytest.raises(SettingsError, match=r"'performence'; did you mean 'performance'\?"):
        channels.enable("memory", "performence")
    assert not channels.get("memory").on
    with pytest.raises(SettingsError, match="'xyz'; there are verbose, cache, forward"):
        channels.get("xyz")


def test_settings_with_an_unknown_channel_are_refused_when_they_are_made():
    with pytest.raises(SettingsError, match=r"log\.channels: .*'profilling'; did you mean"):
        from_dict({"channels": ["profilling"]}, kind=LogSettings)
    with pytest.raises(SettingsError, match="every must be a whole number of at least 1"):
        LogSettings(every=0)


def test_one_channel_needs_no_list():
    assert from_dict({"channels": "memory"}, kind=LogSettings).channels == ("memory",)
    given = load(None, ["channels=memory, DEBUG_PROFILING"], kind=LogSettings)
    assert given.channels == ("memory", "DEBUG_PROFILING")


def test_a_line_is_written_once_however_often_things_are_set_up(setup, capsys):
    for _ in range(3):
        setup(channels=("performance",))
    channels.get("performance")("x")
    channels.logger.info("epoch 1")
    assert capsys.readouterr().err == "[performance] x\nepoch 1\n"


def test_a_second_copy_of_the_module_does_not_speak_too(setup, capsys):
    setup()
    spec = importlib.util.find_spec("holdfast.training.channels")
    assert spec is not None and spec.loader is not None
    again = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(again)
    again.enable("memory")
    channels.logger.info("epoch 1")
    assert capsys.readouterr().err == "epoch 1\n"
    assert len(channels.logger.handlers) == 1


@pytest.mark.parametrize("first", ["basicConfig", "setup"])
def test_a_users_basic_config_shows_each_line_once(setup, capsys, first):
    def configure():
        logging.basicConfig(format="%(levelname)s %(message)s", level=logging.WARNING)

    with bare_root():
        if first == "basicConfig":
            configure()
        setup(channels=("performance",))
        if first == "setup":
            configure()
        channels.get("performance")("x")
        channels.logger.info("epoch 1")
    assert capsys.readouterr().err == "DEBUG_PERFORMANCE x\nINFO epoch 1\n"


def test_a_handler_that_no_person_reads_does_not_silence_ours(setup, capsys, tmp_path):
    with (tmp_path / "log.txt").open("w") as file, bare_root() as root:
        root.addHandler(logging.StreamHandler(file))
        loud = logging.StreamHandler(sys.stderr)
        loud.setLevel(logging.ERROR)
        root.addHandler(loud)
        setup(channels=("performance",))
        channels.get("performance")("x")
    assert capsys.readouterr().err == "[performance] x\n"
    assert (tmp_path / "log.txt").read_text() == "x\n"


def test_pytest_captures_each_record_once_with_its_place(setup, caplog):
    setup(channels=("performance",), say=lambda line: None)
    channels.get("performance")("x %d", 1)
    (record,) = caplog.records
    assert record.message == "x 1" and record.levelno == 21
    assert record.filename == "test_channels.py" and record.funcName.startswith("test_pytest")


def test_other_ranks_are_silent_unless_asked(setup):
    said = []
    setup(Place(CPU, 1, 2), said.append, channels=("performance",))
    assert channels.get("performance").on is False
    channels.logger.warning("on every rank")
    assert said == []
    channels.logger.error("only here")
    assert said == ["error: only here"]


def test_all_ranks_speak_with_their_number_when_asked(setup):
    said = []
    setup(Place(CPU, 1, 2), said.append, channels=("performance",), ranks="all")
    channels.get("performance")("x")
    channels.logger.warning("careful")
    assert said == ["rank 1: [performance] x", "rank 1: warning: careful"]


def test_what_a_setup_changed_can_be_put_back(setup):
    said = []
    channels.enable("memory")
    undo = setup(say=said.append, channels=("performance",), first=1, every=7)
    assert channels.get("memory").on and channels.get("performance").on
    undo()
    assert channels.get("memory").on and not channels.get("performance").on
    assert channels.get("memory").every == 10
    channels.get("memory")("to standard error")
    assert said == []


def test_a_new_setup_counts_anew(setup):
    said = []
    for _ in range(2):
        setup(say=said.append, channels=("training",), first=1, every=100)
        for _ in range(3):
            channels.get("training")("begins")
    assert len(said) == 2


def test_a_message_that_cannot_be_made_ends_nothing(setup):
    said = []
    setup(say=said.append, channels=("training",))
    channels.get("training")(lambda: f"{1 / 0}")
    assert said == [
        "[training] this message could not be made: ZeroDivisionError: division by zero"
    ]


def test_values_that_do_not_fit_their_text_end_nothing(setup, capsys):
    setup(channels=("training",))
    with bare_root():
        channels.get("training")("%d steps", "many")
    assert "--- Logging error ---" in capsys.readouterr().err


def test_a_broken_standard_error_ends_nothing(setup, monkeypatch):
    class Broken(io.StringIO):
        def write(self, text):
            raise BrokenPipeError

    setup(channels=("training",))
    monkeypatch.setattr(sys, "stderr", Broken())
    channels.get("training")("x")
    monkeypatch.setattr(sys, "stderr", None)
    channels.get("training")("x")


def test_logging_that_is_disabled_as_a_whole_stays_silent(setup):
    said = []
    setup(say=said.append, channels=("training",))
    logging.disable(logging.CRITICAL)
    try:
        channels.get("training")(never)
    finally:
        logging.disable(logging.NOTSET)
    assert said == []


def test_a_family_may_add_a_channel_but_not_take_one(setup):
    said = []
    relative = channels.add("DEBUG_RELATIVE", 23)
    assert channels.add("relative", 23) is relative
    assert logging.getLevelName(23) == "DEBUG_RELATIVE"
    setup(say=said.append, channels=("relative",))
    relative("x")
    assert said == ["[relative] x"]
    for name, number in (("relative", 24), ("other", 21)):
        with pytest.raises(SettingsError, match="there is already"):
            channels.add(name, number)
