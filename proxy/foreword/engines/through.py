"""Asks the engine through the sidecar's own connections."""

from collections.abc import Awaitable, Callable

from foreword.engines.base import Answer, Fetch, FetchError, as_json

_UNREACHABLE = 502


def through(fetch: Callable[[str, str, bytes | None], Awaitable[Answer]]) -> Fetch:
    """A `Fetch` of the gateway's ``fetch``, which answers 502 for an engine that is not there."""

    async def asking(method: str, path: str, body: bytes | None = None) -> Answer:
        answer = await fetch(method, path, body)
        if answer.status == _UNREACHABLE:
            raise FetchError(_reason(answer))
        return answer

    return asking


def _reason(answer: Answer) -> str:
    error = (as_json(answer) or {}).get("error")
    message = error.get("message") if isinstance(error, dict) else None
    return message if isinstance(message, str) else f"status {answer.status}"
