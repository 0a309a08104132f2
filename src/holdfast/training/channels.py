"""Logging channels: categories that are switched on by name and cost nothing until then.

    performance = channels.get("performance")

    performance("forward %.1f ms", milliseconds)    # formatted only when it is written
    performance(lambda: f"slowest {longest()}")     # called only when it is written
    if performance.on: ...                          # one attribute

A channel has a number, as levels have (``DEBUG_PERFORMANCE`` is 21), but the number only says
which one it is: INFO is 20, and compared as levels all above it would be on with it. Of each
place in the code the first few messages are written, then every k-th.
"""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import logging
import sys
from collections.abc import Callable, Hashable, Iterator
from typing import TYPE_CHECKING, Literal

from ..config import Section, bounded
from ..errors import SettingsError
from .loop.terminal import Careful, reaches_a_person

if TYPE_CHECKING:
    from .device import Place

DEBUG_VERBOSE = 11
DEBUG_CACHE = 12
DEBUG_FORWARD = 14
DEBUG_MEMORY = 15
DEBUG_TRAINING = 16
DEBUG_INIT = 17
DEBUG_PERFORMANCE = 21
DEBUG_PROFILING = 22

_PREFIX = "DEBUG_"
_FIRST, _EVERY = 5, 10

logger = logging.getLogger("holdfast")


class Channel:
    """One category of messages; ``get`` finds them, ``add`` makes new ones."""

    __slots__ = ("_counts", "every", "first", "name", "number", "on")

    def __init__(self, name: str, number: int) -> None:
        self.name = name
        self.number = number
        self.on = False
        self.first, self.every = _FIRST, _EVERY
        self._counts: dict[Hashable, int] = {}

    def __call__(
        self, message: str | Callable[..., str], /, *args: object, key: Hashable = None
    ) -> None:
        """Write a message if this channel is on and it is the turn of this place.

        Args:
            message: text with ``%`` places for ``args``, or a function of them that makes it.
            args: what goes into the text.
            key: what is counted instead of this line of the code; one of a few.
        """
        if not self.on:
            return
        caller = sys._getframe(1)
        code, line = caller.f_code, caller.f_lineno
        place = (code.co_filename, line) if key is None else key
        count = self._counts[place] = self._counts.get(place, 0) + 1
        if (count > self.first and count % self.every) or logger.manager.disable >= self.number:
            return
        if not isinstance(message, str):
            message, args = _made(message, args), ()
        record = logger.makeRecord(
            logger.name, self.number, code.co_filename, line, message, args, None, code.co_name
        )
        # To everybody else 20 is INFO, and this is none.
        record.levelname = _PREFIX + self.name.upper()
        record.channel = self.name
        logger.handle(record)

    def begin_anew(self) -> None:
        """Forget how often each place has spoken."""
        self._counts.clear()


def _made(message: Callable[..., str], args: tuple[object, ...]) -> str:
    """The text; what goes wrong in making it is logged instead, and ends nothing."""
    try:
        return message(*args)
    except Exception as error:
        return f"this message could not be made: {type(error).__name__}: {error}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class LogSettings(Section):
    """What is logged while a run trains, and how often."""

    every: int = bounded(_EVERY, 1)  # steps between two lines, messages between two of a channel
    channels: tuple[str, ...] = dataclasses.field(  # by name: performance, profiling, ...
        default=(), metadata={"one": True}
    )
    first: int = bounded(_FIRST, 0)  # messages of a channel that are written before that holds
    ranks: Literal["main", "all"] = "main"

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in self.channels:
            get(name)


_channels: dict[str, Channel] = {}
_by_number: dict[int, Channel] = {}


def add(name: str, number: int) -> Channel:
    """Make a channel of one's own; ``DEBUG_NAME`` becomes the name of its level.

    The same name and number again give the same channel.
    """
    name = _plain(name)
    known = _channels.get(name) or _by_number.get(number)
    if known is not None:
        if (known.name, known.number) == (name, number):
            return known
        raise SettingsError(
            f"logging channel {name!r} with number {number}: there is already "
            f"{known.name!r} with number {known.number}; choose another name or number"
        )
    channel = _channels[name] = _by_number[number] = Channel(name, number)
    usual = logging.getLevelName(number)
    logging.addLevelName(number, _PREFIX + name.upper())
    if number in _STANDARD:
        # The name leads to the number, and the number keeps the name it had.
        logging.addLevelName(number, usual)
    return channel


def get(name: str) -> Channel:
    """The channel of this name, ``performance`` or ``DEBUG_PERFORMANCE``."""
    channel = _channels.get(_plain(name))
    if channel is None:
        near = difflib.get_close_matches(_plain(name), _channels, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(_channels)}"
        raise SettingsError(f"log.channels: unknown logging channel {name!r}; {hint}")
    return channel


