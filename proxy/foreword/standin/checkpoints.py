"""A modest model of Strata's reuse: checkpoints along the one conversation whose state is in place.

What is modelled: the state cannot be cut, so that a prompt resumes at the last checkpoint before its first changed
token; checkpoints are taken at the start of each assistant turn, every 16,384 newly read tokens, and at the end of a
system prompt of at least 2,048 tokens; six are kept, the least recently used going first and that root never.
What is not: parking. The next conversation takes the place of the last one, as with Strata's defaults.
"""

from typing import Final

from . import tokens

KEPT: Final = 6
STEP: Final = 16_384
ROOT: Final = 2_048


class Checkpoints:
    """The same three verbs as the block cache of ``foreword._core``; positions are in tokens."""

    def __init__(self) -> None:
        self._live = b""
        self._marks: list[int] = []  # the least recently used first
        self._root: int | None = None
        self._read_from = 0

    def lookup(self, prompt: bytes, _salt: bytes = b"") -> int:
        """Tokens of the prompt that need not be read again."""
        shared = _shared_tokens(self._live, prompt)
        usable = [mark for mark in self._marks if mark <= shared and mark < tokens.count(prompt)]
        self._marks = [mark for mark in self._marks if mark <= shared]
        if self._root is not None and self._root > shared:
            self._root = None
        resumed = max(usable, default=0)
        if resumed:
            self._marks.remove(resumed)
            self._marks.append(resumed)
        self._live = prompt[: resumed * tokens.WIDTH]
        self._read_from = resumed
        return resumed

    def insert(self, read: bytes, upto: int, _salt: bytes = b"") -> None:
        """Makes the state after the first ``upto`` tokens the live one, with the checkpoints that lie on the way."""
        before, self._live = tokens.count(self._live), read[: upto * tokens.WIDTH]
        if (root := _find(read, tokens.USER, 0)) is not None and root >= ROOT and before < root <= upto:
            self._root = root
            self._mark(root)
        first = self._read_from + STEP * ((before - self._read_from) // STEP + 1)
        for mark in range(first, upto + 1, STEP):
            self._mark(mark)
        turn = _find_last(self._live, tokens.ASSISTANT)
        if turn is not None and turn > before:
            self._mark(turn)

    def clear(self) -> None:
        """Forgets everything."""
        self.__init__()  # type: ignore[misc]

    def __len__(self) -> int:
        return len(self._marks)

    def _mark(self, mark: int) -> None:
        if mark in self._marks:
            self._marks.remove(mark)
        self._marks.append(mark)
        if len(self._marks) > KEPT:
            self._marks.remove(next(m for m in self._marks if m != self._root))


def _shared_tokens(one: bytes, other: bytes) -> int:
    """The length of the common head, by halving: comparing bytes is far cheaper than walking them."""
    low, high = 0, min(len(one), len(other)) // tokens.WIDTH
    while low < high:
        middle = (low + high + 1) // 2
        if one[: middle * tokens.WIDTH] == other[: middle * tokens.WIDTH]:
            low = middle
        else:
            high = middle - 1
    return low


def _find(text: bytes, marker: str, start: int) -> int | None:
    """The position of a special token; its bytes occur nowhere else."""
    at = text.find(tokens.special(marker), start)
    return None if at < 0 else at // tokens.WIDTH


def _find_last(text: bytes, marker: str) -> int | None:
    at = text.rfind(tokens.special(marker))
    return None if at < 0 else at // tokens.WIDTH
