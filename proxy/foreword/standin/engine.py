"""The engine behind the stand-in's API: a queue, a prefix cache, and two clocks.

Prompts are read one at a time, first come first served, in steps of ``prefill_step`` tokens, and a step's blocks are
in the cache when it ends. vLLM's answers are written by all requests together, one token each at every tick of the
decode clock, as the steps of a real engine do; reading does not slow them. Strata's requests have the engine to
themselves, one after the other. The clocks are only that: nothing is computed.
"""

import asyncio
from collections import Counter, deque
from types import TracebackType
from typing import Final, Literal, Self

from . import tokens
from .conversations import Conversations, Log
from .memory import Blocks, Memory
from .options import Options

Ending = Literal["stop", "length", "abort", "error"]

_EXPERTS: Final = 42
"""Expert look-ups for a token, for Strata's log."""


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
        self.log = Log(options.log)
        self.blocks: Blocks | None = None
        self.conversations: Conversations | None = None
        self.memory: Memory
        if options.kind == "strata":
            self.memory = self.conversations = Conversations(options, self.log)
        else:
            self.memory = self.blocks = Blocks(options)
        self.decoder = Ticker(options.decode_rate)
        self.reading = asyncio.Lock()
        self.running = 0
        self.waiting = 0
        self.reading_tokens = 0
        """Of the prompt that is being read."""
        self.totals: Counter[str] = Counter()
        self.seconds = {"prompt": 0.0, "decode": 0.0}
        self.finished: dict[Ending, int] = {"stop": 0, "length": 0, "abort": 0, "error": 0}
        self.recent: deque[dict[str, float]] = deque(maxlen=12)
        """The last requests, as Strata's /metrics lists them."""

    def reset_prefix_cache(self) -> None:
        """Forgets every prompt."""
        self.memory.clear()


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
        self._done = 0

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
        engine.reading_tokens = self.prompt_tokens
        try:
            await self._read()
        except BaseException:
            self._leave()
            engine.reading.release()
            raise
        if not engine.memory.serial:
            engine.reading.release()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._leave()
        if self._engine.memory.serial:
            self._engine.reading.release()

    @property
    def options(self) -> Options:
        """The engine's."""
        return self._engine.options

    @property
    def write_seconds(self) -> float:
        """Time since the prompt was read."""
        return asyncio.get_running_loop().time() - self._read_at

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

    def report(self, written: int) -> None:
        """Strata's lines on a request that has been answered."""
        engine = self._engine
        if engine.conversations is None:
            return
        read, seconds = self.prompt_tokens - self.cached_tokens, self.write_seconds
        engine.log.line(
            f"strata serve: prompt {self.prompt_tokens} tokens = {self.cached_tokens} reused + {read} read in "
            f"{_pace(read, self.read_seconds)}, {written} generated in {_pace(written, seconds)}, "
            f"{len(engine.memory)} checkpoints"
        )
        lookups = written * _EXPERTS
        hits = lookups * 984 // 1000
        engine.log.line(
            f"strata serve: decode expert cache hit rate: {hits / lookups * 100 if lookups else 0:.1f}% "
            f"({hits} hits / {lookups} lookups)"
        )
        engine.recent.append(
            {
                "prompt_tokens": self.prompt_tokens,
                "reused": self.cached_tokens,
                "output_tokens": written,
                "prompt_ms": round(self.read_seconds * 1000, 1),
                "decode_ms": round(seconds * 1000, 1),
            }
        )
        engine.seconds["prompt"] += self.read_seconds
        engine.seconds["decode"] += seconds

    async def _read(self) -> None:
        engine, options = self._engine, self._engine.options
        loop = asyncio.get_running_loop()
        found = engine.memory.start(self._prompt, self._salt)
        # Parking and restoring come before the reading, and are told apart from it.
        began = due = loop.time() + found.seconds
        self._done = self.cached_tokens = found.tokens
        engine.totals["prefix_cache_queries"] += self.prompt_tokens
        engine.totals["prefix_cache_hits"] += found.tokens - found.loaded
        while self._done < self.prompt_tokens:
            step = min(options.prefill_step, self.prompt_tokens - self._done)
            if options.prefill_rate:
                due += step / options.prefill_rate
                await asyncio.sleep(due - loop.time())
            self._done += step
            engine.memory.read(self._prompt, self._done, self._salt)
        self._read_at = loop.time()
        self.read_seconds = self._read_at - began
        engine.totals["prompt_tokens"] += self.prompt_tokens
        engine.totals["prompt_tokens_cached"] += self.cached_tokens
        engine.totals["prompt_tokens_loaded"] += found.loaded

    def _leave(self) -> None:
        engine = self._engine
        engine.running -= 1
        engine.reading_tokens = 0 if not engine.running else engine.reading_tokens
        engine.finished[self._ending] += 1
        computed = self._prompt[: self._done * tokens.WIDTH] + bytes(self._output)
        # Of the last token written nothing was computed but its choice.
        computed = computed[: -tokens.WIDTH] if self._output else computed
        engine.memory.finish(computed, self._salt, written=bool(self._output))


def _pace(count: int, seconds: float) -> str:
    rate = count / seconds if seconds > 0 else 0.0
    return f"{seconds * 1000:.0f} ms ({rate:.1f} tok/s)"