def _plain(name: str) -> str:
    return name.strip().lower().removeprefix(_PREFIX.lower())


@dataclasses.dataclass(frozen=True)
class _State:
    """Which channels write, how often and where to."""

    wanted: frozenset[str] = frozenset()
    first: int = _FIRST
    every: int = _EVERY
    enabled: bool = True
    who: str = ""
    say: Callable[[str], None] | None = None


class _Handler(logging.Handler):
    """Writes a record as one line, unless another handler shows it to the same person."""

    state = _State()

    def emit(self, record: logging.LogRecord) -> None:
        quiet = not self.state.enabled and record.levelno < logging.ERROR
        if quiet or any(reaches_a_person(other, record.levelno) for other in _others(record)):
            return
        try:
            line = self.format(record)
        except Exception:  # values that do not fit their text
            self.handleError(record)
            return
        channel = getattr(record, "channel", None)
        kind = record.levelname.lower() + ": " if record.levelno >= logging.WARNING else ""
        line = f"{self.state.who}{f'[{channel}] ' if channel else kind}{line}"
        if self.state.say is not None:
            self.state.say(line)
        elif sys.stderr is not None:
            # Looked up each time: a notebook or a test may have put another there.
            Careful(sys.stderr).write(f"{line}\n")


def _others(record: logging.LogRecord) -> Iterator[logging.Handler]:
    """The handlers besides ours that get this record."""
    place: logging.Logger | None = logging.getLogger(record.name)
    while place is not None:
        yield from (handler for handler in place.handlers if handler is not _handler)
        place = place.parent if place.propagate else None


class _Gate(logging.Filter):
    """Lets a record with the number of a channel pass only if that channel is on."""

    def filter(self, record: logging.LogRecord) -> bool:
        channel = _by_number.get(record.levelno)
        return channel is None or record.levelno in _STANDARD or channel.on


def enable(*names: str) -> None:
    """Switch channels on; nothing is changed if one of the names is unknown."""
    state = _handler.state
    found = {get(name).name for name in names}
    _apply(dataclasses.replace(state, wanted=state.wanted | found))


def disable(*names: str) -> None:
    """Switch channels off, all of them if none is named."""
    state = _handler.state
    found = {get(name).name for name in names or _channels}
    _apply(dataclasses.replace(state, wanted=state.wanted - found))


def setup(
    settings: LogSettings, place: Place, say: Callable[[str], None] | None = None
) -> Callable[[], None]:
    """Let the channels of a run write, through one handler however often this is called.

    Channels that are on stay on. Ranks other than 0 write nothing below ERROR unless
    ``settings.ranks`` is "all".

    Args:
        settings: which channels, how often and on which ranks.
        place: which rank this process is.
        say: writes one line, as ``Progress.say`` does; to standard error by default.

    Returns:
        A function that puts everything back as it was.
    """
    before = _handler.state
    state = _State(
        wanted=before.wanted | {get(name).name for name in settings.channels},
        first=settings.first,
        every=settings.every,
        enabled=place.main or settings.ranks == "all",
        who=f"rank {place.rank}: " if place.world > 1 and settings.ranks == "all" else "",
        say=say,
    )
    for channel in _channels.values():
        channel.begin_anew()
    _apply(state)
    return lambda: _apply(before)


@contextlib.contextmanager
def written(settings: LogSettings, place: Place) -> Iterator[None]:
    """Let the channels of a run write inside; see ``setup``."""
    undo = setup(settings, place)
    try:
        yield
    finally:
        undo()


def _apply(state: _State) -> None:
    # Those of a former copy of this module, as a reload leaves them, must not work beside ours.
    for handler in [h for h in logger.handlers if type(h).__name__ == _Handler.__name__]:
        logger.removeHandler(handler)
    for gate in [f for f in logger.filters if type(f).__name__ == _Gate.__name__]:
        logger.removeFilter(gate)
    _handler.state = state
    logger.addHandler(_handler)
    logger.addFilter(_gate)
    if logger.level == logging.NOTSET:
        logger.setLevel(logging.INFO)
    for channel in _channels.values():
        channel.on = state.enabled and channel.name in state.wanted
        channel.first, channel.every = state.first, state.every


_STANDARD = {0, *(getattr(logging, n) for n in ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"))}
_gate = _Gate()
_handler = _Handler()
_handler.addFilter(_gate)
for _name, _number in [pair for pair in globals().items() if pair[0].startswith(_PREFIX)]:
    add(_name, _number)
