"""Strata's memory: checkpoints and parked conversations, and what the engine says of them in its log."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TextIO

from foreword._core import ConversationCache

from . import tokens
from .memory import Found
from .options import Options

Event = dict[str, Any]

_MIB: Final = 2**20
_GIB: Final = 2**30
_HEADROOM: Final = 4 * _GIB
"""What the engine leaves to its requests before it parks anything."""
_COPY_RATE: Final = 2_510_827_952 / 0.3737
"""Bytes of a snapshot copied in a second, as its log has shown."""
_KV_BYTES: Final = 990_511_488 / 64_930
"""Bytes of a token's KV cache in a snapshot, from the same line."""


class Log:
    """The engine's log: lines without time stamps, on stderr or at the end of a file."""

    def __init__(self, path: str | None) -> None:
        self._path = None if path is None else Path(path)

    def line(self, text: str) -> None:
        """One line. The file is opened for it anew, so that rotating it needs no signal."""
        if self._path is None:
            self._write(sys.stderr, text)
            return
        with self._path.open("a", encoding="utf-8") as file:
            self._write(file, text)

    def _write(self, file: TextIO, text: str) -> None:
        file.write(text + "\n")
        file.flush()


class Conversations:
    """The same verbs as vLLM's blocks."""

    serial = True

    def __init__(self, options: Options, log: Log) -> None:
        self._options = options
        self._log = log
        self.free: int | None = None
        """The host's free memory in bytes, were nothing parked; None: enough."""
        budget = options.conversation_cache_mib * _MIB
        if options.free_ram_mib is not None:
            self.free = options.free_ram_mib * _MIB
            budget = self._affordable(budget, self.free)
        self.budget = budget
        self._cache = ConversationCache(
            kept=options.prompt_cache,
            every=options.prompt_cache_every,
            root=options.prompt_cache_root,
            budget=budget,
            slots=options.conversation_cache_slots,
            min_free=options.conversation_cache_min_free_mib * _MIB,
        )
        self._landmarks: tuple[int | None, int | None] = (None, None)
        self.parks = 0
        self.restores = 0
        self.last_event: str | None = None
        self.last_tokens = 0

    @property
    def parked(self) -> int:
        """Conversations parked."""
        return self._cache.parked

    @property
    def parked_bytes(self) -> int:
        """Bytes of them."""
        return self._cache.parked_bytes

    def start(self, prompt: bytes, _salt: bytes, /) -> Found:
        free = None if self.free is None else max(0, self.free - self._cache.parked_bytes)
        found, events = self._cache.start(prompt, free)
        self._landmarks = (_find(prompt, tokens.USER), _find_last(prompt, tokens.ASSISTANT))
        seconds = 0.0
        says: dict[str, Callable[[Event], float]] = {
            "superseded": self._superseded,
            "parked": self._parked,
            "skipped": lambda event: self._skipped(event, free),
            "restored": self._restored,
        }
        for event in events:
            seconds += says[event["event"]](event)
        if found and not events and self.budget:
            self._log.line(
                f"strata batch: slot 0 gave back {found} tokens of this conversation (all it holds) in 0.0 ms"
            )
        return Found(found, seconds=seconds if self._options.prefill_rate else 0.0)

    def read(self, _prompt: bytes, upto: int, _salt: bytes, /) -> None:
        self._cache.read(upto, *self._landmarks)

    def finish(self, computed: bytes, _salt: bytes, /, *, written: bool) -> None:  # noqa: ARG002 - as for blocks
        self._cache.finish(computed)

    def clear(self) -> None:
        self._cache.clear()

    def __len__(self) -> int:
        return len(self._cache)

    def _affordable(self, budget: int, free: int) -> int:
        floor = self._options.conversation_cache_min_free_mib * _MIB
        room = max(0, free - floor - _HEADROOM)
        if budget <= room:
            return budget
        gib = f"{room / _GIB:.1f} GiB"
        self._log.line(
            f"strata serve: parked-prefix budget {gib}, not {budget / _GIB:.1f}: only {gib} of RAM is free above the "
            f"{floor / _GIB:.1f} GiB parking floor and {_HEADROOM / _GIB:.1f} GiB of request headroom"
        )
        return room

    def _superseded(self, event: Event) -> float:
        copies = event["copies"]
        self._say(f"dropped {copies} superseded {'copy' if copies == 1 else 'copies'} of this conversation")
        return 0.0

    def _parked(self, event: Event) -> float:
        seconds: float = event["bytes"] / _COPY_RATE
        self.parks += 1
        self._note("parked", event["tokens"])
        self._say(
            f"parked {event['tokens']} tokens in {seconds * 1000:.1f} ms; {self._holds()} "
            f"evictions={self._cache.evictions} snapshot_bytes={event['bytes']} "
            f"reused_kv_bytes={int(event['tokens'] * _KV_BYTES)}"
        )
        return seconds

    def _restored(self, event: Event) -> float:
        seconds: float = event["bytes"] / _COPY_RATE
        self.restores += 1
        self._note("restored", event["tokens"])
        how = "exact" if event["exact"] else "live"
        self._say(f"restored {event['tokens']} tokens ({how}) in {seconds * 1000:.1f} ms; {self._holds()}")
        return seconds

    def _skipped(self, event: Event, free: int | None) -> float:
        mib = event["bytes"] // _MIB
        self._note("skipped", event["tokens"])
        reason = event["reason"]
        if reason == "budget":
            self._say(f"skip parking (snapshot {mib} MiB exceeds available budget)")
        elif reason in ("memory", "memory-quiet"):
            if free is not None and free >= event["bytes"]:
                self._say("skip parking (physical RAM floor after capture, or telemetry unavailable)")
            else:
                self._say(
                    f"skip parking (physical RAM admission; {mib} MiB needed, {(free or 0) // _MIB} MiB free)"
                )
        if reason == "memory-quiet":
            self._say(
                "3 consecutive RAM-admission refusals - parking will not re-ask for 64 requests (free some memory)"
            )
        self._log.line(
            "strata serve: swap: slot 0 NOT parked - it cannot be resumed and will be re-read from token 0 "
            f"({event['tokens']} tokens, budget/RAM refused)"
        )
        return 0.0

    def _holds(self) -> str:
        return f"parked={self._cache.parked} bytes={self._cache.parked_bytes}"

    def _note(self, event: str, count: int) -> None:
        self.last_event, self.last_tokens = event, count

    def _say(self, text: str) -> None:
        self._log.line(f"strata serve: conversation cache: {text}")


def _find(text: bytes, marker: str) -> int | None:
    """The position of the first special token of a kind; its bytes occur nowhere else."""
    at = text.find(tokens.special(marker))
    return None if at < 0 else at // tokens.WIDTH


def _find_last(text: bytes, marker: str) -> int | None:
    at = text.rfind(tokens.special(marker))
    return None if at < 0 else at // tokens.WIDTH
