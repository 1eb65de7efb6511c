"""Types of the Rust core, compiled by maturin (rust/py)."""

from collections.abc import Generator, Sequence
from typing import Any, Protocol, TypeAlias

from foreword.asgi import Head, Header, Send

_Stuck: TypeAlias = tuple[Generator[Any, Any], object] | tuple[None, BaseException]

class Body:
    """A request body under collection; its bytes live in Rust. A large one is scanned while it comes if it is ``json``
    to be read."""

    number: int
    """Later bodies have higher ones."""

    def __init__(self, capacity: int = 0, json: bool = False) -> None: ...
    def push(self, chunk: bytes) -> int:
        """Appends one chunk and returns the length so far in bytes. A large one is copied later, on another thread."""
    @staticmethod
    def may_come(number: int, waited: float, many: bool) -> bool:
        """Whether the large body of this number may ask for a chunk, where no large one was given any for ``waited``
        seconds: what has come is collected, and running streams are in a lull, or no other large one moves. ``many``:
        others wait. ``ValueError`` for a time that is none."""

    def __len__(self) -> int: ...

class Sidecar:
    """The upstream client, its threads and the completion port. One a process.

    ``config`` holds the settings that Rust needs, by their short names: upstream, engine, messages, model_map,
    template_order, billing_header, late_system, usage, ping_seconds, early_head_seconds, connect_seconds,
    idle_seconds, answer_seconds, max_body_bytes, sessions, journal_mib, ledger, ledger_bytes, digest_key,
    clickhouse_url, excerpts, capture, capture_requests, capture_seconds. Raises ValueError with one sentence for a
    value it cannot use.
    """

    def __init__(self, config: dict[str, object]) -> None: ...
    def fileno(self) -> int:
        """The file descriptor that becomes readable when something is ready."""
    def drain(self) -> list[tuple[int, Head | None, bytes, bytes | None, _Stuck | None]]:
        """All that is ready, one item an exchange: (token, head if now known, body bytes, record if it ended, None).

        The record is one JSON object; an item with a record is the last of its token. One that is empty follows later,
        under the token 0. Body bytes of an exchange with a ``send_by`` are sent at once and are no item, unless its
        ``send`` must wait or fails: then it ends with (the step begun, what it waits for) or (None, the exception).
        """
    def send_by(self, token: int, send: Send) -> None:
        """From now on ``drain`` sends body bytes of this exchange by itself."""
    def open(
        self,
        route: str,
        method: str,
        target: bytes,
        headers: Sequence[Header],
        body: Body | None,
        request_id: str,
        authorization: bytes | None,
    ) -> int:
        """Starts one exchange and returns its token.

        ``route``: messages, count_tokens, chat, completions, responses, models, other, or own: Foreword's own
        question, which is passed like ``other`` and not counted. ``target``: path and query.
        ``authorization``: the value of the Authorization header upstream; None sends none.
        """
    def cancel(self, token: int) -> None:
        """The client left: closes the engine's connection at once. The record still comes."""
    def hold(self, token: int) -> None:
        """Keeps this exchange's bytes in Rust until release(): its client does not read."""
    def release(self, token: int) -> None: ...
    def update(
        self,
        *,
        engine: str | None = None,
        models: Sequence[str] | None = None,
        late_system: str | None = None,
        template_order: str | None = None,
        block_tokens: int | None = None,
        engine_log: bool | None = None,
    ) -> None:
        """What was learnt of the engine; exchanges opened from now on see it.

        ``engine_log``: whether exchanges whose engine reports no cached tokens wait for its log, with a record that is
        ``pending`` until settle().
        """
    def settle(self, request_id: str, cached: int | None) -> bytes | None:
        """Closes a pending record with the cached tokens that the log told: the final record.

        None when no record waits under that id.
        """
    def refused(self, route: str, status: int) -> None:
        """Counts a request that was refused before it became an exchange."""
    def stats(self) -> dict[str, int]: ...
    def sessions(self) -> bytes:
        """The lines of the prefix journal as a JSON array, the one used latest first."""
    def session(self, id: str) -> bytes | None:  # noqa: A002
        """The lines of a session with their turns, as a JSON object; None if the journal knows none.

        ``id``: a session's 16 hex digits, or ``line-17`` for one line by its number.
        """
    def close(self, message: str) -> None:
        """Ends every running exchange with an error event in its dialect that says ``message``."""
    def capture(self, directory: str, requests: int, seconds: float) -> str:
        """Captures the next ``requests`` prompts whole, with their text; returns the folder that they go to.

        After ``seconds`` capturing ends and the folder is deleted. Replaces a capture under way. Raises OSError if the
        directory cannot be used.
        """
    def notices(self) -> list[tuple[str, str]]:
        """What the core has to say since the last call: (info or warning, a sentence for the log)."""
    def finish(self, seconds: float) -> None:
        """Waits, at most ``seconds``, until the records of ended exchanges are written; later ones are not."""

