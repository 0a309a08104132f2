"""A loop that reads no loader, or asks by hand: its rounds, and where iterators are between two.

first run      at the end of the first round that trains it is looked at where the loops stand;
               a checkpoint that is due waits for the end of a round of the same loop
resumed run    the script trains one round as it did; at its end everything is put back
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

from torch.optim.optimizer import register_optimizer_step_post_hook

from ..diagnosis.aside import aside
from ..source.frames import user_frames
from .feeds import Feeds
from .frames import chain, position
from .heads import Heads, Key
from .passes import Passes
from .refusal import RefusedError, or_refuse
from .standing import check_alike, loops_at_work, places, shapes

_TRIES = 3
"""Looks without a loop around them until it is said that there is none."""


class Rounds:
    """The rounds of the loop that trains first.

    Args:
        passes: over loaders; such a loop trains beside none, or asks for its batches by hand.
        feeds: iterators that it asks.
        comes: called at the end of a round that somebody waits for; False to come again.
    """

    def __init__(self, passes: Passes, feeds: Feeds, comes: Callable[[FrameType], bool]) -> None:
        self.key: Key | None = None
        """The loop; None while it is not known that there is one."""
        self.at_head = False
        """Whether it is between two rounds at this moment."""
        self._passes, self._feeds, self._comes = passes, feeds, comes
        self._heads = Heads(self._ends)
        self._hook: Any = None
        """Hears of the first step, once."""
        self._arrives: Callable[[FrameType, Key], None] | None = None
        # In a resumed run: puts everything back at the end of the first round.
        self._tries = 0
        self._first: dict[str, Any] = {}

    def come_to(self, key: Key, arrives: Callable[[FrameType, Key], None]) -> None:
        """In a resumed run: have the script train one round of a loop, and put back then."""
        self._arrives = arrives

        def stepped(*about: Any) -> None:
            with or_refuse():
                if not self._heads.wait(sys._getframe(1), key):
                    raise RefusedError("the script trains before it comes to its loop")

        self._hook = register_optimizer_step_post_hook(stepped)

    def next_loop(self) -> None:
        """Another training loop follows the one so far."""
        self._heads.stop()
        self.key, self._first, self._tries = None, {}, 0

    def look_out(self, frame: FrameType) -> None:
        """A step was made: the first round of a loop without a loader may be at work."""
        passes = self._passes
        if self.key or passes.trained or passes.broken or self._tries >= _TRIES:
            return
        if not passes.open:
            self._find(frame)

    def expect_step(self) -> None:
        """A pass begins: hear of the first step, which is in the loop that trains."""
        if self._hook is None:
            self._hook = register_optimizer_step_post_hook(self._stepped)

    def _stepped(self, *about: Any) -> None:
        self._hook.remove()
        passes = self._passes
        if self.key is None and passes.open and passes.need_rounds and not passes.trained:
            self._find(sys._getframe(1))

    def _find(self, frame: FrameType) -> None:
        with self._or_broken():
            self._tries += not self._heads.wait(frame, None)
            if self._tries >= _TRIES:
                raise RefusedError("the optimizer steps outside of a loop")

    def wait(self, frame: FrameType | None) -> bool:
        """Wait for the end of the round at work; False where none is."""
        found = False
        with self._or_broken():
            self._heads.tidy(frame)
            found = self._heads.wait(frame, self.key)
        return found

    def check_here(self, frame: FrameType | None) -> None:
        """Refuse a script that trains in another loop than at first."""
        at = next(user_frames(frame), None)
        if self.key is None or at is None or self.wait(frame):
            return
        text = "the training is in another loop than at first; only the first is gone on with"
        raise RefusedError(text, at.f_code.co_filename, at.f_lineno)

    @contextlib.contextmanager
    def _or_broken(self) -> Iterator[None]:
        """What goes wrong costs the resume, never the training."""
        try:
            yield
        except RefusedError as refusal:
            self._passes.broken = refusal.alone()
        except Exception as error:
            self._passes.broken = RefusedError(f"{type(error).__name__}: {error}")

    def _ends(self, frame: FrameType, key: Key) -> bool:
        if self._arrives is None and self.key is None:
            with aside(), self._or_broken():
                self._first = self.place(frame, key)
                self.key = key
                if not self._passes.later:
                    self._passes.began_at = time.time()
                self._passes.by_rounds()
                self._passes.look(frame, self._feeds.take)
            return True
        if self._arrives is not None:
            with aside():
                self._hook.remove()
                arrives, self._arrives, self.key = self._arrives, None, key
                arrives(frame, key)
            return True
        again = False
        self.at_head = True
        try:
            with self._or_broken():
                again = not self._comes(frame)
        finally:
            self.at_head = False
        return not again

    def begins_anew(self, frame: FrameType, key: Key) -> None:
        """In a resumed run: where the first round has led to."""
        self._first = self.place(frame, key)

    def place(
        self, frame: FrameType, key: Key, taken: Callable[[Any, str], Any] | None = None
    ) -> dict[str, Any]:
        """Where the script stands, as plain data; without ``taken`` not what its loops read."""
        frames = chain(frame)
        found = places(loops_at_work(frames, key[2]), frames, taken or (lambda one, path: None))
        if taken is None:
            found = shapes(found)
        return {"key": key, "position": position(frames), "places": found}

    def taken(self, frame: FrameType, taken: Callable[[Any, str], Any]) -> dict[str, Any]:
        """The same for a checkpoint, which the end of the first round must lead to."""
        assert self.key is not None
        here, frames = self.place(frame, self.key, taken), chain(frame)
        if here["position"] != self._first["position"]:
            file = frames[-1].f_code.co_filename
            text = "the loop is called from another line than in its first round"
            raise RefusedError(text, file, frames[-1].f_lineno)
        check_alike(self._first["places"], here["places"], frames)
        return here
