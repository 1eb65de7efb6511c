"""As much of PromQL as it takes to see which metrics and labels an expression names."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

_TOKEN = re.compile(
    r"""(?P<space>\s+|\#[^\n]*)
      | (?P<string>"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')
      | (?P<range>\[[^\]]*\])
      | (?P<number>\d[\d.]*(?:[eE][+-]?\d+)?(?:[smhdwy]\d*)*)
      | (?P<variable>\$\{?\w+\}?)
      | (?P<name>[a-zA-Z_:][\w:]*)
      | (?P<sign>=~|!~|!=|==|>=|<=|[-+*/%^=<>(){},@])""",
    re.VERBOSE,
)
_GROUPING = {"by", "without", "on", "ignoring", "group_left", "group_right"}
_WORDS = {"and", "or", "unless", "bool", "offset", "inf", "nan"}


class PromQLError(ValueError):
    """What was read is no PromQL that is understood here."""


@dataclass
class Expression:
    """What an expression names."""

    selectors: list[tuple[str, dict[str, str]]] = field(default_factory=list)
    """Metrics, each with the values that it asks of its labels."""
    labels: set[str] = field(default_factory=set)
    """Labels that are grouped or matched by."""


def read(text: str) -> Expression:
    """Reads an expression. Raises `PromQLError` where a part of it is not understood."""
    tokens = list(_tokens(text))
    found = Expression()
    at = 0
    while at < len(tokens):
        kind, token = tokens[at]
        following = tokens[at + 1][1] if at + 1 < len(tokens) else ""
        at += 1
        if kind != "name" or token in _WORDS:
            continue
        if token in _GROUPING:
            if following == "(":
                names, at = _until(tokens, at + 1, ")")
                found.labels.update(name for kind, name in names if kind == "name")
        elif following == "{":
            matchers, at = _until(tokens, at + 1, "}")
            found.selectors.append((token, dict(_matchers(matchers))))
        elif following != "(" and following not in _GROUPING:
            found.selectors.append((token, {}))
    return found


def _tokens(text: str) -> Iterator[tuple[str, str]]:
    at = 0
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            raise PromQLError(f"not understood: {text[at : at + 20]!r}")
        at = match.end()
        if match.lastgroup not in (None, "space"):
            yield str(match.lastgroup), match[0]


def _until(tokens: list[tuple[str, str]], at: int, closing: str) -> tuple[list[tuple[str, str]], int]:
    for end in range(at, len(tokens)):
        if tokens[end][1] == closing:
            return tokens[at:end], end + 1
    raise PromQLError(f"no {closing} follows")


def _matchers(tokens: list[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    words = [token for token in tokens if token[1] != ","]
    if len(words) % 3:
        raise PromQLError(f"no label matchers: {words}")
    for (kind, label), (_, sign), (quoted, value) in zip(words[::3], words[1::3], words[2::3], strict=True):
        if kind != "name" or quoted != "string" or sign not in ("=", "!=", "=~", "!~"):
            raise PromQLError(f"no label matcher: {label}{sign}{value}")
        yield label, value[1:-1]