def fault(dialect: str, kind: str, detail: str, request_id: str) -> tuple[int, list[Header], bytes]:
    """Status, headers and body of an error of Foreword's own, in ``dialect`` (messages, openai).

    ``kind`` and what its ``detail`` is: invalid (what is wrong), unauthorized (nothing), not_found (the path),
    method_not_allowed (method and path), too_large (the limit in bytes), slow_body (seconds), internal (what failed).
    """

class BlockCache:
    """A chained-hash block prefix cache as vLLM keeps it: the stand-in engine's. Least recently used goes first."""

    def __init__(self, block_tokens: int, capacity_blocks: int) -> None: ...
    def lookup(self, tokens: bytes, salt: bytes = b"") -> int:
        """Tokens of the prompt found in the cache: whole blocks, at most the prompt less one token. Touches them."""
    def insert(self, tokens: bytes, upto: int, salt: bytes = b"") -> None:
        """Makes the whole blocks of the first ``upto`` tokens visible. ``tokens`` are little-endian u32."""
    def clear(self) -> None: ...
    def __len__(self) -> int:
        """Blocks held."""

class ConversationCache:
    """Strata's checkpoints and parked conversations: the stand-in engine's. Lengths in tokens, sizes in bytes.

    ``sizes``: (tokens, bytes) of snapshots, with lines between them; none: as measured on Strata.
    """

    def __init__(
        self,
        *,
        kept: int = 6,
        every: int = 16_384,
        root: int = 2_048,
        budget: int = 0,
        slots: int = 4,
        min_free: int = 0,
        sizes: Sequence[tuple[int, int]] = (),
    ) -> None: ...
    def start(self, prompt: bytes, free: int | None = None) -> tuple[int, list[dict[str, Any]]]:
        """A request's turn: tokens of its prompt that need not be read, and what happened, in order.

        ``free``: bytes of the host's memory. ``event``: superseded (copies), parked (tokens, bytes, evicted), skipped
        (tokens, bytes, reason: budget, memory, memory-quiet, quiet), restored (tokens, bytes, exact).
        """
    def read(self, upto: int, system_end: int | None = None, turn: int | None = None) -> None:
        """The prompt was read up to there; checkpoints are taken on the way."""
    def finish(self, tokens: bytes) -> None:
        """The request is over, and this is what the slot holds."""
    def clear(self) -> None: ...
    @property
    def parked(self) -> int: ...
    @property
    def parked_bytes(self) -> int: ...
    @property
    def evictions(self) -> int: ...
    def __len__(self) -> int:
        """Checkpoints of the conversation in the slot."""

class _PlannedRequest(Protocol):
    @property
    def conversation(self) -> int: ...
    @property
    def prompt(self) -> int: ...
    @property
    def shared(self) -> int: ...
    @property
    def head(self) -> int: ...
    @property
    def system(self) -> int: ...
    @property
    def output(self) -> int: ...
    @property
    def at(self) -> float | None: ...
    @property
    def think(self) -> float | None: ...

class _PlannedSetting(Protocol):
    @property
    def budget(self) -> int: ...
    @property
    def slots(self) -> int: ...
    @property
    def kept(self) -> int: ...
    @property
    def every(self) -> int: ...
    @property
    def root(self) -> int: ...
    @property
    def skip_above(self) -> int | None: ...
    @property
    def admit(self) -> int | None: ...
    @property
    def cap(self) -> int | None: ...

class _PlannedCosts(Protocol):
    @property
    def sizes(self) -> Sequence[tuple[int, int]]: ...
    @property
    def prefill_rate(self) -> float: ...
    @property
    def prefill_floor(self) -> float: ...
    @property
    def copy_rate(self) -> float: ...
    @property
    def decode_rate(self) -> float: ...

class PlannedOutcome:
    """What became of a load under one setting. Tokens, bytes, seconds; TTFT is None where arrivals are unknown."""

    @property
    def turns(self) -> int: ...
    @property
    def refused(self) -> int: ...
    @property
    def evictions(self) -> int: ...
    @property
    def skipped(self) -> int: ...
    @property
    def restores(self) -> int: ...
    @property
    def lost_turns(self) -> int: ...
    @property
    def lost_reuse(self) -> int | None: ...
    @property
    def prompt_tokens(self) -> int: ...
    @property
    def read_tokens(self) -> int: ...
    @property
    def reread_tokens(self) -> int: ...
    @property
    def prefill_seconds(self) -> float: ...
    @property
    def ram_bytes(self) -> int: ...
    @property
    def ttft_p50(self) -> float | None: ...
    @property
    def ttft_p95(self) -> float | None: ...
    @property
    def ttft_p99(self) -> float | None: ...

def simulate(
    requests: Sequence[_PlannedRequest], settings: Sequence[_PlannedSetting], costs: _PlannedCosts
) -> list[PlannedOutcome]:
    """Plays a load through Strata's cache under each setting. The GIL is free meanwhile."""

def snapshot_bytes(sizes: Sequence[tuple[int, int]], tokens: Sequence[int]) -> list[int]:
    """Bytes of snapshots by length: lines between the points (tokens, bytes); no points: as measured on Strata."""
