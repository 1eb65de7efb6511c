"""The application: routes, and the life of what serves them.

A bare router, not the Starlette class: its middlewares would wrap `send`, and the hot endpoints want granian's own.
"""

import asyncio
import contextlib
import logging
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route, Router, request_response
from starlette.types import ASGIApp

from foreword import __version__
from foreword._core import Sidecar
from foreword.admin import Admin
from foreword.asgi import Message, Receive, Scope, Send
from foreword.auth import Authorizer
from foreword.capturing import Capturing
from foreword.control import Control
from foreword.endpoints import Endpoint, Gateway, new_request_id, send_fault
from foreword.engines import EngineState, Watch
from foreword.engines.through import through
from foreword.findings import Board, Detectors
from foreword.health import Health
from foreword.log import configure
from foreword.metrics import Metrics
from foreword.port import Port
from foreword.records import Records
from foreword.settings import Settings
from foreword.watching import Observer, observed

logger = logging.getLogger(__name__)

GOODBYE = "Foreword is shutting down before this answer was complete; please try again"

LAST_RECORDS_SECONDS = 2.0
"""How long the end may wait for records on their way: less than what is left between the drain and the kill."""


def create() -> Router:
    """What granian calls in its worker: the application by the settings of the environment."""
    settings = Settings.from_env(os.environ)
    writer, log_exchange = configure(settings.log)
    sidecar = Sidecar(settings.core_config())
    engine = EngineState(kind=settings.engine)
    board = Board()
    detectors = Detectors(board, window=lambda: engine.window, lines=settings.sessions)

    def ended(record: bytes) -> None:
        """An exchange has ended. Its record may wait for the engine's log; then it comes again, as a final one."""
        if not observer.holds(record):
            final(record)

    def final(record: bytes) -> None:
        """A record that nothing is added to any more."""
        records(record)

    port = Port(sidecar, ended)
    gateway = Gateway(
        sidecar,
        port,
        Authorizer(settings),
        max_body_bytes=settings.max_body_mib * 1024 * 1024,
        body_seconds=settings.body_seconds,
    )
    watch = Watch(settings, through(gateway.fetch), sidecar, engine)
    observer = Observer(
        settings,
        through(gateway.fetch),
        engine,
        board,
        core=sidecar,
        final=final,
        doubt=lambda restarted: watch.doubt(restarted=restarted),
    )

    def stats() -> Mapping[str, float]:
        failures = {**detectors.failures, "records": records.failures}
        return {
            **sidecar.stats(),
            **observed(observer),
            "log_lines_dropped_total|": writer.dropped,
            **{f"diagnosis_failures_total|part={part}": count for part, count in failures.items()},
        }

    metrics = Metrics(stats, engine, board)
    records = Records([log_exchange], [metrics.recorder.note, detectors.note, observer.note])

    @contextlib.asynccontextmanager
    async def lifespan(_: object) -> AsyncIterator[None]:
        loop = asyncio.get_running_loop()
        port.start(loop)
        close_after_drain(loop, gateway, settings.drain_seconds)
        stop_without(os.getppid(), loop)
        watching = [loop.create_task(part) for part in (watch.run(), observer.run(), tell(sidecar))]
        host = f"[{settings.host}]" if ":" in settings.host else settings.host
        logger.info("foreword %s at http://%s:%d for %s", __version__, host, settings.port, settings.upstream)
        try:
            yield
        finally:
            for task in watching:
                task.cancel()
            sidecar.close(GOODBYE)
            observer.close()
            sidecar.finish(LAST_RECORDS_SECONDS)
            log_notices(sidecar)
            port.stop()
            writer.close()

    health = Health(engine, board, observer, streams=lambda: len(port))
    control = Control(health, metrics)
    admin = Admin(sidecar, board, Capturing(sidecar, settings), settings.admin_key)
    return Router(
        [*control_routes(control), *admin_routes(admin), *hot_routes(gateway)],
        redirect_slashes=False,
        default=not_found,
        lifespan=lifespan,
    )


def control_routes(control: Control | Admin) -> list[BaseRoute]:
    """The routes that Foreword answers itself."""

    def route(path: str, answer: Callable[[Request], Awaitable[Response]]) -> Route:
        endpoint = request_response(answer)
        return Route(path, ByMethod({"GET": endpoint, "HEAD": endpoint}, "openai"))

    return [route(path, answer) for path, answer in control.endpoints().items()]


def admin_routes(admin: Admin) -> list[BaseRoute]:
    """The routes under /admin."""
    commands = [
        Route(path, ByMethod({"POST": request_response(answer)}, "openai"))
        for path, answer in admin.commands().items()
    ]
    return [*commands, *control_routes(admin)]  # the last of these takes every path


