"""/v1/completions: a prompt that is one text has a verdict too."""

import json
from typing import Any

import pytest

from .engine import ScriptedEngine, answers
from .sidecar import Sidecar

PATH = "/v1/completions"


def complete(
    sidecar: Sidecar, engine: ScriptedEngine, prompt: Any, cached: int, agent: str
) -> dict[str, Any]:
    """Sends a prompt of which the engine reuses so many tokens of four bytes; its record."""
    text = prompt if isinstance(prompt, str) else prompt[0]
    tokens = len(text) // 4 if isinstance(text, str) else len(prompt)
    usage = {
        "prompt_tokens": tokens,
        "completion_tokens": 1,
        "total_tokens": tokens + 1,
        "prompt_tokens_details": {"cached_tokens": cached},
    }
    choice = {"index": 0, "text": "x", "finish_reason": "length", "logprobs": None}
    body = {"id": "cmpl-1", "object": "text_completion", "created": 1, "model": "m", "choices": [choice]}
    raw = json.dumps({**body, "usage": usage}).encode()
    engine.answer = answers(200, raw)
    sent = json.dumps({"model": "m", "prompt": prompt, "max_tokens": 1}).encode()
    answer = sidecar.post(PATH, sent, {"x-session-id": agent})
    assert answer.body == raw
    assert engine.requests[-1].body == sent
    return sidecar.record(answer)


def test_a_text_that_grows_has_a_verdict(sidecar: Sidecar, engine: ScriptedEngine) -> None:
    text = "one two three four " * 400
    first = complete(sidecar, engine, text, 0, "grows")
    assert first["verdict"]["name"] == "first"
    assert first["prompt"]["head"][0]["path"] == "prompt"
    more = text + "five " * 300
    grown = complete(sidecar, engine, more, len(text) // 64 * 16, "grows")
    assert (grown["verdict"]["name"], grown["verdict"]["lost"]) == ("append-only", 0)
    assert (grown["line"], grown["turn"]) == (first["line"], 2)
    lost = complete(sidecar, engine, [more + "six"], 16, "grows")
    assert lost["verdict"]["name"] == "engine-lost"
    assert lost["verdict"]["lost"] > 2_000
    other = complete(sidecar, engine, "now " + more, 0, "grows")
    assert other["verdict"]["name"] == "first"


def test_ids_of_tokens_have_one_and_several_prompts_have_none(
    sidecar: Sidecar, engine: ScriptedEngine
) -> None:
    ids = list(range(3_000))
    assert complete(sidecar, engine, ids[:2_000], 0, "ids")["verdict"]["name"] == "first"
    assert complete(sidecar, engine, ids, 2_000, "ids")["verdict"]["name"] == "append-only"
    several = complete(sidecar, engine, ["a" * 4_000, "b" * 4_000], 0, "ids")
    assert several["verdict"] is several["prompt"] is None


@pytest.mark.parametrize("prompt", [None, 7, {"a": 1}, [], [None], "", [[]], [1, "a"]])
def test_odd_prompts_pass(sidecar: Sidecar, engine: ScriptedEngine, prompt: Any) -> None:
    engine.answer = answers(400, {"error": {"message": "no"}})
    answer = sidecar.post(PATH, {"model": "m", "prompt": prompt})
    assert answer.status == 400
    assert sidecar.record(answer)["verdict"] is None
