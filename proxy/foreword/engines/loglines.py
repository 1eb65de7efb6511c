"""What engines' logs tell, line by line, in words that all engines share.

No log has times that can be relied on: whoever reads a line stamps it. Tokens and bytes are integers, times seconds.
"""

from dataclasses import dataclass
from typing import Literal, Protocol


@dataclass(frozen=True, slots=True)
class PromptRead:
    """A request's prompt is read: ``reused`` tokens of it came from the cache, ``read`` were computed."""

    tokens: int
    reused: int
    read: int
    read_seconds: float | None = None
    generated: int | None = None
    checkpoints: int | None = None
    """That the conversation has now."""


@dataclass(frozen=True, slots=True)
class Parked:
    """A conversation's state was put away. The engine's own counts follow as far as it printed them."""

    tokens: int
    parked: int | None = None
    bytes: int | None = None
    evictions: int | None = None
    """Since the engine's start."""
    snapshot_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Restored:
    """A parked conversation came back."""

    tokens: int
    how: Literal["live", "exact", "other"] = "other"
    seconds: float | None = None
    parked: int | None = None
    bytes: int | None = None
    evictions: int | None = None


SkipReason = Literal["snapshot-over-budget", "ram-admission", "ram-floor", "not-parked", "other"]
"""snapshot-over-budget: the snapshot is larger than what the budget leaves. ram-admission, ram-floor: the machine has
too little memory before or after. not-parked: a slot was given away unparked and must be read again."""


@dataclass(frozen=True, slots=True)
class Skipped:
    """A conversation was not put away."""

    reason: SkipReason
    snapshot_bytes: int | None = None
    tokens: int | None = None


@dataclass(frozen=True, slots=True)
class Superseded:
    """Older copies of the same conversation were dropped, which costs nothing."""

    copies: int


@dataclass(frozen=True, slots=True)
class RefusalPause:
    """The engine was refused memory so often that it stops asking for some requests."""

    refusals: int


@dataclass(frozen=True, slots=True)
class BudgetCut:
    """The engine gave parking less memory than it was told to."""

    bytes: int
    wanted_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class FullReread:
    """The engine says that it reads a whole prompt again because its cache cannot be used."""

    reason: str


@dataclass(frozen=True, slots=True)
class Unknown:
    """A line about the cache or a prompt that could not be read."""

    what: str
    """The verb or the kind of line, never its text."""


Event = (
    PromptRead | Parked | Restored | Skipped | Superseded | RefusalPause | BudgetCut | FullReread | Unknown
)


class LogReader(Protocol):
    """Reads one engine's log."""

    joins: bool
    """Whether its `PromptRead` lines can be joined with exchanges."""

    def read(self, line: str) -> list[Event]:
        """What the line tells; nothing for lines about other things. Interleaved writes may make one line of two."""
        ...
