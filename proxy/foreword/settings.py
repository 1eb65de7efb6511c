"""What an operator can set: one table makes the parser, the help texts, docs/settings.md and the compose comments."""

import difflib
import re
import string
import textwrap
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, cast
from urllib.parse import urlsplit

PREFIX = "FOREWORD_"

EngineKind = Literal["auto", "vllm", "strata", "sglang", "llamacpp", "openai"]
LateSystem = Literal["auto", "system", "tool", "user", "off"]
TemplateOrder = Literal["auto", "tools-first", "system-first"]


class SettingsError(Exception):
    """Values that cannot be used; ``faults`` holds one sentence for each."""

    def __init__(self, faults: list[str]) -> None:
        super().__init__("\n".join(faults))
        self.faults = faults


class Setting(NamedTuple):
    """One row of the table."""

    name: str
    """The environment variable."""
    default: str
    """As it would be written in the environment; empty means none."""
    unit: str
    """The accepted values in a few words; of a number what it counts."""
    meaning: str
    parse: Callable[[str], object]

    @property
    def takes(self) -> str:
        """The accepted values, of a number with its bounds."""
        if isinstance(self.parse, _Integer | _Seconds):
            return f"{self.unit}, {self.parse.least:g} to {self.parse.most:.7g}"
        return self.unit


def _upstream(text: str) -> str:
    if text.startswith("unix:"):
        if not text.removeprefix("unix:").startswith("/"):
            raise ValueError("a Unix socket needs an absolute path, as in unix:/run/engine.sock")
        return text
    parts = urlsplit(text)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError("must be http://HOST[:PORT], https://HOST[:PORT] or unix:/PATH")
    if parts.query or parts.fragment or parts.username is not None:
        raise ValueError("takes no user name, query or fragment; a key goes into FOREWORD_UPSTREAM_API_KEY")
    if parts.path.rstrip("/").endswith("/v1"):
        raise ValueError("must end before /v1: Foreword adds the paths itself")
    try:
        _ = parts.port
    except ValueError:
        raise ValueError("has a port that is not 1..65535") from None
    return text.rstrip("/")


def _text(text: str) -> str:
    return text


def _host(text: str) -> str:
    if not text or any(character.isspace() or character == "/" for character in text):
        raise ValueError("must be an address or a host name to listen on")
    return text.removeprefix("[").removesuffix("]")


_VISIBLE = frozenset(string.ascii_letters + string.digits + string.punctuation)


def _key(text: str) -> str | None:
    if not text:
        return None
    if not _VISIBLE.issuperset(text):
        raise ValueError("may hold only visible ASCII characters")
    return text


def _keys(text: str) -> tuple[str, ...]:
    if not text:
        return ()
    keys = tuple(key.strip() for key in text.split(","))
    if not all(keys):
        raise ValueError("holds an empty key")
    return tuple(key for key in map(_key, keys) if key is not None)


def _path(text: str) -> str | None:
    if not text:
        return None
    if "\0" in text or text.endswith("/"):
        raise ValueError("must be the path of a file")
    return text


def _model_map(text: str) -> str:
    if text in ("auto", "off"):
        return text
    for pair in text.split(","):
        pattern, equals, model = (part.strip() for part in pair.partition("="))
        if not (pattern and equals and model):
            raise ValueError(f"must be auto, off or pattern=model,...; {pair.strip()!r} is no such pair")
    return text


