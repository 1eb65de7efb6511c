"""A scripted engine: a TCP server that keeps every byte it was sent and answers exactly the bytes it is told to.

It shares no HTTP code with the product, so that what arrives is judged from outside.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Self


@dataclass
class Received:
    """One request as it came."""

    method: str
    target: str
    headers: list[tuple[str, str]]
    body: bytes
    connection: int
    """Number of the connection it came on."""
    at: float
    """When it had come (time.monotonic)."""

    @property
    def is_probe(self) -> bool:
        """Whether the sidecar asks for itself rather than for a client."""
        return (self.header("user-agent") or "").startswith("foreword/")

    def header(self, name: str) -> str | None:
        return next((value for key, value in self.headers if key.lower() == name), None)

    def json(self) -> Any:
        return json.loads(self.body)


@dataclass
class Peer:
    """One accepted connection, for an answer to write on."""

    socket: socket.socket
    number: int
    """In the order of acceptance, from 0; ``Received.connection`` names it."""
    requests: int = 0
    """Requests that came on it so far."""
    closed: threading.Event = field(default_factory=threading.Event)
    """Set when the other side has closed; ``closed_at`` says when (time.monotonic)."""
    closed_at: float = 0.0

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def watch(self) -> None:
        """Notes the moment at which the other side closes. No further request is read on this connection."""

        def wait() -> None:
            try:
                while self.socket.recv(65536):
                    pass
            except OSError:
                pass
            self.closed_at = time.monotonic()
            self.closed.set()

        threading.Thread(target=wait, daemon=True).start()

    def wait_until_closed(self, seconds: float = 10.0) -> float:
        """When the other side closed, after `watch`."""
        assert self.closed.wait(seconds), "the connection is still open"
        return self.closed_at

    def reset(self) -> None:
        """Closes with RST. Not after `watch`, whose pending read would hold the descriptor."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\x00\x00\x00\x00\x00\x00\x00")
        # close() would wait for the reader of requests, which shares the descriptor.
        os.close(self.socket.detach())

    def close(self) -> None:
        """Closes with FIN."""
        self.socket.shutdown(socket.SHUT_RDWR)
        self.socket.close()


Answer = Callable[[Peer, Received], None]


class ScriptedEngine:
    """Listens on a free port (or a Unix socket) and answers with ``answer``, which a test sets."""

    def __init__(
        self, unix_path: str | None = None, port: int = 0, tls: ssl.SSLContext | None = None
    ) -> None:
        if unix_path is None:
            self._listener = socket.create_server(("127.0.0.1", port), backlog=4096)
            self.port: int = self._listener.getsockname()[1]
            self.url = f"{'https' if tls else 'http'}://127.0.0.1:{self.port}"
        else:
            self._listener = socket.socket(socket.AF_UNIX)
            self._listener.bind(unix_path)
            self._listener.listen(1024)
            self.url = f"unix:{unix_path}"
        self._tls = tls
        self._arrived = threading.Condition()
        self.peers: list[Peer] = []
        self.reset()
        threading.Thread(target=self._accept, daemon=True).start()

    def reset(self) -> None:
        """Forgets what came and what was scripted; connections stay."""
        self.answer: Answer = lambda peer, _: peer.send(respond(404, b'{"error":"no script"}'))
        self.probes: Mapping[str, bytes] = {}
        """Whole answers to the sidecar's own questions by path; others get 404."""
        self.all: list[Received] = []

    @property
    def requests(self) -> list[Received]:
        """What clients sent, in the order of arrival; the sidecar's own questions left out."""
        return [request for request in self.all if not request.is_probe]

    def wait_for(self, count: int, seconds: float = 10.0) -> list[Received]:
        """The requests, once there are ``count``."""
        with self._arrived:
            arrived = self._arrived.wait_for(lambda: len(self.requests) >= count, seconds)
        assert arrived, f"{len(self.requests)} of {count} requests arrived"
        return self.requests

    def drop_connections(self, close: Callable[[Peer], None] = Peer.close) -> None:
        """Closes every connection that is open, as an engine that ends."""
        for peer in self.peers:
            if not peer.closed.is_set():
                with contextlib.suppress(OSError):
                    close(peer)
                peer.closed.set()

    def close(self) -> None:
        # Closing alone would leave the accepting thread asleep on the descriptor.
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.drop_connections()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            if connection.family == socket.AF_INET:
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            peer = Peer(connection, len(self.peers))
            self.peers.append(peer)
            threading.Thread(target=self._serve, args=(peer,), daemon=True).start()

    def _serve(self, peer: Peer) -> None:
        try:
            if self._tls is not None:
                peer.socket = self._tls.wrap_socket(peer.socket, server_side=True)
            with peer.socket.makefile("rb") as stream:
                while (request := read_request(stream, peer.number)) is not None:
                    peer.requests += 1
                    with self._arrived:
                        self.all.append(request)
                        self._arrived.notify_all()
                    if request.is_probe:
                        peer.send(self.probes.get(request.target, respond(404, b'{"detail":"Not Found"}')))
                    else:
                        self.answer(peer, request)
        except OSError:
            pass
        finally:
            peer.closed_at = peer.closed_at or time.monotonic()
            peer.closed.set()
            peer.socket.close()


