"""FOREWORD_EXCERPTS: a change in its own words, only where it is switched on."""

from pathlib import Path
from typing import Any

import pytest

from .conftest import StartSidecar
from .engine import ScriptedEngine, says
from .sidecar import CHAT, MESSAGES, Sidecar

FILL = "x" * 300


def body(clock: str, *more: str, stream: bool = False) -> dict[str, Any]:
    """A conversation whose system text tells the time."""
    said = [
        {"role": role, "content": text}
        for role, text in zip(("user", "assistant", "user"), ("hi", *more), strict=False)
    ]
    system = f"{FILL} now \u2014 {clock} {FILL}"
    return {"model": "m", "max_tokens": 9, "stream": stream, "system": system, "messages": said}


def chat(made: dict[str, Any]) -> dict[str, Any]:
    system = {"role": "system", "content": made.pop("system")}
    return {**made, "messages": [system, *made["messages"]]}


def sent(sidecar: Sidecar, path: str, made: dict[str, Any]) -> dict[str, Any]:
    answer = sidecar.post(path, made if path == MESSAGES else chat(made), {"x-session-id": "s"})
    assert answer.status == 200, answer.body
    return sidecar.record(answer)


@pytest.mark.parametrize("path", [CHAT, MESSAGES])
@pytest.mark.parametrize("stream", [False, True])
def test_a_change_is_told_in_its_own_words(
    start_sidecar: StartSidecar, engine: ScriptedEngine, tmp_path: Path, path: str, stream: bool
) -> None:
    engine.answer = says("ho", {"prompt_tokens": 300, "completion_tokens": 1, "total_tokens": 301})
    ledger = tmp_path / "ledger"
    sidecar = start_sidecar(engine.url, EXCERPTS="on", LEDGER=str(ledger))
    assert "excerpt" not in sent(sidecar, path, body("09:14", stream=stream)), "nothing to compare it with"
    changed = sent(sidecar, path, body("09:15", "ho", "go", stream=stream))
    assert changed["verdict"]["kind"] == "edited"
    excerpt = changed["excerpt"]
    before, behind = f"{FILL} now \u2014 09:1", f" {FILL}"
    assert set(excerpt) == {"before", "was", "now"}
    for name, whole in (("before", before[::-1]), ("was", f"4{behind}"), ("now", f"5{behind}")):
        told = excerpt[name][::-1] if name == "before" else excerpt[name]
        assert whole.startswith(told)
        assert 77 < len(told.encode()) <= 80
    assert "excerpt" not in sent(sidecar, path, body("09:15", "ho", "go", stream=stream)), "a repeat"
    assert sidecar.stop() == 0
    kept = b"".join(file.read_bytes() for file in ledger.glob("*.jsonl"))
    assert kept.count(b'"excerpt":') == 1
    assert "OF TEXT" in sidecar.log.read_text()


def test_off_by_default(start_sidecar: StartSidecar, engine: ScriptedEngine, tmp_path: Path) -> None:
    engine.answer = says("ho")
    ledger = tmp_path / "ledger"
    sidecar = start_sidecar(engine.url, LEDGER=str(ledger))
    sent(sidecar, CHAT, body("09:14"))
    changed = sent(sidecar, CHAT, body("09:15", "ho", "go"))
    assert changed["verdict"]["path"] == "messages[0].content"
    assert sidecar.stop() == 0
    everything = sidecar.log.read_bytes() + b"".join(file.read_bytes() for file in ledger.iterdir())
    assert b"excerpt" not in everything
    assert b"09:1" not in everything
