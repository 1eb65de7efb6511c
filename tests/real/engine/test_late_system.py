"""System messages inside the conversation, as newer agents send them, and the two kinds of chat templates."""

import time

import pytest
from tests.http.sidecar import Sidecar
from tests.real.conftest import StartSidecar
from tests.real.engine import trace
from tests.real.engine.measure import Rows, hit_rate, on, reuses_all, run
from tests.real.engine.server import Server
from tests.real.engine.versions import NEW, USED
from tests.real.patience import READY_SECONDS

TALK = trace.conversation()


def late(number: int) -> str:
    return f"<total_tokens>{15_000_000 - 1_500 * number} tokens left</total_tokens>"


def wait_for_template(sidecar: Sidecar) -> str:
    """What the sidecar found out about the template."""
    deadline = time.monotonic() + READY_SECONDS
    while time.monotonic() < deadline:
        found = sidecar.request("GET", "/health").json()["engine"]["late_system"]
        if found is not None:
            return str(found)
        time.sleep(0.1)
    raise AssertionError(f"the template was not found out: {sidecar.log.read_text()}")


@on(*USED, late_system="refused")
@pytest.mark.parametrize("dialect", ["chat", "messages"])
def test_a_template_that_refuses_them(
    engine: Server, start_sidecar: StartSidecar, rows: Rows, dialect: str
) -> None:
    sidecar = start_sidecar(engine.url)
    assert wait_for_template(sidecar) == "tool"
    build = trace.chat if dialect == "chat" else trace.messages
    engine.forget()
    through = run(sidecar, lambda number: build(TALK, number, TALK.system, late), dialect)
    rows.add(engine.version, f"{dialect}: late system, refusing template", "Foreword", through)

    assert reuses_all(through)
    assert hit_rate(through) > 0.8


@on(*USED, late_system="refused")
def test_what_refuses_them_without_foreword(engine: Server, rows: Rows) -> None:
    refused = engine.post("/v1/chat/completions", trace.chat(TALK, 1, TALK.system, late))
    assert refused.status == 400
    engine.forget()
    direct = run(engine, lambda number: trace.messages(TALK, number, TALK.system, late), "messages")
    rows.add(engine.version, "native: late system, refusing template", "direct", direct)
    assert hit_rate(direct) < 0.3  # hoisted to the head, where each new one pushes all else along


@on(NEW)
@pytest.mark.parametrize("dialect", ["chat", "messages"])
def test_a_template_that_prints_them_in_place(
    engine: Server, start_sidecar: StartSidecar, rows: Rows, dialect: str
) -> None:
    sidecar = start_sidecar(engine.url)
    assert wait_for_template(sidecar) == "system"
    build = trace.chat if dialect == "chat" else trace.messages
    engine.forget()
    through = run(sidecar, lambda number: build(TALK, number, TALK.system, late), dialect)
    rows.add(engine.version, f"{dialect}: late system, template in place", "Foreword", through)
    engine.forget()
    direct = run(engine, lambda number: trace.chat(TALK, number, TALK.system, late))
    rows.add(engine.version, "chat: late system, template in place", "direct", direct)

    assert through == direct
    assert reuses_all(through)
