"""From a request's JSON to what the engine is to do: prompt tokens, answer, and how it is told."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import orjson

from . import script, template, tokens
from .faults import (
    Refusal,
    bad_request,
    missing,
    not_an_integer,
    not_an_object,
    too_long,
    too_long_with_answer,
    unknown_model,
    unparsable,
)
from .options import Options


@dataclass(frozen=True, slots=True)
class Ask:
    """One generation request, ready to run."""

    chat: bool
    prompt: bytes
    salt: bytes
    answer: script.Answer
    script: script.Script
    thinking: bool
    """Whether the output is reasoning until it is closed."""
    tools: bool
    """Whether tool calls are parsed."""
    stream: bool
    include_usage: bool
    continuous_usage: bool
    echo: str
    """Text that a completion begins with."""


def load(body: bytes) -> dict[str, Any]:
    """The JSON object of a request. Raises Refusal for anything else."""
    value: Any = None
    if body.strip():
        try:
            value = orjson.loads(body)
        except orjson.JSONDecodeError:
            # The stricter parser has no say in what vLLM takes (a lone surrogate, NaN), nor its words for the rest.
            try:
                value = json.loads(body)
            except json.JSONDecodeError as error:
                raise unparsable(error) from None
            except UnicodeDecodeError:
                raise bad_request("There was an error parsing the body") from None
    if not isinstance(value, dict):
        raise not_an_object(value)
    return value


def chat(body: dict[str, Any], options: Options, scripted: script.Script | None) -> Ask:
    """A /v1/chat/completions request."""
    text, thinking = _chat_prompt(body, options)
    prompt = encode(text)
    tools = body.get("tools") or []
    choice = body.get("tool_choice")
    if choice not in (None, "none") and body.get("tools") is None:
        raise bad_request(
            "When using `tool_choice`, `tools` must be set. (parameter=tool_choice)", "tool_choice"
        )
    open_turn = bool(body.get("continue_final_message"))
    demanded = _demanded(tools, choice)

    def said() -> str:
        if demanded is not None:
            return script.invent_call(demanded, thinking=thinking and not open_turn)
        return script.invent(prompt, thinking=thinking and not open_turn)

    return _ask(
        body,
        options,
        scripted,
        prompt,
        said,
        chat=True,
        thinking=thinking and not open_turn,
        tools=bool(tools) and choice != "none",
    )


def completions(body: dict[str, Any], options: Options, scripted: script.Script | None) -> Ask:
    """A /v1/completions request with one prompt, as text or as token ids."""
    prompt = prompt_tokens(body)
    echo = tokens.decode(prompt) if body.get("echo") else ""

    def said() -> str:
        return script.invent(prompt, thinking=False)

    return _ask(body, options, scripted, prompt, said, chat=False, thinking=False, tools=False, echo=echo)


def tokenized(body: dict[str, Any], options: Options) -> bytes:
    """The tokens of a /tokenize request, of messages or of a prompt."""
    if "messages" in body:
        return encode(_chat_prompt(body, options)[0])
    _check_model(body, options)
    return prompt_tokens(body)


def prompt_tokens(body: dict[str, Any]) -> bytes:
    """``prompt``: a text, or token ids, or a list with one of them."""
    prompt = body.get("prompt")
    if prompt is None:
        raise missing("prompt", body)
    if isinstance(prompt, list) and len(prompt) == 1 and not isinstance(prompt[0], int):
        prompt = prompt[0]
    if isinstance(prompt, str):
        return encode(prompt)
    return from_ids(prompt, "prompt")


def from_ids(ids: object, field: str) -> bytes:
    """Tokens of a JSON list of ids."""
    if isinstance(ids, list) and all(type(number) is int for number in ids):
        try:
            return tokens.from_ids(ids)
        except OverflowError:
            raise bad_request("Token id is out of vocabulary", field) from None
    raise bad_request(f"{field} must be a text or a list of token ids", field)


def encode(text: str) -> bytes:
    """Tokens of a text; vLLM's words for what has none."""
    try:
        return tokens.encode(text)
    except UnicodeEncodeError:
        raise bad_request(
            "TextEncodeInput must be Union[TextInputSequence, Tuple[InputSequence, InputSequence]]"
        ) from None


