"""Who leaves and who breaks, and how soon the other side of the sidecar learns of it."""

import json
import shutil
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
    HALF,
    Peer,
    Received,
    ScriptedEngine,
    chunked,
    completion,
    decodes,
    prefills,
    respond,
    says,
    stream_head,
)
from .sidecar import CHAT, MESSAGES, Sidecar, ask, free_port

CLOSE_WITHIN = 0.3
"""Seconds; the promise is 0.1, and a busy machine gets the rest."""


@pytest.mark.case("B237", "B238")
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
    record = sidecar.wait_for_record(
        outcome="left", route=ROUTES[path], stream=stream if "emb" not in path else False
    )
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


@pytest.mark.case("B258")
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
        sidecar.wait_until_ready(5)


@pytest.mark.parametrize("close", [Peer.reset, Peer.close])
@pytest.mark.parametrize("path", [MESSAGES, CHAT])
def test_a_fresh_connection_that_breaks_is_not_tried_again(
    start_sidecar: StartSidecar, close: Any, path: str
) -> None:
    with ScriptedEngine() as engine:
        sidecar = start_sidecar(engine.url)
        sidecar.wait_until_ready()
        engine.drop_connections()  # those of the probes
        time.sleep(0.1)
        engine.answer = lambda peer, _: close(peer)
        answer = sidecar.post(path, ask())
        assert answer.status == 502
        assert len(engine.requests) == 1
        assert engine.peers[engine.wait_for(1)[0].connection].requests == 1, "it was no fresh connection"
        assert sidecar.record(answer)["retried"] is False


def warm(sidecar: Sidecar, engine: ScriptedEngine) -> None:
    """Leaves an idle connection in the pool."""
    engine.answer = says("hi")
    assert sidecar.post(MESSAGES, ask(stream=False)).status == 200
    time.sleep(0.05)


@pytest.mark.case("B241")
@pytest.mark.parametrize("close", [Peer.reset, Peer.close])
@pytest.mark.parametrize("path", [MESSAGES, CHAT])
def test_a_reused_connection_that_breaks_is_tried_once_more(
    sidecar: Sidecar, engine: ScriptedEngine, close: Any, path: str
) -> None:
    warm(sidecar, engine)

    def answer(peer: Peer, request: Received) -> None:
        if peer.requests > 1:
            close(peer)
        else:
            says("back")(peer, request)

    engine.answer = answer
    before = len(engine.requests)
    answered = sidecar.post(path, ask())
    assert answered.status == 200
    assert b"back" in answered.body
    first, second = engine.requests[before:]
    assert first.body == second.body
    assert engine.peers[first.connection].requests > 1
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


@pytest.mark.case("B242")
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


def test_an_idle_connection_goes_before_the_engine_closes_it(
    sidecar: Sidecar, engine: ScriptedEngine
) -> None:
    """vLLM closes after 5 s. The sidecar's own questions share the pool and may keep a connection busy."""

    def idle_before() -> float | None:
        """Asks; how long the connection that was taken had been idle, None for a fresh one."""
        assert sidecar.post(MESSAGES, ask(stream=False)).status == 200
        last = engine.requests[-1]
        earlier = [
            request.at
            for request in engine.all
            if request.connection == last.connection and request is not last
        ]
        return last.at - max(earlier) if earlier else None

    warm(sidecar, engine)
    time.sleep(1)
    assert idle_before() is not None, "a connection is used again at all"
    time.sleep(4.1)
    idle = idle_before()
    assert idle is None or idle < 4.05


def test_a_unix_socket(start_sidecar: StartSidecar, tmp_path: Path) -> None:
    with ScriptedEngine(unix_path=str(tmp_path / "engine.sock")) as engine:
        engine.answer = says("hi there")
        sidecar = start_sidecar(engine.url)
        answer = sidecar.post(MESSAGES, ask())
        assert b"there" in answer.body
        assert sidecar.post(CHAT, ask(stream=False)).json()["choices"][0]["message"]["content"] == "hi there"
        assert engine.requests[0].header("host")


needs_openssl = pytest.mark.skipif(
    shutil.which("openssl") is None, reason="the openssl command is not installed"
)


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

    new = (
        "req",
        "-x509",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:prime256v1",
        "-nodes",
        "-days",
        "2",
    )
    openssl(*new, "-keyout", "ca.key", "-out", "ca.pem", "-subj", "/CN=Test CA")
    (folder / "san").write_text("subjectAltName=IP:127.0.0.1,DNS:localhost\n")
    request = ("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
    openssl(*request, "-keyout", "key.pem", "-out", "request.pem", "-subj", "/CN=localhost")
    sign = ("x509", "-req", "-in", "request.pem", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial")
    openssl(*sign, "-extfile", "san", "-days", "2", "-out", "cert.pem")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "cert.pem", folder / "key.pem")
    return context