def read_request(stream: Any, connection: int) -> Received | None:
    """One HTTP/1.1 request; None at the end of the connection."""
    line = stream.readline()
    if not line:
        return None
    method, target, _ = line.decode("latin-1").split(" ", 2)
    headers = []
    while (line := stream.readline()) not in (b"\r\n", b""):
        name, _, value = line.decode("latin-1").partition(":")
        headers.append((name, value.strip()))
    request = Received(method, target, headers, b"", connection, 0)
    framing = [name.lower() for name, _ in headers if name.lower() in ("content-length", "transfer-encoding")]
    assert len(framing) <= 1, f"more than one framing header: {framing}"
    length = request.header("content-length")
    if length is not None:
        request.body = stream.read(int(length))
    elif framing:
        chunks = []
        while size := int(stream.readline(), 16):
            chunks.append(stream.read(size))
            stream.readline()
        stream.readline()
        request.body = b"".join(chunks)
    request.at = time.monotonic()
    return request


def respond(
    status: int,
    body: bytes | dict[str, Any],
    headers: Iterable[tuple[str, str]] = (),
    content_type: str | None = "application/json",
) -> bytes:
    """A whole answer with a content-length."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    lines = [f"HTTP/1.1 {status} Status", f"content-length: {len(data)}"]
    if content_type is not None:
        lines.append(f"content-type: {content_type}")
    lines += [f"{name}: {value}" for name, value in headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + data


def stream_head(headers: Iterable[tuple[str, str]] = ()) -> bytes:
    """The head of a chunked event stream as vLLM sends it."""
    lines = [
        "HTTP/1.1 200 OK",
        "content-type: text/event-stream; charset=utf-8",
        "transfer-encoding: chunked",
    ]
    lines += [f"{name}: {value}" for name, value in headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n"


def chunked(data: bytes) -> bytes:
    """One HTTP chunk."""
    return b"%x\r\n%b\r\n" % (len(data), data)


END = b"0\r\n\r\n"


def event(data: dict[str, Any] | str) -> bytes:
    """One SSE event as an OpenAI server writes it."""
    text = data if isinstance(data, str) else json.dumps(data)
    return f"data: {text}\n\n".encode()


def chat_chunk(delta: dict[str, Any], finish: str | None = None, **more: Any) -> dict[str, Any]:
    """One chunk of a chat stream."""
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion.chunk",
        "created": 1,
        "model": "m",
        "choices": [choice],
        **more,
    }


def chat_events(text: str, usage: dict[str, Any] | None = None, finish: str = "stop") -> Iterator[bytes]:
    """A whole chat stream that says ``text`` word by word."""
    yield event(chat_chunk({"role": "assistant", "content": ""}))
    for word in text.split(" "):
        yield event(chat_chunk({"content": word + " "}))
    yield event(chat_chunk({}, finish))
    if usage is not None:
        yield event(
            {
                "id": "chatcmpl-1",
                "object": "chat.completion.chunk",
                "model": "m",
                "choices": [],
                "usage": usage,
            }
        )
    yield event("[DONE]")


def streams(*pieces: bytes, end: bool = True) -> Answer:
    """An answer that streams ``pieces``, each as one chunk and one write."""

    def answer(peer: Peer, _: Received) -> None:
        peer.send(stream_head())
        for data in pieces:
            peer.send(chunked(data))
        if end:
            peer.send(END)

    return answer


def answers(status: int, body: bytes | dict[str, Any], *headers: tuple[str, str]) -> Answer:
    """A whole JSON answer."""
    return lambda peer, _: peer.send(respond(status, body, headers))


def models(*names: str) -> bytes:
    """The answer to `GET /v1/models` of an engine that serves ``names``."""
    entries = [
        {"id": name, "object": "model", "created": 1_700_000_000, "owned_by": "vllm"} for name in names
    ]
    return respond(200, {"object": "list", "data": entries})


USAGE = {
    "prompt_tokens": 100,
    "completion_tokens": 5,
    "total_tokens": 105,
    "prompt_tokens_details": {"cached_tokens": 64, "created_cache_tokens": 32},
}


def says(text: str, usage: dict[str, Any] | None = USAGE) -> Answer:
    """An answer that says ``text``: a stream where one is asked for, else one JSON body."""

    def answer(peer: Peer, request: Received) -> None:
        if request.json().get("stream"):
            peer.send(stream_head())
            for data in chat_events(text, usage):
                peer.send(chunked(data))
            peer.send(END)
            return
        peer.send(respond(200, completion({"content": text}, usage)))

    return answer


def completion(
    message: dict[str, Any], usage: dict[str, Any] | None = USAGE, finish: str = "stop"
) -> dict[str, Any]:
    """A whole chat completion."""
    message = {"role": "assistant", **message}
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": finish}
    body = {"id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": "m"}
    return {**body, "choices": [choice], "usage": usage}


ROLE = event(chat_chunk({"role": "assistant", "content": ""}))
HALF = ROLE + event(chat_chunk({"content": "half "}))
"""The begin of a chat stream ..."""
REST = event(chat_chunk({}, "stop")) + event("[DONE]")
"""... and its end."""


def prefills(peer: Peer, _: Received) -> None:
    """Answers nothing, until the other side closes."""
    peer.watch()
    peer.closed.wait(20)


def decodes(peer: Peer, _: Received) -> None:
    """Sends half a stream and no more, until the other side closes."""
    peer.watch()
    peer.send(stream_head() + chunked(HALF))
    peer.closed.wait(20)


class Gate:
    """Lets an answer go on when the test says so."""

    def __init__(self) -> None:
        self._open = threading.Event()

    def wait(self) -> None:
        """Raises OSError, which ends the connection, when no test opens it: one that meant to leave it shut is over."""
        if not self._open.wait(20):
            raise ConnectionAbortedError("the gate was never opened")

    def open(self) -> None:
        self._open.set()
