"""The stand-in's tokenizer: four bytes of UTF-8 are one token.

A token id is a u32 whose little-endian bytes are the text's own bytes, so that a tokenised prompt *is* its text, cut
at the special tokens and padded there to whole tokens. Bytes that UTF-8 never uses mark the padding (0xFE) and the
special tokens (0xFF at the end). As with a real tokenizer, special tokens are recognised wherever their text occurs,
and what follows one is cut the same whatever stood before it.
"""

import array
import re
import sys
from collections.abc import Iterator
from typing import Final

WIDTH: Final = 4

SYSTEM: Final = "<|system|>"
TOOLS: Final = "<|tools|>"
USER: Final = "<|user|>"
ASSISTANT: Final = "<|assistant|>"
OBSERVATION: Final = "<|observation|>"
IMAGE: Final = "<|image|>"
END: Final = "<|end|>"
THINK: Final = "<think>"
THINK_END: Final = "</think>"
CALL: Final = "<tool_call>"
CALL_END: Final = "</tool_call>"

_SPECIALS: Final = (
    SYSTEM, TOOLS, USER, ASSISTANT, OBSERVATION, IMAGE, END, THINK, THINK_END, CALL, CALL_END,
)  # fmt: skip
_PAD: Final = b"\xfe"
_PADDING: Final = [_PAD * n for n in range(WIDTH)]
_BY_TEXT: Final = {text.encode(): bytes((n, 0xFF, 0xFF, 0xFF)) for n, text in enumerate(_SPECIALS)}
_BY_TOKEN: Final = {token: text.decode() for text, token in _BY_TEXT.items()}
# One literal first byte, so that the search for it is a memchr.
_SPLIT: Final = re.compile(b"(<(?:" + b"|".join(re.escape(text[1:]) for text in _BY_TEXT) + b"))")


def encode(text: str) -> bytes:
    """Tokens of a text as little-endian u32s. Raises UnicodeEncodeError for a lone surrogate."""
    out: list[bytes] = []
    for n, piece in enumerate(_SPLIT.split(text.encode())):
        if n % 2:
            out.append(_BY_TEXT[piece])
        elif piece:
            out.append(piece)
            out.append(_PADDING[-len(piece) % WIDTH])
    return b"".join(out)


def special(text: str) -> bytes:
    """The one token of a special text."""
    return _BY_TEXT[text.encode()]


def special_text(token: bytes) -> str | None:
    """The text of a special token; None for ordinary ones."""
    return _BY_TOKEN.get(token)


def plain(token: bytes) -> bytes:
    """The UTF-8 bytes of an ordinary token, perhaps a part of a character."""
    return token.rstrip(_PAD)


def split(tokens: bytes) -> Iterator[bytes]:
    """Each token by itself."""
    return (tokens[at : at + WIDTH] for at in range(0, len(tokens), WIDTH))


def decode(tokens: bytes) -> str:
    """The text again; what is no UTF-8 becomes U+FFFD."""
    parts = ((_BY_TOKEN[t].encode() if t in _BY_TOKEN else plain(t)) for t in split(tokens))
    return b"".join(parts).decode(errors="replace")


def count(tokens: bytes) -> int:
    """How many tokens there are."""
    return len(tokens) // WIDTH


def ids(tokens: bytes) -> list[int]:
    """Token ids, as /tokenize shows them."""
    numbers = array.array("I", tokens)
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers.tolist()


def from_ids(numbers: list[int]) -> bytes:
    """Tokens of ids. Raises OverflowError or TypeError for what is no u32."""
    return b"".join(number.to_bytes(WIDTH, "little") for number in numbers)
