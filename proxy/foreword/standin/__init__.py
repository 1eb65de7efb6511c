"""The stand-in engine: a real process that behaves as vLLM does where it matters, without a model."""

import asyncio
import contextlib
import resource
import signal
import socket
import sys

from granian.constants import Interfaces
from granian.http import HTTP1Settings
from granian.server.embed import Server

from . import http10
from .api import Standin
from .options import Options, parse

__all__ = ["Options", "Standin", "main"]

# vLLM closes a connection that has been idle for so long (VLLM_HTTP_TIMEOUT_KEEP_ALIVE); granian's time for the next
# request's head runs from the end of the last answer, which comes to the same.
_KEEP_ALIVE_MS = 5_000


def main(argv: list[str]) -> int:
    """``foreword engine``: runs until SIGTERM or SIGINT."""
    options = parse(argv)
    try:
        _probe(options.host, options.port)
    except OSError as error:
        print(
            f"foreword engine: cannot listen on {options.host} port {options.port}: {error}", file=sys.stderr
        )
        return 1
    _raise_open_files()
    try:
        import uvloop  # noqa: PLC0415 - faster where it is installed, and not needed
    except ImportError:
        asyncio.run(_serve(options))
    else:
        uvloop.run(_serve(options))
    return 0


def _probe(host: str, port: int) -> None:
    """Raises OSError for an address that is taken: granian would share it with whoever listens there."""
    family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    with socket.socket(family, kind, protocol) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(address)


def _raise_open_files() -> None:
    """Every stream is an open file, and the usual soft limit is 1,024 of them."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(ValueError, OSError):  # macOS calls a limit hard that it does not grant
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


async def _serve(options: Options) -> None:
    server = _server(options)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, server.stop)
    print(
        f"foreword engine: {options.kind} stand-in on http://{options.host}:{options.port}", file=sys.stderr
    )
    await server.serve()


def _server(options: Options) -> Server | http10.Server:
    if options.kind == "strata":
        return http10.Server(Standin(options), options.host, options.port)
    return Server(
        Standin(options),
        address=options.host,
        port=options.port,
        interface=Interfaces.ASGINL,
        websockets=False,
        backlog=8192,
        backpressure=8192,
        http1_settings=HTTP1Settings(header_read_timeout=_KEEP_ALIVE_MS),
        log_enabled=False,
    )
