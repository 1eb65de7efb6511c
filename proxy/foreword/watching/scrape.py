"""Asks the engine for its metrics, again and again. A hung engine costs a time-out (`through`), and nothing waits."""

import asyncio
import logging
import time
from collections.abc import Callable

from foreword.engines.base import Engine, Fetch, FetchError
from foreword.engines.probe import engine_of
from foreword.engines.reading import Reading, Unreadable
from foreword.engines.state import EngineState

logger = logging.getLogger(__name__)

BESIDE_BYTES = 128 << 10
"""A longer answer is read in a thread."""
MAX_BYTES = 16 << 20
"""A larger answer is no metrics."""


class Scraper:
    """One engine's /metrics."""

    def __init__(
        self,
        fetch: Fetch,
        state: EngineState,
        take: Callable[[Engine, Reading], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``take`` gets each reading."""
        self._fetch = fetch
        self._state = state
        self._take = take
        self._clock = clock
        self._last: float | None = None
        self.trouble: str | None = None
        """Why the last scrape brought nothing; None when it did, or when none was due."""
        self.refused = False
        """Whether the engine answers, but not with metrics."""
        self.scrapes = 0
        self.failures = 0

    def age(self) -> float | None:
        """Seconds since the last reading; None when there was none."""
        return None if self._last is None else self._clock() - self._last

    async def once(self) -> bool:
        """One scrape; says whether it brought a reading. Never raises."""
        engine = engine_of(self._state.kind)
        if engine is None or engine.metrics_path is None:
            self.trouble = None
            return False
        try:
            reading = await self._ask(engine, engine.metrics_path)
            self._last = self._clock()
            self.scrapes += 1
            self.trouble, self.refused = None, False
            self._take(engine, reading)
        except FetchError as error:
            self._fail(str(error), refused=False)
            return False
        except Unreadable as error:
            self._fail(str(error), refused=True)
            return False
        except Exception as error:  # a form that nobody foresaw must not stop the watch
            if repr(error) != self.trouble:
                logger.exception("the engine's metrics could not be taken")
            self._fail(repr(error), refused=False)
            return False
        return True

    async def _ask(self, engine: Engine, path: str) -> Reading:
        answer = await self._fetch("GET", path)
        if answer.status != 200:
            raise Unreadable(f"{path} answers with status {answer.status}")
        if len(answer.body) > MAX_BYTES:
            raise Unreadable(f"{path} answers {len(answer.body)} bytes")
        if len(answer.body) > BESIDE_BYTES:  # the streams must not wait for it
            return await asyncio.to_thread(engine.read_metrics, answer.body)
        return engine.read_metrics(answer.body)

    def _fail(self, trouble: str, *, refused: bool) -> None:
        self.scrapes += 1
        self.failures += 1
        if trouble != self.trouble:
            logger.warning("no metrics of the engine: %s", trouble)
        self.trouble, self.refused = trouble, refused