def hot_routes(gateway: Gateway) -> list[BaseRoute]:
    """The routes that go to the engine. First match counts."""

    def endpoint(route: str, dialect: str = "openai") -> Endpoint:
        return Endpoint(gateway, route, dialect)

    def post(path: str, route: str, dialect: str = "openai") -> Route:
        return Route(path, ByMethod({"POST": endpoint(route, dialect)}, dialect))

    return [
        post("/v1/messages", "messages", "messages"),
        post("/v1/messages/count_tokens", "count_tokens", "messages"),
        post("/v1/chat/completions", "chat"),
        post("/v1/completions", "completions"),
        post("/v1/responses", "responses"),
        # What answers HEAD has no list to be read.
        Route("/v1/models", ByMethod({"GET": endpoint("models"), "HEAD": endpoint("other")}, "openai")),
        # Other methods change models, which is the engine's business.
        Route("/v1/models/{id:path}", ByMethod({"GET": endpoint("model")}, "openai", endpoint("other"))),
        Route("/v1/v1/{rest:path}", not_found),
        Route("/v1//{rest:path}", not_found),
        Route("/v1/messages/{rest:path}", endpoint("other", "messages")),
        *(
            Route(path, endpoint("other"))
            for path in (
                "/v1/{rest:path}",
                "/tokenize",
                "/detokenize",
                "/version",
                "/slots",
                "/slots/{rest:path}",
            )
        ),
    ]


class ByMethod:
    """One path's endpoints; another method goes to ``rest``, or gets 405 in the path's dialect."""

    def __init__(self, endpoints: Mapping[str, ASGIApp], dialect: str, rest: ASGIApp | None = None) -> None:
        self._endpoints = endpoints
        self._rest = rest
        self._dialect = dialect
        self._allow = ", ".join(sorted(endpoints))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        method = scope["method"]
        endpoint = self._endpoints.get(method, self._rest)
        if endpoint is not None:
            await endpoint(scope, receive, send)
            return
        allowing = _with_header(send, (b"allow", self._allow.encode()))
        detail = f"{method} {scope['path']}"
        await send_fault(allowing, self._dialect, "method_not_allowed", detail, new_request_id())


class NotFound:
    """404 in the dialect that the path speaks of."""

    async def __call__(self, scope: Scope, _: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        path = scope["path"]
        repaired = repair(path)
        detail = f"{path} (did you mean {repaired}?)" if repaired else path
        dialect = "messages" if "/messages" in path else "openai"
        await send_fault(send, dialect, "not_found", detail, new_request_id())


not_found = NotFound()


def repair(path: str) -> str | None:
    """What a path was meant to be that a wrong base URL has doubled: //v1/..., /v1/v1/..., /v1//v1/...

    None when there is nothing to repair.
    """
    parts = [part for part in path.split("/") if part]
    while parts[:2] == ["v1", "v1"]:
        del parts[0]
    repaired = "/" + "/".join(parts)
    return repaired if parts[:1] == ["v1"] and repaired != path.rstrip("/") else None


def _with_header(send: Send, header: tuple[bytes, bytes]) -> Send:
    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [*message["headers"], header]
        await send(message)

    return sending


async def tell(sidecar: Sidecar) -> None:
    """Logs what the core has to say, as long as the sidecar serves."""
    while True:
        log_notices(sidecar)
        await asyncio.sleep(1)


def log_notices(sidecar: Sidecar) -> None:
    for level, text in sidecar.notices():
        logger.log(logging.getLevelNamesMapping()[level.upper()], "%s", text)


def close_after_drain(loop: asyncio.AbstractEventLoop, gateway: Gateway, seconds: float) -> None:
    """On SIGTERM, lets running exchanges go on for ``seconds``, then ends them with an error event.

    granian tells the application of its stop only when no exchange runs any more, and kills what runs too long. Both of
    its signals mean the same to it; so this takes SIGTERM and passes it on as SIGINT.
    """

    draining = False

    def drain() -> None:
        nonlocal draining
        if draining:
            return
        draining = True
        logger.info("stopping; running exchanges may take %g s more", seconds)
        loop.call_later(seconds, gateway.close, GOODBYE)
        signal.raise_signal(signal.SIGINT)
        # granian has begun to stop; a second Ctrl-C, which a terminal sends to this process too, must change nothing.
        loop.call_soon(signal.signal, signal.SIGINT, signal.SIG_IGN)

    loop.add_signal_handler(signal.SIGTERM, drain)


def stop_without(parent: int, loop: asyncio.AbstractEventLoop) -> None:
    """Stops this worker, as by SIGTERM, once the process that started it is gone: nobody else would, and its port would
    stay taken."""
    if os.getppid() == parent:
        loop.call_later(1.0, stop_without, parent, loop)
    else:
        logger.warning("the main process is gone; stopping")
        signal.raise_signal(signal.SIGTERM)
