"""Iterators over loaders that a script asks by hand: where they are, and how they come there again.

Beside ``for batch in loader`` a loop may hold an iterator, or several, and ask with ``next``. Such
an iterator is saved as how its pass began and how many batches it has handed out, as a variable of
the script is saved by its value. A resumed script has made it once more by itself, and it goes on:

without workers   the pass is begun anew with the random state of then; its draws are left behind
workers of then   begun before the first round was over: they go on from there, pass by pass, and do
                  all the work again, so that what they draw for themselves comes out the same
later workers     started anew, if all that they can see is still what it was when they started
a stream without workers has the place of its own iterator
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch.utils.data import DataLoader, IterableDataset, IterDataPipe
from torch.utils.data._utils import signal_handling
from torch.utils.data.dataloader import (
    _MultiProcessingDataLoaderIter,
    _SingleProcessDataLoaderIter,
)

from ..checkpoint import rng
from ..checkpoint.loader_pass import (
    LASTING,
    Beginning,
    LoaderPass,
    return_to,
)
from .leading import LoadedAgain
from .passes import Open
from .refusal import RefusedError, say
from .sight import Sight, runs_own_code, shares_memory, writes
from .streams import put_stream, take_stream, worker_is_out
from .values.nodes import KIND, Node, Take, shown

_KINDS = (_SingleProcessDataLoaderIter, _MultiProcessingDataLoaderIter)
_MOST = 1024
"""Passes that workers which last are led through again; each takes 13 kB of every checkpoint."""


@dataclass(slots=True, eq=False)
class Feed:
    """An iterator over a loader that is there."""

    iterator: weakref.ref[Any]
    loader: Callable[[], Any]
    beginning: Beginning
    early: bool
    """Whether a resumed script comes by where its workers were started."""
    before: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    """Passes that its workers have had before, where they last."""
    over: bool = False
    within: bool = False
    """Whether a pass of it was inside another, which no resumed script goes through."""
    lost: bool = False
    """Whether there were too many passes to remember."""
    sight: Sight | None = None
    """What workers that were started later could see then."""

    def passes(self) -> list[dict[str, Any]]:
        """All passes of its workers, the last of which is the one at work."""
        iterator = self.iterator()
        now = self.beginning.state(int(getattr(iterator, "_num_yielded", 0)))
        return [*self.before, {**now, "over": self.over}]


class Feeds:
    """The iterators over loaders of this process.

    Args:
        early: whether the first round of the training is not over yet.
    """

    def __init__(self, early: Callable[[], bool]) -> None:
        self._early = early
        self._of: dict[int, Feed] = {}
        self._wanted: list[tuple[Any, Node, str]] = []

    # ------------------------------------------------------------------ while the script runs

    def begins(self, loader: Any) -> None:
        """A pass is about to begin: with workers that last, the one before is over."""
        feed = self._of.get(id(getattr(loader, "_iterator", None)))
        if feed is None:
            return
        if len(feed.before) < _MOST:
            feed.before = feed.passes()
        else:
            feed.lost = True

    def began(self, loader: Any, iterator: Any, beginning: Beginning, *, within: bool) -> None:
        """Its iterator is there."""
        if type(iterator) not in _KINDS or not isinstance(loader, DataLoader):
            return
        key = id(iterator)
        known = self._of.get(key)
        if known is not None:
            known.beginning, known.over = beginning, False
            known.within = known.within or within
            return
        gone = weakref.ref(iterator, lambda _, key=key: self._of.pop(key, None))
        # A loader that keeps its iterator would keep itself.
        held = weakref.ref(loader) if loader.persistent_workers else lambda: loader
        feed = self._of[key] = Feed(gone, held, beginning, self._early(), within=within)
        if loader.num_workers and not feed.early:
            feed.sight = Sight.of(loader, iterator)

    def ended(self, iterator: Any) -> None:
        """An iterator has nothing more."""
        feed = self._of.get(id(iterator))
        if feed is not None:
            feed.over = True

    def of(self, iterator: Any) -> Feed | None:
        """What is known of an iterator."""
        return self._of.get(id(iterator))

    # ------------------------------------------------------------------ saving

    def take(self, iterator: Any, path: str, take: Take) -> Node:
        """The node of an iterator."""
        feed = self._of.get(id(iterator))
        loader = None if feed is None else feed.loader()
        if feed is None or loader is None or feed.beginning.origin is None:
            raise RefusedError(f"how the pass of {shown(path)} over its loader began is not known")
        why = _doubt(feed, loader, iterator)
        if why:
            raise RefusedError(f"{shown(path)} reads a loader that cannot be gone on with: {why}")
        node: Node = {
            KIND: "pass",
            "c": type(iterator).__name__,
            "f": about(loader),
            "e": feed.early,
            "l": take(loader, f"{path}.loader"),
            "p": feed.passes(),
        }
        if _is_stream(loader) and not loader.num_workers:
            node["s"] = take_stream(iterator, path, take, over=feed.over)
        return node

    def check(self, one: Open) -> None:
        """Refuse workers of a pass that no resumed script can lead to where they were."""
        file = one.code.co_filename if one.code is not None else ""
        own = self._of.get(one.key)
        if own is not None and one.loader["stream"] and one.loader["workers"]:
            why = worker_is_out(one.iterator()) or _led_in_vain(own.loader())
            if why:
                text = f"{one.loader['dataset']} is an iterable dataset: {why}"
                raise RefusedError(text, file, one.lines[0])
        for feed in list(self._of.values()):
            loader = feed.loader()
            if loader is None or not (loader.persistent_workers and runs_own_code(loader)):
                continue
            name = type(loader.dataset).__name__
            if feed.within:
                text = f"{LASTING}, and {name} is read inside of the loop over another loader"
                raise RefusedError(f"{text} (persistent_workers)", file, one.lines[0])
            if why := _led_in_vain(loader):
                text = f"the workers of {name} last (persistent_workers): {why}"
                raise RefusedError(text, file, one.lines[0])

    # ------------------------------------------------------------------ a resumed run

    def put(self, live: Any, node: Node, path: str, value: Callable[[Any, Node, str], Any]) -> None:
        """Note where an iterator is to go on; ``lead`` brings it there."""
        feed = self._of.get(id(live))
        loader = None if feed is None else feed.loader()
        if feed is None or loader is None or type(live).__name__ != node["c"]:
            raise RefusedError(f"{shown(path)} is no {node['c']} of a loader in the resumed run")
        here = about(loader)
        for key, saved in node["f"].items():
            if here.get(key) != saved:
                text = f"the loader of {shown(path)} has {key} {here.get(key)}, it had {saved}"
                raise RefusedError(text)
        if value(loader, node["l"], f"{path}.loader") is not loader:
            raise RefusedError(f"{shown(path)} reads another loader in the resumed run")
        if "s" in node:
            put_stream(live, node["s"], path, value)
            live._num_yielded = int(node["p"][-1]["batches"])
            feed.over = bool(node["p"][-1]["over"])
        else:
            self._wanted.append((live, node, path))

    def lead(self) -> bool:
        """Bring all iterators to where they were; True where that has drawn anything.

        Random numbers and the generators of loaders are then anywhere: who knows them puts them
        back.
        """
        wanted, self._wanted = self._wanted, []
        work = LoadedAgain()
        for live, node, path in wanted:
            feed = self._of[id(live)]
            loader, passes = feed.loader(), node["p"]
            if loader.num_workers and (node["e"] or loader.persistent_workers):
                self._go_on(feed, loader, passes, path, work)
            else:
                self._begin_anew(feed, loader, passes[-1], path)
        return bool(wanted)

    def forget_wanted(self) -> None:
        """The values were put back once more: the iterators are where they were."""
        self._wanted = []

    def _go_on(
        self, feed: Feed, loader: Any, passes: list[Mapping[str, Any]], path: str, work: LoadedAgain
    ) -> None:
        """Have workers that were started as they were do all that they did."""
        live, done = feed.iterator(), feed.passes()
        if len(done) > len(passes) or not all(map(_begins_as, done, passes)):
            raise RefusedError(f"{shown(path)} begins with other random numbers than it did")
        for number, saved in enumerate(passes[len(done) - 1 :]):
            if number:
                return_to(loader, saved["origin"])
                self.begins(loader)
                beginning = Beginning(loader)
                if iter(loader) is not live:
                    raise RefusedError(f"the workers of {shown(path)} do not last")
                beginning.of(live)
                self.began(loader, live, beginning, within=False)
            work.through(live, int(saved["batches"]), over=bool(saved["over"]), what=shown(path))
            feed.over = bool(saved["over"])
            if not feed.beginning.draws(saved):
                raise RefusedError(f"the loader of {shown(path)} draws other samples than it did")

    def _begin_anew(self, feed: Feed, loader: Any, saved: Mapping[str, Any], path: str) -> None:
        """Begin a pass as it began, in place of the one that the script has begun."""
        live = feed.iterator()
        made = LoaderPass.again(loader, saved, fast=False, say=say)
        if made.why:
            raise RefusedError(f"{made.why} ({shown(path)})")
        if saved["over"]:
            LoadedAgain().through(made.iterator, int(saved["batches"]), over=True, what=shown(path))
        _change_places(live, made.iterator)
        feed.beginning, feed.before, feed.over = made.beginning(), [], bool(saved["over"])
        feed.early = False
        feed.sight = Sight.of(loader, live) if loader.num_workers else None


# ---------------------------------------------------------------------- details


def about(loader: Any) -> dict[str, Any]:
    """What a loader must have in common with that of an earlier run, beside what it reads."""
    return {
        "class": type(loader).__name__,
        "dataset": type(loader.dataset).__name__,
        "batch": loader.batch_size or 0,
        "workers": int(loader.num_workers),
        "persistent": bool(loader.persistent_workers),
        "prefetch": loader.prefetch_factor or 0,
        "drop_last": bool(loader.drop_last),
    }


def _is_stream(loader: Any) -> bool:
    return isinstance(loader.dataset, IterableDataset)


def _doubt(feed: Feed, loader: Any, iterator: Any) -> str:
    """Why an iterator cannot come to its place again; empty where it can."""
    name = type(loader.dataset).__name__
    if isinstance(loader.dataset, IterDataPipe):
        return f"{name} is a data pipe"
    if not loader.in_order:
        return "in_order=False hands out batches as they come"
    if not loader.num_workers:
        return ""
    if feed.lost:
        return f"its workers have been through more than {_MOST:,} passes"
    if not feed.over and (by_chance := worker_is_out(iterator)):
        return by_chance
    if feed.early or loader.persistent_workers:
        if not feed.early:
            return "its workers last and were started after the first round of the training"
        return _led_in_vain(loader)
    if not runs_own_code(loader):
        return ""
    if feed.sight is None:
        return "what its workers see is not known"
    changed = feed.sight.changed(iterator)
    if changed:
        return f"its workers run code of the script and were started before {changed} changed"
    return ""


def _led_in_vain(loader: Any) -> str:
    """Why workers that do all their work again may not end where they were, or do harm."""
    if shared := shares_memory(loader):
        return f"its workers see {shared}, which may change under them"
    if writer := writes(loader):
        return f"its workers would write twice what they wrote ({writer})"
    return ""


def _begins_as(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    then, here = one["origin"], other["origin"]
    return rng.same(then["dice"], here["dice"]) and then["reused"] == here["reused"]


def _change_places(live: Any, made: Any) -> None:
    """Have an iterator go on as another one, so that whoever holds it sees that."""
    pids = []
    for one in (made, live):
        workers = getattr(one, "_workers", ())
        pids.append(tuple(worker.pid for worker in workers))
        if getattr(one, "_worker_pids_set", False):
            signal_handling._remove_worker_pids(id(one))
    live.__dict__, made.__dict__ = made.__dict__, live.__dict__
    for one, its in zip((live, made), pids, strict=True):
        if getattr(one, "_worker_pids_set", False):
            signal_handling._set_worker_pids(id(one), its)
