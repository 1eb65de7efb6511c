"""What the engine says: the text it is told, or one that follows from the prompt; and the mishaps it is told to have.

A request scripts its own answer with ``vllm_xargs`` (``say`` and ``say_delay`` mean what they mean to the logits
processor that makes a real vLLM say a text); for clients that cannot, POST /standin/script queues the same object.
"""

import dataclasses
import hashlib
import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from . import tokens
from .faults import bad_request
from .template import spoken_call

_SAYING = (
    "the answer is in this file and the test that reads it so first look at its head then change one line run "
    "again and compare what was said before with what is there now"
)
_WORDS = _SAYING.split()


@dataclass(frozen=True, slots=True)
class Script:
    """One answer's script. Counts are of stream chunks, the one with the role being the first; times in seconds."""

    say: str | None = None
    """The whole output: reasoning until ``</think>``, text, ``<tool_call>`` blocks."""
    say_delay: float = 0.0
    """Waits so long before each token, instead of the decode rate."""
    say_raise_at: int | None = None
    """The engine dies at this output token: an error frame in a stream, a 500 otherwise."""
    fail: dict[str, Any] | None = None
    """Answers this and nothing else: status, and message and type or else body, content_type, headers."""
    drop: Literal["fin", "rst"] | None = None
    """The connection is closed with no answer at all."""
    headers_delay: float = 0.0
    """Waits before the head of the answer."""
    stall_after: int | None = None
    """After so many chunks nothing comes ..."""
    stall_seconds: float = 0.0
    """... for so long."""
    error_after: int | None = None
    """An error frame and [DONE] after so many chunks."""
    cut_after: int | None = None
    """The connection is cut after so many chunks (of an answer that is no stream: after half of it)."""
    cut: Literal["fin", "rst"] = "fin"
    """How it is cut."""
    end_after: int | None = None
    """The HTTP answer ends well after so many chunks, with neither finish_reason nor [DONE]."""


_FIELDS = {field.name: field for field in dataclasses.fields(Script)}
_TYPES: dict[str, tuple[type, ...]] = {
    "say": (str,),
    "fail": (dict,),
    "cut": (str,),
    "drop": (str,),
    **dict.fromkeys(("say_raise_at", "stall_after", "error_after", "cut_after", "end_after"), (int,)),
    **dict.fromkeys(("say_delay", "headers_delay", "stall_seconds"), (int, float)),
}


def read(given: object) -> Script:
    """A script from JSON. Keys that are not the stand-in's are ignored, as a logits processor ignores them."""
    if given is None:
        return Script()
    if not isinstance(given, dict):
        raise bad_request("vllm_xargs must be an object", "vllm_xargs")
    for name, types in _TYPES.items():
        if name in given and (not isinstance(given[name], types) or isinstance(given[name], bool)):
            raise bad_request(
                f"vllm_xargs.{name} must be {' or '.join(t.__name__ for t in types)}", "vllm_xargs"
            )
    for name in ("cut", "drop"):
        if given.get(name, "fin") not in ("fin", "rst"):
            raise bad_request(f"vllm_xargs.{name} must be fin or rst", "vllm_xargs")
    return Script(**{name: value for name, value in given.items() if name in _FIELDS})


@dataclass(frozen=True, slots=True)
class Answer:
    """What will be generated: the output tokens, the end-of-turn token not among them, and how it ends."""

    tokens: bytes
    completion_tokens: int
    """Counts the end-of-turn token, and tokens that a stop sequence took away."""
    finish: Literal["stop", "length"]
    stop: str | None = None
    """The stop sequence that ended it."""


def plan(output: bytes, *, max_tokens: int, stops: list[str], ignore_eos: bool = False) -> Answer:
    """Cuts an output where a stop sequence or the length ends it."""
    if ignore_eos and output:
        output = b"".join(itertools.islice(itertools.cycle(tokens.split(output)), max_tokens))
    answer = Answer(output, tokens.count(output) + 1, "stop")
    if (found := _first_stop(output, stops)) is not None:
        answer = found
    if answer.completion_tokens > max_tokens:
        return Answer(output[: max_tokens * tokens.WIDTH], max_tokens, "length")
    return answer


def _first_stop(output: bytes, stops: list[str]) -> Answer | None:
    if not stops:
        return None
    text = tokens.decode(output)
    found = min(((at, stop) for stop in stops if stop and (at := text.find(stop)) >= 0), default=None)
    if found is None:
        return None
    at, stop = found
    # A token belongs to what was generated when it holds any part of the stop sequence.
    end, taken, needed = len(text[: at + len(stop)].encode()), 0, 0
    for token in tokens.split(output):
        if taken >= end:
            break
        taken += len((tokens.special_text(token) or "").encode()) or len(tokens.plain(token))
        needed += 1
    return Answer(tokens.encode(text[:at]), needed, "stop", stop)


def invent(prompt: bytes, *, thinking: bool) -> str:
    """The text of an answer that nobody scripted: the same for the same prompt."""
    words = _words(prompt)
    thought = f"{tokens.THINK}{' '.join(itertools.islice(words, 6))}.{tokens.THINK_END}" if thinking else ""
    return f"{thought}{' '.join(itertools.islice(words, 24)).capitalize()}."


def invent_call(name: str, *, thinking: bool) -> str:
    """A call where the request demands one."""
    thought = tokens.THINK_END if thinking else ""
    return f"{thought}{tokens.CALL}\n{spoken_call(name, {})}\n{tokens.CALL_END}"


def _words(prompt: bytes) -> Iterator[str]:
    digest = hashlib.blake2b(prompt).digest()
    return (_WORDS[byte % len(_WORDS)] for byte in itertools.cycle(digest))
