"""The claim: behind Foreword the prefix cache works as if the client had never sent its billing header."""

from collections.abc import Callable

import pytest
from tests.real.conftest import StartSidecar
from tests.real.engine import trace
from tests.real.engine.measure import ON_BOTH, Rows, Target, hit_rate, reuses_all, run
from tests.real.engine.server import Server, Used
from tests.real.engine.versions import OLD

TALK = trace.conversation()

Shape = Callable[[str], object]
"""Makes the system content of a request from its billing header."""


def _parts(*texts: str) -> list[dict[str, str]]:
    return [{"type": "text", "text": text} for text in texts]


SHAPES: dict[str, Shape] = {
    "header, newline, system in one string": lambda header: f"{header}\n{TALK.system}",
    "header as a part of its own": lambda header: _parts(header, TALK.system),
    "newline, header, newline, system": lambda header: f"\n{header}\n{TALK.system}",
    "header and system with nothing between": lambda header: f"{header}{TALK.system}",
}

MISSES = {
    OLD: set(SHAPES),
    "0.32.0": {"newline, header, newline, system"},
}
"""Where the engine by itself finds nothing in its cache, as measured. Other versions are measured and not judged."""

LOSES_TEXT = {"0.32.0": {"header and system with nothing between"}}
"""Where the engine by itself drops the first line of the system text together with the header."""


def _chat(target: Target, shape: Shape) -> list[Used]:
    headers = trace.headers()
    return run(target, lambda number: trace.chat(TALK, number, shape(next(headers))))


def _messages(target: Target, shape: Shape) -> list[Used]:
    headers = trace.headers()
    return run(target, lambda number: trace.messages(TALK, number, shape(next(headers))), "messages")


@pytest.fixture(scope="session")
def ceiling(engine: Server) -> list[Used]:
    """What the engine reuses when no header is sent to it, asked directly."""
    engine.forget()
    return _chat(engine, lambda _: TALK.system)


@ON_BOTH
def test_the_ceiling(engine: Server, rows: Rows, ceiling: list[Used]) -> None:
    rows.add(engine.version, "chat: no header", "direct", ceiling)
    assert reuses_all(ceiling)
    assert hit_rate(ceiling) > 0.8


@ON_BOTH
@pytest.mark.parametrize("what", SHAPES)
def test_chat(
    engine: Server, start_sidecar: StartSidecar, rows: Rows, ceiling: list[Used], what: str
) -> None:
    sidecar = start_sidecar(engine.url)
    engine.forget()
    through = _chat(sidecar, SHAPES[what])
    rows.add(engine.version, f"chat: {what}", "Foreword", through)

    assert through == ceiling


@ON_BOTH
@pytest.mark.parametrize("what", ["header as a part of its own", "header, newline, system in one string"])
def test_messages(
    engine: Server, start_sidecar: StartSidecar, rows: Rows, ceiling: list[Used], what: str
) -> None:
    """/v1/messages as Claude Code sends it, held to the chat request that it stands for."""
    sidecar = start_sidecar(engine.url)
    engine.forget()
    through = _messages(sidecar, SHAPES[what])
    rows.add(engine.version, f"messages: {what}", "Foreword", through)

    assert through == ceiling


@ON_BOTH
def test_messages_native(engine: Server, start_sidecar: StartSidecar, rows: Rows) -> None:
    """Passed to the engine's own /v1/messages, a header in the system string is taken out as well."""
    what = "header, newline, system in one string"
    sidecar = start_sidecar(engine.url, MESSAGES="native")
    engine.forget()
    through = _messages(sidecar, SHAPES[what])
    rows.add(engine.version, f"native: {what}", "Foreword", through)
    engine.forget()
    stripped = _messages(engine, lambda _: TALK.system)

    assert through == stripped


# What each engine does by itself. A prompt that is read whole twelve times takes a CPU minutes.


@ON_BOTH
@pytest.mark.parametrize("what", SHAPES)
def test_chat_without_foreword(engine: Server, rows: Rows, ceiling: list[Used], what: str) -> None:
    engine.forget()
    direct = _chat(engine, SHAPES[what])
    rows.add(engine.version, f"chat: {what}", "direct", direct)

    if what in MISSES.get(engine.version, ()):
        assert hit_rate(direct) < 0.01
    if what in LOSES_TEXT.get(engine.version, ()):
        assert all(theirs.prompt < full.prompt for full, theirs in zip(ceiling, direct, strict=True))


@ON_BOTH
def test_native_without_foreword(engine: Server, rows: Rows) -> None:
    what = "header, newline, system in one string"
    engine.forget()
    direct = _messages(engine, SHAPES[what])
    rows.add(engine.version, f"native: {what}", "direct", direct)

    if engine.version == OLD:
        assert hit_rate(direct) < 0.01