def _chat_prompt(body: dict[str, Any], options: Options) -> tuple[str, bool]:
    """The rendered prompt, and whether its answer thinks first."""
    messages = body.get("messages")
    if messages is None:
        raise missing("messages", body)
    _check_model(body, options)
    if not isinstance(messages, list) or not all(isinstance(message, dict) for message in messages):
        raise bad_request("Input should be a valid list of messages", "messages")
    if not messages:
        raise bad_request(
            "Cannot apply chat template to an empty conversation. Provide at least one message."
        )
    tools = body.get("tools") or []
    if not isinstance(tools, list):
        raise bad_request("Input should be a valid list of tools", "tools")
    switches = body.get("chat_template_kwargs") or {}
    thinking = bool(switches.get("enable_thinking", options.thinking))
    open_turn = bool(body.get("continue_final_message"))
    generation_prompt = bool(body.get("add_generation_prompt", True))
    if open_turn and generation_prompt:
        raise bad_request("Cannot set both `continue_final_message` and `add_generation_prompt` to True.")
    rendered = template.render(
        messages,
        tools,
        options,
        thinking=thinking,
        generation_prompt=generation_prompt,
        continue_final=open_turn,
    )
    return rendered, thinking


def _demanded(tools: list[Any], choice: object) -> str | None:
    """The tool that ``tool_choice`` demands a call of: the named one, or the first."""
    if isinstance(choice, dict):
        return str((choice.get("function") or {}).get("name"))
    return str(tools[0]["function"]["name"]) if choice == "required" and tools else None


def _ask(
    body: dict[str, Any],
    options: Options,
    scripted: script.Script | None,
    prompt: bytes,
    said: Callable[[], str],
    *,
    chat: bool,
    thinking: bool,
    tools: bool,
    echo: str = "",
) -> Ask:
    _check_model(body, options)
    own = body.get("vllm_xargs")
    told = scripted if own is None and scripted is not None else script.read(own)
    stream = bool(body.get("stream"))
    usage = body.get("stream_options") or {}
    if usage and not stream:
        raise bad_request(
            "Stream options can only be defined when `stream=True`. (parameter=stream_options)",
            "stream_options",
        )
    if body.get("n") not in (None, 1):
        raise bad_request("The stand-in engine gives one choice. (parameter=n)", "n")
    temperature = body.get("temperature")
    if isinstance(temperature, (int, float)) and temperature < 0:
        value = float(temperature)
        raise bad_request(
            f"temperature must be non-negative, got {value}. (parameter=temperature, value={value})",
            "temperature",
        )
    output = encode(told.say if told.say is not None else said())
    stops = body.get("stop") or []
    return Ask(
        chat=chat,
        prompt=prompt,
        salt=str(body.get("cache_salt") or "").encode(errors="replace"),
        answer=script.plan(
            output,
            max_tokens=_room(body, tokens.count(prompt), options),
            stops=[stops] if isinstance(stops, str) else [str(stop) for stop in stops],
            ignore_eos=bool(body.get("ignore_eos")),
        ),
        script=told,
        thinking=thinking,
        tools=tools,
        stream=stream,
        include_usage=bool(usage.get("include_usage")),
        continuous_usage=bool(usage.get("include_usage") and usage.get("continuous_usage_stats")),
        echo=echo,
    )


def _room(body: dict[str, Any], prompt: int, options: Options) -> int:
    """How many tokens the answer may have."""
    window = options.max_model_len
    field = "max_completion_tokens" if body.get("max_completion_tokens") is not None else "max_tokens"
    asked = body.get(field)
    if asked is not None:
        if type(asked) is not int:
            raise not_an_integer(field, asked)
        if asked < 1:
            raise bad_request(
                f"{field} must be at least 1, got {asked}. (parameter={field}, value={asked})", field
            )
        if asked > window:
            raise bad_request(
                f"{field}={asked} cannot be greater than max_model_len={window}. Please request fewer output tokens. "
                f"(parameter={field}, value={asked})",
                field,
            )
    if prompt >= window:
        raise too_long(window)
    if asked is not None and prompt + asked > window:
        raise too_long_with_answer(window, prompt, asked)
    return window - prompt if asked is None else asked


def _check_model(body: dict[str, Any], options: Options) -> None:
    asked = body.get("model")
    if asked is not None and asked != options.model:
        raise unknown_model(asked, options.model)


def media_type(value: str) -> None:
    """Raises Refusal for a body that does not say it is JSON."""
    if value.partition(";")[0].strip().lower() != "application/json":
        message = "1 validation error:\n  Unsupported Media Type: Only 'application/json' is allowed"
        raise Refusal(400, message, "Bad Request")
