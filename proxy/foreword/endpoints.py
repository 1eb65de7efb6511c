"""The hot endpoints: raw ASGI, handed granian's own ``send``. They route, bound and wait; Rust does the rest."""

import asyncio
import logging
import secrets
from collections.abc import Sequence
from dataclasses import dataclass

from foreword import __version__
from foreword._core import Body, Sidecar, fault
from foreword.asgi import Head, Header, Receive, Scope, Send
from foreword.auth import Authorizer
from foreword.body import BodyRefused, ClientLeft, Closing, collect
from foreword.port import AsgiDelivery, Port
from foreword.turns import Turns

_log = logging.getLogger(__name__)

_OWN_AGENT = f"foreword/{__version__}".encode()


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole answer of the engine to a question of Foreword's own."""

    status: int
    headers: list[Header]
    body: bytes


class Gateway:
    """Everything an endpoint needs: the core, its port, who may pass, and the bounds of a body."""

    def __init__(
        self,
        sidecar: Sidecar,
        port: Port,
        authorizer: Authorizer,
        *,
        max_body_bytes: int,
        body_seconds: float,
    ) -> None:
        self.sidecar = sidecar
        self.port = port
        self.authorizer = authorizer
        self.max_body_bytes = max_body_bytes
        self.body_seconds = body_seconds
        self.turns = Turns()
        self.closing = Closing()

    def close(self, goodbye: str) -> None:
        """Ends every exchange with an error that says ``goodbye``, also those that are yet to begin."""
        self.sidecar.close(goodbye)
        # What has come of their bodies is no matter now.
        self.closing.tell()

    async def collect(self, scope: Scope, receive: Receive, *, json: bool) -> Body:
        """Collects a client's body, within the bounds (see ``foreword.body``)."""
        return await collect(
            scope,
            receive,
            self.max_body_bytes,
            self.body_seconds,
            self.turns,
            closing=self.closing,
            json=json,
        )

    async def fetch(
        self, method: str, path: str, body: bytes | None = None, headers: Sequence[Header] = ()
    ) -> Answer:
        """Asks the engine something, as Foreword itself. An engine that is not there answers 502."""
        content = Body()
        headers = [*headers, (b"user-agent", _OWN_AGENT)]
        if body is not None:
            content.push(body)
            headers.append((b"content-type", b"application/json"))
        delivery = _WholeDelivery(asyncio.get_running_loop())
        token = self.sidecar.open(
            "own", method, path.encode(), headers, content, new_request_id(), self.authorizer.own
        )
        self.port.attach(token, delivery)
        try:
            return await delivery.answer
        except asyncio.CancelledError:
            self.sidecar.cancel(token)
            raise


class Endpoint:
    """One hot route. ``route`` is a name of ``Sidecar.open``; ``dialect`` the one its errors are told in."""

    def __init__(self, gateway: Gateway, route: str, dialect: str) -> None:
        self._gateway = gateway
        self._route = route
        self._dialect = dialect

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        gateway = self._gateway
        request_id = new_request_id()
        authorized = gateway.authorizer.authorize(scope["headers"])
        if authorized is None:
            await self._refuse(send, request_id, "unauthorized", "")
            return
        if {".", ".."} & set(scope["path"].split("/")):
            # An engine may resolve such a path to one that is not passed through.
            await self._refuse(send, request_id, "not_found", scope["path"])
            return
        try:
            body = await gateway.collect(scope, receive, json=self._route != "other")
        except BodyRefused as refused:
            await self._refuse(send, request_id, refused.kind, refused.detail)
            return
        except ClientLeft:
            # A client that is there all the same has broken off its body, as by a bad chunk.
            await self._refuse(send, request_id, "invalid", "the request body broke off")
            return
        loop = asyncio.get_running_loop()
        delivery = AsgiDelivery(gateway.sidecar, send, gateway.port.on_record, loop)
        token = delivery.token = gateway.sidecar.open(
            self._route,
            scope["method"],
            target(scope),
            scope["headers"],
            body,
            request_id,
            authorized.upstream,
        )
        gateway.port.attach(token, delivery)
        # After the body, receive() returns when the client leaves, and then only.
        leaving = loop.create_task(_left(receive))
        leaving.add_done_callback(lambda _: gateway.sidecar.cancel(token))
        try:
            await delivery.done
        finally:
            leaving.cancel()

    async def _refuse(self, send: Send, request_id: str, kind: str, detail: str) -> None:
        _log.info("refused %s on %s: %s", request_id, self._route, f"{kind} {detail}".rstrip())
        status = await send_fault(send, self._dialect, kind, detail, request_id)
        self._gateway.sidecar.refused(self._route, status)


async def send_fault(send: Send, dialect: str, kind: str, detail: str, request_id: str) -> int:
    """Answers with an error of Foreword's own (see ``_core.fault``) in the caller's dialect; returns its status."""
    status, headers, body = fault(dialect, kind, detail, request_id)
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body, "more_body": False})
    return status


def new_request_id() -> str:
    """A fresh id in Anthropic's form, for ``request-id``."""
    return f"req_{secrets.token_hex(12)}"


def target(scope: Scope) -> bytes:
    """Path and query as the client wrote them."""
    path: bytes = scope.get("raw_path") or scope["path"].encode()
    query: bytes = scope.get("query_string", b"")
    return path + b"?" + query if query else path


async def _left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class _WholeDelivery:
    """Keeps an answer until it is whole."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.answer: asyncio.Future[Answer] = loop.create_future()
        self._head: Head = (502, [])
        self._body = bytearray()

    def take(self, head: Head | None, data: bytes, record: bytes | None) -> None:
        if head is not None:
            self._head = head
        self._body += data
        if record is not None and not self.answer.done():
            self.answer.set_result(Answer(self._head[0], self._head[1], bytes(self._body)))

    def stuck(self, step: object, why: object) -> None:
        """Never called: it gave nobody a ``send``."""

    def give_up(self) -> None:
        if not self.answer.done():
            self.answer.set_result(Answer(502, [], b""))
