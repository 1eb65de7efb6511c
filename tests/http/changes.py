"""What makes a conversation's prompt another one, planted at random places.

Each change alters a conversation and says what became of which text: that is what the sidecar has to find out.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Literal, NamedTuple

from .conversation import Answer, Call, Conversation, Note, Piece, Results, User, Words

Kind = Literal["edited", "inserted", "removed", "reordered"]


class Planted(NamedTuple):
    """``text``: the new one where it was edited or inserted, the old one where it was removed."""

    kind: Kind
    text: str = ""

    def found(self, before: list[Piece], after: list[Piece]) -> Piece:
        """The piece that the verdict must name."""
        if self.kind == "reordered":
            return next(new for old, new in zip(before, after, strict=False) if old.text != new.text)
        return next(
            piece for piece in (before if self.kind == "removed" else after) if piece.text == self.text
        )


Change = Callable[[random.Random, Words, Conversation], Planted | None]
"""None where the conversation has no place for it; it is as it was then."""


def header_edited(rng: random.Random, words: Words, it: Conversation) -> Planted | None:
    if it.header is None:
        return None
    it.header = billing_header(rng)
    return Planted("edited", it.header)


def billing_header(rng: random.Random) -> str:
    return f"x-anthropic-billing-header: cc_version=2.1.{rng.randrange(400)}; cch={rng.randrange(16**5):05x};"


# ---- the head


def tool_edited(rng: random.Random, words: Words, it: Conversation) -> Planted | None:
    at = rng.randrange(len(it.tools))
    it.tools[at] = (it.tools[at][0], words.text(100, 500))
    return Planted("edited", " ".join(it.tools[at]))


def tool_inserted(rng: random.Random, words: Words, it: Conversation) -> Planted | None:
    at = rng.randint(0, len(it.tools))
    text = words.text(100, 500)
    it.tools.insert(at, (f"tool_{text.split()[0]}", text))
    return Planted("inserted", " ".join(it.tools[at]))


def tool_removed(rng: random.Random, words: Words, it: Conversation) -> Planted | None:
    if len(it.tools) < 3:
        return None
    return Planted("removed", " ".join(it.tools.pop(rng.randrange(len(it.tools)))))


def tools_reordered(rng: random.Random, words: Words, it: Conversation) -> Planted | None:
    one, two = rng.sample(range(len(it.tools)), 2)
    it.tools[one], it.tools[two] = it.tools[two], it.tools[one]
    return Planted("reordered")


def system_edited(rng: random.Random, words: Words, it: Conversation) -> Planted | None:
    at = rng.randrange(len(it.system))
    it.system[at] = words.text(300, 2000)
    return Planted("edited", "\n\n".join(it.system) if it.joined else it.system[at])


def system_inserted(rng: random.Random, words: Words, it: Conversation) -> Planted | None:
    if it.joined:
        return None
    text = words.text(200, 800)
    it.system.insert(rng.randint(0, len(it.system)), text)
    return Planted("inserted", text)


def system_removed(rng: random.Random, words: Words, it: Conversation) -> Planted | None:
    if it.joined or len(it.system) < 2:
        return None
    return Planted("removed", it.system.pop(rng.randrange(len(it.system))))


def system_reordered(rng: random.Random, words: Words, it: Conversation) -> Planted | None:
    if it.joined or len(it.system) < 2:
        return None
    at = rng.randrange(len(it.system) - 1)
    it.system[at : at + 2] = reversed(it.system[at : at + 2])
    return Planted("reordered")


# ---- the conversation


def first_user_edited(rng: random.Random, words: Words, it: Conversation) -> Planted | None:
    user = it.turns[it.first_user()]
    assert isinstance(user, User)
    at = rng.randrange(len(user.texts))
    user.texts[at] = words.text(50, 600)
    return Planted("edited", user.texts[at])


def user_block_inserted(rng: random.Random, words: Words, it: Conversation) -> Planted | None:
    user = rng.choice([turn for turn in it.turns if isinstance(turn, User)])
    text = words.text(50, 300)
    user.texts.insert(rng.randrange(len(user.texts)), text)  # behind the last one it may be no change at all
    return Planted("inserted", text)


def user_block_removed(rng: random.Random, words: Words, it: Conversation) -> Planted | None:
    users = [turn for turn in it.turns if isinstance(turn, User) and len(turn.texts) > 1]
    if not users:
        return None
    user = rng.choice(users)
    return Planted("removed", user.texts.pop(rng.randrange(len(user.texts))))


def late_user_edited(rng: random.Random, words: Words, it: Conversation) -> Planted | None:
    users = [turn for turn in it.turns if isinstance(turn, User)][1:]
    if not users:
        return None
    user = rng.choice(users)
    at = rng.randrange(len(user.texts))
    user.texts[at] = words.text(50, 600)
    return Planted("edited", user.texts[at])


def result_edited(rng: random.Random, words: Words, it: Conversation) -> Planted | None:
    turns = [turn for turn in it.turns if isinstance(turn, Results)]
    if not turns:
        return None
    turn = rng.choice(turns)
    at = rng.randrange(len(turn.results))
    text = words.text(10, 60)  # cleared, as clients do with old ones
    turn.results[at] = (turn.results[at][0], text)
    return Planted("edited", text)


def answer_edited(rng: random.Random, words: Words, it: Conversation) -> Planted | None:
    answers = [turn for turn in it.turns if isinstance(turn, Answer) and turn.text is not None]
    if not answers:
        return None
    answer = rng.choice(answers)
    answer.text = words.text(20, 300)
    return Planted("edited", answer.text)


def call_edited(rng: random.Random, words: Words, it: Conversation) -> Planted | None:
    calls = _calls(it)
    if not calls:
        return None
    call = rng.choice(calls)
    call.path = words.text(5, 20).split()[0]
    return Planted("edited", f"{call.name} {call.path}")


def thinking_edited(rng: random.Random, words: Words, it: Conversation) -> Planted | None:
    answers = [turn for turn in it.turns if isinstance(turn, Answer) and turn.thinking is not None]
    if not answers:
        return None
    answer = rng.choice(answers)
    answer.thinking = words.text(40, 300)
    return Planted("edited", answer.thinking)


def thinking_dropped(rng: random.Random, words: Words, it: Conversation) -> Planted | None:
    """All of it, as clients do."""
    answers = [turn for turn in it.turns if isinstance(turn, Answer) and turn.thinking is not None]
    answers = [answer for answer in answers if answer.text is not None or answer.calls]
    if not answers:
        return None
    first = answers[0].thinking
    for answer in answers:
        answer.thinking = None
    return Planted("removed", first or "")


def note_edited(rng: random.Random, words: Words, it: Conversation) -> Planted | None:
    notes = [turn for turn in it.turns if isinstance(turn, Note)]
    if not notes:
        return None
    note = rng.choice(notes)
    note.text = words.text(20, 200)
    return Planted("edited", note.text)


def note_inserted(rng: random.Random, words: Words, it: Conversation) -> Planted | None:
    """Behind some user's turn: nowhere else would all engines take it."""
    places = [
        at for at, turn in enumerate(it.turns) if isinstance(turn, User | Results) and at + 1 < len(it.turns)
    ]
    if not places:
        return None
    text = words.text(20, 200)
    it.turns.insert(rng.choice(places) + 1, Note(text))
    return Planted("inserted", text)


