"""Watches one engine beside the requests: its metrics, its log, and what both say together."""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from typing import Protocol

import orjson

from foreword.engines.base import Engine, Fetch
from foreword.engines.loglines import LogReader, PromptRead, Unknown
from foreword.engines.probe import engine_of
from foreword.engines.reading import Reading
from foreword.engines.state import EngineState
from foreword.findings import Board
from foreword.settings import Settings
from foreword.watching.engine_findings import MissingMetrics, Restarts
from foreword.watching.follower import Follower, Lines
from foreword.watching.joiner import Joiner, Settler
from foreword.watching.meter import Meter
from foreword.watching.parking import Parking
from foreword.watching.parking_findings import ParkingFindings
from foreword.watching.reuse import Reuse
from foreword.watching.scrape import Scraper
from foreword.watching.second_level import SecondLevel

logger = logging.getLogger(__name__)

UNKNOWN_SECONDS = 0.2
"""Until the next look whether the engine's kind, and with it the form of its metrics, is known by now."""
POLL_SECONDS = 0.1
"""Between two looks at the log."""
REVIEW_SECONDS = 5.0


class Core(Settler, Protocol):
    """The part of the Rust core that the watch needs."""

    def update(self, *, engine_log: bool | None = None, block_tokens: int | None = None) -> None:
        """Whether exchanges whose engine reports no cached tokens wait for its log; a block of its prefix cache."""


