"""Two captured requests, segment by segment: where their prompts part, and what differs behind."""

import difflib
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from foreword.doctor.errors import DoctorError
from foreword.doctor.style import Style

HEADER = "x-anthropic-billing-header:"
_LATE_ROLES = ("system", "developer")


@dataclass(frozen=True, slots=True)
class Piece:
    """One segment of a body: its path as the client wrote it, its class, and its bytes as JSON or text."""

    path: str
    segment_class: str
    text: bytes


@dataclass(frozen=True, slots=True)
class Step:
    """One line of the comparison."""

    state: str
    """same, edited, inserted or removed."""
    path: str
    segment_class: str
    length_a: int | None
    length_b: int | None
    first_difference: int | None
    """Bytes of the segment that are equal before the first that differs; None unless it was edited."""

    def as_json(self) -> dict[str, object]:
        """For machines."""
        return {
            "state": self.state,
            "path": self.path,
            "class": self.segment_class,
            "bytes_a": self.length_a,
            "bytes_b": self.length_b,
            "first_difference": self.first_difference,
        }


def run(a: Path, b: Path, *, machine: bool, show: Callable[[str], None]) -> int:
    """Compares two captures. Returns 0 if one's prompt begins with the other's, else 1. Raises DoctorError."""
    steps = compare(pieces(_body(a)), pieces(_body(b)))
    parting = next((n for n, step in enumerate(steps) if step.state != "same"), None)
    appended = parting is None or all(step.state == "inserted" for step in steps[parting:])
    shared = sum(step.length_b or 0 for step in steps[: len(steps) if parting is None else parting])
    if parting is not None and steps[parting].first_difference:
        shared += steps[parting].first_difference or 0
    if machine:
        answer = {
            "append_only": appended,
            "shared_bytes": shared,
            "first": None if parting is None else steps[parting].as_json(),
            "segments": [step.as_json() for step in steps],
        }
        show(orjson.dumps(answer, option=orjson.OPT_INDENT_2).decode())
    else:
        show("\n".join(_lines(steps, parting, shared, appended=appended)))
    return 0 if appended else 1


def _body(path: Path) -> dict[str, Any]:
    """The client's body in a capture file, or a file that is one."""
    try:
        value = orjson.loads(path.read_bytes())
        if isinstance(value, dict) and isinstance(value.get("body"), str):
            value = orjson.loads(value["body"])
    except OSError as error:
        raise DoctorError(f"{path}: {error.strerror}") from None
    except orjson.JSONDecodeError as error:
        raise DoctorError(f"{path} holds no JSON body: {error}") from None
    if not isinstance(value, dict):
        raise DoctorError(f"{path} holds no request body")
    return value


def pieces(body: dict[str, Any]) -> list[Piece]:
    """The segments of a body of any dialect: tools first, then system, then the conversation.

    What no template prints is left out: `cache_control` on a block, and a list of one text is that text.
    """
    found = [Piece(f"tools[{n}]", "tools", _bytes(tool)) for n, tool in enumerate(_list(body.get("tools")))]
    for name in ("system", "instructions"):
        value = body.get(name)
        found += [
            Piece(path, "header" if text.lstrip().startswith(HEADER.encode()) else "system", text)
            for path, text in _contents(name, value)
        ]
    messages_name = "input" if "input" in body else "messages"
    messages = body.get(messages_name)
    if isinstance(messages, str):
        return [*found, Piece(messages_name, "first-user", messages.encode())]
    listed = _list(messages)
    if isinstance(body.get("prompt"), str):
        found.append(Piece("prompt", "first-user", body["prompt"].encode()))
    talk = False
    for n, message in enumerate(listed):
        path = f"{messages_name}[{n}]"
        if not isinstance(message, dict):
            found.append(Piece(path, "history", _bytes(message)))
            continue
        kind = _class(message, n, len(listed), talk=talk, first=not talk)
        found += [
            Piece(
                at, "header" if kind == "system" and text.lstrip().startswith(HEADER.encode()) else kind, text
            )
            for at, text in _message(path, message)
        ]
        talk = talk or message.get("role") not in _LATE_ROLES
    return found


