"""The sidecar as an HTTP server: headers, encodings, paths, methods, keys, and clients of every age."""

import gzip
import json
import zlib
from collections.abc import Callable
from typing import Any

import pytest

from .conftest import StartSidecar
from .engine import (
    END,
    ScriptedEngine,
    answers,
    chat_events,
    chunked,
    completion,
    models,
    says,
    streams,
)
from .sidecar import CHAT, Sidecar, ask

ZSTD = {
    # zstd -c of: {"model":"m","messages":[]}
    b'{"model":"m","messages":[]}': "28b52ffd0058d900007b226d6f64656c223a226d222c226d65737361676573223a5b5d7d"
}


@pytest.mark.case("B222", "B256")
def test_hop_by_hop_headers_are_of_one_side(sidecar: Sidecar, engine: ScriptedEngine) -> None:
    engine.answer = answers(200, {"ok": True}, ("keep-alive", "timeout=5"), ("connection", "keep-alive"))
    answer = sidecar.raw(
        b"POST /v1/chat/completions HTTP/1.1\r\nhost: outer.example\r\nconnection: close, x-mine\r\nx-mine: 1\r\n"
        b"keep-alive: timeout=9\r\nte: trailers\r\nproxy-authorization: Basic abc\r\nupgrade: h3\r\n"
        b"x-kept: yes\r\nconnection: x-other\r\nx-other: 2\r\naccept-encoding: gzip, br\r\ncontent-length: 2\r\n\r\n{}"
    )
    request = engine.wait_for(1)[0]
    names = {name.lower() for name, _ in request.headers}
    assert not names & {"te", "proxy-authorization", "upgrade", "keep-alive"}
    assert "close" not in (request.header("connection") or "")
    assert request.header("host") == f"127.0.0.1:{engine.port}"
    assert request.header("x-kept") == "yes"
    assert not names & {"x-mine", "x-other"}, (
        "what `connection` names belongs to that connection (RFC 9110, 7.6.1)"
    )
    assert request.header("accept-encoding") == "identity"
    assert b"keep-alive" not in answer.lower().replace(b"connection: keep-alive", b"")


def test_a_clients_headers_go_upstream(sidecar: Sidecar, engine: ScriptedEngine) -> None:
    engine.answer = says("hi")
    sidecar.post(
        CHAT, ask(False), {"X-Request-Id": "trace-1", "traceparent": "00-ab-cd-01", "X-Odd": "a; b, c"}
    )
    request = engine.requests[0]
    assert request.header("x-request-id") == "trace-1"
    assert request.header("traceparent") == "00-ab-cd-01"
    assert request.header("x-odd") == "a; b, c"


def raw_deflate(data: bytes) -> bytes:
    squeezer = zlib.compressobj(wbits=-15)
    return squeezer.compress(data) + squeezer.flush()


PLAIN = b'{"model":"m","messages":[]}'
ENCODED: dict[str, tuple[str, Callable[[bytes], bytes]]] = {
    "gzip": ("gzip", gzip.compress),
    "deflate": ("deflate", zlib.compress),
    "bare deflate": ("deflate", raw_deflate),
    "zstd": ("zstd", lambda data: bytes.fromhex(ZSTD[data])),
    "case": ("GZIP", gzip.compress),
}


@pytest.mark.case("B218")
@pytest.mark.parametrize("name", ENCODED)
def test_request_bodies_are_decoded(sidecar: Sidecar, engine: ScriptedEngine, name: str) -> None:
    coding, encode = ENCODED[name]
    engine.answer = says("hi")
    answer = sidecar.post(CHAT, encode(PLAIN), {"content-encoding": coding})
    assert answer.status == 200
    assert engine.requests[0].body == PLAIN
    assert engine.requests[0].header("content-encoding") is None


def test_a_path_that_is_not_read_keeps_its_encoding(sidecar: Sidecar, engine: ScriptedEngine) -> None:
    engine.answer = answers(200, {"ok": True})
    sidecar.post("/v1/files", b"\x1f\x8b-anything", {"content-encoding": "br"})
    assert engine.requests[0].body == b"\x1f\x8b-anything"
    assert engine.requests[0].header("content-encoding") == "br"


@pytest.mark.parametrize("coding", ["gzip", "deflate"])
@pytest.mark.parametrize("path", [CHAT, "/v1/messages"])
def test_a_bomb_is_bounded(
    sidecar_with: StartSidecar, engine: ScriptedEngine, coding: str, path: str
) -> None:
    sidecar = sidecar_with(MAX_BODY_MIB="1")
    bomb = ENCODED[coding][1](bytes(100 << 20))
    assert len(bomb) < 1 << 20
    before = sidecar.rss_bytes()
    answer = sidecar.post(path, bomb, {"content-encoding": coding})
    assert answer.status == 413
    assert error_type(answer.json()) == (
        "request_too_large" if path == "/v1/messages" else "invalid_request_error"
    )
    assert not engine.requests
    assert sidecar.rss_bytes() - before < 32 << 20


