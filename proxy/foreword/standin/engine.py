"""The engine behind the stand-in's API: a queue, a prefix cache, and two clocks.

Prompts are read one at a time, first come first served, in steps of ``prefill_step`` tokens, and a step's blocks are
in the cache when it ends. Answers are written by all requests together, one token each at every tick of the decode
clock, as the steps of a real engine do; reading does not slow them. The clocks are only that: nothing is computed.
"""

import asyncio
from collections import Counter
from types import TracebackType
from typing import Literal, Protocol, Self

from foreword._core import BlockCache

from . import tokens
from .checkpoints import Checkpoints
from .options import Options

Ending = Literal["stop", "length", "abort", "error"]


class PrefixCache(Protocol):
    """What remembers prompts; lengths in tokens."""

    def lookup(self, tokens: bytes, salt: bytes = b"", /) -> int:
        """How much of the head is remembered."""

    def insert(self, tokens: bytes, upto: int, salt: bytes = b"", /) -> None:
        """Remembers the first ``upto`` tokens."""

    def clear(self) -> None:
        """Forgets all."""

    def __len__(self) -> int: ...


class Ticker:
    """Wakes everyone who waits for it together, ``rate`` times a second; at once where the rate is 0."""

    def __init__(self, rate: float) -> None:
        self._period = 1 / rate if rate else 0.0
        self._event: asyncio.Event | None = None
        self._due = 0.0

    async def tick(self) -> None:
        """Waits for the next tick."""
        if not self._period:
            await asyncio.sleep(0)
            return
        if self._event is None:
            loop = asyncio.get_running_loop()
            # On the beat while anyone waits; a pause starts a new beat.
            self._due = max(self._due + self._period, loop.time())
            self._event = asyncio.Event()
            loop.call_at(self._due, self._ring, self._event)
        await self._event.wait()

    def _ring(self, event: asyncio.Event) -> None:
        self._event = None
        event.set()


class Engine:
    """One engine: state shared by its requests."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.cache: PrefixCache = (
            Checkpoints()
            if options.kind == "strata"
            else BlockCache(options.block_tokens, options.cache_blocks)
        )
        self.decoder = Ticker(options.decode_rate)
        self.reading = asyncio.Lock()
        self.running = 0
        self.waiting = 0
        self.totals: Counter[str] = Counter()
        self.finished: dict[Ending, int] = {"stop": 0, "length": 0, "abort": 0, "error": 0}

    def reset_prefix_cache(self) -> None:
        """Forgets every prompt."""
        self.cache.clear()


class Run:
    """One request in the engine, as a context: what leaves it without ``finish`` was aborted.

    ``async with Run(...) as run`` first queues and reads the prompt.
    """

    def __init__(self, engine: Engine, prompt: bytes, salt: bytes) -> None:
        self._engine = engine
        self._prompt = prompt
        self._salt = salt
        self._ending: Ending = "abort"
        self._output = bytearray()
        self.prompt_tokens = tokens.count(prompt)
        self.cached_tokens = 0
        self.read_seconds = 0.0
        self._read_at = 0.0

    async def __aenter__(self) -> Self:
        engine = self._engine
        engine.waiting += 1
        try:
            await engine.reading.acquire()
        except BaseException:
            engine.finished["abort"] += 1
            raise
        finally:
            engine.waiting -= 1
        engine.running += 1
        try:
            await self._read()
        except BaseException:
            self._leave()
            raise
        finally:
            engine.reading.release()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._leave()

    @property
    def options(self) -> Options:
        """The engine's."""
        return self._engine.options

    @property
    def write_seconds(self) -> float:
        """Time since the prompt was read."""
        return asyncio.get_running_loop().time() - self._read_at

    @property
    def remembered(self) -> int:
        """Blocks or checkpoints in the engine's cache."""
        return len(self._engine.cache)

    @property
    def created_tokens(self) -> int:
        """Prompt tokens in whole blocks that this request added to the cache."""
        block = self._engine.options.block_tokens
        return max(0, self.prompt_tokens // block * block - self.cached_tokens)

    async def step(self, token: bytes, delay: float) -> None:
        """Waits until ``token`` has been written."""
        if delay:
            await asyncio.sleep(delay)
        else:
            await self._engine.decoder.tick()
        self._output += token
        self._engine.totals["generation_tokens"] += 1

    def finish(self, ending: Ending, written: int = 0) -> None:
        """The request came to an end of its own, with ``written`` tokens, perhaps more than were told."""
        self._ending = ending
        self._engine.totals["generation_tokens"] += max(0, written - tokens.count(bytes(self._output)))

    async def _read(self) -> None:
        engine, options = self._engine, self._engine.options
        loop = asyncio.get_running_loop()
        began = due = loop.time()
        done = self.cached_tokens = engine.cache.lookup(self._prompt, self._salt)
        engine.totals["prefix_cache_queries"] += self.prompt_tokens
        engine.totals["prefix_cache_hits"] += done
        while done < self.prompt_tokens:
            step = min(options.prefill_step, self.prompt_tokens - done)
            if options.prefill_rate:
                due += step / options.prefill_rate
                await asyncio.sleep(due - loop.time())
            done += step
            engine.cache.insert(self._prompt, done, self._salt)
        self._read_at = loop.time()
        self.read_seconds = self._read_at - began
        engine.totals["prompt_tokens"] += self.prompt_tokens
        engine.totals["prompt_tokens_cached"] += self.cached_tokens

    def _leave(self) -> None:
        engine = self._engine
        engine.running -= 1
        engine.finished[self._ending] += 1
        if self._output:
            # Freed now, so most recently used now; of the last token nothing was computed but its choice.
            whole = self._prompt + bytes(self._output)
            engine.cache.insert(whole, tokens.count(whole) - 1, self._salt)
