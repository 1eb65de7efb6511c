"""The stand-in's chat template: from messages and tools to the text of a prompt.

    <|tools|> one tool a line <|end|> <|system|> ... <|end|> <|user|> ... <|end|>
    <|assistant|> <think> ... </think> text <tool_call> ... </tool_call> <|end|> <|observation|> ... <|end|>

``system-first`` puts the first system message before the tools. An assistant turn is rendered exactly as the engine
writes it, so that a history that comes back unchanged extends the tokens that are already in the cache.
"""

import hashlib
import json
from typing import Any

from . import tokens
from .faults import bad_request
from .options import Options

Message = dict[str, Any]
_TOOL_FIELDS = ("name", "description", "parameters")


def render(
    messages: list[Message],
    tools: list[Any],
    options: Options,
    *,
    thinking: bool,
    generation_prompt: bool = True,
    continue_final: bool = False,
) -> str:
    """The text that is tokenised. Raises Refusal for content that no template prints."""
    head, rest = _split_head(messages, options)
    last_user = max((n for n, m in enumerate(rest) if m.get("role") == "user"), default=-1)
    parts = [head]
    if tools:
        lines = "\n".join(json.dumps(_tool(tool), ensure_ascii=False) for tool in tools)
        parts.insert(1 if options.template == "system-first" else 0, f"{tokens.TOOLS}{lines}{tokens.END}")
    for n, message in enumerate(rest):
        parts.append(_turn(message, options, drop=options.drop_reasoning and n < last_user))
    if continue_final:
        return "".join(parts).removesuffix(tokens.END)
    if generation_prompt:
        parts.append(tokens.ASSISTANT if thinking else f"{tokens.ASSISTANT}{tokens.THINK}{tokens.THINK_END}")
    return "".join(parts)


def _split_head(messages: list[Message], options: Options) -> tuple[str, list[Message]]:
    """What stands with the tools at the head, and the messages that follow."""
    if options.strict_system:
        # vLLM merges late system messages for a template that wants its only one at the head.
        late = [_text(m, options) for m in messages if _is_system(m)]
        rest = [m for m in messages if not _is_system(m)]
        return (_block(tokens.SYSTEM, "\n\n".join(late)) if late else ""), rest
    if messages and _is_system(messages[0]):
        return _block(tokens.SYSTEM, _text(messages[0], options)), messages[1:]
    return "", messages


def _is_system(message: Message) -> bool:
    return message.get("role") in ("system", "developer")


def _turn(message: Message, options: Options, *, drop: bool) -> str:
    role = message.get("role")
    text = _text(message, options)
    if role == "assistant":
        reasoning = "" if drop else message.get("reasoning") or message.get("reasoning_content") or ""
        calls = "\n".join(_call(call) for call in message.get("tool_calls") or ())
        return _block(tokens.ASSISTANT, f"{tokens.THINK}{reasoning}{tokens.THINK_END}{text}{calls}")
    if role == "tool":
        return _block(tokens.OBSERVATION, text)
    if _is_system(message):
        return _block(tokens.SYSTEM, text)
    # An unknown role is no error to vLLM: the template decides, and prints nothing.
    return _block(tokens.USER, text) if role == "user" else ""


def _block(marker: str, text: str) -> str:
    return f"{marker}{text}{tokens.END}"


def _text(message: Message, options: Options) -> str:
    content = message.get("content")
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise bad_request("Input should be a valid string or list", "content")
    return "\n".join(_part(part, options) for part in content)


def _part(part: object, options: Options) -> str:
    if isinstance(part, str):
        return part
    if not isinstance(part, dict):
        raise bad_request("Unknown part type: " + type(part).__name__)
    kind = part.get("type")
    if kind in ("text", "refusal", "thinking") and isinstance(part.get(kind), str):
        return str(part[kind])
    if kind == "image_url":
        if not options.images:
            raise bad_request(f"{options.model} is not a multimodal model")
        digest = hashlib.sha256(json.dumps(part.get("image_url")).encode()).hexdigest()
        return f"{tokens.IMAGE}{digest}"
    raise bad_request(f"Unknown part type: {kind}")


def _tool(tool: object) -> dict[str, Any]:
    """The fields that vLLM keeps of a tool, in its order; the rest (cache_control and the like) is not rendered."""
    function = tool.get("function") if isinstance(tool, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise bad_request("tools: each must be {'type': 'function', 'function': {'name': ...}}", "tools")
    return {"type": "function", "function": {k: function[k] for k in _TOOL_FIELDS if k in function}}


def _call(call: object) -> str:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict):
        raise bad_request("tool_calls: each must have a function", "messages")
    return f"{tokens.CALL}\n{spoken_call(str(function.get('name')), function.get('arguments'))}\n{tokens.CALL_END}"


def spoken_call(name: str, arguments: object) -> str:
    """A tool call in the words of the model. Arguments that are JSON are spelt anew, as vLLM's templates do."""
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments or "{}")
        except ValueError:
            return f'{{"name": {json.dumps(name)}, "arguments": {arguments}}}'
    spelt = json.dumps({} if arguments is None else arguments, ensure_ascii=False)
    return f'{{"name": {json.dumps(name)}, "arguments": {spelt}}}'
