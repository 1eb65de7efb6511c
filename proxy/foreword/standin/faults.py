"""vLLM's errors: how a request is refused, in its words."""

import json
from typing import Any


class Refusal(Exception):
    """An error answer: status, and the four keys of vLLM's error object."""

    def __init__(self, status: int, message: str, kind: str, param: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.error: dict[str, Any] = {"message": message, "type": kind, "param": param, "code": status}


def bad_request(message: str, param: str | None = None) -> Refusal:
    """A request that was understood and cannot be served."""
    return Refusal(400, message, "BadRequestError", param)


def invalid(
    param: str | None, kind: str, message: str, shown: str, extra: dict[str, Any] | None = None
) -> Refusal:
    """A body that does not validate; the text is that of one pydantic error."""
    detail: dict[str, Any] = {"type": kind, "loc": param, "msg": message, "input": shown} | (extra or {})
    return Refusal(400, f"1 validation error:\n  {detail}", "Bad Request", param)


def unparsable(error: json.JSONDecodeError) -> Refusal:
    """A body that is no JSON."""
    at = f"body.{error.pos}"
    return invalid(
        at, "json_invalid", "JSON decode error", "<dict of 0 items>", {"ctx": {"error": error.msg}}
    )


def not_an_object(value: object) -> Refusal:
    """JSON, and yet no request."""
    if value is None:
        return invalid("body", "missing", "Field required", "None")
    shown = f"<list of {len(value)} items>" if isinstance(value, list) else str(value)
    message = "Input should be a valid dictionary or object to extract fields from"
    return invalid("body", "model_attributes_type", message, shown)


def missing(field: str, body: dict[str, Any]) -> Refusal:
    """A field that must be there."""
    return invalid(f"body.{field}", "missing", "Field required", f"<dict of {len(body)} items>")


def not_an_integer(field: str, value: object) -> Refusal:
    """A field that must be an integer."""
    if isinstance(value, str):
        message = "Input should be a valid integer, unable to parse string as an integer"
        return invalid(f"body.{field}", "int_parsing", message, value)
    return invalid(f"body.{field}", "int_type", "Input should be a valid integer", str(value))


def unknown_model(asked: object, served: str) -> Refusal:
    """A model that is not served."""
    message = f"The model `{asked}` does not exist. Valid aliases: {served}."
    return Refusal(404, message, "NotFoundError", "model")


def too_long(window: int) -> Refusal:
    """A prompt that fills the window; vLLM stops counting one token past it."""
    return bad_request(
        f"This model's maximum context length is {window} tokens. However, your prompt contains at least {window + 1} "
        "input tokens, which exceeds this limit even without any output tokens. Please reduce the length of the input "
        f"prompt. (parameter=input_tokens, value={window + 1})",
        "input_tokens",
    )


def too_long_with_answer(window: int, prompt: int, answer: int) -> Refusal:
    """A prompt that fits, with more answer asked for than there is room."""
    return bad_request(
        f"This model's maximum context length is {window} tokens. However, you requested {answer} output tokens and "
        f"your prompt contains at least {prompt} input tokens, for a total of at least {prompt + answer} tokens. "
        "Please reduce the length of the input prompt or the number of requested output tokens. "
        f"(parameter=input_tokens, value={prompt})",
        "input_tokens",
    )


def engine_dead() -> dict[str, Any]:
    """The error object of a step that failed, before or in an answer."""
    message = "EngineCore encountered an issue. See stack trace (above) for the root cause."
    return {"message": message, "type": "InternalServerError", "param": None, "code": 500}
