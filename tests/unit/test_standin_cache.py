"""The stand-in's reported cache hits against a slow reference that shares no code with its cache."""

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.standin_app import call, standin

from foreword.standin import Standin


class SlowCache:
    """A block is the whole prompt up to its end; its value is the time of its last use."""

    def __init__(self, block: int, capacity: int) -> None:
        self.block = block
        self.capacity = capacity
        self.used: dict[tuple[object, ...], int] = {}
        self.clock = 0

    def blocks(self, salt: str, tokens: list[int]) -> list[tuple[object, ...]]:
        return [(salt, *tokens[:end]) for end in range(self.block, len(tokens) + 1, self.block)]

    def touch(self, blocks: list[tuple[object, ...]]) -> None:
        for block in reversed(blocks):
            self.clock += 1
            self.used[block] = self.clock

    def hits(self, salt: str, prompt: list[int]) -> int:
        found = []
        for block in self.blocks(salt, prompt[:-1]):
            if block not in self.used:
                break
            found.append(block)
        self.touch(found)
        return len(found) * self.block

    def keep(self, salt: str, tokens: list[int]) -> None:
        blocks = self.blocks(salt, tokens)[: self.capacity]
        self.touch([block for block in blocks if block in self.used])
        new = [block for block in blocks if block not in self.used]
        while len(self.used) + len(new) > self.capacity:
            del self.used[min(self.used, key=lambda block: self.used[block])]
        self.touch(blocks)


def tokens_of(app: Standin, **body: Any) -> list[int]:
    found: list[int] = call(app, "/tokenize", {"model": "tiny"} | body).json()["tokens"]
    return found


TURN = st.fixed_dictionaries(
    {
        "session": st.integers(0, 3),
        "user": st.text("ab\n", min_size=0, max_size=60),
        "say": st.text("xy", max_size=40).map(lambda text: f"<think>{text}</think>{text}"),
        "salt": st.sampled_from(["", "", "tenant"]),
        "forget": st.booleans(),
        "max_tokens": st.integers(1, 30),
    }
)


@settings(max_examples=120, deadline=None)
@given(
    block=st.integers(1, 12),
    capacity=st.integers(1, 60),
    step=st.integers(1, 40),
    turns=st.lists(TURN, min_size=1, max_size=14),
)
def test_reported_hits_are_those_of_the_slow_reference(
    block: int, capacity: int, step: int, turns: list[dict[str, Any]]
) -> None:
    app = standin(block_tokens=block, cache_blocks=capacity, prefill_step=step)
    slow = SlowCache(block, capacity)
    sessions: dict[int, list[dict[str, str]]] = {}
    queries = hits = 0
    for turn in turns:
        messages = sessions.setdefault(turn["session"], [{"role": "system", "content": "the same for all"}])
        messages.append({"role": "user", "content": turn["user"]})
        salt, say = turn["salt"], turn["say"]
        asked = {"messages": messages, "cache_salt": salt, "vllm_xargs": {"say": say}}
        answer = call(app, "/v1/chat/completions", asked | {"max_tokens": turn["max_tokens"]}).json()

        prompt = tokens_of(app, messages=messages)
        output = [*tokens_of(app, prompt=say), *tokens_of(app, prompt="<|end|>")][: turn["max_tokens"]]
        expected = slow.hits(salt, prompt)
        for upto in [*range(expected + step, len(prompt), step), len(prompt)]:
            slow.keep(salt, prompt[:upto])
        slow.keep(salt, (prompt + output)[:-1])

        usage = answer["usage"]
        assert usage["prompt_tokens"] == len(prompt)
        assert usage["completion_tokens"] == len(output)
        details = usage["prompt_tokens_details"]
        assert details["cached_tokens"] == expected
        assert details["created_cache_tokens"] == max(0, len(prompt) // block * block - expected)
        queries, hits = queries + len(prompt), hits + expected

        message = answer["choices"][0]["message"]
        messages.append({k: message[k] or "" for k in ("role", "content", "reasoning")})
        if turn["forget"]:
            del messages[1:]
    metrics = call(app, "/metrics", method="GET").body.decode()
    assert f'vllm:prefix_cache_queries_total{{engine="0",model_name="tiny"}} {queries}.0' in metrics
    assert f'vllm:prefix_cache_hits_total{{engine="0",model_name="tiny"}} {hits}.0' in metrics


def test_reset_forgets_everything() -> None:
    app = standin()
    asked = {"messages": [{"role": "user", "content": "x" * 400}]}

    def cached() -> int:
        details = call(app, "/v1/chat/completions", asked).json()["usage"]["prompt_tokens_details"]
        found: int = details["cached_tokens"]
        return found

    assert (cached(), cached()) == (0, 96)
    assert call(app, "/reset_prefix_cache").status == 200
    assert (cached(), cached()) == (0, 96)


def test_an_unchanged_history_extends_what_was_generated() -> None:
    """The answer's own tokens are hits of the next turn: rendering gives back exactly what was written."""
    app = standin(block_tokens=1)
    spoken = '{"name": "Read", "arguments": {"path": "é.py", "n": 5.0}}'
    say = f"<think>\nhm\n</think>\n\nLook.<tool_call>\n{spoken}\n</tool_call>"
    tools = [{"type": "function", "function": {"name": "Read", "parameters": {"type": "object"}}}]
    messages: list[dict[str, Any]] = [{"role": "user", "content": "read it"}]
    first = call(
        app, "/v1/chat/completions", {"messages": messages, "tools": tools, "vllm_xargs": {"say": say}}
    ).json()
    message = first["choices"][0]["message"]
    assert message["tool_calls"][0]["function"]["arguments"] == '{"path": "é.py", "n": 5.0}'
    messages += [message, {"role": "tool", "tool_call_id": "1", "content": "text"}]
    second = call(app, "/v1/chat/completions", {"messages": messages, "tools": tools}).json()
    # Of the last token generated, the end of the turn, nothing was computed.
    assert second["usage"]["prompt_tokens_details"]["cached_tokens"] == first["usage"]["total_tokens"] - 1
