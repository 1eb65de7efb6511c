"""The demo's conversation, its counting and its report; the demo as a whole runs in tests/http."""

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.unit.standin_app import call, standin

from foreword.demo import conversation, play, processes, report
from foreword.demo.play import Broken, Turn
from foreword.demo.report import Run
from foreword.standin import tokens


@pytest.fixture(scope="module")
def script() -> conversation.Conversation:
    return conversation.scripted()


def body(script: conversation.Conversation, turn: int) -> dict[str, Any]:
    messages = [
        {"role": "user", "content": [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]},
        {"role": "assistant", "content": [{"type": "text", "text": "three"}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "1", "content": "four"}]},
    ]
    made: dict[str, Any] = json.loads(script.request(messages, turn))
    return made


def test_requests_have_the_clients_shape(script: conversation.Conversation) -> None:
    made = body(script, 0)
    assert list(made) == [
        "model",
        "messages",
        "system",
        "tools",
        "metadata",
        "max_tokens",
        "thinking",
        "context_management",
        "output_config",
        "stream",
    ]
    header, *others = [block["text"] for block in made["system"]]
    assert re.fullmatch(
        r"x-anthropic-billing-header: cc_version=2\.1\.116\.d8c; cc_entrypoint=claude-vscode; cch=[0-9a-f]{5};",
        header,
    )
    assert [len(text) for text in others] == [57, 25_701]
    assert [("cache_control" in block) for block in made["system"]] == [False, True, True]
    marked = [
        block for message in made["messages"] for block in message["content"] if "cache_control" in block
    ]
    assert marked == made["messages"][-1]["content"]
    assert json.loads(made["metadata"]["user_id"])["session_id"] == script.session_id


def test_only_the_billing_headers_digest_changes(script: conversation.Conversation) -> None:
    made = [body(script, turn) for turn in range(conversation.TURNS)]
    headers = {request["system"].pop(0)["text"] for request in made}
    assert len(headers) == conversation.TURNS
    assert len({header.rpartition("cch=")[0] for header in headers}) == 1
    assert all(request == made[0] for request in made)


def test_tools_are_worth_what_the_incidents_were(script: conversation.Conversation) -> None:
    assert len(script.tools) == 23
    chat = [
        {
            "type": "function",
            "function": {
                "name": tool["name"],
                "description": tool["description"],
                "parameters": tool["input_schema"],
            },
        }
        for tool in script.tools
    ]
    system = {"role": "system", "content": "S"}
    found = call(standin(), "/tokenize", {"messages": [system], "tools": chat}).json()["tokens"]
    assert found[17_920:] == tokens.ids(tokens.encode("<|system|>S<|end|><|assistant|>"))
    assert conversation.TOOL_TOKENS == 17_920 == 280 * conversation.BLOCK_TOKENS


def test_prompts_grow_from_forty_to_a_hundred_and_eighty_thousand_tokens(
    script: conversation.Conversation,
) -> None:
    added = [tokens.count(tokens.encode(step.added + step.say)) for step in script.steps]
    head = conversation.TOOL_TOKENS + tokens.count(tokens.encode("".join(b["text"] for b in script.system)))
    assert abs(head + len(script.steps[0].added) // 4 - 40_000) < 100
    assert abs(head + sum(added) - 180_000) < 500


def test_the_conversation_is_always_the_same(script: conversation.Conversation) -> None:
    assert conversation.scripted() == script


def events(*given: dict[str, Any]) -> Iterator[tuple[float, dict[str, Any]]]:
    return ((float(n), event) for n, event in enumerate(given))


def start(**usage: Any) -> dict[str, Any]:
    return {"type": "message_start", "message": {"usage": usage}}


def delta(**usage: Any) -> dict[str, Any]:
    return {"type": "message_delta", "delta": {}, "usage": usage}


TEXT: tuple[dict[str, Any], ...] = (
    {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
    {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "a"}},
    {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "b"}},
    {"type": "content_block_stop", "index": 0},
)
STOP = {"type": "message_stop"}


@pytest.mark.parametrize(
    ("first", "last", "counted"),
    [
        ({"input_tokens": 5_000}, {"input_tokens": 190_000}, 190_000),
        ({"input_tokens": 190_000}, {"input_tokens": 50}, 50),
        ({"input_tokens": 190_000}, {"input_tokens": 0}, 190_000),
        ({"input_tokens": 3, "cache_read_input_tokens": 190_000}, {"cache_read_input_tokens": 0}, 190_003),
        ({"input_tokens": 3, "cache_read_input_tokens": 190_000}, {"cache_read_input_tokens": 7}, 10),
        ({"input_tokens": 190_000}, {"input_tokens": 3, "cache_read_input_tokens": 189_997}, 190_000),
        ({"input_tokens": None}, {"input_tokens": None}, 0),
        ({"output_tokens": 1}, {"cache_creation_input_tokens": 2, "output_tokens": 8}, 10),
    ],
)
def test_usage_is_counted_as_the_client_counts_it(first: Any, last: Any, counted: int) -> None:
    answer = play.Answer()
    answer.read(events(start(**first), *TEXT, delta(**last), STOP))
    assert sum(answer.usage.values()) == counted


