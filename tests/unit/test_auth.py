"""Who passes, and what goes on to the engine."""

import pytest

from foreword.auth import Authorized, Authorizer
from foreword.settings import Settings

Headers = list[tuple[bytes, bytes]]

BEARER_OWN: Headers = [(b"authorization", b"Bearer own-1")]
BEARER_THEIRS: Headers = [(b"authorization", b"Bearer theirs")]
KEY_OWN: Headers = [(b"x-api-key", b"own-2")]
KEY_THEIRS: Headers = [(b"x-api-key", b"theirs")]


def authorizer(**names: str) -> Authorizer:
    return Authorizer(Settings.from_env({f"FOREWORD_{name}": value for name, value in names.items()}))


@pytest.mark.parametrize(
    ("headers", "upstream"),
    [
        ([], None),
        (BEARER_THEIRS, b"Bearer theirs"),
        (KEY_THEIRS, b"Bearer theirs"),
        ([(b"authorization", b"bearer   theirs ")], b"Bearer theirs"),
        ([(b"x-api-key", b"dummy"), (b"authorization", b"Bearer theirs")], b"Bearer theirs"),
        ([(b"authorization", b"Basic dXNlcjpwYXNz")], b"Basic dXNlcjpwYXNz"),
        ([(b"x-api-key", b"")], None),
        ([(b"authorization", b"Bearer ")], None),
    ],
)
def test_without_keys_everyone_passes_with_the_own_credential(
    headers: Headers, upstream: bytes | None
) -> None:
    assert authorizer().authorize(headers) == Authorized(upstream)


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ([], None),
        (BEARER_THEIRS, None),
        (KEY_THEIRS, None),
        ([(b"authorization", b"Bearer own-1x")], None),
        ([(b"authorization", b"Bearer own-1,own-2")], None),
        ([(b"authorization", b"Basic own-1")], Authorized(None)),
        (BEARER_OWN, Authorized(None)),
        (KEY_OWN, Authorized(None)),
        # Claude Code sends both headers when both are set: either one is enough, the other goes on.
        (BEARER_OWN + KEY_THEIRS, Authorized(b"Bearer theirs")),
        (BEARER_THEIRS + KEY_OWN, Authorized(b"Bearer theirs")),
        (BEARER_OWN + KEY_OWN, Authorized(None)),
    ],
)
def test_with_keys_one_of_them_must_be_shown_and_stays_here(
    headers: Headers, expected: Authorized | None
) -> None:
    assert authorizer(API_KEYS="own-1,own-2").authorize(headers) == expected


@pytest.mark.parametrize("headers", [[], BEARER_THEIRS, KEY_THEIRS])
def test_the_engines_key_replaces_whatever_came(headers: Headers) -> None:
    assert authorizer(UPSTREAM_API_KEY="engine").authorize(headers) == Authorized(b"Bearer engine")


def test_the_admin_key_lets_nobody_in_and_stays_here() -> None:
    keys = authorizer(ADMIN_KEY="admin", API_KEYS="own-1,own-2")
    shown: Headers = [(b"authorization", b"Bearer admin")]
    assert keys.authorize(shown) is None
    assert keys.authorize(shown + KEY_OWN) == Authorized(None)
    assert authorizer(ADMIN_KEY="admin").authorize(shown) == Authorized(None)


def test_the_engines_key_does_not_let_anyone_in() -> None:
    both = authorizer(UPSTREAM_API_KEY="engine", API_KEYS="own-1")
    assert both.authorize([(b"authorization", b"Bearer engine")]) is None
    assert both.authorize(BEARER_OWN) == Authorized(b"Bearer engine")
    assert both.own == b"Bearer engine"
    assert authorizer(API_KEYS="own-1").own is None