def _one_of(*choices: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text not in choices:
            raise ValueError(f"must be one of {', '.join(choices)}")
        return text

    return parse


def _directory(text: str) -> str | None:
    if not text:
        return None
    if not text.startswith("/"):
        raise ValueError("must be an absolute path of a directory")
    return text


_LEAST_KEY = 16


def _digest_key(text: str) -> str | None:
    key = _key(text)
    if key is not None and len(key) < _LEAST_KEY:
        raise ValueError(f"must have at least {_LEAST_KEY} characters: a shorter one is found by trying")
    return key


_CLICKHOUSE_NAME = re.compile(r"[A-Za-z0-9_]+")


def _clickhouse(text: str) -> str | None:
    if not text:
        return None
    _key(text)
    parts = urlsplit(text)
    if parts.scheme not in ("http", "https", "clickhouse", "clickhouses") or not parts.hostname:
        raise ValueError("must be http(s)://[USER:PASSWORD@]HOST[:PORT]/[DATABASE][?table=NAME]")
    try:
        _ = parts.port
    except ValueError:
        raise ValueError("has a port that is not 1..65535") from None
    name, equals, table = parts.query.partition("=")
    if parts.fragment or (parts.query and (name, equals) != ("table", "=")):
        raise ValueError("takes no parameter but table, and no fragment")
    for named in (parts.path.strip("/"), table):
        if named and not _CLICKHOUSE_NAME.fullmatch(named):
            raise ValueError("names a database or table that is not made of letters, digits and _ alone")
    if "%" in re.sub(r"%[0-9A-Fa-f]{2}", "", text) or re.search(r"%[01][0-9A-Fa-f]|%7[Ff]", text):
        raise ValueError("holds a % that no two hex digits of a visible character follow")
    return text


def _off_or_directory(text: str) -> str | None:
    return None if text == "off" else _directory(text)


_SWITCH = {"on": True, "true": True, "1": True, "off": False, "false": False, "0": False}


def _switch(text: str) -> bool:
    try:
        return _SWITCH[text.lower()]
    except KeyError:
        raise ValueError("must be on or off") from None


@dataclass(frozen=True, slots=True)
class _Integer:
    """Parses a whole number between two bounds, both allowed."""

    least: int
    most: int

    def __call__(self, text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = self.least - 1
        if not self.least <= value <= self.most:
            raise ValueError(f"must be a whole number from {self.least} to {self.most}")
        return value


@dataclass(frozen=True, slots=True)
class _Seconds:
    """Parses seconds between two bounds, both allowed."""

    least: float
    most: float

    def __call__(self, text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = float("nan")
        if not self.least <= value <= self.most:  # false for nan too
            raise ValueError(f"must be seconds from {self.least:g} to {self.most:g}")
        return value


_DAY = 86_400

TABLE: tuple[Setting, ...] = (
    Setting(
        "FOREWORD_UPSTREAM",
        "http://127.0.0.1:8000",
        "URL",
        "The engine: http://HOST:PORT, https://HOST:PORT or unix:/PATH, without /v1.",
        _upstream,
    ),
    Setting(
        "FOREWORD_ENGINE",
        "auto",
        "auto, vllm, strata, sglang, llamacpp or openai",
        "What the engine is. auto asks it, and goes on asking; an absent engine never stops the start.",
        _one_of("auto", "vllm", "strata", "sglang", "llamacpp", "openai"),
    ),
    Setting("FOREWORD_HOST", "127.0.0.1", "address", "Where to listen. The image sets 0.0.0.0.", _host),
    Setting("FOREWORD_PORT", "8400", "port", "Where to listen.", _Integer(1, 65_535)),
    Setting(
        "FOREWORD_API_KEYS",
        "",
        "keys, separated by commas",
        "Keys that clients must show, as Bearer or x-api-key; any one of them is enough. They never go upstream."
        " Empty: no key is asked for.",
        _keys,
    ),
    Setting(
        "FOREWORD_ADMIN_KEY",
        "",
        "key",
        "Guards /admin, as Bearer or x-api-key. Empty: /admin answers this machine only (a loopback peer that asks for"
        " a loopback host, and no proxy between).",
        _key,
    ),
    Setting(
        "FOREWORD_UPSTREAM_API_KEY",
        "",
        "key",
        "Sent to the engine as Bearer, in place of whatever the client sent.",
        _key,
    ),
    Setting(
        "FOREWORD_MODEL_MAP",
        "auto",
        "auto, off or pattern=model,...",
        "Names of models on their way to the engine. auto: a name that the engine does not serve becomes its only"
        " model. Patterns take * and ?; the first that fits counts. Answers keep the name that was asked for.",
        _model_map,
    ),
    Setting(
        "FOREWORD_MESSAGES",
        "translate",
        "translate or native",
        "/v1/messages: translate it into /v1/chat/completions, or pass it to the engine's own endpoint.",
        _one_of("translate", "native"),
    ),
    Setting(
        "FOREWORD_TEMPLATE_ORDER",
        "auto",
        "auto, tools-first or system-first",
        "What the engine's chat template prints first, for the order of a prompt's segments. auto: as it is learnt from"
        " the engine, else tools-first.",
        _one_of("auto", "tools-first", "system-first"),
    ),
    Setting(
        "FOREWORD_RULE_BILLING_HEADER",
        "on",
        "on or off",
        "Rule 1: takes the x-anthropic-billing-header line out of the first system text.",
        _switch,
    ),
    Setting(
        "FOREWORD_RULE_LATE_SYSTEM",
        "auto",
        "auto, system, tool, user or off",
        "Rule 2: what becomes of a system message inside the conversation. system leaves it; tool appends it to the"
        " tool result before it, else makes it a user message; user makes it a user message; off: role and place as"
        " sent. auto: system where the engine's template prints it in place, else tool.",
        _one_of("auto", "system", "tool", "user", "off"),
    ),
    Setting(
        "FOREWORD_USAGE",
        "net",
        "net or raw",
        "input_tokens of /v1/messages: net of cached tokens, as Anthropic counts, or raw: all prompt tokens.",
        _one_of("net", "raw"),
    ),
    Setting(
        "FOREWORD_PING_SECONDS",
        "15",
        "seconds",
        "Silence after which a stream of /v1/messages gets a ping.",
        _Seconds(0.1, 3600),
    ),
    Setting(
        "FOREWORD_EARLY_HEAD_SECONDS",
        "60",
        "seconds",
        "When the engine has answered nothing for so long, the head of a stream goes out and pings begin."
        " 0: never.",
        _Seconds(0, 3600),
    ),
    Setting(
        "FOREWORD_MAX_BODY_MIB",
        "64",
        "MiB",
        "The largest request body, also after decompression.",
        _Integer(1, 4095),
    ),
    Setting(
        "FOREWORD_BODY_SECONDS",
        "30",
        "seconds",
        "How long a client may send nothing of a request body that it has begun.",
        _Seconds(0.1, 3600),
    ),
    Setting("FOREWORD_CONNECT_SECONDS", "5", "seconds", "Connecting to the engine.", _Seconds(0.1, 3600)),
    Setting(
        "FOREWORD_IDLE_SECONDS",
        "600",
        "seconds",
        "How long the engine may send nothing of a stream, from the request on.",
        _Seconds(0.1, _DAY),
    ),
    Setting(
        "FOREWORD_ANSWER_SECONDS",
        "3600",
        "seconds",
        "How long a whole answer that is no stream may take.",
        _Seconds(0.1, _DAY),
    ),
    Setting(
        "FOREWORD_DRAIN_SECONDS",
        "25",
        "seconds",
        "How long running exchanges may go on after SIGTERM; then they end with an error event. Keep it a little"
        " under the container's grace period.",
        _Seconds(0, 3600),
    ),
    Setting(
        "FOREWORD_ENGINE_METRICS_SECONDS",
        "5",
        "seconds",
        "How often the engine is asked for its /metrics. 0: never.",
        _Seconds(0, 3600),
    ),
    Setting(
        "FOREWORD_ENGINE_LOG",
        "",
        "path",
        "The engine's log file, to be followed through rotation (Strata, llama.cpp). It may come to be later.",
        _path,
    ),
    Setting(
        "FOREWORD_SESSIONS",
        "4096",
        "lines",
        "Conversation lines that the prefix journal remembers, and the findings; the one that was used least"
        " recently is forgotten first.",
        _Integer(1, 1_000_000),
    ),
    Setting(
        "FOREWORD_JOURNAL_MIB",
        "128",
        "MiB",
        "Memory of the prefix journal. When it is full, lines are forgotten as above.",
        _Integer(1, 65_536),
    ),
    Setting(
        "FOREWORD_LEDGER",
        "",
        "directory",
        "Where a record of each exchange is kept, as JSON lines without any text of prompts. It is made if it is not"
        " there; one that cannot be written never fails a request. Empty: no records are kept.",
        _directory,
    ),
    Setting(
        "FOREWORD_LEDGER_MIB",
        "512",
        "MiB",
        "All files of the ledger together; above it the oldest goes.",
        _Integer(1, 1_048_576),
    ),
    Setting(
        "FOREWORD_CLICKHOUSE_URL",
        "",
        "URL",
        "Where the records of a fleet go, beside or instead of the ledger:"
        " http(s)://[USER:PASSWORD@]HOST[:PORT]/[DATABASE][?table=NAME], by default port 8123 (https: 8443), database"
        " foreword, table exchanges.",
        _clickhouse,
    ),
    Setting(
        "FOREWORD_DIGEST_KEY",
        "",
        "key of 16 characters or more",
        "Key of the digests in records: sidecars with one key can be compared. Empty: a random one, kept in the"
        " ledger's directory as digest.key, or as long as the process lives.",
        _digest_key,
    ),
    Setting(
        "FOREWORD_EXCERPTS",
        "off",
        "on or off",
        "Puts TEXT into records, and so into log, ledger and ClickHouse: up to 80 bytes on each side of the place where"
        " a prompt left its conversation. To compare, 64 MiB of the latest bodies are held in memory.",
        _switch,
    ),
    Setting(
        "FOREWORD_CAPTURE",
        "off",
        "off or a directory's absolute path",
        "Where whole requests go, WITH THEIR TEXT: the first FOREWORD_CAPTURE_REQUESTS prompts after the start, and"
        " the next ones whenever POST /admin/capture asks for them.",
        _off_or_directory,
    ),
    Setting(
        "FOREWORD_CAPTURE_REQUESTS",
        "20",
        "prompts",
        "Prompts that are captured at the start; 256 MiB at most. 0: none until they are asked for; what has expired is"
        " deleted.",
        _Integer(0, 1000),
    ),
    Setting(
        "FOREWORD_CAPTURE_SECONDS",
        "3600",
        "seconds",
        "After this a capture ends, and what it wrote is deleted.",
        _Seconds(1, 7 * _DAY),
    ),
    Setting(
        "FOREWORD_LOG",
        "json",
        "json or text",
        "The form of the log lines on stderr.",
        _one_of("json", "text"),
    ),
)


def attribute(name: str) -> str:
    """The field of `Settings` that holds the variable ``name``."""
    return name.removeprefix(PREFIX).lower()


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of one process. Times are seconds."""

    upstream: str
    engine: EngineKind
    host: str
    port: int
    api_keys: tuple[str, ...] = field(repr=False)
    admin_key: str | None = field(repr=False)
    upstream_api_key: str | None = field(repr=False)
    model_map: str
    messages: Literal["translate", "native"]
    template_order: TemplateOrder
    rule_billing_header: bool
    rule_late_system: LateSystem
    usage: Literal["net", "raw"]
    ping_seconds: float
    early_head_seconds: float
    max_body_mib: int
    body_seconds: float
    connect_seconds: float
    idle_seconds: float
    answer_seconds: float
    drain_seconds: float
    engine_metrics_seconds: float
    engine_log: str | None
    sessions: int
    journal_mib: int
    ledger: str | None
    ledger_mib: int
    clickhouse_url: str | None = field(repr=False)
    digest_key: str | None = field(repr=False)
    excerpts: bool
    capture: str | None
    capture_requests: int
    capture_seconds: float
    log: Literal["json", "text"]

    @classmethod
    def from_env(cls, environ: Mapping[str, str]) -> "Settings":
        """Reads the settings. A variable that is empty counts as not set.

        Raises SettingsError, which names every fault at once.
        """
        values: dict[str, object] = {}
        faults: list[str] = []
        for setting in TABLE:
            text = environ.get(setting.name, "").strip() or setting.default
            try:
                values[attribute(setting.name)] = setting.parse(text)
            except ValueError as error:
                faults.append(f"{setting.name} {error}{_shown(setting, text)}")
        if not faults and _leads_back(
            str(values["upstream"]), str(values["host"]), cast("int", values["port"])
        ):
            faults.append(f"FOREWORD_UPSTREAM {values['upstream']} is this sidecar's own address")
        if faults:
            raise SettingsError(faults)
        return cls(**cast("dict[str, None]", values))  # type: ignore[arg-type]

    def core_config(self) -> dict[str, object]:
        """The part that the Rust core needs, by the names it knows."""
        return {
            "upstream": self.upstream,
            "engine": self.engine,
            "messages": self.messages,
            "model_map": self.model_map,
            "template_order": self.template_order,
            "billing_header": self.rule_billing_header,
            "late_system": self.rule_late_system,
            "usage": self.usage,
            "ping_seconds": self.ping_seconds,
            "early_head_seconds": self.early_head_seconds,
            "connect_seconds": self.connect_seconds,
            "idle_seconds": self.idle_seconds,
            "answer_seconds": self.answer_seconds,
            "max_body_bytes": self.max_body_mib * 1024 * 1024,
            "sessions": self.sessions,
            "journal_mib": self.journal_mib,
            "ledger": self.ledger,
            "ledger_bytes": self.ledger_mib * 1024 * 1024,
            "clickhouse_url": self.clickhouse_url,
            "digest_key": self.digest_key,
            "excerpts": self.excerpts,
            "capture": self.capture,
            "capture_requests": self.capture_requests,
            "capture_seconds": self.capture_seconds,
        }


def _shown(setting: Setting, text: str) -> str:
    """The refused value, unless it is a key; a password in a URL is masked."""
    if setting.parse in (_key, _keys, _digest_key, _clickhouse):
        return ""
    masked = re.sub(r"//[^/@]*@", "//***@", text)
    return f" (it is {masked!r})"


def _leads_back(upstream: str, host: str, port: int) -> bool:
    """Whether the engine's address is the one that is listened on: each request would come back for ever."""
    parts = urlsplit(upstream)
    here = {"127.0.0.1", "localhost", "::1", host}
    return parts.scheme == "http" and (parts.port or 80) == port and parts.hostname in here


def unknown_names(environ: Mapping[str, str]) -> list[str]:
    """One warning for each FOREWORD_ variable that is no setting."""
    known = [setting.name.removeprefix(PREFIX) for setting in TABLE]
    warnings = []
    for name in sorted(environ):
        if name.startswith(PREFIX) and name.removeprefix(PREFIX) not in known:
            close = difflib.get_close_matches(name.removeprefix(PREFIX), known, n=1)
            hint = f"; did you mean {PREFIX}{close[0]}?" if close else ""
            warnings.append(f"{name} is not a setting of Foreword{hint}")
    return warnings


def as_help() -> str:
    """The table for ``foreword serve --help``."""
    lines = ["settings, read from the environment:"]
    for setting in TABLE:
        lines.append(f"  {setting.name}  ({setting.takes}; default {setting.default or 'none'})")
        lines.extend(textwrap.wrap(setting.meaning, 100, initial_indent=" " * 6, subsequent_indent=" " * 6))
    return "\n".join(lines) + "\n"


def as_markdown() -> str:
    """The text of docs/settings.md."""
    lines = [
        "# Settings",
        "",
        "Foreword is set by environment variables only. A wrong value stops the start, with every fault named at",
        "once; an unknown `FOREWORD_` name is warned of. An empty variable counts as not set.",
        "",
        "<!-- Written by `make docs` from the table in proxy/foreword/settings.py. -->",
        "",
        "| name | default | takes | meaning |",
        "|---|---|---|---|",
    ]
    for setting in TABLE:
        default = f"`{setting.default}`" if setting.default else "none"
        meaning = setting.meaning.replace("*", r"\*")
        lines.append(f"| `{setting.name}` | {default} | {setting.takes} | {meaning} |")
    return "\n".join(lines) + "\n"


def as_comments() -> str:
    """The table as comments of deploy/compose.yaml."""
    lines = []
    for setting in TABLE:
        lines.append(f"# {setting.name}={setting.default}")
        lines.extend(textwrap.wrap(setting.meaning, 110, initial_indent="#     ", subsequent_indent="#     "))
    return "\n".join(lines) + "\n"