def test_a_body_that_does_not_decode(sidecar: Sidecar, engine: ScriptedEngine) -> None:
    answer = sidecar.post(CHAT, b"no gzip", {"content-encoding": "gzip"})
    assert (answer.status, error_type(answer.json())) == (400, "invalid_request_error")
    assert not engine.requests


@pytest.mark.parametrize("path", [CHAT, "/v1/messages"])
def test_an_unknown_encoding(sidecar: Sidecar, engine: ScriptedEngine, path: str) -> None:
    answer = sidecar.post(path, b"x", {"content-encoding": "br"})
    assert (answer.status, error_type(answer.json())) == (415, "invalid_request_error")
    assert not engine.requests


@pytest.mark.parametrize("path", [CHAT, "/v1/messages"])
def test_a_record_names_the_entry_of_what_was_refused(sidecar: Sidecar, path: str) -> None:
    answer = sidecar.post(path, b"no gzip", {"content-encoding": "gzip"})
    assert answer.status == 400
    assert sidecar.record(answer)["entry"] == path


@pytest.mark.case("B211", "B212")
@pytest.mark.parametrize("path", ["/", "/api/hello"])
def test_what_claude_code_asks_at_its_start(sidecar: Sidecar, engine: ScriptedEngine, path: str) -> None:
    answer = sidecar.request("HEAD", path)
    assert (answer.status, answer.body) == (200, b"")
    assert not engine.requests


@pytest.mark.parametrize(
    ("path", "message_dialect"),
    [("/nope", False), ("/chat/completions", False), ("/messages", True), ("/anthropic/v1/messages", True)],
)
def test_an_unknown_path(sidecar: Sidecar, engine: ScriptedEngine, path: str, message_dialect: bool) -> None:
    answer = sidecar.post(path, ask(False))
    assert answer.status == 404
    assert answer.json().get("type") == ("error" if message_dialect else None)
    assert path in answer.json()["error"]["message"]
    assert answer.headers["request-id"]
    assert not engine.requests


@pytest.mark.case("B183")
@pytest.mark.parametrize("doubled", ["/v1/v1", "//v1", "/v1//v1"])
@pytest.mark.parametrize("path", ["/messages", "/chat/completions"])
def test_a_doubled_base_url_is_told(
    sidecar: Sidecar, engine: ScriptedEngine, doubled: str, path: str
) -> None:
    answer = sidecar.post(doubled + path, ask(False))
    assert answer.status == 404
    assert f"/v1{path}" in answer.json()["error"]["message"].replace(doubled + path, "")
    assert answer.json().get("type") == ("error" if path == "/messages" else None)
    assert not engine.requests


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("GET", "/v1/messages", "POST"),
        ("PUT", "/v1/messages/count_tokens", "POST"),
        ("GET", CHAT, "POST"),
        ("DELETE", "/v1/completions", "POST"),
        ("POST", "/v1/models", "GET, HEAD"),
        ("POST", "/health", "GET, HEAD"),
        ("DELETE", "/metrics", "GET, HEAD"),
    ],
)
def test_a_wrong_method(
    sidecar: Sidecar, engine: ScriptedEngine, method: str, path: str, allowed: str
) -> None:
    answer = sidecar.request(method, path)
    assert answer.status == 405
    assert set(answer.headers["allow"].split(", ")) == set(allowed.split(", "))
    assert answer.json().get("type") == ("error" if "messages" in path else None)
    assert error_type(answer.json()) == "invalid_request_error"
    assert not engine.requests


@pytest.mark.case("B203")
def test_the_model_list_in_both_shapes(sidecar: Sidecar, engine: ScriptedEngine) -> None:
    listing = models("a", "b")
    engine.answer = lambda peer, _: peer.send(listing)
    openai = sidecar.request("GET", "/v1/models")
    assert openai.body == listing.partition(b"\r\n\r\n")[2]
    anthropic = sidecar.request("GET", "/v1/models?limit=1000", headers={"anthropic-version": "2023-06-01"})
    assert anthropic.json() == {
        "data": [
            {"type": "model", "id": name, "display_name": name, "created_at": "2023-11-14T22:13:20Z"}
            for name in ("a", "b")
        ],
        "has_more": False,
        "first_id": "a",
        "last_id": "b",
    }


