"""The types that the hot path speaks: ASGI's, and the heads of HTTP answers."""

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

Header = tuple[bytes, bytes]
Head = tuple[int, list[Header]]
