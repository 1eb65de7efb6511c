"""One sentence of advice: the client's own switch where it has one, else the Foreword rule, else what to look for."""

from collections import Counter
from collections.abc import Mapping

from foreword.settings import PREFIX, TABLE

_SETTINGS = frozenset(setting.name for setting in TABLE)


def switch_of(rule: str) -> str | None:
    """How a rule is switched on; None for one that no setting belongs to."""
    setting = f"{PREFIX}RULE_{rule.upper().replace('-', '_')}"
    if setting not in _SETTINGS:
        return None
    return f"{setting}=auto" if rule == "late-system" else f"{setting}=on"


def best_rule(shadow: Counter[str]) -> str | None:
    """The rule that is off and would have saved most."""
    return max(shadow, key=lambda rule: (shadow[rule], rule), default=None)


def for_change(client: str, path: str, segment: str | None, kind: str | None, shadow: Counter[str]) -> str:
    """What to do about a segment that changes. ``segment`` is its class, ``kind`` how it changes."""
    if (rule := best_rule(shadow)) is not None:
        saved = f"it would have saved {shadow[rule]:,} tokens so far"
        switch = switch_of(rule)
        return f"Switch on Foreword's rule {rule}{f' ({switch})' if switch else ''}: {saved}."
    return _BY_CLIENT.get((client, segment or "")) or _by_class(path, segment, kind)


_BY_CLIENT: Mapping[tuple[str, str], str] = {
    ("claude-code", "header"): (
        "Set CLAUDE_CODE_ATTRIBUTION_HEADER=0 in Claude Code's environment, or leave Foreword's rule billing-header on"
        " (FOREWORD_RULE_BILLING_HEADER=on); if it is on, the header has a form that the rule does not know."
    ),
    ("claude-code", "system"): (
        "Start Claude Code with --exclude-dynamic-system-prompt-sections, which moves directory, git status and"
        " memory paths out of the system prompt; CLAUDE_CODE_DISABLE_GIT_INSTRUCTIONS=1 drops the git status alone."
    ),
    ("claude-code", "tools"): (
        "Set ENABLE_TOOL_SEARCH=false in Claude Code's environment, so that all tools are there from the start and none"
        " is inserted later; MCP servers that connect late or list their tools in a changing order do the same harm."
    ),
    ("claude-code", "late-system"): (
        "Leave Foreword's rule late-system on (FOREWORD_RULE_LATE_SYSTEM=auto), which keeps such messages in their"
        " place."
    ),
    ("qwen-code", "first-user"): (
        "Keep one Qwen Code process for a conversation: --continue takes the date reminder out of an earlier message."
    ),
}


def _by_class(path: str, segment: str | None, kind: str | None) -> str:
    if segment == "tools":
        if kind == "reordered":
            return f"Make the client list its tools in one order: {path} is the first that moved."
        return (
            f"Make the client send all of its tools from the first request on and describe them the same way each time:"
            f" {path} is the first that differs."
        )
    if segment in ("system", "header", "first-user"):
        return (
            f"Take what changes from request to request (date, clock, ids, counters) out of {path} and put it at the"
            f" end of the conversation."
        )
    if segment == "image":
        return f"Make the client send images again exactly as before: {path} differs."
    return (
        f"Make the client leave its earlier messages as they were sent: {path} is edited afterwards;"
        f" a reminder belongs into a new message at the end."
    )


def for_rebuilt(client: str, path: str) -> str:
    """What to do about a long segment that is put together anew."""
    own = (
        _BY_CLIENT.get((client, "system")) if path.startswith("system") and client == "claude-code" else None
    )
    return own or (
        f"Build {path} append-only: leave passages where they are, add new ones behind the old, and rebuild only when"
        f" the window is nearly full."
    )


def for_window(client: str, window: int | None) -> str:
    """How a client is told the engine's context window."""
    if window is None:
        return _WINDOW_UNKNOWN.get(client, "Tell the client the engine's context window")
    return _WINDOW.get(client, "Tell the client that the context window is {} tokens").format(window)


_WINDOW: Mapping[str, str] = {
    "claude-code": "Set CLAUDE_CODE_AUTO_COMPACT_WINDOW={} in Claude Code's environment",
    "opencode": "Set limit.context of the model to {} in opencode's configuration",
    "codex": "Set model_context_window = {} in codex's config.toml",
}
_WINDOW_UNKNOWN: Mapping[str, str] = {
    "claude-code": "Set CLAUDE_CODE_AUTO_COMPACT_WINDOW to the engine's context window in Claude Code's environment",
    "opencode": "Set limit.context of the model to the engine's context window in opencode's configuration",
    "codex": "Set model_context_window to the engine's context window in codex's config.toml",
}


_REPORTING: Mapping[str, str] = {
    "vllm": "Start vLLM with --enable-prompt-tokens-details.",
    "sglang": "Start SGLang with --enable-cache-report.",
    "strata": "Update Strata to a build that reports cached tokens; older ones tell them in their log only.",
    "llamacpp": "Update llama.cpp's server to a build that reports cached tokens in its usage.",
}


def for_reporting(engine: str) -> str:
    """How an engine is made to report cached tokens."""
    return _REPORTING.get(
        engine,
        "Make the engine report cached tokens (usage.prompt_tokens_details.cached_tokens): without them hits cannot be"
        " told from misses.",
    )


def for_lost(engine: str) -> str:
    """What to do about an engine that drops what it would need again."""
    if engine == "strata":
        return (
            "Give parked conversations more room (--conversation-cache-mib, --conversation-cache-slots), or let fewer"
            " of them take turns: the prompts are intact, the engine has dropped them in between."
        )
    if engine == "vllm":
        return (
            "Give the KV cache more room (--gpu-memory-utilization, a smaller --max-model-len, offloading), or let"
            " fewer long conversations take turns: the prompts are intact, the engine has dropped them in between."
        )
    return (
        "Give the engine's cache more room, let fewer long conversations take turns, or keep each on one replica:"
        " the prompts are intact, the engine has dropped them in between."
    )


def for_checkpoints(engine: str, step: int) -> str:
    """What to do about reuse that falls back to checkpoints."""
    if engine == "strata":
        return (
            f"Take checkpoints more often (--prompt-cache-every below {step}) and give parked conversations more room"
            f" (--conversation-cache-mib): what is left of an evicted conversation is its last checkpoint."
        )
    return (
        f"Make the engine keep more or denser checkpoints than one each {step} tokens: intact prompts fall back to the"
        f" last one that it still has."
    )