@pytest.mark.case("B207", "B209")
@pytest.mark.parametrize(
    ("given", "status"),
    [
        ({"Authorization": "Bearer key-one"}, 200),
        ({"Authorization": "bearer key-two"}, 200),
        ({"x-api-key": "key-one"}, 200),
        ({"X-Api-Key": "key-two", "Authorization": "Bearer wrong"}, 200),
        ({"x-api-key": "wrong", "Authorization": "Bearer key-one"}, 200),
        ({"x-api-key": "wrong"}, 401),
        ({"Authorization": "key-one-and-more"}, 401),
        ({"Authorization": "Bearer "}, 401),
        ({}, 401),
    ],
)
@pytest.mark.parametrize("path", [CHAT, "/v1/messages", "/v1/models", "/v1/embeddings"])
def test_either_key_in_either_header(
    sidecar_with: StartSidecar, engine: ScriptedEngine, given: dict[str, str], status: int, path: str
) -> None:
    sidecar = sidecar_with(API_KEYS="key-one,key-two")
    engine.answer = answers(200, completion({"content": "hi"}))
    if path == "/v1/models":
        engine.answer = lambda peer, _: peer.send(models("m"))
        answer = sidecar.request("GET", path, headers=given)
    else:
        answer = sidecar.post(path, ask(False), given)
    assert answer.status == status
    if status == 401:
        assert not engine.requests
        assert error_type(answer.json()) == "authentication_error"
        assert answer.json().get("type") == ("error" if path == "/v1/messages" else None)
        return
    upstream = " ".join(f"{name}: {value}" for name, value in engine.requests[0].headers)
    assert "key-" not in upstream, "a key of the sidecar's own went upstream"


@pytest.mark.case("B208")
def test_keys_are_not_asked_for_where_none_is_set(sidecar: Sidecar, engine: ScriptedEngine) -> None:
    engine.answer = says("hi")
    sidecar.post(CHAT, ask(False), {"x-api-key": "for-the-engine"})
    sidecar.post(CHAT, ask(False), {"Authorization": "Bearer theirs"})
    sidecar.post(CHAT, ask(False))
    # Engines take Bearer only.
    assert [request.header("authorization") for request in engine.requests] == [
        "Bearer for-the-engine",
        "Bearer theirs",
        None,
    ]
    assert all(request.header("x-api-key") is None for request in engine.requests)


def test_another_key_beside_ours_goes_upstream(sidecar_with: StartSidecar, engine: ScriptedEngine) -> None:
    sidecar = sidecar_with(API_KEYS="key-one,key-two")
    engine.answer = says("hi")
    sidecar.post(CHAT, ask(False), {"x-api-key": "key-one", "Authorization": "Bearer engine-key"})
    assert engine.requests[0].header("authorization") == "Bearer engine-key"


def test_the_upstream_key_replaces_the_clients(sidecar_with: StartSidecar, engine: ScriptedEngine) -> None:
    sidecar = sidecar_with(UPSTREAM_API_KEY="secret")
    engine.answer = says("hi")
    for given in ({"x-api-key": "theirs"}, {"Authorization": "Bearer theirs"}, {}):
        sidecar.post(CHAT, ask(False), given)
    assert {request.header("authorization") for request in engine.requests} == {"Bearer secret"}
    assert all(request.header("x-api-key") is None for request in engine.requests)
    # Other sidecars of this module may ask the same engine, without a key.
    probes = [request for request in engine.all if request.is_probe]
    assert "Bearer secret" in {probe.header("authorization") for probe in probes}


@pytest.mark.case("B255")
def test_an_old_client(sidecar: Sidecar, engine: ScriptedEngine) -> None:
    engine.answer = streams(*chat_events("one two", usage=None))
    body = json.dumps(ask()).encode()
    answer = sidecar.raw(
        b"POST /v1/chat/completions HTTP/1.0\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
        % len(body)
        + body
    )
    head, _, rest = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.0 200")
    assert b"transfer-encoding" not in head.lower(), "HTTP/1.0 knows no chunks"
    assert rest == b"".join(chat_events("one two", usage=None))


@pytest.mark.case("B222")
def test_a_client_that_asks_before_it_sends(sidecar: Sidecar, engine: ScriptedEngine) -> None:
    engine.answer = says("hi")
    body = json.dumps(ask(False)).encode()
    with sidecar.connect() as connection:
        connection.sendall(
            b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nexpect: 100-continue\r\nconnection: close\r\n"
            b"content-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(body)
        )
        assert connection.recv(1024).startswith(b"HTTP/1.1 100 ")
        connection.sendall(body)
        assert connection.recv(65536).startswith(b"HTTP/1.1 200 ")
    request = engine.wait_for(1)[0]
    assert request.body == body
    assert request.header("expect") is None


@pytest.mark.case("B222")
@pytest.mark.parametrize("path", [CHAT, "/v1/embeddings"])
def test_a_chunked_request(sidecar: Sidecar, engine: ScriptedEngine, path: str) -> None:
    engine.answer = answers(200, completion({"content": "hi"}))
    body = json.dumps(ask(False, content="x" * 5000)).encode()
    answer = sidecar.raw(
        b"POST %b HTTP/1.1\r\nhost: x\r\nconnection: close\r\ntransfer-encoding: chunked\r\n\r\n"
        % path.encode()
        + b"".join(chunked(body[at : at + 777]) for at in range(0, len(body), 777))
        + END
    )
    assert answer.startswith(b"HTTP/1.1 200 ")
    request = engine.wait_for(1)[0]
    assert request.body == body
    assert request.header("content-length") == str(len(body))


def error_type(body: dict[str, Any]) -> str:
    kind: str = body["error"]["type"]
    return kind
