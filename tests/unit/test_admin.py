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
from foreword.app import control_routes, not_found
from foreword.findings import Board, Finding

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


class House:
    """The admin endpoints as a peer sees them."""

    def __init__(self, key: str | None = None) -> None:
        self.board = Board()
        routes = control_routes(Admin(Journal(), self.board, key))
        self._app = Router(routes, redirect_slashes=False, default=not_found)

    def ask(
        self,
        path: str,
        headers: dict[str, str] | None = None,
        *,
        peer: str = "127.0.0.1",
        host: str = "127.0.0.1:8400",
        method: str = "GET",
    ) -> httpx.Response:
        async def asking() -> httpx.Response:
            transport = httpx.ASGITransport(self._app, client=(peer, 40_000))
            async with httpx.AsyncClient(transport=transport, base_url="http://sidecar") as client:
                return await client.request(method, path, headers={"host": host, **(headers or {})})

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
