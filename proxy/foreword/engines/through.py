"""Asks the engine through the sidecar's own connections."""

import asyncio
from collections.abc import Awaitable, Callable

from foreword.engines.base import Answer, Fetch, FetchError, as_json

_UNREACHABLE = 502
TIMEOUT_SECONDS = 5.0
"""An engine that answers a question of Foreword's own later than that counts as one that does not answer."""


def through(
    fetch: Callable[[str, str, bytes | None], Awaitable[Answer]], seconds: float = TIMEOUT_SECONDS
) -> Fetch:
    """A `Fetch` of the gateway's ``fetch``, which answers 502 for an engine that is not there."""

    async def asking(method: str, path: str, body: bytes | None = None) -> Answer:
        try:
            answer = await asyncio.wait_for(fetch(method, path, body), seconds)
        except TimeoutError as error:
            raise FetchError(f"no answer within {seconds:g} s") from error
        if answer.status == _UNREACHABLE:
            raise FetchError(_reason(answer))
        return answer

    return asking


def _reason(answer: Answer) -> str:
    error = (as_json(answer) or {}).get("error")
    message = error.get("message") if isinstance(error, dict) else None
    return message if isinstance(message, str) else f"status {answer.status}"
