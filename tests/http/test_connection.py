"""Connections on both sides: who leaves, who breaks, who is slow, and how soon the other side learns of it."""

import json
import os
import shutil
import signal
import socket
import ssl
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from .conftest import StartSidecar
from .engine import (
    END,
    Answer,
    Peer,
    Received,
    ScriptedEngine,
    answers,
    chat_chunk,
    chat_events,
    chunked,
    completion,
    event,
    respond,
    says,
    stream_head,
)
from .sidecar import Sidecar, free_port, read_to_end

MESSAGES = "/v1/messages"
CHAT = "/v1/chat/completions"
ROLE = event(chat_chunk({"role": "assistant", "content": ""}))
HALF = ROLE + event(chat_chunk({"content": "half "}))
REST = event(chat_chunk({}, "stop")) + event("[DONE]")
CLOSE_WITHIN = 0.3
"""Seconds; the promise is 0.1, and a busy machine gets the rest."""


def ask(stream: bool = True, **more: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": "hi"}]
    return {"model": "m", "max_tokens": 64, "messages": messages, "stream": stream, **more}


# ---- the client leaves


def prefills(peer: Peer, _: Received) -> None:
    peer.watch()
    peer.closed.wait(20)


def decodes(peer: Peer, _: Received) -> None:
    peer.watch()
    peer.send(stream_head() + chunked(HALF))
    peer.closed.wait(20)


@pytest.mark.parametrize("path", [MESSAGES, CHAT, "/v1/embeddings"])
@pytest.mark.parametrize("stream", [True, False])
def test_leaving_during_prefill(sidecar: Sidecar, engine: ScriptedEngine, path: str, stream: bool) -> None:
    engine.answer = prefills
    with sidecar.open("POST", path, ask(stream)) as request:
        peer = engine.peers[engine.wait_for(1)[0].connection]
        left = request.leave()
        took = peer.wait_until_closed() - left
    print(f"{path}: the engine's connection closed after {took * 1000:.1f} ms")
    assert took < CLOSE_WITHIN
    record = sidecar.wait_for_record(outcome="left", route=ROUTES[path], stream=stream if "emb" not in path else False)
    assert record["status"] == 499


ROUTES = {MESSAGES: "messages", CHAT: "chat", "/v1/embeddings": "other"}


@pytest.mark.parametrize("path", [MESSAGES, CHAT])
def test_leaving_in_mid_stream(sidecar: Sidecar, engine: ScriptedEngine, path: str) -> None:
    engine.answer = decodes
    with sidecar.open("POST", path, ask()) as request:
        request.read_until(b"half ")
        peer = engine.peers[engine.wait_for(1)[0].connection]
        left = request.leave()
        took = peer.wait_until_closed() - left
    print(f"{path}: the engine's connection closed after {took * 1000:.1f} ms")
    assert took < CLOSE_WITHIN
    sidecar.wait_for_record(outcome="left", route=ROUTES[path], status=200)


def test_leaving_while_a_whole_answer_comes(sidecar: Sidecar, engine: ScriptedEngine) -> None:
    def answer(peer: Peer, _: Received) -> None:
        peer.watch()
        peer.send(respond(200, completion({"content": "hi"}))[:-10])
        peer.closed.wait(20)

    engine.answer = answer
    with sidecar.open("POST", MESSAGES, ask(stream=False)) as request:
        peer = engine.peers[engine.wait_for(1)[0].connection]
        time.sleep(0.05)
        left = request.leave()
        assert peer.wait_until_closed() - left < CLOSE_WITHIN


def test_a_client_that_resets(sidecar: Sidecar, engine: ScriptedEngine) -> None:
    engine.answer = decodes
    body = json.dumps(ask()).encode()
    with sidecar.connect() as connection:
        head = f"POST {MESSAGES} HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n"
        connection.sendall(head.encode() + body)
        peer = engine.peers[engine.wait_for(1)[0].connection]
        connection.recv(1024)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\x00\x00\x00\x00\x00\x00\x00")
    left = time.monotonic()
    assert peer.wait_until_closed() - left < CLOSE_WITHIN


def test_a_body_that_is_left_half_sent_goes_nowhere(sidecar: Sidecar, engine: ScriptedEngine) -> None:
    with sidecar.connect() as connection:
        connection.sendall(b"POST /v1/messages HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\n{")
        time.sleep(0.1)
    assert sidecar.request("GET", "/health/live").status == 200
    assert not engine.requests


def test_an_abandoned_connection_is_not_used_again(sidecar: Sidecar, engine: ScriptedEngine) -> None:
    engine.answer = decodes
    abandoned = set()
    for _ in range(3):
        with sidecar.open("POST", MESSAGES, ask()) as request:
            request.read_until(b"half ")
            request.leave()
        received = engine.requests[-1]
        engine.peers[received.connection].wait_until_closed()
        abandoned.add(received.connection)
    engine.answer = says("hi")
    for _ in range(3):
        assert sidecar.post(MESSAGES, ask()).status == 200
    assert not abandoned & {request.connection for request in engine.requests[3:]}


# ---- the engine is away, breaks or restarts


@pytest.mark.parametrize("path", [MESSAGES, CHAT, "/v1/models"])
def test_an_engine_that_is_away(start_sidecar: StartSidecar, path: str) -> None:
    port = free_port()
    sidecar = start_sidecar(f"http://127.0.0.1:{port}")
    method = "GET" if path == "/v1/models" else "POST"
    answer = sidecar.request(method, path, None if method == "GET" else ask())
    assert answer.status in (502, 503)
    assert 0 < int(answer.headers["retry-after"]) <= 50
    assert answer.json().get("type") == ("error" if path == MESSAGES else None)
    assert sidecar.record(answer)["outcome"] == "engine-error"
    assert sidecar.request("GET", "/health/live").status == 200
    assert sidecar.request("GET", "/health/ready").status == 503
    with ScriptedEngine(port=port) as engine:
        engine.answer = says("hi")
        assert sidecar.post(MESSAGES, ask()).status == 200
        deadline = time.monotonic() + 5
        while sidecar.request("GET", "/health/ready").status != 200:
            assert time.monotonic() < deadline, "the engine is back and not seen"
            time.sleep(0.05)


@pytest.mark.parametrize("close", [Peer.reset, Peer.close])
@pytest.mark.parametrize("path", [MESSAGES, CHAT])
def test_a_fresh_connection_that_breaks_is_not_tried_again(
    start_sidecar: StartSidecar, close: Any, path: str
) -> None:
    with ScriptedEngine() as engine:
        sidecar = start_sidecar(engine.url)
        engine.drop_connections()  # those of the probes
        time.sleep(0.1)
        engine.answer = lambda peer, _: close(peer)
        answer = sidecar.post(path, ask())
        assert answer.status == 502
        assert len(engine.requests) == 1
        assert engine.peers[engine.requests[0].connection].requests == 1, "it was no fresh connection"
        assert sidecar.record(answer)["retried"] is False


def warm(sidecar: Sidecar, engine: ScriptedEngine) -> int:
    """Leaves an idle connection in the pool and returns its number."""
    engine.answer = says("hi")
    assert sidecar.post(MESSAGES, ask(stream=False)).status == 200
    time.sleep(0.05)
    return engine.requests[-1].connection


@pytest.mark.parametrize("close", [Peer.reset, Peer.close])
@pytest.mark.parametrize("path", [MESSAGES, CHAT])
def test_a_reused_connection_that_breaks_is_tried_once_more(
    sidecar: Sidecar, engine: ScriptedEngine, close: Any, path: str
) -> None:
    reused = warm(sidecar, engine)

    def answer(peer: Peer, request: Received) -> None:
        if peer.number == reused:
            close(peer)
        else:
            says("back")(peer, request)

    engine.answer = answer
    before = len(engine.requests)
    answered = sidecar.post(path, ask())
    assert answered.status == 200
    assert b"back" in answered.body
    first, second = engine.requests[before:]
    assert (first.connection, first.body) == (reused, second.body)
    assert engine.peers[second.connection].requests == 1, "the second try is on a fresh connection"
    assert sidecar.record(answered)["retried"] is True


def test_the_second_try_is_the_last(sidecar: Sidecar, engine: ScriptedEngine) -> None:
    warm(sidecar, engine)
    before = len(engine.requests)
    engine.answer = lambda peer, _: peer.close()
    assert sidecar.post(MESSAGES, ask()).status == 502
    assert len(engine.requests) - before == 2


@pytest.mark.parametrize(
    "said", [b"HTTP/1.1 200 OK\r\ncontent-ty", stream_head(), stream_head() + chunked(HALF)]
)
def test_a_reused_connection_that_said_something_is_not_tried_again(
    sidecar: Sidecar, engine: ScriptedEngine, said: bytes
) -> None:
    warm(sidecar, engine)
    before = len(engine.requests)

    def answer(peer: Peer, _: Received) -> None:
        peer.send(said)
        peer.close()

    engine.answer = answer
    answered = sidecar.post(MESSAGES, ask())
    assert len(engine.requests) - before == 1
    assert answered.status == (200 if HALF in said else 502)
    assert sidecar.record(answered)["outcome"] == "engine-error"


def test_an_engine_that_restarts(start_sidecar: StartSidecar) -> None:
    port = free_port()
    barrier = threading.Barrier(10)

    def together(peer: Peer, request: Received) -> None:
        barrier.wait(10)  # ten connections at a time
        says("hi")(peer, request)

    with ScriptedEngine(port=port) as engine:
        sidecar = start_sidecar(engine.url)
        engine.answer = together
        assert at_once(sidecar, 10) == [200] * 10
        assert len({request.connection for request in engine.requests}) == 10
        time.sleep(0.1)
    with ScriptedEngine(port=port) as engine:
        engine.answer = together
        assert at_once(sidecar, 10) == [200] * 10
        assert len(engine.requests) == 10


def at_once(sidecar: Sidecar, count: int) -> list[int]:
    statuses: list[int] = []
    threads = [
        threading.Thread(target=lambda: statuses.append(sidecar.post(MESSAGES, ask()).status))
        for _ in range(count)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    return statuses


def test_an_idle_connection_goes_before_the_engine_closes_it(sidecar: Sidecar, engine: ScriptedEngine) -> None:
    """vLLM closes after 5 s."""
    reused = warm(sidecar, engine)
    time.sleep(1)
    assert sidecar.post(MESSAGES, ask(stream=False)).status == 200
    assert engine.requests[-1].connection == reused, "a connection is used again at all"
    time.sleep(4.1)
    assert sidecar.post(MESSAGES, ask(stream=False)).status == 200
    assert engine.requests[-1].connection != reused


def test_a_unix_socket(start_sidecar: StartSidecar, tmp_path: Path) -> None:
    with ScriptedEngine(unix_path=str(tmp_path / "engine.sock")) as engine:
        engine.answer = says("hi there")
        sidecar = start_sidecar(engine.url)
        answer = sidecar.post(MESSAGES, ask())
        assert b"there" in answer.body
        assert sidecar.post(CHAT, ask(stream=False)).json()["choices"][0]["message"]["content"] == "hi there"
        assert engine.requests[0].header("host")


needs_openssl = pytest.mark.skipif(shutil.which("openssl") is None, reason="the openssl command is not installed")


@needs_openssl
def test_https(start_sidecar: StartSidecar, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    context = self_made(tmp_path)
    with ScriptedEngine(tls=context) as engine:
        engine.answer = says("hi there")
        monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.pem"))
        sidecar = start_sidecar(engine.url)
        assert b"there" in sidecar.post(MESSAGES, ask()).body
        assert engine.requests[0].header("host") == f"127.0.0.1:{engine.port}"


@needs_openssl
def test_https_with_a_strange_certificate(
    start_sidecar: StartSidecar, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = self_made(tmp_path)
    (tmp_path / "other").mkdir()
    self_made(tmp_path / "other")
    with ScriptedEngine(tls=context) as engine:
        monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "other" / "ca.pem"))
        answer = start_sidecar(engine.url).post(MESSAGES, ask())
        assert (answer.status, answer.json()["type"]) == (502, "error")
        assert not engine.all


def self_made(folder: Path) -> ssl.SSLContext:
    """A certificate authority and a certificate for 127.0.0.1, and a server's context with it."""

    def openssl(*arguments: str) -> None:
        subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True)

    new = ("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2")
    openssl(*new, "-keyout", "ca.key", "-out", "ca.pem", "-subj", "/CN=Test CA")
    (folder / "san").write_text("subjectAltName=IP:127.0.0.1,DNS:localhost\n")
    request = ("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
    openssl(*request, "-keyout", "key.pem", "-out", "request.pem", "-subj", "/CN=localhost")
    sign = ("x509", "-req", "-in", "request.pem", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial")
    openssl(*sign, "-extfile", "san", "-days", "2", "-out", "cert.pem")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "cert.pem", folder / "key.pem")
    return context


# ---- the engine is slow


SLOW = {"PING_SECONDS": "0.3", "EARLY_HEAD_SECONDS": "1"}


class Gate:
    """Lets an answer go on when the test says so."""

    def __init__(self) -> None:
        self._open = threading.Event()

    def wait(self) -> None:
        assert self._open.wait(20)

    def open(self) -> None:
        self._open.set()


def late(gate: Gate, then: Answer) -> Answer:
    def answer(peer: Peer, request: Received) -> None:
        gate.wait()
        then(peer, request)

    return answer


def test_an_early_head_with_pings_then_success(sidecar_with: StartSidecar, engine: ScriptedEngine) -> None:
    gate = Gate()
    engine.answer = late(gate, says("hi"))
    began = time.monotonic()
    with sidecar_with(**SLOW).open("POST", MESSAGES, ask()) as request:
        assert request.response.status == 200
        assert 0.9 < time.monotonic() - began < 5
        assert request.headers["content-type"] == "text/event-stream"
        seen = request.read_until(b"event: ping")
        assert seen.startswith(b"event: message_start")
        request.read_until(b"event: ping")
        gate.open()
        rest = request.whole()
    kinds = [name for name, _ in rest.events() if name != "ping"]
    assert kinds == [
        "content_block_start",
        "content_block_delta",
        "content_block_stop",
        "message_delta",
        "message_stop",
    ]


@pytest.mark.parametrize(
    ("then", "kind"),
    [
        (answers(429, {"error": {"message": "later"}}), "rate_limit_error"),
        (answers(400, {"error": {"message": "no"}}), "invalid_request_error"),
        (lambda peer, _: peer.close(), "api_error"),
    ],
)
def test_an_early_head_then_an_error(
    sidecar_with: StartSidecar, engine: ScriptedEngine, then: Answer, kind: str
) -> None:
    gate = Gate()
    engine.answer = late(gate, then)
    with sidecar_with(**SLOW).open("POST", MESSAGES, ask()) as request:
        request.read_until(b"event: ping")
        gate.open()
        events = [entry for entry in request.whole().events() if entry[0] != "ping"]
    assert [name for name, _ in events] == ["error"]
    assert events[0][1]["error"]["type"] == kind


@pytest.mark.parametrize("then", [answers(429, {"error": {"message": "later"}}), says("hi", usage=None)])
def test_an_early_head_of_a_chat(sidecar_with: StartSidecar, engine: ScriptedEngine, then: Answer) -> None:
    gate = Gate()
    engine.answer = late(gate, then)
    with sidecar_with(**SLOW).open("POST", CHAT, ask()) as request:
        assert request.response.status == 200
        gate.open()
        answer = request.whole()
    events = [data for _, data in answer.events()]
    if "error" in events[0]:
        assert len(events) == 1
        assert events[0]["error"]["message"]
    else:
        assert answer.body == b"".join(chat_events("hi", None))


def test_a_real_status_until_the_early_head(sidecar_with: StartSidecar, engine: ScriptedEngine) -> None:
    def answer(peer: Peer, _: Received) -> None:
        time.sleep(0.7)
        peer.send(respond(429, {"error": {"message": "later"}}))

    engine.answer = answer
    assert sidecar_with(**SLOW).post(MESSAGES, ask()).status == 429


def test_no_early_head_where_it_is_off(sidecar_with: StartSidecar, engine: ScriptedEngine) -> None:
    def answer(peer: Peer, _: Received) -> None:
        time.sleep(1.5)
        peer.send(respond(429, {"error": {"message": "later"}}))

    engine.answer = answer
    assert sidecar_with(PING_SECONDS="0.3", EARLY_HEAD_SECONDS="0").post(MESSAGES, ask()).status == 429


def test_pings_after_the_engines_own_head(sidecar_with: StartSidecar, engine: ScriptedEngine) -> None:
    gate = Gate()

    def answer(peer: Peer, _: Received) -> None:
        peer.send(stream_head())
        gate.wait()
        peer.send(chunked(HALF + REST) + END)

    engine.answer = answer
    began = time.monotonic()
    with sidecar_with(PING_SECONDS="0.3", EARLY_HEAD_SECONDS="0").open("POST", MESSAGES, ask()) as request:
        seen = request.read_until(b"event: ping")
        took = time.monotonic() - began
        gate.open()
        rest = request.whole()
    assert seen.startswith(b"event: message_start")
    assert 0.25 < took < 3
    assert [name for name, _ in rest.events()][-1] == "message_stop"
    assert b"message_start" not in rest.body


@pytest.mark.parametrize(
    "before",
    [
        HALF,
        ROLE + event(chat_chunk({"reasoning": "half "})),
        HALF + event(chat_chunk({"tool_calls": [{"id": "a", "index": 0, "function": {"name": "f"}}]})),
        HALF + event(chat_chunk({}, "stop")),
    ],
    ids=["text", "thinking", "tool", "after the finish"],
)
def test_pings_in_silence(sidecar_with: StartSidecar, engine: ScriptedEngine, before: bytes) -> None:
    gate = Gate()

    def answer(peer: Peer, _: Received) -> None:
        peer.send(stream_head() + chunked(before))
        gate.wait()
        peer.send(chunked(REST) + END)

    engine.answer = answer
    began = time.monotonic()
    with sidecar_with(PING_SECONDS="0.3").open("POST", MESSAGES, ask()) as request:
        seen = request.read_until(b"event: ping")
        seen += request.read_until(b"event: ping")
        took = time.monotonic() - began
        gate.open()
        rest = request.whole()
    print(f"two pings after {took:.2f} s")
    assert 0.5 < took < 4
    assert (seen + rest.body).decode().count("event: ping") <= 2 + took / 0.3
    assert [name for name, _ in rest.events()][-1] == "message_stop"


def test_no_ping_where_events_flow(sidecar_with: StartSidecar, engine: ScriptedEngine) -> None:
    def answer(peer: Peer, _: Received) -> None:
        peer.send(stream_head())
        for data in [ROLE, *[event(chat_chunk({"content": "x"}))] * 8, REST]:
            peer.send(chunked(data))
            time.sleep(0.1)
        peer.send(END)

    engine.answer = answer
    assert b"event: ping" not in sidecar_with(PING_SECONDS="0.6").post(MESSAGES, ask()).body


def test_a_chat_is_never_pinged(sidecar_with: StartSidecar, engine: ScriptedEngine) -> None:
    def answer(peer: Peer, _: Received) -> None:
        peer.send(stream_head() + chunked(HALF))
        time.sleep(1)
        peer.send(chunked(REST) + END)

    engine.answer = answer
    assert sidecar_with(PING_SECONDS="0.3").post(CHAT, ask()).body == HALF + REST


LIMITS = {"IDLE_SECONDS": "1", "ANSWER_SECONDS": "1", "PING_SECONDS": "0.4"}


@pytest.mark.parametrize("path", [MESSAGES, CHAT])
def test_a_silence_beyond_the_limit_is_an_error_event(
    sidecar_with: StartSidecar, engine: ScriptedEngine, path: str
) -> None:
    engine.answer = decodes
    sidecar = sidecar_with(**LIMITS)
    began = time.monotonic()
    answer = sidecar.post(path, ask())
    assert 0.9 < time.monotonic() - began < 5
    events = answer.events()
    assert "error" in events[-1][1]
    assert sum("error" in data for _, data in events) == 1
    assert "IDLE_SECONDS" in events[-1][1]["error"]["message"]
    if path == MESSAGES:
        assert (events[-1][0], events[-1][1]["error"]["type"]) == ("error", "timeout_error")
    engine.peers[engine.requests[0].connection].wait_until_closed()


@pytest.mark.parametrize("path", [MESSAGES, CHAT, "/v1/embeddings"])
def test_an_answer_beyond_the_limit_is_a_504(
    sidecar_with: StartSidecar, engine: ScriptedEngine, path: str
) -> None:
    engine.answer = prefills
    answer = sidecar_with(**LIMITS).post(path, ask(stream=False))
    assert answer.status == 504
    assert "ANSWER_SECONDS" in answer.json()["error"]["message"]
    assert answer.json().get("type") == ("error" if path == MESSAGES else None)
    engine.peers[engine.requests[0].connection].wait_until_closed()


def test_an_answer_that_trickles_is_bounded_as_a_whole(
    sidecar_with: StartSidecar, engine: ScriptedEngine
) -> None:
    def answer(peer: Peer, _: Received) -> None:
        peer.send(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 1000\r\n\r\n")
        for _ in range(100):
            peer.send(b" ")
            time.sleep(0.1)

    engine.answer = answer
    began = time.monotonic()
    assert sidecar_with(**LIMITS).post(MESSAGES, ask(stream=False)).status == 504
    assert time.monotonic() - began < 5


# ---- the client is slow or sends too much


def test_a_slow_body(sidecar_with: StartSidecar, engine: ScriptedEngine) -> None:
    sidecar = sidecar_with(BODY_SECONDS="0.5", MAX_BODY_MIB="1")
    with sidecar.connect() as connection:
        connection.sendall(b"POST /v1/messages HTTP/1.1\r\nhost: x\r\ncontent-length: 1000\r\n\r\n")
        for _ in range(4):  # slow, but on its way: each step is within the limit
            time.sleep(0.25)
            connection.sendall(b" ")
        began = time.monotonic()
        answer = connection.recv(65536)
        assert 0.3 < time.monotonic() - began < 5
    assert answer.startswith(b"HTTP/1.1 408 ")
    assert b'"type":"error"' in answer
    assert not engine.requests


@pytest.mark.parametrize("framing", ["content-length", "chunked"])
def test_a_body_that_is_too_large(
    sidecar_with: StartSidecar, engine: ScriptedEngine, framing: str
) -> None:
    """A client that writes on before it reads must still get to read the answer."""
    sidecar = sidecar_with(BODY_SECONDS="0.5", MAX_BODY_MIB="1")
    body = b" " * (8 << 20)
    with sidecar.connect() as connection:
        if framing == "chunked":
            head, rest = b"transfer-encoding: chunked", b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)
        else:
            head, rest = b"content-length: %d" % len(body), body
        connection.sendall(b"POST /v1/messages HTTP/1.1\r\nhost: x\r\n" + head + b"\r\n\r\n")
        try:
            connection.sendall(rest)
        except (BrokenPipeError, ConnectionResetError):
            pass  # the answer may be here all the same
        answer = connection.recv(65536)
    assert answer.startswith(b"HTTP/1.1 413 ")
    assert b"request_too_large" in answer
    assert not engine.requests


def test_a_body_at_the_limit_passes(sidecar_with: StartSidecar, engine: ScriptedEngine) -> None:
    sidecar = sidecar_with(BODY_SECONDS="0.5", MAX_BODY_MIB="1")
    engine.answer = answers(200, {"ok": True})
    body = b'{"x":"%b"}' % (b"a" * ((1 << 20) - 8))
    assert len(body) == 1 << 20
    assert sidecar.post(CHAT, body).status == 200
    assert engine.requests[0].body == body
    assert sidecar.post(CHAT, body + b" ").status == 413


# ---- the end


def slow_stream(gate: Gate) -> Answer:
    def answer(peer: Peer, _: Received) -> None:
        peer.send(stream_head() + chunked(HALF))
        gate.wait()
        peer.send(chunked(REST) + END)

    return answer


def test_running_streams_may_finish(start_sidecar: StartSidecar, engine: ScriptedEngine) -> None:
    gate = Gate()
    engine.answer = slow_stream(gate)
    sidecar = start_sidecar(engine.url, DRAIN_SECONDS="20")
    with sidecar.open("POST", MESSAGES, ask()) as request:
        request.read_until(b"half ")
        sidecar.process.send_signal(signal.SIGTERM)
        time.sleep(1)
        assert sidecar.process.poll() is None
        with pytest.raises(OSError, match=r".*"):
            sidecar.request("GET", "/health/live")
        gate.open()
        rest = request.whole()
        assert [name for name, _ in rest.events()][-1] == "message_stop"
    began = time.monotonic()
    assert sidecar.process.wait(15) == 0
    assert time.monotonic() - began < 10
    sidecar.wait_for_record(outcome="ok")


@pytest.mark.parametrize("path", [MESSAGES, CHAT])
def test_streams_beyond_the_drain_get_an_error_event(
    start_sidecar: StartSidecar, engine: ScriptedEngine, path: str
) -> None:
    gate = Gate()
    engine.answer = slow_stream(gate)
    sidecar = start_sidecar(engine.url, DRAIN_SECONDS="1")
    with sidecar.open("POST", path, ask()) as request:
        request.read_until(b"half ")
        began = time.monotonic()
        sidecar.process.send_signal(signal.SIGTERM)
        rest = request.whole()  # http.client fails on a bare cut
        took = time.monotonic() - began
    gate.open()
    assert 0.9 < took < 5
    events = [data for _, data in rest.events()]
    assert "error" in events[-1]
    assert sum("error" in data for data in events) == 1
    assert b"message_stop" not in rest.body
    assert b"[DONE]" not in rest.body
    sidecar.process.wait(10)
    sidecar.wait_for_record(outcome="sidecar-error")


def test_a_request_that_waits_at_the_end_gets_an_error(
    start_sidecar: StartSidecar, engine: ScriptedEngine
) -> None:
    engine.answer = prefills
    sidecar = start_sidecar(engine.url, DRAIN_SECONDS="1")
    with sidecar.open("POST", MESSAGES, ask()) as request:
        peer = engine.peers[engine.wait_for(1)[0].connection]
        sidecar.process.send_signal(signal.SIGTERM)
        answer = request.whole()
    assert (answer.status, answer.json()["error"]["type"]) == (503, "overloaded_error")
    assert int(answer.headers["retry-after"]) <= 50
    peer.wait_until_closed()
    sidecar.process.wait(10)


def test_a_quiet_sidecar_ends_at_once(start_sidecar: StartSidecar, engine: ScriptedEngine) -> None:
    sidecar = start_sidecar(engine.url, DRAIN_SECONDS="20")
    with sidecar.connect():  # an idle client keeps nothing
        began = time.monotonic()
        assert sidecar.stop() == 0
        assert time.monotonic() - began < 5


def test_sigint_ends_it_too(start_sidecar: StartSidecar, engine: ScriptedEngine) -> None:
    sidecar = start_sidecar(engine.url)
    os.kill(sidecar.process.pid, signal.SIGINT)
    assert sidecar.process.wait(10) == 0


def test_what_comes_on_a_kept_connection(sidecar: Sidecar, engine: ScriptedEngine) -> None:
    """Errors, streams and answers one after the other on one client connection."""
    with sidecar.connect() as connection:
        for answer, status in ((says("hi"), b"200"), (answers(429, {"error": {"message": "x"}}), b"429")):
            engine.answer = answer
            body = json.dumps(ask(stream=False)).encode()
            head = b"POST /v1/messages HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(body)
            connection.sendall(head + body)
            assert connection.recv(65536).startswith(b"HTTP/1.1 " + status)
        connection.sendall(b"GET /health/live HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
        assert read_to_end(connection).startswith(b"HTTP/1.1 200")
