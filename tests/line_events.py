"""Events of measured lines as the training side writes them, made up for detectors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

FILE = "src/train.py"
LOOP = (50, 60)
TIMES = {
    "fastest_block": 0.002, "last_block": 0.005, "typical": 0.002, "waiting": 0.0, "busier": True,
    "seconds": 4.0,
}  # fmt: skip

Sources = Mapping[int, Mapping[str, Any]]


class Places:
    """Numbers the lines of one file, with what the source says there."""

    def __init__(self, sources: Sources) -> None:
        self.sources = sources
        self.places: list[dict[str, Any]] = []
        self.known: dict[int, int] = {}

    def __call__(self, line: int) -> int:
        if line not in self.known:
            self.known[line] = len(self.places)
            place = {"at": [0, line], "first": line, "code": "x = slow(y)  # as it was"}
            self.places.append(place | {"calls": ["slow"]} | dict(self.sources.get(line, {})))
        return self.known[line]

    def line(self, line: int, seconds: float, **more: Any) -> dict[str, Any]:
        path = more.pop("path", (line,))
        cache = {"cache": self(more.pop("cache"))} if "cache" in more else {}
        facts = {"function": "f", "mark": "", "direct": True, "hits": 1.0}
        data = {"path": [self(at) for at in path], "seconds": seconds}
        return facts | data | more | cache

    def data(self) -> dict[str, Any]:
        return {"files": [FILE], "places": self.places}


def profile(places: Places, lines: Sequence[tuple[int, float, dict[str, Any]]], **counts: Any):
    told = [places.line(line, seconds, **more) for line, seconds, more in lines]
    total = sum(line["seconds"] for line in told)
    return {"seconds": total, "per_model": 16.0, "lines": told, **counts}


def look(
    purpose: str,
    now: Sequence[tuple[int, float, dict[str, Any]]],
    baseline: Sequence[tuple[int, float, dict[str, Any]]] | None = None,
    *,
    sources: Sources | None = None,
    counts: Mapping[str, float] | None = None,
    counted: Mapping[str, float] | None = None,
    times: Mapping[str, Any] | None = None,
    registering: Sequence[int] = (),
    feeds: Sequence[int] = (),
    history: Mapping[int, str] | None = None,
    **more: Any,
) -> tuple[str, dict[str, Any]]:
    """A ``line_times`` event; each line is (number, seconds, what differs from the loop's own)."""
    places = Places(sources or {})
    data = {
        "look": purpose,
        "rare": False,
        "times": {**TIMES, **(times or {})},
        "batch": 4,
        "cores": 8,
        "passes": 1,
        "turn": {"path": [places(LOOP[0] + 1)], "loop": [0, *LOOP], "outer": [0, 40, 70]},
        "now": profile(places, now, **(counted or {})),
        "registering": [places(line) for line in registering],
        "feeds": [places(line) for line in feeds],
        "history": [[places(line), name] for line, name in (history or {}).items()],
    }
    if baseline is not None:
        data["baseline"] = profile(places, baseline, **(counts or {}))
    return "line_times", data | more | places.data()


def fetches(line: int, seconds: float, **more: Any) -> tuple[int, float, dict[str, Any]]:
    """A line of the dataset."""
    return line, seconds, {"mark": "fetch", **more}


def called(line: int, seconds: float, mark: str) -> tuple[int, float, dict[str, Any]]:
    """A line of the loop that calls a model, ``backward`` or an optimizer."""
    return line, seconds, {"mark": mark, "direct": False, "hits": 0.0}


def waits(line_seconds: float = 0.0012, waiting: float = 0.6, *, caches: bool = False, **more: Any):
    """The loop waits for a dataset whose line 7 is slow."""
    asked = {"cache": 3} if caches else {}
    now = [fetches(7, line_seconds, **asked)]
    now += [called(55, 0.0005, "model"), called(57, 0.0005, "optimizer")]
    times = {"waiting": waiting} | more.pop("times", {})
    return look("waits", now, times=times, **more)


def stalls(**more: Any):
    """Line 57 saves the state every five steps."""
    facts = {"calls": ["torch.save"], "code": "torch.save(state, path)  # as it was"}
    counted = {"stalls": [[step, 0.02, False] for step in range(10, 60, 5)]}
    given = {"sources": {57: facts}, **counted, **more}
    return look("stall", [(57, 0.02, {}), (52, 0.002, {})], [(52, 0.002, {})], **given)


def slower(seconds: float = 0.0035, **more: Any):
    """Line 57 takes longer than at first."""
    now, before = (57, seconds, {}), (57, 0.0005, {})
    rest = called(52, 0.0015, "model")
    return look("slow", [now, rest], [before, rest], **more)


def reads(**more: Any):
    """Line 57 reads 64 numbers in each step."""
    places = Places({})
    read = {"path": [places(57)], "function": "f", "read": "item", "count": 64.0, "direct": True}
    read |= {"seconds": 0.0001, "loop_seconds": 0.0009, **more}
    data = {"reads": [read], "models": 1.0, "step_seconds": 0.003}
    return "tensor_reads", data | {"times": TIMES} | places.data()


def compiled(**more: Any):
    """A function is compiled again and again."""
    data = {"file": FILE, "line": 57, "code": "x = slow(y)  # as it was", "name": "forward"}
    data |= {"defined": "a.py:3", "times": 3, "same": 3, "seconds": 2.0, "guard": "k == 3"}
    return "recompile", data | {"trained": 4.0} | more


def loader(slowest: Sequence[Any] = (None, 0.004), samples: int = 1, **more: Any):
    """Line 7 of a dataset keeps two workers busy."""
    places = Places({})
    data = {
        "rare": False,
        "times": TIMES | {"waiting": 0.6},
        "workers": 2,
        "passes": 1,
        "samples": samples,
        "per_sample": 0.004,
        "made": 0.016,
        "cores": 8,
        "slowest": list(slowest),
        "lines": [places.line(7, 0.003, mark="fetch"), places.line(8, 0.001, mark="fetch")],
        "asks": places.line(50, 0.0, hits=0.0),
        "may_fetch": False,
    }
    return "loader_times", data | more | places.data()
