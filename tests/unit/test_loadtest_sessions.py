"""The load test's users: their bodies are valid, grow as the real clients' do, and tell one story for one seed."""

import itertools
import json
from typing import Any

import pytest
from loadtest.sessions import (
    BYTES_PER_TOKEN,
    CLIENTS,
    Answer,
    ClaudeCode,
    Habits,
    OpenCode,
    Request,
    Session,
    habits,
)
from loadtest.streams import Event, Splitter

QUICK = Habits(questions=5, leave_share=0.0, subagent_share=0.0, system_tokens=400, tools_tokens=500)


def play(session: Session, answer: str = "I looked at it.", limit: int = 200) -> list[Request]:
    requests: list[Request] = []
    while not session.done:
        requests.append(session.next())
        session.answered(Answer(answer))
        assert len(requests) < limit, "a conversation must end"
    return requests


def without_marks(body: Any) -> Any:
    """A body without what no template prints: cache_control, and the billing header's cch."""
    if isinstance(body, dict):
        return {key: without_marks(value) for key, value in body.items() if key != "cache_control"}
    if isinstance(body, list):
        return [without_marks(part) for part in body]
    return body.partition("cch=")[0] if isinstance(body, str) else body


def checked(request: Request) -> dict[str, Any]:
    """The body, if tool calls and results belong together and roles take turns."""
    body: dict[str, Any] = json.loads(request.body)
    calls: list[str] = []
    for message in body["messages"]:
        content = message["content"]
        parts = content if isinstance(content, list) else []
        given = [part["tool_use_id"] for part in parts if part["type"] == "tool_result"]
        given += [message["tool_call_id"]] if message["role"] == "tool" else []
        assert given == calls, "each call has its result in the next message"
        calls = [part["id"] for part in parts if part["type"] == "tool_use"]
        calls += [call["id"] for call in message.get("tool_calls", ())]
        assert content
    assert calls == []
    roles = [message["role"] for message in body["messages"]]
    assert roles[-1] in ("user", "tool")
    assert all(pair[0] != "assistant" or pair[1] != "assistant" for pair in itertools.pairwise(roles))
    assert body["stream"] is True
    return body


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("seed", range(6))
def test_each_request_extends_the_one_before(client: str, seed: int) -> None:
    requests = play(CLIENTS[client](seed, QUICK))
    assert {request.kind for request in requests} == {"question", "tool"}
    before = None
    for request in requests:
        body = without_marks(checked(request))
        if before is not None:
            assert body["messages"][: len(before["messages"])] == before["messages"]
            assert len(body["messages"]) > len(before["messages"])
            assert {**body, "messages": 0} == {**before, "messages": 0}
        before = body


def test_one_seed_is_one_story() -> None:
    assert play(ClaudeCode(3, QUICK)) == play(ClaudeCode(3, QUICK))
    assert play(ClaudeCode(3, QUICK)) != play(ClaudeCode(4, QUICK))


def test_the_header_changes_with_each_request_and_nothing_else_in_the_head_does() -> None:
    bodies = [checked(request) for request in play(ClaudeCode(1, QUICK))]
    headers = [body["system"][0]["text"] for body in bodies]
    assert len(set(headers)) > 0.9 * len(headers)
    assert all(header.startswith("x-anthropic-billing-header: cc_version=") for header in headers)
    assert len({json.dumps([body["system"][1:], body["tools"]]) for body in bodies}) == 1
    off = ClaudeCode(1, Habits(header=False)).next()
    assert b"x-anthropic-billing-header" not in off.body


def test_users_share_the_head_and_nothing_else() -> None:
    one, other = (checked(OpenCode(seed, QUICK).next()) for seed in (1, 2))
    assert one["tools"] == other["tools"]
    assert one["messages"][0] == other["messages"][0]
    assert one["messages"][1] != other["messages"][1]


def test_cache_control_is_on_the_last_block_only() -> None:
    for request in play(ClaudeCode(2, QUICK)):
        blocks = [block for message in checked(request)["messages"] for block in message["content"]]
        assert [n for n, block in enumerate(blocks) if "cache_control" in block] == [len(blocks) - 1]


