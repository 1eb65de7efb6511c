"""What an Anthropic client reads of a stream."""

from typing import Any

from .engine import USAGE
from .sidecar import Response

NET = {
    "input_tokens": 4,
    "cache_creation_input_tokens": 32,
    "cache_read_input_tokens": 64,
    "output_tokens": 5,
}
"""The engine's ``USAGE`` as it is told to Anthropic clients."""
ZEROS = dict.fromkeys(NET, 0)

assert USAGE["prompt_tokens"] == sum(NET.values()) - NET["output_tokens"]


def names(answer: Response) -> list[str]:
    """The events' names."""
    return [name for name, _ in answer.events()]


def data(answer: Response, name: str) -> list[Any]:
    """The data of the events of one name."""
    return [data for kind, data in answer.events() if kind == name]


def text_of(answer: Response) -> str:
    """The text that the client shows."""
    deltas = [delta["delta"] for delta in data(answer, "content_block_delta")]
    return "".join(delta.get("text", "") for delta in deltas)
