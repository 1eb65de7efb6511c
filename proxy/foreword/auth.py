"""Who may use the sidecar, and which credentials go on to the engine."""

import hmac
from collections.abc import Iterable
from typing import NamedTuple

from foreword.settings import Settings


class Authorized(NamedTuple):
    """A request that may pass."""

    upstream: bytes | None
    """The value of the Authorization header for the engine; None sends none."""


class Authorizer:
    """Checks FOREWORD_API_KEYS and chooses the credential that goes upstream.

    Without keys every request passes. FOREWORD_UPSTREAM_API_KEY replaces whatever the client sent; else the client's
    own credential goes on as Bearer (engines take nothing else), unless it is one of Foreword's keys.
    FOREWORD_ADMIN_KEY lets nobody pass here, and is none of the engine's business either.
    """

    def __init__(self, settings: Settings) -> None:
        self._keys = tuple(key.encode() for key in settings.api_keys)
        self._admin = None if settings.admin_key is None else settings.admin_key.encode()
        key = settings.upstream_api_key
        self.own: bytes | None = None if key is None else b"Bearer " + key.encode()
        """The value of the Authorization header of Foreword's own questions to the engine."""

    def authorize(self, headers: Iterable[tuple[bytes, bytes]]) -> Authorized | None:
        """None: no valid key among the ``headers``, whose names are in lower case."""
        valid = not self._keys
        passed_on: bytes | None = None
        for name, value in headers:
            if name == b"authorization":
                scheme, _, key = value.strip().partition(b" ")
                key = key.strip()
                credential = b"Bearer " + key if scheme.lower() == b"bearer" else value
            elif name == b"x-api-key":
                key = value.strip()
                credential = b"Bearer " + key
            else:
                continue
            if self._is_own(key):
                valid = True
            elif key and not self._is_admin(key) and (passed_on is None or name == b"authorization"):
                passed_on = credential
        if not valid:
            return None
        return Authorized(self.own or passed_on)

    def _is_admin(self, key: bytes) -> bool:
        return self._admin is not None and hmac.compare_digest(self._admin, key)

    def _is_own(self, key: bytes) -> bool:
        found = False
        for own in self._keys:  # no early end: the time tells nothing of which key was nearly right
            found |= hmac.compare_digest(own, key)
        return found
