"""The described load: ``--load SPEC``.

    SPEC   = GROUP { ";" GROUP }
    GROUP  = KEY "=" VALUE { "," KEY "=" VALUE }
    VALUE  = NUMBER | NUMBER ".." NUMBER            a range is drawn from evenly; 254k is 254,000, 1M is 1,000,000

``seed`` and ``order`` belong to the whole load, whichever group names them. The same SPEC is always the same load.
"""

import random
import re
from dataclasses import dataclass
from typing import Final

from .load import Load, LoadError, Request

KEYS: Final = {
    "conversations": ("1", "conversations of this kind"),
    "length": ("30k", "tokens of a conversation's first prompt"),
    "turns": ("25", "requests of each conversation"),
    "growth": ("1500", "tokens that a turn adds to the prompt, the answer before it included"),
    "output": ("300", "tokens of an answer"),
    "head": ("0", "tokens at the head of every prompt of the load that are the same in all conversations"),
    "system": ("0", "where the system prompt ends, in tokens; 0: there is none that counts"),
    "edit": ("0", "share of turns (0 to 1) whose history was changed, at ..."),
    "edit_at": ("16k", "... this token"),
    "think": ("", "seconds between an answer and the conversation's next request; not given: no times"),
    "start": ("0", "seconds after which a conversation begins"),
    "order": ("random", "who comes next where there are no times: random, or round"),
    "seed": ("1", "of everything drawn"),
}
_NUMBER = re.compile(r"(\d+(?:\.\d+)?)([kM]?)")
_FACTOR: Final = {"": 1, "k": 1_000, "M": 1_000_000}
_MOST_REQUESTS: Final = 1_000_000
_MOST_TOKENS: Final = 100_000_000
"""No window is as large; each of a prompt's checkpoints is played."""


@dataclass(frozen=True, slots=True)
class Span:
    """A number, or a range that one is drawn from."""

    low: float
    high: float

    def draw(self, chance: random.Random) -> float:
        return self.low if self.low == self.high else chance.uniform(self.low, self.high)

    def whole(self, chance: random.Random) -> int:
        return round(self.draw(chance))


def described(spec: str) -> Load:
    """The load of a description. Raises LoadError."""
    groups = [_group(text) for text in spec.split(";") if text.strip()]
    if not groups:
        raise LoadError("the description is empty")
    said = {key: value for group in groups for key, value in group.items() if key in ("seed", "order")}
    seed, order = said.get("seed", "1"), said.get("order", "random")
    if order not in ("random", "round"):
        raise LoadError(f"order={order}: must be random or round")
    chance = random.Random(round(_span("seed", seed).low))  # noqa: S311 - a load, not a secret
    chains = _chains(groups, chance)
    timed = {chain[0].think is not None for chain in chains}
    if len(timed) > 1:
        raise LoadError("think: give it in every group or in none")
    ordered = _in_turn(chains, chance if order == "random" else None)
    return Load("described", ordered, "described")


def _group(text: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for pair in text.split(","):
        key, equals, value = (part.strip() for part in pair.partition("="))
        if not equals or not value:
            raise LoadError(f"{pair.strip()!r}: must be key=value")
        if key not in KEYS:
            raise LoadError(f"{key!r}: there is no such key; there are {', '.join(KEYS)}")
        found[key] = value
    return found


def _span(key: str, text: str) -> Span:
    ends = text.split("..")
    numbers = [_NUMBER.fullmatch(end.strip()) for end in ends]
    if len(numbers) > 2 or not all(numbers):
        raise LoadError(f"{key}={text}: must be a number such as 254k, or a range such as 10k..40k")
    low, high = (float(found[1]) * _FACTOR[found[2]] for found in (numbers[0], numbers[-1]) if found)
    if low > high:
        raise LoadError(f"{key}={text}: the range ends before it begins")
    return Span(low, high)


def _chains(groups: list[dict[str, str]], chance: random.Random) -> list[list[Request]]:
    chains: list[list[Request]] = []
    total = 0.0
    for group in groups:
        value = {
            key: _span(key, group.get(key, default))
            for key, (default, _) in KEYS.items()
            if key not in ("order", "think") and (default or key in group)
        }
        think = _span("think", group["think"]) if "think" in group else None
        if value["edit"].high > 1:
            raise LoadError(f"edit={group['edit']}: is a share, 0 to 1")
        total += value["conversations"].high * value["turns"].high
        if total > _MOST_REQUESTS:
            raise LoadError(f"more than {_MOST_REQUESTS:,} requests")
        first = len(chains)
        made = (_chain(first + n, value, think, chance) for n in range(value["conversations"].whole(chance)))
        chains += [chain for chain in made if chain]
    if not chains:
        raise LoadError("no conversations")
    return chains


def _chain(number: int, value: dict[str, Span], think: Span | None, chance: random.Random) -> list[Request]:
    prompt, head, system = (value[key].whole(chance) for key in ("length", "head", "system"))
    if prompt < 1:
        raise LoadError("length: must be at least 1")
    start = value["start"].draw(chance)
    chain: list[Request] = []
    shared = 0
    for turn in range(value["turns"].whole(chance)):
        output = value["output"].whole(chance)
        if prompt + output > _MOST_TOKENS:
            raise LoadError(f"length, growth, output: a prompt of more than {_MOST_TOKENS:,} tokens")
        wait = None if think is None else start if turn == 0 else think.draw(chance)
        if turn and chance.random() < value["edit"].draw(chance):
            shared = min(shared, value["edit_at"].whole(chance))
        chain.append(
            Request(number, prompt, shared, min(head, prompt), min(system, prompt), output, think=wait)
        )
        shared = prompt + output
        prompt = max(shared, prompt + value["growth"].whole(chance))
    return chain


def _in_turn(chains: list[list[Request]], chance: random.Random | None) -> list[Request]:
    """All requests in one order: conversations by chance, or round and round."""
    if chance is None:
        longest = max(len(chain) for chain in chains)
        return [chain[turn] for turn in range(longest) for chain in chains if turn < len(chain)]
    draws = [chain for chain in chains for _ in chain]
    chance.shuffle(draws)
    next_turn = dict.fromkeys(map(id, chains), 0)
    ordered = []
    for chain in draws:
        ordered.append(chain[next_turn[id(chain)]])
        next_turn[id(chain)] += 1
    return ordered
