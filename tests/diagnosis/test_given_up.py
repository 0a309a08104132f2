"""Exceptions that a script catches and gives up on with an exit."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from types import FrameType

import pytest

from holdfast.boot import exits as noted_exits
from holdfast.diagnosis.crash.given_up import behind, given_up, returned


def exits(function: Callable[[], object]) -> SystemExit:
    with pytest.raises(SystemExit) as caught:
        function()
    return caught.value


def caught(leave: Callable[[], object]) -> None:
    try:
        {}["labels"]
    except KeyError:
        leave()


def helper() -> None:
    sys.exit("no labels")


@pytest.mark.parametrize(
    ("leave", "explained"),
    [
        (lambda: sys.exit(1), True),
        (lambda: sys.exit(2), True),
        (helper, True),
        (lambda: sys.exit(0), False),
        (lambda: sys.exit(), False),
        (lambda: sys.exit(False), False),
        (lambda: sys.exit(""), True),
    ],
)
def test_by_code(leave: Callable[[], object], explained: bool) -> None:
    error = behind(exits(lambda: caught(leave)))
    assert (type(error) is KeyError) is explained


def test_an_exit_without_an_exception_is_its_own() -> None:
    assert behind(exits(lambda: sys.exit(1))) is None


def whole(text: str) -> int:
    return int(text)


@pytest.mark.parametrize("words", [["--number", "x"], ["--other"], ["--number"]])
def test_wrong_arguments_are_reported_by_argparse(words: list[str]) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--number", type=whole)
    leaving = exits(lambda: parser.parse_args(words))
    assert leaving.code == 2 and behind(leaving) is None


def test_a_library_that_gives_up_on_an_error_of_the_script() -> None:
    """As hydra does; after wrong arguments it is the library's own business."""
    library: dict[str, Callable[..., None]] = {}
    code = "import sys\ndef run(f, code):\n    try: f()\n    except Exception: sys.exit(code)\n"
    exec(compile(code, argparse.__file__, "exec"), library)
    error = behind(exits(lambda: library["run"](lambda: {}["labels"], 1)))
    assert isinstance(error, KeyError)
    assert behind(exits(lambda: library["run"](lambda: {}["labels"], 2))) is None


def test_whether_a_call_that_is_over_was_left_by_an_exception() -> None:
    frames: list[FrameType] = []

    def leaves(how: str) -> None:
        frames.append(sys._getframe())
        try:
            if how != "nothing":
                sys.exit(1)
        except ValueError:
            pass
        except SystemExit:
            if how == "again":
                raise
        finally:
            str(how)

    leaves("nothing")
    leaves("caught")
    exits(lambda: leaves("again"))

    def plain() -> None:
        frames.append(sys._getframe())
        sys.exit(1)

    exits(plain)
    assert [returned(frame) for frame in frames] == [True, True, False, False]


def test_the_exit_is_noted_and_stays_what_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(noted_exits, "leaving", None)
    noting = noted_exits._noting(sys.exit, "exit", 0)
    leaving = exits(lambda: caught(lambda: noting(3)))
    assert leaving.code == 3 and isinstance(leaving.__context__, KeyError)
    noted = noted_exits.leaving
    assert noted is not None and noted.code == 3 and noted.outermost.f_back is None
    found = given_up(noted.handled, noted.code, noted.caller)
    assert found is leaving.__context__
    exits(lambda: noting(1))
    assert noted_exits.leaving is None, "the last exit counts"
    with pytest.raises(TypeError) as plain:
        sys.exit(1, 2)  # type: ignore[call-arg]
    with pytest.raises(TypeError) as ours:
        noting(1, 2)
    assert str(ours.value) == str(plain.value)