def _class(message: dict[str, Any], n: int, count: int, *, talk: bool, first: bool) -> str:
    if message.get("role") in _LATE_ROLES:
        return "late-system" if talk else "system"
    if first:
        return "first-user"
    return "last-turn" if n == count - 1 else "history"


def _message(path: str, message: dict[str, Any]) -> Iterator[tuple[str, bytes]]:
    """The segments of a message: its contents, and what else it carries (calls, ids) as one."""
    rest = {name: value for name, value in message.items() if name not in ("content", "cache_control")}
    role = str(message.get("role") or message.get("type") or "")
    if set(rest) - {"role", "type"}:
        yield path, _bytes(rest)
    for at, text in _contents(f"{path}.content", message.get("content")):
        yield at, role.encode() + b"\n" + text


def _contents(path: str, value: object) -> Iterator[tuple[str, bytes]]:
    if isinstance(value, str):
        yield path, value.encode()
        return
    for n, block in enumerate(_list(value)):
        if isinstance(block, dict):
            plain = {name: each for name, each in block.items() if name != "cache_control"}
            text = plain.get("text")
            only_text = isinstance(text, str) and set(plain) <= {"type", "text"}
            yield f"{path}[{n}]", str(text).encode() if only_text else _bytes(plain)
        else:
            yield f"{path}[{n}]", _bytes(block)


def compare(a: list[Piece], b: list[Piece]) -> list[Step]:
    """The segments of both in order."""
    steps: list[Step] = []
    matcher = difflib.SequenceMatcher(
        a=[piece.text for piece in a], b=[piece.text for piece in b], autojunk=False
    )
    for tag, a_from, a_to, b_from, b_to in matcher.get_opcodes():
        if tag == "equal":
            steps += [
                _step("same", old, new) for old, new in zip(a[a_from:a_to], b[b_from:b_to], strict=True)
            ]
            continue
        pairs = min(a_to - a_from, b_to - b_from)
        steps += [_step("edited", a[a_from + n], b[b_from + n]) for n in range(pairs)]
        steps += [_step("removed", old, None) for old in a[a_from + pairs : a_to]]
        steps += [_step("inserted", None, new) for new in b[b_from + pairs : b_to]]
    return steps


def _step(state: str, old: Piece | None, new: Piece | None) -> Step:
    shown = new or old
    assert shown is not None  # noqa: S101 - one of the two is given
    at = None
    if state == "edited" and old and new:
        at = next(
            (n for n, (x, y) in enumerate(zip(old.text, new.text, strict=False)) if x != y),
            min(len(old.text), len(new.text)),
        )
    return Step(
        state,
        shown.path,
        shown.segment_class,
        len(old.text) if old else None,
        len(new.text) if new else None,
        at,
    )


def _lines(steps: list[Step], parting: int | None, shared: int, *, appended: bool) -> Iterator[str]:
    style = Style.of(sys.stdout)
    colours = {"same": "dim", "edited": "red", "removed": "red", "inserted": "yellow"}
    yield style.paint(f"{'':8} {'path':34} {'class':11} {'bytes A':>9} {'bytes B':>9}", "bold")
    for n, step in enumerate(steps):
        a, b = ("-" if each is None else f"{each:,}" for each in (step.length_a, step.length_b))
        note = "" if step.first_difference is None else f"  equal for {step.first_difference:,} bytes"
        mark = "  <- the prompts part here" if n == parting else ""
        line = f"{step.state:8} {step.path:34} {step.segment_class:11} {a:>9} {b:>9}{note}{mark}"
        yield style.paint(line, colours[step.state])
    yield ""
    if parting is None:
        yield "Both prompts are the same."
    elif appended:
        yield f"B only adds to A: {shared:,} bytes are shared."
    else:
        yield (
            f"The prompts part at {steps[parting].path} ({steps[parting].segment_class}), behind {shared:,} equal bytes"
            " in this order (tools, system, conversation); an engine's template may print system before tools."
        )


def _bytes(value: object) -> bytes:
    return orjson.dumps(value)


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []
