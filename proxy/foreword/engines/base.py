"""The common part of the engines' modules."""

from collections.abc import Mapping, Sequence
from typing import ClassVar, NamedTuple, Protocol

import orjson

from foreword.engines.loglines import LogReader
from foreword.engines.reading import Reading
from foreword.settings import EngineKind

Json = Mapping[str, object]
Message = Mapping[str, str]


class Answer(Protocol):
    """An engine's answer to a question of Foreword's own."""

    @property
    def status(self) -> int: ...
    @property
    def headers(self) -> Sequence[tuple[bytes, bytes]]: ...
    @property
    def body(self) -> bytes: ...


class Fetch(Protocol):
    """Asks the engine. Raises FetchError when it cannot be reached or breaks off."""

    async def __call__(self, method: str, path: str, body: bytes | None = None) -> Answer: ...


class FetchError(Exception):
    """No whole answer: no connection, a time-out, or an end too soon."""


Rendering = str | tuple[int, ...]
"""A prompt as the engine's template prints it: text, or token ids."""


class About(NamedTuple):
    """What an engine tells of itself; None where it does not tell."""

    version: str | None = None
    window: int | None = None
    """The context window in tokens."""


class Engine:
    """What is particular to one kind. The base is any OpenAI-compatible server."""

    kind: ClassVar[EngineKind] = "openai"

    late_system: ClassVar[str | None] = None
    """Where late system messages go, when that is known of the engine without asking."""

    async def about(self, fetch: Fetch) -> About:
        """What the engine tells of itself beside its models."""
        return About()

    async def render(
        self, fetch: Fetch, model: str, messages: Sequence[Message], tools: Sequence[Json]
    ) -> Rendering | None:
        """The prompt that the engine makes of ``messages`` and ``tools``; None when it does not tell."""
        return None

    cached_tokens_advice: ClassVar[str] = "use a version that reports prompt_tokens_details.cached_tokens"
    """What to do when usage tells no cached tokens."""

    metrics_path: ClassVar[str | None] = None
    """Where it tells its metrics; None where nothing is known of them."""
    metrics_flag: ClassVar[str | None] = None
    """What switches them on, if they are off by default."""

    def read_metrics(self, body: bytes) -> Reading:
        """What ``body``, the answer at `metrics_path`, says. Raises Unreadable when it says nothing."""
        return Reading()

    def log_reader(self) -> LogReader | None:
        """Reads this engine's log, from its first line on; None where nothing is known of it."""
        return None


async def get_json(fetch: Fetch, path: str) -> Json | None:
    """The JSON object at ``path``; None when there is none."""
    answer = await fetch("GET", path)
    return as_object(answer)


async def post_json(fetch: Fetch, path: str, body: object) -> Json | None:
    """The JSON object that a POST answers; None when it is refused or no object."""
    return as_object(await fetch("POST", path, orjson.dumps(body)))


def as_object(answer: Answer) -> Json | None:
    """The body as a JSON object, if the answer is a 200 and holds one."""
    return as_json(answer) if answer.status == 200 else None


def as_json(answer: Answer) -> Json | None:
    """The body as a JSON object, whatever the status; None when it holds none."""
    try:
        value = orjson.loads(answer.body)
    except orjson.JSONDecodeError:
        return None
    return value if isinstance(value, dict) else None


def header(answer: Answer, name: bytes) -> str:
    """The first header of that name (lower case), or an empty text."""
    return next((value.decode("latin-1") for key, value in answer.headers if key.lower() == name), "")


def count_of(value: object) -> int | None:
    """``value`` if it is a positive whole number."""
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def text_of(value: object) -> str | None:
    """``value`` if it is a text that is not empty."""
    return value if isinstance(value, str) and value else None
