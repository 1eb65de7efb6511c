"""Findings on the engine itself: that it began anew, and what its metrics do not tell."""

import logging
from collections import deque
from collections.abc import Callable

from foreword.engines.base import Engine
from foreword.findings import Board, Finding, Severity

logger = logging.getLogger(__name__)

SUBJECT = "engine"
RESTARTS_SECONDS = 3600.0
"""How long a restart stays a finding."""
ONE_RESTART_SECONDS = 60.0
"""Signs of a restart that come within this time are signs of the same one."""
MANY_RESTARTS = 3
REFUSALS = 2
"""Answers without metrics in a row that make a finding: one may be an engine that starts."""


class Restarts:
    """Finding ``engine-restart``."""

    def __init__(self, board: Board, clock: Callable[[], float], wall: Callable[[], float]) -> None:
        self._board = board
        self._clock = clock
        self._wall = wall
        self._lately: deque[float] = deque(maxlen=100)
        self.count = 0
        """Since the watch began."""

    def seen(self, source: str) -> bool:
        """The engine began anew, as its metrics or its log show; False where that was known already."""
        now, wall = self._clock(), self._wall()
        if self._lately and now - self._lately[-1] < ONE_RESTART_SECONDS:
            return False
        self._lately.append(now)
        self.count += 1
        logger.warning("the engine has restarted (seen in its %s)", source)
        severity: Severity = "info" if len(self._lately) < MANY_RESTARTS else "warning"
        self._board.set(
            Finding(
                id="engine-restart",
                subject=SUBJECT,
                severity=severity,
                first_seen=wall,
                last_seen=wall,
                count=len(self._lately),
                advice="The engine began anew: its caches, checkpoints and parked conversations are empty, and the next"
                " turn of each conversation is read whole. Losses just after it are no fault of the prompts.",
                evidence={"seen_in": source, "restarts_last_hour": len(self._lately)},
            )
        )
        return True

    def review(self) -> None:
        """Forgets old restarts."""
        now = self._clock()
        while self._lately and now - self._lately[0] > RESTARTS_SECONDS:
            self._lately.popleft()
        if not self._lately:
            self._board.clear("engine-restart", SUBJECT)


class MissingMetrics:
    """Finding ``metrics-missing``."""

    def __init__(self, board: Board, wall: Callable[[], float]) -> None:
        self._board = board
        self._wall = wall
        self._told: tuple[str, ...] | None = None
        self._refusals = 0
        self.missing: tuple[str, ...] = ()
        """Expected families that the last reading lacked."""

    def there(self, engine: Engine, missing: tuple[str, ...], version: str | None) -> None:
        """A reading came, without the families of ``missing``."""
        if not missing:
            self.forget()
            return
        self._refusals, self.missing = 0, missing
        if missing != self._told:
            logger.warning("the engine's metrics lack %s", ", ".join(missing))
            self._told = missing
        advice = (
            f"This version of {engine.kind} does not show all that is watched. What the missing families would tell is"
            " not known; it is not zero."
        )
        evidence: dict[str, object] = {"missing": list(missing), "version": version}
        self._set("info", len(missing), advice, evidence)

    def forget(self) -> None:
        """Nothing is missing, or nothing is expected."""
        self._refusals, self.missing = 0, ()
        if self._told is not None:
            self._board.clear("metrics-missing", SUBJECT)
            self._told = None

    def refused(self, engine: Engine | None, answer: str) -> None:
        """The engine answered, but not with metrics."""
        self._refusals += 1
        if self._refusals < REFUSALS:
            return
        self._told = ()
        flag = engine.metrics_flag if engine else None
        advice = (
            f"The engine shows no metrics: start it with {flag}."
            if flag
            else "The engine shows no metrics, so its caches and its queue cannot be watched."
        )
        self._set("warning", 1, advice, {"answer": answer})

    def _set(self, severity: Severity, count: int, advice: str, evidence: dict[str, object]) -> None:
        wall = self._wall()
        self._board.set(
            Finding(
                id="metrics-missing",
                subject=SUBJECT,
                severity=severity,
                first_seen=wall,
                last_seen=wall,
                count=count,
                advice=advice,
                evidence=evidence,
            )
        )
