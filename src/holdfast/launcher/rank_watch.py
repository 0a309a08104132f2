"""Compare the lanes of all ranks while they train, from what lies in the run folder.

One supervisor does it, the one of the first rank: it reads the lanes of the others, which may have
supervisors of their own. Nothing is recorded: whoever reads the run later finds the same.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from ..detectors import Detector
from ..detectors.comparison import compare_ranks
from ..errors import HoldfastError
from ..run import Run, read_run
from ..types import Finding

_FIRST = 10.0
# Of the time of the supervisor at most one part in so many.
_SHARE = 100


class RankWatch:
    """Reads and compares now and then.

    Args:
        run: whose lanes.
        detectors: those that compare ranks among them are asked.
        clock: seconds, for tests.
    """

    def __init__(
        self,
        run: Run,
        detectors: Iterable[type[Detector] | Detector],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._run, self._detectors, self._clock = run, list(detectors), clock
        self._next = clock() + _FIRST
        self.findings: list[Finding] = []
        """Those of the last look."""
        self._reported: dict[object, str] = {}

    @property
    def due(self) -> bool:
        """Whether it is time."""
        return self._clock() >= self._next

    def look(self, *, now: bool = False) -> list[Finding]:
        """The findings that are new or say something else, if it is time; ``now``: it is."""
        began = self._clock()
        if not now and not self.due:
            return []
        try:
            self.findings = compare_ranks(
                [(lane, lane.findings) for lane in read_run(self._run)], self._detectors
            ).findings
        except (HoldfastError, OSError):  # files that another supervisor is writing
            self.findings = []
        took = self._clock() - began
        self._next = self._clock() + max(_FIRST, _SHARE * took)
        fresh = [f for f in self.findings if self._reported.get(f.key) != _said(f)]
        self._reported |= {finding.key: _said(finding) for finding in fresh}
        return fresh


def _said(finding: Finding) -> str:
    """What is worth printing again: another rank or another line, not other numbers."""
    return f"{finding.severity} {finding.rank} {finding.file}:{finding.line}"
