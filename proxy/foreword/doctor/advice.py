"""What to do about a finding of the doctor: the words of the live findings, and what only a ledger can say.

Nothing here looks at the settings of this process: a ledger may be another's.
"""

from collections import Counter
from typing import Final

from foreword.findings import advice

_RULES: Final = {"header": "billing-header", "late-system": "late-system"}


def rule_for(segment_class: str | None, shadow: Counter[str]) -> str | None:
    """The rule of Foreword that mends a change: the one that would have saved most, else the one for its class."""
    return advice.best_rule(shadow) or _RULES.get(segment_class or "")


def mend(
    client: str | None, path: str | None, segment_class: str | None, kind: str | None, shadow: Counter[str]
) -> str:
    """What keeps one segment the same. Where its class has a rule, that comes with it, whoever the client is."""
    told = advice.for_change(client or "other", path or "the prompt", segment_class, kind, shadow)
    rule = rule_for(segment_class, shadow)
    switch = advice.switch_of(rule) if rule else None
    if rule is None or switch is None or switch in told:
        return told
    return f"Switch on Foreword's rule {rule} ({switch}), or: {told[:1].lower()}{told[1:]}"


def pinned(tokens: int, path: str | None, mending: str) -> str:
    """Prompts grow and reuse stays at one length. ``mending`` keeps the segment there the same."""
    if path is None:
        return (
            f"Reuse ends at {tokens:,} tokens whatever the prompt: capture two requests (FOREWORD_CAPTURE) and compare"
            " them with `foreword doctor --diff`."
        )
    return f"Reuse ends at {tokens:,} tokens, where {path} differs. {mending}"


def early_compaction(client: str, tokens: int, window: int, *, double_counted: bool) -> str:
    """A client compacts far below the window. ``window`` is only the longest prompt that the engine took."""
    if double_counted:
        return (
            "Set FOREWORD_USAGE=net: the client was told more context than its prompts had, because cached tokens were"
            f" in input_tokens too, and compacts at {tokens:,} tokens."
        )
    return (
        f"{advice.for_window(client, None)} and keep FOREWORD_USAGE=net: the client compacts at {tokens:,} tokens, the"
        f" engine took prompts of {window:,}, and each compaction costs the whole prefix."
    )


def overflow_loop(client: str) -> str:
    """One session runs into the window again and again."""
    return f"{advice.for_window(client, None)}: it sends more than fits and tries the same again."


def below_minimum() -> str:
    """Prompts too short to be cached."""
    return (
        "Nothing needs to be done: these prompts are shorter than what the engine caches, unless many share a head that"
        " a smaller block would reuse."
    )
