"""What a simulation plays: requests, and how much is known of them."""

from dataclasses import dataclass, field
from typing import Literal

Source = Literal["log", "ledger", "log+ledger", "described"]


@dataclass(frozen=True, slots=True)
class Request:
    """One request; lengths in tokens, times in seconds."""

    conversation: int
    prompt: int
    shared: int = 0
    """Head of the prompt that its conversation had before, answers included."""
    head: int = 0
    """Head that other conversations have too."""
    system: int = 0
    """Where the system prompt ends; 0: unknown or none."""
    output: int = 0
    at: float | None = None
    """When it came."""
    think: float | None = None
    """Or how long after the answer before it; neither: only its place in the order is known."""


@dataclass(slots=True)
class Load:
    """Requests in the order of their conversations' turns."""

    source: Source
    requests: list[Request]
    identities: Literal["known", "inferred", "described"]
    """Where it is known from which conversation a request is."""
    notes: list[str] = field(default_factory=list)
    """What the reader of the result must know of it."""
    observed: dict[str, int] = field(default_factory=dict)
    """What the engine's log counted itself."""

    @property
    def timed(self) -> bool:
        """Whether it is known when requests come."""
        return bool(self.requests) and all(
            request.at is not None or request.think is not None for request in self.requests
        )

    @property
    def conversations(self) -> int:
        """How many there are."""
        return len({request.conversation for request in self.requests})

    @property
    def prompt_tokens(self) -> int:
        """Of all requests."""
        return sum(request.prompt for request in self.requests)


class LoadError(Exception):
    """A log, a ledger or a description that holds no load; one sentence."""
