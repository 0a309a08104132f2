from __future__ import annotations

from typing import Any

from holdfast.launcher.drain import Drain
from holdfast.types import Finding, Severity


class Lane:
    """Of a lane only what was written."""

    def __init__(self) -> None:
        self.written: dict[Any, int] = {}


def test_a_finding_is_written_again_when_it_is_explained_or_seen_twice_as_often():
    lane: Any = Lane()

    def written(count: int, **evidence: Any) -> bool:
        finding = Finding(
            code="NUM001", name="x", severity=Severity.ERROR, step=3, message="m", advice="a",
            evidence={"count": count, **evidence},
        )  # fmt: skip
        return Drain._worth_writing(lane, finding)

    assert [written(n) for n in (1, 1, 2, 3, 4)] == [True, False, True, False, True]
    assert written(4, headline="log of 0"), "the cause became known"
    assert not written(5, headline="log of 0")
    assert written(5, headline="log of 0 in backward"), "a better one"
