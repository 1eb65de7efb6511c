"""One exchange in plain words: what came, what was reused, what was lost, who and where and why, what to do."""

from collections import Counter
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

import orjson

from foreword.doctor import advice
from foreword.findings import advice as shared

_WHY: Final = {
    "first": "It was the first prompt of its conversation: only what others begin with could be reused.",
    "repeat": "It was the same prompt once more.",
    "append-only": "It only added to the conversation, and what came before was reused.",
    "compacted": "The client had compacted the conversation: what came before was replaced by a summary, which no cache"
    " can know. That is no fault.",
    "engine-lost": "The prompt only added to the conversation; the engine no longer held what it had read"
    " (evicted, restarted, not restored, or another replica).",
    "engine-lost-or-template": "The prompt only added to the conversation, yet less was reused: either the"
    " engine no longer held it, or its template prints earlier turns differently"
    " (reasoning that is dropped from history, for example).",
    "template": "The prompt only added to the conversation, but the engine's template prints earlier turns"
    " differently now (reasoning that is dropped from history, for example).",
    "granularity": "What was missing is less than the engine's block or checkpoint step: that is as good as it gets.",
    "below-minimum": "The prompt is too short for the engine's cache.",
    "parameters": "Model, effort or template switches differed from the turn before, and they stand in the prompt.",
    "not-reported": "The engine did not say what it reused, so nothing can be told of its cache.",
}

_BESIDE: Final = {
    "engine-lost": "yet the engine did not even hold what stands in front of that (evicted, restarted, not restored,"
    " or another replica).",
    "engine-lost-or-template": "yet what stands in front of that was not all reused either: the engine no longer"
    " held it, or its template prints it differently (reasoning that is dropped from history, for example).",
}
"""Why more was lost than a change accounts for."""


def story(record: Mapping[str, Any]) -> str:
    """The paragraph."""
    usage = _object(record.get("usage"))
    verdict = _object(record.get("verdict"))
    sentences = [_came(record), _reused(usage, verdict), _lost(usage, verdict), _why(verdict), _read(record)]
    sentences += [_done(record), _advice(record, verdict)]
    return " ".join(sentence for sentence in sentences if sentence)


def _came(record: Mapping[str, Any]) -> str:
    when = record.get("time")
    at = (
        f"At {datetime.fromtimestamp(when, UTC):%Y-%m-%d %H:%M:%S} UTC"
        if isinstance(when, int | float)
        else "At a time not told"
    )
    names = (record.get("client"), record.get("client_version"))
    who = " ".join(str(each) for each in names if each and each != "other")
    where = f" to {record['entry']}" if record.get("entry") else ""
    model = f" for {record['model']}" if record.get("model") else ""
    served = record.get("upstream_model")
    model += f" (served as {served})" if served and served != record.get("model") else ""
    turn = (
        f", turn {record['turn']} of line {record['line']}"
        if record.get("line") and record.get("turn")
        else ""
    )
    tokens = _object(record.get("usage")).get("prompt_tokens")
    size = f"a prompt of {tokens:,} tokens" if isinstance(tokens, int) else "a prompt of unknown length"
    fault = _object(record.get("fault"))
    ended = f" It ended with {record['outcome']} ({fault.get('kind')})." if fault.get("kind") else ""
    return f"{at} {who or 'a client'} sent {size}{where}{model}{turn}.{ended}"


def _reused(usage: Mapping[str, Any], verdict: Mapping[str, Any]) -> str:
    cached, prompt = usage.get("cached_tokens"), usage.get("prompt_tokens")
    if cached is None:
        return ""
    share = f" ({cached / prompt:.1%})" if prompt else ""
    expected = verdict.get("expected")
    could = f"; {expected:,} could have been" if isinstance(expected, int) and expected > cached else ""
    return f"The engine reused {cached:,} of them{share}{could}."


def _lost(usage: Mapping[str, Any], verdict: Mapping[str, Any]) -> str:
    lost = verdict.get("lost")
    if not lost:
        return "Nothing was lost." if lost == 0 and usage.get("cached_tokens") is not None else ""
    about = "" if verdict.get("exact") else "about "
    return f"So {about}{lost:,} tokens were read again."


def _why(verdict: Mapping[str, Any]) -> str:
    name = verdict.get("name")
    beside = _BESIDE.get(str(name)) if verdict.get("path") else None
    if name != "changed" and beside is None:
        return _WHY.get(str(name), "" if name is None else f"The verdict is {name}.")
    where = f" at {verdict['path']}" if verdict.get("path") else ""
    what = ", ".join(str(verdict[name]) for name in ("class", "kind") if verdict.get(name))
    how = f" ({what})" if what else ""
    if beside is not None:
        return f"The prompt differs from the turn before{where}{how}, {beside}"
    shared = verdict.get("shared")
    upto = f" Up to there, some {shared:,} tokens, it was the same." if isinstance(shared, int) else ""
    return (
        f"The prompt differs from the turn before{where}{how}, and everything behind it had to be read.{upto}"
    )


def _read(record: Mapping[str, Any]) -> str:
    """The words at the divergence, where the record has them."""
    excerpt = _object(record.get("excerpt"))
    before, was, now = (_quoted(excerpt.get(name)) for name in ("before", "was", "now"))
    if not (was or now):
        return ""
    behind = f"Behind {before} it" if before else "It"
    return f"{behind} read {was or 'nothing'} there and now reads {now or 'nothing'}."


def _quoted(text: object) -> str:
    """A text of a prompt for a terminal: in quotes, on one line, without control characters; empty for none."""
    quoted = orjson.dumps(text).decode() if isinstance(text, str) and text else ""
    return "".join(each if each.isprintable() else f"\\u{ord(each):04x}" for each in quoted)


def _done(record: Mapping[str, Any]) -> str:
    if "rules" not in record and _object(record.get("verdict")).get("name") == "changed":
        return "Which rules were applied, and which would have helped, only a ledger tells."
    rules = record.get("rules") or ()
    return f"Foreword applied {', '.join(map(str, rules))}." if rules else ""


def _advice(record: Mapping[str, Any], verdict: Mapping[str, Any]) -> str:
    engine = str(record.get("engine") or "")
    match verdict.get("name"):
        case "changed":
            shadow = Counter(
                {str(name): count for name, count in _object(record.get("shadow")).items() if count}
            )
            told = advice.mend(
                record.get("client"), verdict.get("path"), verdict.get("class"), verdict.get("kind"), shadow
            )
            return f"What to do: {_lower(told)}"
        case "engine-lost":
            return f"If that is frequent: {_lower(shared.for_lost(engine))}"
        case "template" | "engine-lost-or-template":
            return "What to do: look for the template's switch that keeps earlier reasoning in the prompt."
        case "not-reported":
            return f"What to do: {_lower(shared.for_reporting(engine))}"
        case _:
            return ""


def _lower(text: str) -> str:
    return text[:1].lower() + text[1:]


def _object(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