class Observer:
    """Everything that is watched of one engine. All of it runs on the event loop but the reading of the log file."""

    def __init__(
        self,
        settings: Settings,
        fetch: Fetch,
        state: EngineState,
        board: Board,
        *,
        core: Core | None,
        final: Callable[[bytes], None],
        doubt: Callable[[bool], None],
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        """``core`` closes pending records; None where there are none. ``final`` gets those that were closed.
        ``doubt``: the engine may be away, or (True) has restarted."""
        self._settings = settings
        self._state = state
        self._board = board
        self._core = core
        self._doubt = doubt
        self._clock = clock
        self._wall = wall
        self.meter = Meter()
        self.reuse = Reuse(lambda: self.meter.totals.get("l2_stored_bytes"), settings.sessions)
        self.second_level = SecondLevel(board, self.reuse)
        self.parking = Parking()
        self._parking_findings = ParkingFindings(self.parking, board)
        self.restarts = Restarts(board, clock, wall)
        self.missing = MissingMetrics(board, wall)
        self.scraper = Scraper(fetch, state, self._take, clock)
        self.follower = None if settings.engine_log is None else Follower(settings.engine_log)
        self.joiner = None if core is None or self.follower is None else Joiner(core, final, clock)
        self.patience = 3 * settings.engine_metrics_seconds
        """Seconds after which a reading of the engine's metrics is out of date."""
        self._reader: LogReader | None = None
        self._reader_kind = ""
        self._holding = False
        self._block_tokens: int | None = None
        self._log_trouble: str | None = None
        self._log_restarts = 0
        self.lines: dict[str, int] = dict.fromkeys(("parsed", "other", "unknown"), 0)
        """Log lines: parsed, about other things, or about prompts and parking but not understood."""

    async def run(self) -> None:
        """Watches until it is cancelled."""
        async with asyncio.TaskGroup() as tasks:
            if self._settings.engine_metrics_seconds > 0:
                tasks.create_task(self._scrape())
            if self.follower is not None:
                tasks.create_task(self._follow(self.follower))
            tasks.create_task(self._review())

    def close(self) -> None:
        """Lets nothing wait any longer: the process ends."""
        if self.joiner is not None:
            self.joiner.give_up()
        if self.follower is not None:
            self.follower.close()

    def holds(self, record: bytes) -> bool:
        """Whether the record waits for the engine's log: then it will come again, closed."""
        if b'"pending":true' not in record or self.joiner is None:
            return False
        try:
            self.joiner.pending(orjson.loads(record))
        except Exception:  # never at the cost of the record
            logger.exception("a pending record could not be taken")
            return False
        return True

    def note(self, record: Mapping[str, object]) -> None:
        """A final record of an exchange."""
        self.reuse.note(record)

    def read_lines(self, arrived: Lines) -> None:
        """Takes lines of the log, as they come from the follower."""
        reader = self._log_reader()
        if reader is None:
            self.lines["other"] += len(arrived.lines)
            return
        now = self._clock()
        for line in arrived.lines:
            events = reader.read(line)
            understood = [event for event in events if not isinstance(event, Unknown)]
            self.lines["parsed" if understood else "unknown" if events else "other"] += 1
            for event in understood:
                self.parking.note(event, now, history=arrived.history)
                if isinstance(event, PromptRead) and not arrived.history and self.joiner is not None:
                    self.joiner.line(event)
        if self.parking.restarts > self._log_restarts:
            self._log_restarts = self.parking.restarts
            self._restarted("log")

    def review(self) -> None:
        """Brings the findings that change with time up to date."""
        asked = self.parking.prompts or int(self.meter.window().of("requests") or 0)
        self._parking_findings.review(self._clock(), self._wall(), self.meter.gauges, asked)
        self.restarts.review()

    async def _scrape(self) -> None:
        while True:
            begun = self._clock()
            good = await self.scraper.once()
            try:
                self._scraped(good=good)
            except Exception:  # diagnosis never stops anything
                logger.exception("a reading of the engine's metrics could not be judged")
            await asyncio.sleep(self._rest(self._clock() - begun))

    def _rest(self, spent: float) -> float:
        """Seconds until the next scrape. The first one is due as soon as its answer can be read: verdicts need the size
        of the engine's blocks, and a restart is only seen by who has seen what was before.
        """
        seconds = self._settings.engine_metrics_seconds
        if engine_of(self._state.kind) is None:
            return min(seconds, UNKNOWN_SECONDS)
        return max(0.05, seconds - spent)

    def _scraped(self, *, good: bool) -> None:
        trouble = self.scraper.trouble
        if not good and trouble is None:  # nothing is known of this kind's metrics
            self.missing.forget()
        if self.scraper.refused and trouble is not None:
            self.missing.refused(engine_of(self._state.kind), trouble)
        elif good is not self._state.reachable and (good or trouble is not None):
            self._doubt(False)

    async def _follow(self, follower: Follower) -> None:
        while True:
            arrived = await asyncio.to_thread(follower.poll)
            if follower.trouble != self._log_trouble:
                self._log_trouble = follower.trouble
                if follower.trouble is None:
                    logger.info("following the engine's log %s", self._settings.engine_log)
                else:
                    logger.warning("the engine's log %s: %s", self._settings.engine_log, follower.trouble)
            try:
                self._hold()
                self.read_lines(arrived)
                if self.joiner is not None:
                    self.joiner.tick()
            except Exception:  # a line that nobody foresaw must not stop the watch
                logger.exception("lines of the engine's log could not be taken")
            await asyncio.sleep(0 if follower.behind else POLL_SECONDS)

    def _hold(self) -> None:
        """Has records wait for the log exactly while there is one to wait for."""
        reader = self._log_reader()
        holding = (
            reader is not None and reader.joins and self._log_trouble is None and self.joiner is not None
        )
        if holding != self._holding and self._core is not None:
            self._core.update(engine_log=holding)
            self._holding = holding

    async def _review(self) -> None:
        while True:
            try:
                self.review()
            except Exception:  # diagnosis never stops anything
                logger.exception("the findings could not be reviewed")
            await asyncio.sleep(min(REVIEW_SECONDS, max(0.2, self._settings.engine_metrics_seconds)))

    def _take(self, engine: Engine, reading: Reading) -> None:
        now, wall = self._clock(), self._wall()
        step = self.meter.take(reading, now)
        if step.restarted:
            self.parking.restarted()
            self._restarted("metrics")
        self.second_level.take(
            step.grown, self.meter.raw, reading.gauges, now, wall, restarted=step.restarted
        )
        self.missing.there(engine, reading.missing, self._state.version)
        block = round(reading.gauges.get("block_tokens", 0))
        if block > 0 and block != self._block_tokens and self._core is not None:
            self._core.update(block_tokens=block)
            self._block_tokens = block

    def _restarted(self, source: str) -> None:
        if self.restarts.seen(source):
            self._doubt(True)

    def _log_reader(self) -> LogReader | None:
        if self._reader_kind != self._state.kind:
            engine = engine_of(self._state.kind)
            self._reader_kind = self._state.kind
            self._reader = None if engine is None else engine.log_reader()
        return self._reader