def test_answers_are_put_together_for_the_next_request() -> None:
    call_made = {"type": "tool_use", "id": "1", "name": "Read", "input": {}}
    answer = play.Answer()
    first = answer.read(
        events(
            start(),
            {
                "type": "content_block_start",
                "index": 0,
                "content_block": {"type": "thinking", "thinking": ""},
            },
            {
                "type": "content_block_delta",
                "index": 0,
                "delta": {"type": "thinking_delta", "thinking": "hm"},
            },
            {
                "type": "content_block_delta",
                "index": 0,
                "delta": {"type": "signature_delta", "signature": "s"},
            },
            {"type": "content_block_stop", "index": 0},
            {"type": "ping"},
            *TEXT,
            {"type": "content_block_start", "index": 2, "content_block": call_made},
            {
                "type": "content_block_delta",
                "index": 2,
                "delta": {"type": "input_json_delta", "partial_json": '{"a"'},
            },
            {
                "type": "content_block_delta",
                "index": 2,
                "delta": {"type": "input_json_delta", "partial_json": ":1}"},
            },
            {"type": "content_block_stop", "index": 2},
            delta(),
            STOP,
        )
    )
    assert first == 2.0
    assert answer.blocks == [
        {"type": "thinking", "thinking": "hm", "signature": "s"},
        {"type": "text", "text": "ab"},
        {"type": "tool_use", "id": "1", "name": "Read", "input": {"a": 1}},
    ]


@pytest.mark.parametrize(
    "given", [[start(), *TEXT], [start(), STOP], [start(), {"type": "error", "error": {}}]]
)
def test_streams_that_break_are_not_taken_for_answers(given: list[dict[str, Any]]) -> None:
    with pytest.raises(Broken):
        play.Answer().read(events(*given))


def turns(*reused: int, prompt: int = 100) -> Run:
    return Run([Turn(prompt, n, 0.5, prompt + n) for n in reused])


def test_reuse_is_pinned_at_one_length_on_most_turns_only() -> None:
    assert turns(0, 17, 17, 17, 0).pinned == (17, 3)
    assert turns(0, 17, 17, 18, 19).pinned is None
    assert turns(0, 0, 0, 0).pinned is None
    assert turns(10, 20, 30, 40).pinned is None


def test_the_json_has_the_agreed_form() -> None:
    before, after = turns(0, 14, 14), turns(0, 90, 95)
    assert report.as_json(before, after) == {
        "before": {"hit_rate": 0.0933, "pinned_at": 14, "pinned_share": 0.6667, "ttft_s": [0.5, 0.5, 0.5]},
        "after": {"hit_rate": 0.6167, "pinned_at": None, "pinned_share": 0.0, "ttft_s": [0.5, 0.5, 0.5]},
        "usage": {"before_context_tokens": [100, 114, 114], "after_context_tokens": [100, 190, 195]},
    }


def test_an_outcome_that_is_not_the_incidents_is_said() -> None:
    good_before, good_after = turns(0, 14, 14), turns(90, 91, 92)
    assert report.shortfalls(good_before, good_after) == []
    assert len(report.shortfalls(good_after, good_before)) == 4


def test_the_table_fits_a_terminal() -> None:
    before, after = turns(*[17_920] * 20, prompt=180_000), turns(*[172_736] * 20, prompt=180_000)
    text = report.table(before, after) + "\n" + report.summary(before, after)
    assert max(map(len, text.splitlines())) <= 90
    assert "17,920 tokens" in text


def test_a_child_that_fails_is_shown_with_what_it_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = tmp_path / "foreword"
    command.write_text(f"#!{sys.executable}\nimport sys\nsys.exit('no such luck')\n")
    command.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    with processes.children() as started:
        started.append(processes.Child("the sidecar", ["serve"], processes.free_port(), "/health", {}))
        with pytest.raises(Broken, match=r"(?s)the sidecar ended with status 1:.*no such luck"):
            started[0].wait_until_ready()


def test_a_missing_command_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(Broken, match="foreword was not found"):
        processes.Child("the sidecar", ["serve"], 1, "/health", {})
