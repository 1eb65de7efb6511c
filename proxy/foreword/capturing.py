"""POST /admin/capture: the next prompts whole, with their text, for whoever may ask /admin.

FOREWORD_CAPTURE says where they go; without it nothing can be captured. The request's body may narrow what the settings
say, ``{"requests": 5, "seconds": 600}``; it never names a place.
"""

import asyncio
import logging
import time
from typing import NamedTuple, Protocol

import orjson
from starlette.requests import ClientDisconnect, Request

from foreword.settings import Settings

_log = logging.getLogger(__name__)

MOST_REQUESTS = 1000
MOST_SECONDS = 7 * 86_400
"""The bounds of FOREWORD_CAPTURE_REQUESTS and FOREWORD_CAPTURE_SECONDS."""

USUAL_REQUESTS = 20
"""What is captured where neither the body nor FOREWORD_CAPTURE_REQUESTS says a number: its default."""

BODY_BYTES = 4096
BODY_SECONDS = 10.0

WARNING = "These files hold whole prompts, with their text. Whoever can read the directory can read them."


class Core(Protocol):
    """The part of the Rust core that captures."""

    def capture(self, directory: str, requests: int, seconds: float) -> str: ...


class Refused(Exception):
    """No capture begins: the status of the answer, and one sentence."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class Asked(NamedTuple):
    """What is to be captured: a number of prompts, and for how many seconds their text is kept."""

    requests: int
    seconds: float


class Capturing:
    """Begins captures in the directory of the settings."""

    def __init__(self, core: Core, settings: Settings) -> None:
        self._core = core
        self._directory = settings.capture
        self._usual = Asked(settings.capture_requests or USUAL_REQUESTS, settings.capture_seconds)

    async def begin(self, request: Request) -> bytes:
        """Reads what is asked for and begins it, in the place of a capture under way. Returns JSON that says so.

        Raises Refused.
        """
        # A page of another origin can make a browser on this machine post, but not JSON without asking first.
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != "application/json":
            raise Refused(
                415, "Send a JSON object with `content-type: application/json`, or {} for the usual."
            )
        asked = parse(await _body(request), self._usual)
        if self._directory is None:
            raise Refused(
                409,
                "There is no directory for captures: set FOREWORD_CAPTURE (and FOREWORD_CAPTURE_REQUESTS=0, so that"
                " nothing is captured before it is asked for) and start again.",
            )
        until = time.time() + asked.seconds
        try:
            folder = self._core.capture(self._directory, asked.requests, asked.seconds)
        except OSError as error:
            _log.warning("nothing is captured: %s", error)
            raise Refused(500, f"Nothing is captured: {error}") from None
        return orjson.dumps(
            {
                "directory": str(folder),
                "requests": asked.requests,
                "seconds": asked.seconds,
                "until": round(until, 3),
                "warning": WARNING,
            }
        )


def parse(body: bytes, usual: Asked) -> Asked:
    """What a body asks for. An empty one asks for the usual. Raises Refused, which names every fault at once."""
    try:
        said = orjson.loads(body) if body.strip() else {}
    except orjson.JSONDecodeError as error:
        raise Refused(400, f"The body is no JSON: {error}") from None
    if not isinstance(said, dict):
        raise Refused(400, 'The body must be a JSON object such as {"requests": 5, "seconds": 600}.')
    requests, seconds = said.pop("requests", usual.requests), said.pop("seconds", usual.seconds)
    faults = [f"{name!r} is not known here (requests and seconds are)" for name in said]
    if not isinstance(requests, int) or isinstance(requests, bool) or not 1 <= requests <= MOST_REQUESTS:
        faults.append(f"requests must be a whole number from 1 to {MOST_REQUESTS}")
    if not isinstance(seconds, int | float) or isinstance(seconds, bool) or not 1 <= seconds <= MOST_SECONDS:
        faults.append(f"seconds must be a number from 1 to {MOST_SECONDS}")
    if faults:
        raise Refused(400, "; ".join(faults) + ".")
    return Asked(requests, float(seconds))


async def _body(request: Request) -> bytes:
    """The whole body, bounded in size and in time. Raises Refused."""
    body = b""
    try:
        async with asyncio.timeout(BODY_SECONDS):
            async for chunk in request.stream():
                body += chunk
                if len(body) > BODY_BYTES:
                    raise Refused(413, f"The body is longer than {BODY_BYTES} bytes.")
    except TimeoutError:
        raise Refused(408, f"The body did not come within {BODY_SECONDS:g} seconds.") from None
    except ClientDisconnect:
        raise Refused(400, "The body broke off.") from None
    return body