@pytest.mark.parametrize("client", CLIENTS)
def test_above_the_window_the_conversation_is_compacted(client: str) -> None:
    habits = Habits(
        questions=30,
        leave_share=0.0,
        subagent_share=0.0,
        system_tokens=400,
        tools_tokens=500,
        window_tokens=20_000,
    )
    requests = play(CLIENTS[client](5, habits), limit=500)
    kinds = [request.kind for request in requests]
    assert "compact" in kinds
    for request, following in itertools.pairwise(requests):
        checked(request)
        assert len(request.body) / BYTES_PER_TOKEN < habits.window_tokens
        if request.kind == "compact":
            assert len(following.body) < len(request.body) / 2
            assert request.leave_after is None


def test_an_answer_that_was_stopped_stays_as_far_as_it_was_read() -> None:
    session = OpenCode(1, Habits(leave_share=1.0))
    assert session.next().leave_after is not None
    session.answered(Answer("Half an ans", complete=False))
    body = checked(session.next())
    assert body["messages"][-2] == {"role": "assistant", "content": "Half an ans"}
    assert body["messages"][-1]["content"].startswith("[Request interrupted by user]")


def test_sub_agents_are_conversations_of_their_own_in_the_same_session() -> None:
    session = ClaudeCode(1, Habits(subagent_share=1.0, tool_turns=0, leave_share=0.0))
    session.answered(Answer("Done."))
    (agent,) = session.subagents()
    assert session.subagents() == []
    main, sub = session.next(), agent.next()
    assert sub.headers["x-claude-code-session-id"] == main.headers["x-claude-code-session-id"]
    assert "x-claude-code-agent-id" in sub.headers
    assert "x-claude-code-agent-id" not in main.headers
    assert json.loads(sub.body)["system"][2] != json.loads(main.body)["system"][2]
    assert b"cc_is_subagent=true" in sub.body
    play(agent)
    assert agent.subagents() == []


def test_one_that_fails_is_closed() -> None:
    session = OpenCode(1, QUICK)
    session.failed()
    assert session.done


def test_people_think_and_tools_take_time() -> None:
    requests = play(
        ClaudeCode(8, Habits(questions=40, leave_share=0.0, subagent_share=0.0, result_tokens=10)), limit=900
    )
    pauses = {
        kind: [request.pause for request in requests if request.kind == kind] for kind in ("question", "tool")
    }
    assert 10 < sum(pauses["question"]) / len(pauses["question"]) < 35
    assert 0.5 < sum(pauses["tool"]) / len(pauses["tool"]) < 2


def test_the_environment_changes_habits() -> None:
    asked = habits({"LOAD_THINK_SECONDS": "0.5", "LOAD_HEADER": "0", "LOAD_QUESTIONS": "3", "PATH": "/bin"})
    assert asked == Habits(think_seconds=0.5, header=False, questions=3)
    with pytest.raises(ValueError, match="LOAD_QUESTIONS must be of type int"):
        habits({"LOAD_QUESTIONS": "many"})


@pytest.mark.parametrize(
    ("stream", "events"),
    [
        (
            (
                b'data: {"choices":[{"delta":{"role":"assistant","content":""}}]}\n\n'
                b'data: {"choices":[{"delta":{"reasoning":"hm"}}]}\n\n: ping\n\n'
                b'data: {"choices":[{"delta":{"content":"a"}}]}\n\n'
                b'data: {"choices":[],"usage":{}}\n\ndata: [DONE]\n\n'
            ),
            [Event(), Event(carries=True), Event("a", carries=True), Event(), Event(end=True)],
        ),
        (
            (
                b'event: message_start\r\ndata: {"type":"message_start"}\r\n\r\n'
                b'event: content_block_delta\ndata: {"type":"content_block_delta",'
                b'"delta":{"type":"text_delta","text":"a"}}\n\n'
                b'data: {"type":"message_stop"}\n\n'
            ),
            [Event(), Event("a", carries=True), Event(end=True)],
        ),
        (
            b'data: {"type":"error","error":{"type":"api_error","message":"x"}}\n\n',
            [Event(error="api_error")],
        ),
        (b'data: {"choices":[{"delta":{"content":"never ended"}}]}', []),
    ],
)
def test_streams_are_read_whatever_their_pieces(stream: bytes, events: list[Event]) -> None:
    for size in (1, 2, 7, len(stream)):
        splitter = Splitter()
        pieces = [stream[at : at + size] for at in range(0, len(stream), size)]
        assert [event for piece in pieces for event in splitter.feed(piece)] == events
