"""What the stand-in does with a prompt and a script, and how it shares its time."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from tests.unit.standin_app import Answer, Exchange, call, chat, exchange, standin

from foreword.standin import Standin
from foreword.standin.options import parse

SYSTEM = {"role": "system", "content": "S"}
LATE = {"role": "system", "content": "L"}
USER = {"role": "user", "content": "U"}
TOOL = {"type": "function", "function": {"name": "t", "cache_control": {"type": "ephemeral"}}}
SHOWN_TOOL = '<|tools|>{"type": "function", "function": {"name": "t"}}<|end|>'


def rendered(app: Standin, **body: Any) -> str:
    found = call(app, "/tokenize", body).json()["tokens"]
    prompt: str = call(app, "/detokenize", {"tokens": found}).json()["prompt"]
    return prompt


def said(answer: Answer) -> Any:
    return answer.json()["choices"][0]["message"]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, f"{SHOWN_TOOL}<|system|>S<|end|><|user|>U<|end|><|system|>L<|end|><|assistant|>"),
        (
            {"template": "system-first"},
            f"<|system|>S<|end|>{SHOWN_TOOL}<|user|>U<|end|><|system|>L<|end|><|assistant|>",
        ),
        (
            {"template": "system-first", "strict_system": True},
            f"<|system|>S\n\nL<|end|>{SHOWN_TOOL}<|user|>U<|end|><|assistant|>",
        ),
        (
            {"thinking": False},
            f"{SHOWN_TOOL}<|system|>S<|end|><|user|>U<|end|><|system|>L<|end|><|assistant|><think></think>",
        ),
    ],
)
def test_template_orders(options: dict[str, Any], expected: str) -> None:
    assert rendered(standin(**options), messages=[SYSTEM, USER, LATE], tools=[TOOL]) == expected


def test_reasoning_before_the_last_user_message_is_dropped_on_demand() -> None:
    turn = {"role": "assistant", "content": "A", "reasoning": "R"}
    messages = [USER, turn, USER, turn]
    kept = "<|assistant|><think>R</think>A<|end|>"
    dropped = "<|assistant|><think></think>A<|end|>"
    user = "<|user|>U<|end|>"
    assert rendered(standin(), messages=messages) == f"{user}{kept}{user}{kept}<|assistant|>"
    assert (
        rendered(standin(drop_reasoning=True), messages=messages)
        == f"{user}{dropped}{user}{kept}<|assistant|>"
    )


def test_parts_images_and_calls() -> None:
    call_made = {"id": "1", "type": "function", "function": {"name": "t", "arguments": '{"b":1,"a":"ü"}'}}
    messages = [
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        {"role": "assistant", "content": None, "tool_calls": [call_made, call_made]},
        {"role": "tool", "tool_call_id": "1", "content": "r"},
    ]
    spoken = '<tool_call>\n{"name": "t", "arguments": {"b": 1, "a": "ü"}}\n</tool_call>'
    assert rendered(standin(), messages=messages) == (
        f"<|user|>a\nb<|end|><|assistant|><think></think>{spoken}\n{spoken}<|end|>"
        "<|observation|>r<|end|><|assistant|>"
    )
    picture = [{"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}]
    shown = [
        rendered(standin(), messages=[{"role": "user", "content": [part | {"image_url": {"url": url}}]}])
        for part in picture
        for url in ("data:,a", "data:,a", "data:,b")
    ]
    assert shown[0] == shown[1] != shown[2]


def test_a_final_message_is_continued() -> None:
    messages = [USER, {"role": "assistant", "content": "The answer is"}]
    open_turn = {"continue_final_message": True, "add_generation_prompt": False}
    prompt = rendered(standin(), messages=messages, **open_turn)
    assert prompt.endswith("<|assistant|><think></think>The answer is")
    answer = call(standin(), "/v1/chat/completions", {"messages": messages} | open_turn)
    assert said(answer)["reasoning"] is None
    assert said(answer)["content"]
    both = call(standin(), "/v1/chat/completions", {"messages": messages, "continue_final_message": True})
    assert both.status == 400


def test_unscripted_answers_follow_from_the_prompt() -> None:
    app = standin()

    def answer(text: str, **fields: Any) -> Any:
        return said(call(app, "/v1/chat/completions", {"messages": [USER | {"content": text}]} | fields))

    assert answer("one") == answer("one")
    assert answer("one")["content"] != answer("two")["content"]
    assert answer("one")["reasoning"]
    assert answer("one", chat_template_kwargs={"enable_thinking": False})["reasoning"] is None
    longer = call(app, "/v1/completions", {"prompt": "one", "max_tokens": 500, "ignore_eos": True}).json()
    assert longer["usage"]["completion_tokens"] == 500


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "u"}}])
def test_a_demanded_tool_is_called(choice: Any) -> None:
    tools = [{"type": "function", "function": {"name": name}} for name in ("t", "u")]
    fields = {"messages": [USER], "tools": tools, "tool_choice": choice}
    (made,) = said(call(standin(), "/v1/chat/completions", fields))["tool_calls"]
    assert made["function"] == {"name": "t" if choice == "required" else "u", "arguments": "{}"}


def test_the_earliest_stop_sequence_ends_the_answer() -> None:
    answer = chat(standin(), "</think>one two three four", stop=["four", "three"]).json()
    (choice,) = answer["choices"]
    assert (choice["message"]["content"], choice["stop_reason"]) == ("one two ", "three")
    # </think>, then four tokens up to the end of "three".
    assert answer["usage"]["completion_tokens"] == 5


def test_characters_are_never_cut() -> None:
    answer = chat(standin(), "</think>aaa😀bb你好", stream=True)
    texts = [event["choices"][0]["delta"].get("content") for event in answer.events[1:-2]]
    assert "".join(texts) == "aaa😀bb你好"
    assert not any("\ufffd" in text for text in texts)


# --- scripts


def test_an_answer_of_ones_own() -> None:
    failure = {"status": 503, "message": "busy", "headers": {"Retry-After": "7"}}
    answer = chat(standin(), vllm_xargs={"fail": failure})
    assert (answer.status, answer.headers["retry-after"]) == (503, "7")
    assert answer.json() == {
        "error": {"message": "busy", "type": "InternalServerError", "param": None, "code": 503}
    }
    page = chat(standin(), vllm_xargs={"fail": {"status": 502, "body": "<html>"}})
    assert (page.status, page.headers["content-type"], page.body) == (502, "text/html", b"<html>")


def test_streams_end_where_the_script_says() -> None:
    say = "</think>" + "word" * 20
    for hook, count, last, whole in (
        ({"cut_after": 3}, 3, {"content": "word"}, False),
        ({"end_after": 3}, 3, {"content": "word"}, True),
        ({"cut_after": 0}, 0, None, False),
        ({"error_after": 3}, 5, None, True),
        ({"say_raise_at": 3}, 5, None, True),
    ):
        app = standin()
        answer = chat(app, stream=True, vllm_xargs={"say": say} | hook)
        assert (answer.status, len(answer.events), answer.whole) == (200, count, whole), hook
        if last is not None:
            assert answer.events[-1]["choices"][0]["delta"] == last
        failed = "error_after" in hook or "say_raise_at" in hook
        if failed:
            assert answer.events[-2]["error"]["code"] == 500
            assert answer.events[-1] == "[DONE]"
        reached = hook != {"cut_after": 0}  # else the engine never saw the request
        ended = {"stop": 0, "length": 0, "abort": int(reached and not failed), "error": int(failed)}
        assert app.engine.finished == ended, hook


def test_half_an_answer_in_one_piece() -> None:
    answer = chat(standin(), vllm_xargs={"say": "</think>ok", "cut_after": 0})
    assert not answer.whole
    assert len(answer.body) == int(answer.headers["content-length"]) // 2


def test_queued_scripts_go_to_the_next_requests_that_bring_none() -> None:
    app = standin()
    queued = call(app, "/standin/script", {"next": [{"say": "</think>one"}, {"say": "</think>two"}]})
    assert queued.json() == {"queued": 2}
    assert said(chat(app, "</think>own"))["content"] == "own"
    answers = [call(app, "/v1/chat/completions", {"messages": [USER]}) for _ in range(3)]
    assert [said(answer)["content"] for answer in answers[:2]] == ["one", "two"]
    assert said(answers[2])["content"] not in ("one", "two")


def test_the_last_body_is_shown_as_it_came() -> None:
    app = standin()
    raw = b'{ "messages" : [ {"role":"user","content":"\\u0041"} ] }'
    call(app, "/v1/chat/completions", raw)
    assert call(app, "/standin/last", method="GET").body == raw


@pytest.mark.parametrize("script", [[], {"say": 1}, {"cut_after": "3"}, {"cut": "axe"}, {"say_delay": True}])
def test_scripts_that_are_none_are_refused(script: Any) -> None:
    assert chat(standin(), vllm_xargs=script).status == 400
    assert call(standin(), "/standin/script", {"next": [script]}).status == 400


# --- time


def run(scenario: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        await asyncio.wait_for(scenario(), 20)

    asyncio.run(bounded())


def streamed(app: Standin, text: str, say: str = "</think>ok", **script: Any) -> Exchange:
    fields = {"messages": [{"role": "user", "content": text}], "stream": True}
    return exchange(app, "/v1/chat/completions", fields | {"vllm_xargs": {"say": say} | script})


def test_reading_takes_its_time_for_what_is_not_cached_one_prompt_at_a_time() -> None:
    app = standin(prefill_rate=10_000, prefill_step=500)
    long = "x" * 4 * 2_000

    async def scenario() -> None:
        first, second = streamed(app, long), streamed(app, long[::-1] + "y" * 4 * 2_000)
        began = time.monotonic()
        running = [asyncio.create_task(request.run()) for request in (first, second)]
        await asyncio.sleep(0.1)
        assert (app.engine.running, app.engine.waiting) == (1, 1)
        # Blocks are visible as they are computed, and the head of each answer has long gone out.
        assert 0 < len(app.engine.memory) < 62
        assert [len(request.answer.events) for request in (first, second)] == [0, 0]
        assert first.answer.status == second.answer.status == 200
        await asyncio.gather(*running)
        # 2,000 tokens, and of 4,000 the half that was not there.
        assert time.monotonic() - began >= 0.4
        assert app.engine.totals["prefix_cache_hits"] == 1_984

    run(scenario)


@pytest.mark.parametrize("where", ["queue", "reading", "writing", "stalled"])
def test_a_client_that_leaves_ends_its_request(where: str) -> None:
    app = standin(prefill_rate=1_000, prefill_step=50)

    async def scenario() -> None:
        before = streamed(app, "x" * 4 * 500) if where == "queue" else None
        first = asyncio.create_task(before.run()) if before else None
        await asyncio.sleep(0.05)
        script = {"stall_after": 2, "stall_seconds": 60} if where == "stalled" else {"say_delay": 0.05}
        text = "hi" if where in ("writing", "stalled") else "y" * 4 * 500
        leaver = streamed(app, text, "</think>" + "word" * 1_000, **script)
        task = asyncio.create_task(leaver.run())
        await asyncio.sleep(0.25)
        assert app.engine.finished["abort"] == 0
        leaver.leave.set()
        began = time.monotonic()
        await task
        assert time.monotonic() - began < 1.0
        assert app.engine.finished["abort"] == 1
        assert bool(leaver.answer.events) is (where in ("writing", "stalled"))
        if first is not None:
            await first
            assert app.engine.finished["stop"] == 1
        assert (app.engine.running, app.engine.waiting) == (0, 0)

    run(scenario)


def test_all_streams_step_together() -> None:
    app = standin(decode_rate=50)

    async def scenario() -> None:
        say = "</think>" + "word" * 10
        requests = [streamed(app, f"{n}", say) for n in range(5)]
        began = time.monotonic()
        running = [asyncio.create_task(request.run()) for request in requests]
        seen: list[int] = []
        while not all(task.done() for task in running):
            await asyncio.sleep(0.001)
            told = [len(request.answer.events) for request in requests]
            seen.append(max(told) - min(told))
        # Twelve tokens with the two markers, at 50 a second; the end is three events more.
        assert time.monotonic() - began >= 12 / 50 - 0.02
        assert seen.count(0) > len(seen) / 2
        assert max(seen) <= 3

    run(scenario)


def test_waits_that_a_script_asks_for() -> None:
    app = standin()
    for script in ({"headers_delay": 0.15}, {"stall_after": 1, "stall_seconds": 0.15}, {"say_delay": 0.05}):
        began = time.monotonic()
        assert chat(app, stream=True, vllm_xargs={"say": "</think>ok"} | script).whole
        assert time.monotonic() - began >= 0.14, script


# --- the command line


def test_flags_become_options() -> None:
    given = parse(
        ["--port", "1234", "--block-size", "16", "--no-prompt-tokens-details", "--template", "system-first"]
    )
    assert (given.port, given.block_tokens, given.prompt_tokens_details, given.template) == (
        1234,
        16,
        False,
        "system-first",
    )


@pytest.mark.parametrize(
    "flags",
    [
        ["--port", "0"],
        ["--block-size", "-1"],
        ["--decode-rate", "nan"],
        ["--kind", "x"],
        ["--l2", "sick"],
        ["--prompt-cache", "-1"],
        ["--kind", "strata", "--log", "/nowhere/at/all"],
        ["--kind", "strata", "--conversation-cache-mib", "8192", "--prompt-cache", "0"],
        ["--kind", "strata", "--conversation-cache-mib", "8192", "--conversation-cache-slots", "0"],
    ],
)
def test_wrong_flags_are_usage_errors(flags: list[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        parse(flags)
    assert ended.value.code == 2
