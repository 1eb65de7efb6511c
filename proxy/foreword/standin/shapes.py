"""vLLM 0.32's answers, key for key: what stands in them, in which order, and what is null."""

import json
import time
import uuid
from dataclasses import dataclass, field
from typing import Any, Literal

import orjson

from .options import Options
from .parse import Delta, Message

DONE = b"data: [DONE]\n\n"
Finish = Literal["stop", "length", "tool_calls"]


def hex_id() -> str:
    """Sixteen hex digits, as vLLM's ids end."""
    return uuid.uuid4().hex[:16]


def fingerprint(options: Options) -> str:
    """``system_fingerprint`` of this engine."""
    return f"vllm-{options.version}-5741d1b0"


@dataclass(frozen=True, slots=True)
class Usage:
    """What a request took, in tokens. ``cached`` and ``created`` are None where the engine does not report them."""

    prompt: int
    completion: int
    reasoning: int | None
    cached: int | None
    created: int | None

    def running(self) -> dict[str, Any]:
        """As in each chunk under ``continuous_usage_stats``: no prompt details."""
        counts = self._counts()
        if self.reasoning is not None:
            counts["completion_tokens_details"] = {"reasoning_tokens": self.reasoning}
        return counts

    def final(self) -> dict[str, Any]:
        """As in a stream's last chunk: what is null is left out."""
        counts = self._counts()
        if self.cached is not None:
            details = {"cached_tokens": self.cached, "created_cache_tokens": self.created}
            counts["prompt_tokens_details"] = {k: v for k, v in details.items() if v is not None}
        if self.reasoning is not None:
            counts["completion_tokens_details"] = {"reasoning_tokens": self.reasoning}
        return counts

    def whole(self) -> dict[str, Any]:
        """As in an answer that is no stream: what is null is there."""
        cached = {
            "cached_tokens": self.cached,
            "created_cache_tokens": self.created,
            "multimodal_tokens": None,
        }
        reasoning = None if self.reasoning is None else {"reasoning_tokens": self.reasoning}
        return self._counts() | {
            "prompt_tokens_details": None if self.cached is None else cached,
            "completion_tokens_details": reasoning,
        }

    def _counts(self) -> dict[str, Any]:
        return {
            "prompt_tokens": self.prompt,
            "total_tokens": self.prompt + self.completion,
            "completion_tokens": self.completion,
        }


@dataclass(frozen=True, slots=True)
class Shape:
    """The answers to one request; ``chat`` or else completions."""

    options: Options
    chat: bool
    request_id: str = field(default_factory=hex_id)
    created: int = field(default_factory=lambda: int(time.time()))

    def first(self, usage: dict[str, Any] | None) -> bytes | None:
        """The chunk with the role; completions have none."""
        if not self.chat:
            return None
        choice = {
            "index": 0,
            "delta": {"role": "assistant", "content": ""},
            "logprobs": None,
            "finish_reason": None,
        }
        tail = {"prompt_token_ids": None, "prompt_text": None}
        return _event(self._head("chunk") | {"choices": [choice]} | _usage(usage) | tail)

    def chunk(
        self,
        delta: Delta | None,
        usage: dict[str, Any] | None,
        *,
        finish: Finish | None = None,
        stop: str | None = None,
        last: bool = False,
    ) -> bytes:
        """One chunk of text. ``last``: no usage chunk follows, so that this one carries the fingerprint."""
        choice: dict[str, Any] = {"index": 0}
        if self.chat:
            choice |= {"delta": _delta(delta), "logprobs": None, "finish_reason": finish}
            choice |= {"stop_reason": stop} if finish else {}
        else:
            choice |= {"text": delta.text if delta else "", "logprobs": None, "finish_reason": finish}
            choice |= {"stop_reason": stop, "prompt_token_ids": None}
        choice["token_ids"] = None
        return _event(self._head("chunk") | {"choices": [choice]} | _usage(usage) | self._print(last=last))

    def usage(self, usage: dict[str, Any], more: dict[str, Any]) -> bytes:
        """The chunk after the last one, where the request asked for usage."""
        return _event(self._head("chunk") | {"choices": [], "usage": usage} | self._print(last=True) | more)

    def message(
        self, said: Message, usage: Usage, finish: Finish, stop: str | None, more: dict[str, Any]
    ) -> bytes:
        """A chat answer in one piece."""
        message: dict[str, Any] = {
            "role": "assistant",
            "content": said.content,
            "refusal": None,
            "annotations": None,
            "audio": None,
            "function_call": None,
        }
        if said.calls:
            message["tool_calls"] = [_call(name, arguments) for name, arguments in said.calls]
        message["reasoning"] = said.reasoning
        choice = {
            "index": 0,
            "message": message,
            "logprobs": None,
            "finish_reason": finish,
            "stop_reason": stop,
        }
        return self._whole(
            choice | {"token_ids": None, "routed_experts": None},
            usage,
            {"prompt_logprobs": None, "prompt_token_ids": None, "prompt_text": None} | more,
        )

    def completion(self, text: str, usage: Usage, finish: Finish, stop: str | None) -> bytes:
        """A completion in one piece."""
        choice = {"index": 0, "text": text, "logprobs": None, "finish_reason": finish, "stop_reason": stop}
        nothing = ("token_ids", "prompt_logprobs", "prompt_token_ids", "routed_experts")
        return self._whole(choice | dict.fromkeys(nothing), usage, {})

    def _whole(self, choice: dict[str, Any], usage: Usage, more: dict[str, Any]) -> bytes:
        extra = {"kv_transfer_params": None, "ec_transfer_params": None, "metrics": None}
        head = self._head("") | {"choices": [choice], "service_tier": None} | self._print(last=True)
        return orjson.dumps(head | {"usage": usage.whole()} | more | extra)

    def _head(self, part: str) -> dict[str, Any]:
        prefix, kind = ("chatcmpl", "chat.completion") if self.chat else ("cmpl", "text_completion")
        if part and self.chat:
            kind = "chat.completion.chunk"
        return {
            "id": f"{prefix}-{self.request_id}",
            "object": kind,
            "created": self.created,
            "model": self.options.model,
        }

    def _print(self, *, last: bool) -> dict[str, Any]:
        return {"system_fingerprint": fingerprint(self.options)} if last else {}


def error_event(error: dict[str, Any]) -> bytes:
    """An error in the middle of a stream. vLLM spells it with the json module's blanks."""
    return b"data: " + json.dumps({"error": error}).encode() + b"\n\n"


def _event(chunk: dict[str, Any]) -> bytes:
    return b"data: " + orjson.dumps(chunk) + b"\n\n"


def _usage(usage: dict[str, Any] | None) -> dict[str, Any]:
    return {} if usage is None else {"usage": usage}


def _delta(delta: Delta | None) -> dict[str, Any]:
    if delta is None:
        return {}
    if delta.kind == "name":
        opened = {"id": f"chatcmpl-tool-{hex_id()}", "type": "function", "index": delta.call}
        return {"content": None, "tool_calls": [opened | {"function": {"name": delta.text}}]}
    if delta.kind == "arguments":
        return {"content": None, "tool_calls": [{"index": delta.call, "function": {"arguments": delta.text}}]}
    return {delta.kind: delta.text}


def _call(name: str, arguments: str) -> dict[str, Any]:
    function = {"name": name, "arguments": arguments}
    return {"id": f"chatcmpl-tool-{hex_id()}", "type": "function", "function": function}
