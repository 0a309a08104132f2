"""When the next look at everything in reach is due: soon while something grows, else rarely."""

from __future__ import annotations

from time import perf_counter

# Steps between the looks of a round, and between rounds (doubled each time).
APART = 3
_ROUND = 16
_LONGEST = 512
# Looks without which nothing can be compared.
_LOOKS = 3
# Share of the time of a run that looks may take: as a rule, and while something grows.
_SHARE = 0.003
_SHARE_ALERT = 0.02


class LookSchedule:
    """Keeps looks cheap compared with the steps between them."""

    def __init__(self) -> None:
        self.alert = False
        """Something grows, or there is a sign of it."""
        self._next = 2
        self._looks = 0
        self._last = 0
        self._apart = 0
        self._cost = 1e-3
        self._round = 0.0
        self._gap = _ROUND
        self._began: tuple[float, int] | None = None

    def due(self, step: int) -> bool:
        """Whether to look at the end of this step."""
        return step >= self._next

    def order(self, step: int) -> bool:
        """There is a sign of growth: look soon; whether a new round of looks begins."""
        self.alert = True
        if self._next <= step + 1:
            return False
        self._next, self._looks = step + 1, 0
        return True

    def looked(self, step: int, seconds: float) -> bool:
        """A look has taken some seconds; whether there are enough of them to compare."""
        if self._began is None:
            self._began = perf_counter(), step
        self._looks += 1
        self._apart, self._last = step - self._last, step
        self._next = step + APART
        # One that was interrupted must not put off all the others.
        self._cost = min(seconds, 2 * self._cost)
        self._round += self._cost
        return self._looks >= _LOOKS

    @property
    def close(self) -> bool:
        """Whether the last look came soon after the one before: what grew then, grows now."""
        return self._apart <= 2 * APART

    def plan(self, step: int, wait: int | None) -> None:
        """Set the next look after a comparison.

        Args:
            step: where the loop is.
            wait: steps until something that grows is to be measured again; None where nothing is.
        """
        self.alert = wait is not None
        apart = self._gap if wait is None else max(APART, min(wait, self._gap))
        if wait is None:
            self._gap = min(2 * self._gap, _LONGEST)
        if self.alert and not self.close:
            # After a long pause a second look shows whether it still goes on.
            self.soon(step)
            return
        self._next = step + max(apart, self._affordable(step))
        self._round = 0.0

    def soon(self, step: int) -> None:
        """Go on with looks after something else has been measured."""
        self._next = step + APART

    def _affordable(self, step: int) -> int:
        """Steps that must pass until looks like the last ones are cheap enough."""
        if self._began is None or step <= self._began[1]:
            return 0
        each = max(1e-6, (perf_counter() - self._began[0]) / (step - self._began[1]))
        # What grows is looked at twice in a round.
        cost, share = (self._round, _SHARE_ALERT) if self.alert else (self._cost, _SHARE)
        return int(cost / (share * each))
