"""/admin: the journal's sessions, the open findings and captures, for operators only.

What is shown are names, lengths and digests, never a text; a capture puts texts into files. Who may ask: with
FOREWORD_ADMIN_KEY whoever shows it, from anywhere; without it only somebody on this machine. "On this machine" takes
three things, since each alone can be had from outside: the connection's other end is a loopback address, the Host that
was asked for is one too (a web page whose name was re-pointed to 127.0.0.1 names its own), and no header tells of a
proxy that passed the request on.
"""

import hmac
import ipaddress
from collections.abc import Awaitable, Callable, Mapping
from typing import NamedTuple, Protocol

import orjson
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import Response

from foreword.capturing import Capturing, Refused
from foreword.findings import Board

SESSIONS = "/admin/sessions"
SESSION = "/admin/sessions/{id}"
FINDINGS = "/admin/findings"
CAPTURE = "/admin/capture"

FORWARDING = frozenset({"forwarded", "via", "cf-connecting-ip"})
"""Headers of proxies, beside those that begin or end as follows."""
FORWARDING_BEGINNINGS = ("x-forwarded", "x-original", "x-envoy")
FORWARDING_ENDS = ("real-ip", "client-ip")


class Journal(Protocol):
    """The part of the Rust core that knows the sessions."""

    def sessions(self) -> bytes: ...
    def session(self, name: str, /) -> bytes | None: ...


class Refusal(NamedTuple):
    """Why somebody may not ask."""

    status: int
    kind: str
    message: str


class Guard:
    """Decides who may ask."""

    def __init__(self, key: str | None) -> None:
        self._key = None if key is None else key.encode()

    def refusal(self, peer: str | None, headers: Headers) -> Refusal | None:
        """None: the one behind the address ``peer`` may ask."""
        if self._key is not None:
            return None if shows(headers, self._key) else _NO_KEY
        if peer is None or not is_loopback(peer):
            return _NOT_HERE
        if any(tells_of_a_proxy(name) for name in headers):
            return _NOT_HERE
        hosts = headers.getlist("host")
        return None if len(hosts) == 1 and is_loopback(_without_port(hosts[0])) else _NOT_HERE


def tells_of_a_proxy(name: str) -> bool:
    """Whether a header, its name in lower case, is one that proxies add."""
    return name in FORWARDING or name.startswith(FORWARDING_BEGINNINGS) or name.endswith(FORWARDING_ENDS)


def shows(headers: Headers, key: bytes) -> bool:
    """Whether ``key`` is among the keys that the headers show."""
    shown = [value.strip() for value in headers.getlist("x-api-key")]
    for value in headers.getlist("authorization"):
        scheme, _, credential = value.strip().partition(" ")
        if scheme.lower() == "bearer":
            shown.append(credential.strip())
    found = False
    for each in shown:  # no early end: the time tells nothing of which key was nearly right
        found |= hmac.compare_digest(key, each.encode())
    return found


_NO_KEY = Refusal(
    401,
    "authentication_error",
    "Show FOREWORD_ADMIN_KEY as `Authorization: Bearer` or `x-api-key`; keys of clients do not count here.",
)
_NOT_HERE = Refusal(
    403,
    "permission_error",
    "Without FOREWORD_ADMIN_KEY /admin answers only requests from this machine to a loopback host, with no proxy"
    " between.",
)


def is_loopback(name: str) -> bool:
    """Whether an address, or the name localhost, means this machine."""
    if name.lower() == "localhost":
        return True
    try:
        address = ipaddress.ip_address(name.removeprefix("[").removesuffix("]"))
    except ValueError:
        return False
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return (mapped or address).is_loopback


def _without_port(host: str) -> str:
    if host.startswith("["):
        return host.partition("]")[0] + "]"
    return host.partition(":")[0]


class Admin:
    """The endpoints under /admin."""

    def __init__(self, journal: Journal, board: Board, capturing: Capturing, key: str | None) -> None:
        self._journal = journal
        self._board = board
        self._capturing = capturing
        self._guard = Guard(key)

    def endpoints(self) -> Mapping[str, Callable[[Request], Awaitable[Response]]]:
        """What answers GET and HEAD, by path; the last takes what the others do not."""
        return {
            SESSIONS: self._guarded(self.sessions),
            SESSION: self._guarded(self.session),
            FINDINGS: self._guarded(self.findings),
            "/admin": self._guarded(self.unknown),
            "/admin/{rest:path}": self._guarded(self.unknown),
        }

    def commands(self) -> Mapping[str, Callable[[Request], Awaitable[Response]]]:
        """What answers POST, by path."""
        return {CAPTURE: self.capture}

    def sessions(self, _: Request) -> Response:
        """The lines of the journal, the one used latest first."""
        return _json(200, b'{"sessions":' + self._journal.sessions() + b"}")

    def session(self, request: Request) -> Response:
        """One session's lines, their turns as rows."""
        session: str = request.path_params["id"]
        known = self._journal.session(session)
        if known is None:
            return _fault(
                Refusal(
                    404,
                    "not_found_error",
                    f"The journal knows no session {session!r}. It holds the latest only, and forgets all at a restart;"
                    f" GET {SESSIONS} lists them. A line without a session's name is asked for as line-NUMBER.",
                )
            )
        return _json(200, known)

    def findings(self, _: Request) -> Response:
        """The open findings, worst first."""
        return _json(200, orjson.dumps({"findings": [finding.as_json() for finding in self._board.open()]}))

    def unknown(self, request: Request) -> Response:
        """A path that there is not."""
        known = f"There are {SESSIONS}, {SESSION} and {FINDINGS}, and POST {CAPTURE}."
        message = f"No such path: {request.url.path}. {known}"
        return _fault(Refusal(404, "not_found_error", message))

    async def capture(self, request: Request) -> Response:
        """Begins to capture the next prompts."""
        refusal = self._refusal(request)
        if refusal is not None:
            return _fault(refusal)
        try:
            return _json(200, await self._capturing.begin(request))
        except Refused as refused:
            kind = "api_error" if refused.status >= 500 else "invalid_request_error"
            return _fault(Refusal(refused.status, kind, str(refused)))

    def _guarded(self, answer: Callable[[Request], Response]) -> Callable[[Request], Awaitable[Response]]:
        async def guarded(request: Request) -> Response:
            refusal = self._refusal(request)
            return answer(request) if refusal is None else _fault(refusal)

        return guarded

    def _refusal(self, request: Request) -> Refusal | None:
        return self._guard.refusal(request.client.host if request.client else None, request.headers)


def _fault(refusal: Refusal) -> Response:
    body = orjson.dumps({"error": {"type": refusal.kind, "message": refusal.message}})
    response = _json(refusal.status, body)
    if refusal.status == 401:
        response.headers["www-authenticate"] = "Bearer"
    return response


def _json(status: int, body: bytes) -> Response:
    return Response(body, status, media_type="application/json", headers={"cache-control": "no-store"})
