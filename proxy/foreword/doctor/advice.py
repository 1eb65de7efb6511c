"""What to do about a finding, in one sentence: the same words live (/admin/findings) and in the doctor's report.

Each function takes what is known and names the nearest switch first: a rule of Foreword where one exists, else the
client's own switch, else what to change. Nothing here looks at the settings of this process: a ledger may be another's.
"""

from typing import Final

_CLIENT_SWITCHES: Final = {
    ("claude-code", "header"): "or CLAUDE_CODE_ATTRIBUTION_HEADER=0 in the client's environment",
}

_LATE_SYSTEM: Final = (
    "switch on rule late-system (FOREWORD_RULE_LATE_SYSTEM=auto),"
    " which keeps late system messages in their place"
)


def rule_for(segment_class: str | None) -> str | None:
    """The rule of Foreword that mends a change in a segment of this class, or None."""
    return {"header": "billing-header", "late-system": "late-system"}.get(segment_class or "")


def mend(path: str | None, segment_class: str | None, client: str | None = None) -> str:
    """What keeps one segment the same. A clause without a full stop."""
    where = path or "the segment"
    match segment_class:
        case "header":
            text = "switch on rule billing-header (FOREWORD_RULE_BILLING_HEADER=on), which takes it out"
        case "late-system":
            text = _LATE_SYSTEM
        case "tools":
            text = (
                "make the client send the same tools in the same order from the first request of a session on"
                " (connect MCP servers before it, no deferred tools)"
            )
        case "system":
            text = f"take what changes (clock, status, ids) out of {where}, or put it at the end of the newest message"
        case "first-user":
            text = f"keep {where} as first sent, and append what is new to the newest message"
        case "history":
            text = (
                "make the client send earlier turns again byte for byte (no trimming, no re-written tool results"
                " or arguments), and the template keep earlier reasoning"
            )
        case "image":
            text = "keep images at the place and in the encoding in which they were first sent"
        case _:
            text = f"find what writes {where}, and keep it the same or move it behind the conversation"
    own = _CLIENT_SWITCHES.get((client or "", segment_class or ""))
    return f"{text}, {own}" if own else text


def volatile_segment(path: str, segment_class: str | None, client: str | None = None) -> str:
    """A path that changes on most requests of a conversation."""
    return f"{path} changes on most requests and costs everything behind it: {mend(path, segment_class, client)}."


def pinned(tokens: int, path: str | None, segment_class: str | None, client: str | None = None) -> str:
    """Prompts grow and reuse stays at one length."""
    if path is None:
        return (
            f"Reuse ends at {tokens:,} tokens whatever the prompt: capture two requests (FOREWORD_CAPTURE) and"
            " compare them with `foreword doctor --diff`."
        )
    return f"Reuse ends at {tokens:,} tokens, where {path} differs: {mend(path, segment_class, client)}."


def eviction_storm(engine: str | None = None) -> str:
    """Intact prefixes are gone when the next turn comes."""
    if engine == "strata":
        return (
            "Prompts only grew, yet the engine had lost them: give parked conversations more room"
            " (--conversation-cache-mib; `foreword plan` says how much), or let fewer long ones take turns."
        )
    return (
        "Prompts only grew, yet the engine had lost them: give its cache more memory or a working second level,"
        " or let fewer long conversations take turns."
    )


def checkpoint_collapse(step: int) -> str:
    """Reuse falls back to multiples of the engine's checkpoint step."""
    return (
        f"Reuse falls back to multiples of {step:,} tokens, the engine's checkpoints: park conversations with enough"
        " memory to keep them whole, and set checkpoints more densely (Strata: --prompt-cache-every)."
    )


def reassembled_block(path: str) -> str:
    """A long segment that is built anew."""
    return (
        f"{path} is a long block that is built anew: append new passages behind the old ones and re-order only"
        " when the window is nearly full, for each rebuild reads everything behind it again."
    )


def early_compaction(double_counted: bool) -> str:
    """A client compacts far below the window."""
    if double_counted:
        return (
            "Clients are told more context than the prompt has, and compact early:"
            " set FOREWORD_USAGE=net, so that cached tokens are taken out of input_tokens."
        )
    return (
        "Clients compact far below the window: tell them its real size (Claude Code: CLAUDE_CODE_AUTO_COMPACT_WINDOW),"
        " for each compaction starts a conversation without a cache."
    )


def overflow_loop() -> str:
    """One session runs into the window again and again."""
    return (
        "This session sends a prompt beyond the window again and again: end or clear it, and tell the client the"
        " engine's window, so that it compacts before."
    )


def usage_not_reported(engine: str | None = None) -> str:
    """The engine says nothing of its cache."""
    match engine:
        case "vllm":
            how = "start vLLM with --enable-prompt-tokens-details"
        case "strata" | "llamacpp":
            how = (
                "let Foreword follow the engine's log (FOREWORD_ENGINE_LOG), or use a build that reports them"
            )
        case "sglang":
            how = "start SGLang with --enable-cache-report"
        case _:
            how = "switch on cached tokens in the engine's usage"
    return f"The engine does not report cached tokens, so no hit rate can be told: {how}."


def below_minimum() -> str:
    """Prompts too short to be cached."""
    return (
        "These prompts are shorter than what the engine caches: nothing is lost that could have been kept, unless"
        " many share a head that a smaller block would reuse."
    )