def note_removed(rng: random.Random, words: Words, it: Conversation) -> Planted | None:
    notes = [at for at, turn in enumerate(it.turns) if isinstance(turn, Note) and at + 1 < len(it.turns)]
    if not notes:
        return None
    turn = it.turns.pop(rng.choice(notes))
    assert isinstance(turn, Note)
    return Planted("removed", turn.text)


def exchange_inserted(rng: random.Random, words: Words, it: Conversation) -> Planted | None:
    """An answer and what was said to it, in the midst."""
    places = [at for at, turn in enumerate(it.turns) if isinstance(turn, Answer)]
    if not places:
        return None
    at = rng.choice(places)
    text = words.text(50, 300)
    it.turns[at:at] = [Answer(None, text), User([words.text(50, 300)])]
    return Planted("inserted", text)


def exchange_removed(rng: random.Random, words: Words, it: Conversation) -> Planted | None:
    """An answer and the results of its calls, in the midst."""
    pairs = [
        at
        for at in range(1, len(it.turns) - 2)
        if isinstance(it.turns[at], Answer)
        and isinstance(it.turns[at + 1], Results | User)
        and not isinstance(it.turns[at + 2], Note)
    ]
    if not pairs:
        return None
    at = rng.choice(pairs)
    answer = it.turns[at]
    assert isinstance(answer, Answer)
    del it.turns[at : at + 2]
    call = answer.calls[0] if answer.calls else Call("", "", "")
    return Planted("removed", answer.thinking or answer.text or f"{call.name} {call.path}")


def _calls(it: Conversation) -> list[Call]:
    return [call for turn in it.turns if isinstance(turn, Answer) for call in turn.calls]


HEAD: list[Change] = [
    tool_edited, tool_inserted, tool_removed, tools_reordered,
    system_edited, system_inserted, system_removed, system_reordered,
]  # fmt: skip
TALK: list[Change] = [
    first_user_edited, user_block_inserted, user_block_removed, late_user_edited, result_edited, answer_edited,
    call_edited, thinking_edited, thinking_dropped, note_edited, note_inserted, note_removed,
    exchange_inserted, exchange_removed,
]  # fmt: skip
