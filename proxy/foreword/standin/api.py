"""The stand-in's HTTP API, as a plain ASGI application."""

import asyncio
import contextlib
import hmac
import time
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final

import orjson

from . import asks, metrics, script, status, tokens
from .asks import Ask
from .engine import Engine
from .exchange import answer
from .faults import Refusal
from .options import Options
from .shapes import Shape, hex_id
from .wire import Send, Wire

Scope = dict[str, Any]
Receive = Callable[[], Awaitable[dict[str, Any]]]


@dataclass(frozen=True, slots=True)
class Call:
    """One request and the way back."""

    headers: dict[str, str]
    body: bytes
    wire: Wire
    query: str = ""

    def json(self) -> dict[str, Any]:
        """The body as an object. Raises Refusal."""
        asks.media_type(self.headers.get("content-type", ""))
        return asks.load(self.body)


Endpoint = Callable[[Call], Awaitable[None]]
Reader = Callable[[dict[str, Any], Options, script.Script | None], Ask]


class Standin:
    """The application; one engine lives in it."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.engine = Engine(options)
        self._started = int(time.time())
        self._scripts: deque[script.Script] = deque()
        self._last = b""
        strata = options.kind == "strata"
        # Strata closes the connection after each reply.
        self._headers: Final = [(b"connection", b"close")] if strata else []
        self._routes: Final[dict[str, dict[str, Endpoint]]] = {
            "/v1/chat/completions": {"POST": lambda call: self._generation(call, asks.chat, chat=True)},
            "/v1/completions": {"POST": lambda call: self._generation(call, asks.completions, chat=False)},
            "/v1/models": {"GET": self._models},
            "/tokenize": {"POST": self._tokenize},
            "/detokenize": {"POST": self._detokenize},
            "/health": {"GET": self._strata_health if strata else self._nothing},
            "/ping": {"GET": self._nothing, "POST": self._nothing},
            "/version": {"GET": self._version},
            "/metrics": {"GET": self._metrics},
            "/reset_prefix_cache": {"POST": self._reset},
            "/standin/script": {"POST": self._script},
            "/standin/last": {"GET": self._last_body},
        }
        if strata:
            for path in ("/tokenize", "/detokenize", "/version", "/ping"):
                del self._routes[path]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        body = bytearray()
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                return
            body += message.get("body", b"")
            if not message.get("more_body"):
                break
        work = asyncio.ensure_future(self._serve(scope, bytes(body), send))
        gone = asyncio.ensure_future(_disconnected(receive))
        try:
            await asyncio.wait({work, gone}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            gone.cancel()
            if not work.done():
                work.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await work

    async def _serve(self, scope: Scope, body: bytes, send: Send) -> None:
        client = scope.get("client")
        wire = Wire(send, (str(client[0]), int(client[1])) if client else None, self._headers)
        headers = {
            name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]
        }
        path: str = scope["path"]
        if not self._admits(path, headers):
            await wire.json(401, {"error": "Unauthorized"})
            return
        methods = self._routes.get(path)
        if methods is None:
            await wire.json(404, {"detail": "Not Found"})
            return
        endpoint = methods.get(scope["method"])
        if endpoint is None:
            allow = (b"allow", ", ".join(methods).encode())
            await wire.whole(405, orjson.dumps({"detail": "Method Not Allowed"}), headers=[allow])
            return
        try:
            await endpoint(Call(headers, body, wire, scope.get("query_string", b"").decode("latin-1")))
        except Refusal as refusal:
            await wire.json(refusal.status, {"error": refusal.error})

    def _admits(self, path: str, headers: dict[str, str]) -> bool:
        """Bearer only, and only under /v1, as vLLM has it."""
        key = self.options.api_key
        if key is None or not path.startswith("/v1/"):
            return True
        scheme, _, given = headers.get("authorization", "").partition(" ")
        return scheme.lower() == "bearer" and hmac.compare_digest(given.encode(), key.encode())

    async def _generation(self, call: Call, reader: Reader, *, chat: bool) -> None:
        self._last = call.body
        body = call.json()
        scripted = self._scripts.popleft() if self._scripts and "vllm_xargs" not in body else None
        ask = reader(body, self.options, scripted)
        shape = Shape(self.options, chat, request_id=call.headers.get("x-request-id") or hex_id())
        await answer(ask, self.engine, call.wire, shape)

    async def _tokenize(self, call: Call) -> None:
        body = call.json()
        found = asks.tokenized(body, self.options)
        shown = (
            [tokens.decode(token) for token in tokens.split(found)] if body.get("return_token_strs") else None
        )
        await call.wire.json(
            200,
            {
                "count": tokens.count(found),
                "max_model_len": self.options.max_model_len,
                "tokens": tokens.ids(found),
                "token_strs": shown,
            },
        )

    async def _detokenize(self, call: Call) -> None:
        found = asks.from_ids(call.json().get("tokens"), "tokens")
        await call.wire.json(200, {"prompt": tokens.decode(found)})

    async def _models(self, call: Call) -> None:
        options = self.options
        permission = {
            "id": f"modelperm-{hex_id()}",
            "object": "model_permission",
            "created": self._started,
            "allow_create_engine": False,
            "allow_sampling": True,
            "allow_logprobs": True,
            "allow_search_indices": False,
            "allow_view": True,
            "allow_fine_tuning": False,
            "organization": "*",
            "group": None,
            "is_blocking": False,
        }
        model = {
            "id": options.model,
            "object": "model",
            "created": self._started,
            "owned_by": options.kind,
            "root": options.model,
            "parent": None,
            "max_model_len": options.max_model_len,
            "permission": [permission],
        }
        await call.wire.json(200, {"object": "list", "data": [model]})

    async def _version(self, call: Call) -> None:
        await call.wire.json(200, {"version": self.options.version})

    async def _nothing(self, call: Call) -> None:
        await call.wire.whole(200, b"")

    async def _strata_health(self, call: Call) -> None:
        options = self.options
        facts = {"max_context": options.max_model_len, "model": options.model, "images": options.images}
        key = options.api_key is not None
        await call.wire.json(
            200, {"status": "ok"} | facts | {"api_key": key, "loaded": True, "service": "strata"}
        )

    async def _metrics(self, call: Call) -> None:
        conversations = self.engine.conversations
        if conversations is None:
            await call.wire.whole(200, metrics.exposition(self.engine), metrics.CONTENT_TYPE)
        elif "text/plain" in call.headers.get("accept", "") or "format=prometheus" in call.query:
            await call.wire.whole(200, status.exposition(self.engine, conversations), status.CONTENT_TYPE)
        else:
            await call.wire.json(200, status.status(self.engine, conversations))

    async def _reset(self, call: Call) -> None:
        self.engine.reset_prefix_cache()
        await call.wire.whole(200, b"")

    async def _script(self, call: Call) -> None:
        """Queues scripts, one for each of the next generation requests that bring none of their own."""
        given = call.json().get("next")
        queued = [script.read(item) for item in (given if isinstance(given, list) else [given])]
        self._scripts.extend(queued)
        await call.wire.json(200, {"queued": len(self._scripts)})

    async def _last_body(self, call: Call) -> None:
        """The body of the last generation request, as it came."""
        await call.wire.whole(200, self._last)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
