"""All detectors of exchanges behind one door."""

import logging
from collections.abc import Callable, Mapping
from typing import Any

from foreword.findings.board import Board
from foreword.findings.compaction import EarlyCompaction
from foreword.findings.detector import Detector
from foreword.findings.eviction import CheckpointCollapse, Drops, EvictionStorm
from foreword.findings.exchange import Exchange
from foreword.findings.line import LINES, Line, Lines
from foreword.findings.memory import Memory
from foreword.findings.minimum import BelowMinimum
from foreword.findings.overflow import OverflowLoop
from foreword.findings.pace import Pace
from foreword.findings.pinned import PinnedReuse
from foreword.findings.reassembled import ReassembledBlock
from foreword.findings.reporting import UsageNotReported
from foreword.findings.volatile import VolatileSegment

_log = logging.getLogger(__name__)

EXPIRY_SECONDS = 60.0
"""How often, by the time of the records, silent cases are looked for."""


class Detectors:
    """Hands each final exchange record to every detector. A bug in one of them harms neither the others nor a request.

    ``window`` tells the engine's context window in tokens, None while it is not known. ``lines``: of so many
    conversation lines something is remembered; the one that was used least recently is forgotten first.
    """

    def __init__(
        self, board: Board, window: Callable[[], int | None] = lambda: None, lines: int = LINES
    ) -> None:
        kept: Lines = Memory(lines, Line)
        drops = Drops(kept)
        self._all: tuple[Detector[Any], ...] = (
            VolatileSegment(board, kept),
            PinnedReuse(board, kept),
            EvictionStorm(board, drops),
            CheckpointCollapse(board, drops),
            ReassembledBlock(board, kept),
            EarlyCompaction(board, window, kept, lines),
            OverflowLoop(board, window),
            UsageNotReported(board),
            BelowMinimum(board),
        )
        self._pace = Pace()
        for detector in self._all:
            detector.pace = self._pace
        self._now = float("-inf")
        self._expired = float("-inf")
        self.failures: dict[str, int] = dict.fromkeys((*(each.id for each in self._all), "pace"), 0)
        """Records that a detector failed on, by its id."""

    def note(self, record: Mapping[str, object]) -> None:
        """One final record. Preliminary ones are not for detectors; they come again when they are settled."""
        if record.get("pending") is True:
            return
        exchange = Exchange.of(record)
        self._now = max(self._now, exchange.time)
        expiring = self._now - self._expired >= EXPIRY_SECONDS
        if expiring:
            self._expired = self._now
        try:
            self._pace.note(exchange)
        except Exception:
            self._failed("pace")
        for detector in self._all:
            try:
                detector.note(exchange)
                if expiring:
                    detector.expire(self._now)
            except Exception:
                self._failed(detector.id)

    def _failed(self, detector: str) -> None:
        self.failures[detector] += 1
        if self.failures[detector] == 1:
            _log.exception(
                "the detector of %s failed; it goes on, and further failures are only counted", detector
            )
