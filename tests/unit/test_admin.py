"""/admin: who may ask, and what is answered."""

import asyncio
from typing import cast

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.datastructures import Headers
from starlette.routing import Router

from foreword.admin import Admin, Guard, is_loopback
from foreword.app import admin_routes, not_found
from foreword.capturing import Capturing
from foreword.findings import Board, Finding
from foreword.settings import Settings

LINE = b'{"session":"0123456789abcdef","line":17,"client":"codex","turns":3}'


class Journal:
    """The core's journal with one session."""

    def sessions(self) -> bytes:
        return b"[" + LINE + b"]"

    def session(self, name: str, /) -> bytes | None:
        return (
            b'{"session":"0123456789abcdef","lines":[' + LINE + b"]}"
            if name in ("0123456789abcdef", "line-17")
            else None
        )


class Core:
    """What captures, and what it was asked for."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, int, float]] = []
        self.fault: OSError | None = None

    def capture(self, directory: str, requests: int, seconds: float) -> str:
        if self.fault is not None:
            raise self.fault
        self.asked.append((directory, requests, seconds))
        return f"{directory}/until-1-00000000"


class House:
    """The admin endpoints as a peer sees them."""

    def __init__(self, key: str | None = None, **settings: str) -> None:
        self.board = Board()
        self.core = Core()
        named = {f"FOREWORD_{name}": value for name, value in settings.items()}
        capturing = Capturing(self.core, Settings.from_env(named))
        routes = admin_routes(Admin(Journal(), self.board, capturing, key))
        self._app = Router(routes, redirect_slashes=False, default=not_found)

    def ask(
        self,
        path: str,
        headers: dict[str, str] | None = None,
        *,
        peer: str = "127.0.0.1",
        host: str = "127.0.0.1:8400",
        method: str = "GET",
        content: bytes | None = None,
    ) -> httpx.Response:
        async def asking() -> httpx.Response:
            transport = httpx.ASGITransport(self._app, client=(peer, 40_000))
            async with httpx.AsyncClient(transport=transport, base_url="http://sidecar") as client:
                return await client.request(
                    method, path, content=content, headers={"host": host, **(headers or {})}
                )

        return asyncio.run(asking())


def test_sessions() -> None:
    answer = House().ask("/admin/sessions")
    assert answer.status_code == 200
    assert answer.headers["cache-control"] == "no-store"
    (line,) = answer.json()["sessions"]
    assert line["line"] == 17


@pytest.mark.parametrize("name", ["0123456789abcdef", "line-17"])
def test_one_session(name: str) -> None:
    answer = House().ask(f"/admin/sessions/{name}")
    assert answer.status_code == 200
    assert answer.json()["lines"][0]["turns"] == 3


def test_a_session_that_is_not_known() -> None:
    answer = House().ask("/admin/sessions/feedfacefeedface")
    assert answer.status_code == 404
    message = answer.json()["error"]["message"]
    assert "feedfacefeedface" in message
    assert "/admin/sessions" in message


def test_findings_worst_first() -> None:
    house = House()
    assert house.ask("/admin/findings").json() == {"findings": []}
    house.board.set(Finding("below-minimum", "a", "info", 1.0, 2.0, 20, "Nothing."))
    house.board.set(
        Finding("pinned", "b", "critical", 1.0, 2.0, 383, "Much.", tokens=5, evidence={"tokens": 17_920})
    )
    found = house.ask("/admin/findings").json()["findings"]
    assert [each["id"] for each in found] == ["pinned", "below-minimum"]
    assert found[0]["evidence"] == {"tokens": 17_920}


@pytest.mark.parametrize("path", ["/admin", "/admin/", "/admin/session", "/admin/sessions/a/b"])
def test_other_paths_say_which_there_are(path: str) -> None:
    answer = House().ask(path)
    assert answer.status_code == 404
    assert "/admin/findings" in answer.json()["error"]["message"]
    assert House("secret").ask(path).status_code == 401, "a stranger learns nothing of the paths"


def test_head_and_wrong_methods() -> None:
    assert House().ask("/admin/findings", method="HEAD").status_code == 200
    assert House().ask("/admin/findings", method="POST").status_code == 405


JSON = {"content-type": "application/json"}


def capture(house: House, content: bytes, headers: dict[str, str] = JSON) -> httpx.Response:
    return house.ask("/admin/capture", headers, method="POST", content=content)


@pytest.mark.parametrize(
    ("settings", "content", "asked"),
    [
        ({}, b"", (20, 3600.0)),
        ({}, b"{}", (20, 3600.0)),
        ({"CAPTURE_REQUESTS": "0"}, b"{}", (20, 3600.0)),
        ({"CAPTURE_REQUESTS": "7", "CAPTURE_SECONDS": "60"}, b"{}", (7, 60.0)),
        ({}, b'{"requests": 5}', (5, 3600.0)),
        ({}, b'{"seconds": 1.5, "requests": 1000}', (1000, 1.5)),
    ],
)
def test_a_capture_begins(settings: dict[str, str], content: bytes, asked: tuple[int, float]) -> None:
    house = House(CAPTURE="/captures", **settings)
    answer = capture(house, content)
    assert answer.status_code == 200
    assert house.core.asked == [("/captures", *asked)]
    told = answer.json()
    assert told.pop("until") > 1e9
    assert "with their text" in told.pop("warning")
    assert told == {"directory": "/captures/until-1-00000000", "requests": asked[0], "seconds": asked[1]}


@pytest.mark.parametrize(
    ("content", "named"),
    [
        (b"{", ["no JSON"]),
        (b"\xff", ["no JSON"]),
        (b"[]", ["JSON object"]),
        (b'{"requests": 0}', ["requests must be"]),
        (b'{"requests": true}', ["requests must be"]),
        (b'{"requests": 5.0}', ["requests must be"]),
        (b'{"requests": null}', ["requests must be"]),
        (b'{"requests": 1001, "seconds": 0, "directory": "/etc"}', ["requests", "seconds", "'directory'"]),
        (b'{"seconds": 604801}', ["seconds must be"]),
        (b'{"seconds": "60"}', ["seconds must be"]),
    ],
)
def test_what_cannot_be_captured_is_told(content: bytes, named: list[str]) -> None:
    house = House(CAPTURE="/captures")
    answer = capture(house, content)
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert error["type"] == "invalid_request_error"
    assert all(each in error["message"] for each in named), error
    assert house.core.asked == []


def test_without_a_directory_nothing_is_captured() -> None:
    answer = capture(House(), b"{}")
    assert answer.status_code == 409
    assert "FOREWORD_CAPTURE" in answer.json()["error"]["message"]


def test_a_page_of_another_origin_cannot_begin_a_capture() -> None:
    house = House(CAPTURE="/captures")
    for headers in ({"content-type": "text/plain"}, {}):
        assert capture(house, b"{}", headers).status_code == 415
    assert house.core.asked == []
    assert capture(house, b"{}", {"content-type": "Application/JSON; charset=utf-8"}).status_code == 200


def test_a_long_body_is_refused() -> None:
    assert capture(House(CAPTURE="/captures"), b" " * 5000).status_code == 413


def test_a_directory_that_cannot_be_used_is_told() -> None:
    house = House(CAPTURE="/captures")
    house.core.fault = PermissionError(13, "Permission denied")
    answer = capture(house, b"{}")
    assert answer.status_code == 500
    assert "Permission denied" in answer.json()["error"]["message"]


def test_captures_are_guarded_as_all_of_admin() -> None:
    house = House(CAPTURE="/captures")
    refused = house.ask("/admin/capture", JSON, method="POST", content=b"{}", peer="192.168.1.20")
    assert refused.status_code == 403
    locked = House("secret", CAPTURE="/captures")
    assert capture(locked, b"{}").status_code == 401
    assert locked.core.asked == house.core.asked == []
    assert capture(locked, b"{}", {**JSON, "x-api-key": "secret"}).status_code == 200
    assert house.ask("/admin/capture").status_code == 405


@pytest.mark.parametrize("path", ["/admin/sessions", "/admin/sessions/line-17", "/admin/findings"])
@pytest.mark.parametrize(
    ("peer", "host", "headers"),
    [
        ("192.168.1.20", "127.0.0.1:8400", {}),
        ("::ffff:192.168.1.20", "127.0.0.1:8400", {}),
        ("127.0.0.1", "sidecar.example:8400", {}),
        ("127.0.0.1", "127.0.0.1.example:8400", {}),
        ("127.0.0.1", "192.168.1.20:8400", {}),
        ("127.0.0.1", "[2001:db8::1]:8400", {}),
        ("127.0.0.1", "", {}),
        ("127.0.0.1", "localhost", {"x-forwarded-for": "10.0.0.1"}),
        ("127.0.0.1", "localhost", {"X-Forwarded-Host": "localhost"}),
        ("127.0.0.1", "localhost", {"forwarded": "for=10.0.0.1"}),
        ("127.0.0.1", "localhost", {"via": "1.1 proxy"}),
        ("127.0.0.1", "localhost", {"x-real-ip": "127.0.0.1"}),
        ("127.0.0.1", "localhost", {"x-original-forwarded-for": "10.0.0.1"}),
        ("127.0.0.1", "localhost", {"x-envoy-external-address": "10.0.0.1"}),
        ("127.0.0.1", "localhost", {"fly-client-ip": "10.0.0.1"}),
        ("127.0.0.1", "localhost", {"x-cluster-client-ip": "10.0.0.1"}),
    ],
)
def test_without_a_key_only_this_machine(path: str, peer: str, host: str, headers: dict[str, str]) -> None:
    answer = House().ask(path, headers, peer=peer, host=host)
    assert answer.status_code == 403
    assert answer.json()["error"]["type"] == "permission_error"
    assert "FOREWORD_ADMIN_KEY" in answer.json()["error"]["message"]


@pytest.mark.parametrize("peer", ["127.0.0.1", "127.8.9.1", "::1", "::ffff:127.0.0.1"])
@pytest.mark.parametrize(
    "host", ["localhost", "LOCALHOST:8400", "127.0.0.1", "127.0.0.1:8400", "[::1]:8400", "[::1]"]
)
def test_this_machine(peer: str, host: str) -> None:
    assert House().ask("/admin/findings", peer=peer, host=host).status_code == 200


def test_a_connection_without_an_address_is_not_this_machine() -> None:
    refusal = Guard(None).refusal(None, Headers({"host": "localhost"}))
    assert refusal is not None
    assert refusal.status == 403


def test_two_hosts_are_none() -> None:
    headers = Headers(raw=[(b"host", b"localhost"), (b"host", b"evil.example")])
    assert Guard(None).refusal("127.0.0.1", headers) is not None


@pytest.mark.parametrize(
    "headers",
    [
        {"authorization": "Bearer secret"},
        {"authorization": "bearer  secret"},
        {"x-api-key": "secret"},
        {"authorization": "Bearer other", "x-api-key": "secret"},
        {"authorization": "Bearer secret", "x-forwarded-for": "10.0.0.1"},
    ],
)
def test_a_key_opens_from_anywhere(headers: dict[str, str]) -> None:
    assert (
        House("secret").ask("/admin/sessions", headers, peer="10.0.0.7", host="sidecar.example").status_code
        == 200
    )


@pytest.mark.parametrize(
    "headers",
    [{}, {"authorization": "Bearer secre"}, {"authorization": "secret"}, {"authorization": "Basic secret"},
     {"x-api-key": "SECRET"}, {"x-api-key": ""}, {"cookie": "secret"}],
)  # fmt: skip
def test_with_a_key_being_here_is_not_enough(headers: dict[str, str]) -> None:
    answer = House("secret").ask("/admin/findings", headers)
    assert answer.status_code == 401
    assert answer.headers["www-authenticate"] == "Bearer"
    assert answer.json()["error"]["type"] == "authentication_error"
    assert "secret" not in answer.text.replace("FOREWORD_ADMIN_KEY", "")


@given(st.text())
def test_any_name_is_loopback_or_not(name: str) -> None:
    assert cast("object", is_loopback(name)) in (True, False)
