"""What the stand-in engine can be told: one dataclass, and the flags that fill it."""

import argparse
import dataclasses
from pathlib import Path
from typing import Literal

Kind = Literal["vllm", "strata"]
Order = Literal["tools-first", "system-first"]
SecondLevel = Literal["healthy", "write-only", "too-small"]


@dataclasses.dataclass(frozen=True, slots=True)
class Options:
    """Rates are in tokens a second, where 0 means at once; lengths in tokens."""

    host: str = "127.0.0.1"
    port: int = 8000
    kind: Kind = "vllm"
    model: str = "stand-in"
    max_model_len: int = 262_144
    api_key: str | None = None
    block_tokens: int = 64
    cache_blocks: int = 16_384
    prefill_rate: float = 50_000.0
    prefill_step: int = 8_192
    decode_rate: float = 100.0
    prompt_tokens_details: bool = True
    template: Order = "tools-first"
    strict_system: bool = False
    drop_reasoning: bool = False
    thinking: bool = True
    images: bool = True
    version: str = "0.32.0"
    l2: SecondLevel | None = None
    l2_blocks: int = 0
    prompt_cache: int = 6
    prompt_cache_every: int = 16_384
    prompt_cache_root: int = 2_048
    conversation_cache_mib: int = 0
    conversation_cache_slots: int = 4
    conversation_cache_min_free_mib: int = 2_560
    free_ram_mib: int | None = None
    log: str | None = None


def parser() -> argparse.ArgumentParser:
    """The command line of ``foreword engine``."""
    made = argparse.ArgumentParser(
        prog="foreword engine",
        description=(
            "Runs the stand-in engine: a process that answers as vLLM 0.32 does, with a true prefix cache and no "
            "model. It invents its text from the prompt's digest, or says what the request's vllm_xargs.say tells "
            "it. Unlike vLLM 0.32 it never removes a billing header from a prompt. As Strata it keeps "
            "checkpoints, parks conversations, and tells of it in the engine's own log lines."
        ),
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    default = Options()
    add = made.add_argument
    add("--host", default=default.host, help="address to listen on")
    add("--port", type=_port, default=default.port, help="port to listen on")
    add("--kind", choices=("vllm", "strata"), default=default.kind, help="the engine to stand in for")
    add("--model", default=default.model, help="name of the only model served")
    add(
        "--max-model-len",
        type=_positive,
        default=default.max_model_len,
        metavar="TOKENS",
        help="context window",
    )
    add(
        "--api-key",
        default=None,
        metavar="KEY",
        help="accepted as Bearer under /v1; none: everyone is let in",
    )
    add(
        "--block-size",
        dest="block_tokens",
        type=_positive,
        default=default.block_tokens,
        metavar="TOKENS",
        help="tokens of a cache block (vllm)",
    )
    add(
        "--cache-blocks",
        type=_positive,
        default=default.cache_blocks,
        metavar="N",
        help="blocks the cache holds, the least recently used going first (vllm)",
    )
    add(
        "--prefill-rate",
        type=_rate,
        default=default.prefill_rate,
        metavar="TOK/S",
        help="reading; 0: at once",
    )
    add(
        "--prefill-step",
        type=_positive,
        default=default.prefill_step,
        metavar="TOKENS",
        help="prompt tokens of one engine step: what becomes visible in the cache together",
    )
    add(
        "--decode-rate",
        type=_rate,
        default=default.decode_rate,
        metavar="TOK/S",
        help="writing, of each stream; all streams step together; 0: at once",
    )
    add(
        "--no-prompt-tokens-details",
        dest="prompt_tokens_details",
        action="store_false",
        default=argparse.SUPPRESS,
        help="do not report cached tokens (vLLM without --enable-prompt-tokens-details)",
    )
    add(
        "--template",
        choices=("tools-first", "system-first"),
        default=default.template,
        help="what stands at the head of a prompt",
    )
    add("--strict-system", action="store_true", help="merge late system messages into the head of the prompt")
    add(
        "--drop-reasoning",
        action="store_true",
        help="leave out reasoning before the last user message, as the templates of GLM, DeepSeek and Qwen do",
    )
    add(
        "--no-thinking",
        dest="thinking",
        action="store_false",
        default=argparse.SUPPRESS,
        help="think only where chat_template_kwargs.enable_thinking asks for it",
    )
    add(
        "--no-images",
        dest="images",
        action="store_false",
        default=argparse.SUPPRESS,
        help="refuse images, as a text model does",
    )
    add("--version", default=default.version, help="what /version answers")
    _second_level(made, default)
    _strata(made, default)
    return made


def _second_level(made: argparse.ArgumentParser, default: Options) -> None:
    group = made.add_argument_group("a second level of the cache (vllm)")
    group.add_argument(
        "--l2",
        choices=("healthy", "write-only", "too-small"),
        default=default.l2,
        help="a KV offload to host memory and its health: write-only stores and never loads; none: there is no offload",
    )
    group.add_argument(
        "--l2-blocks",
        type=_count,
        default=default.l2_blocks,
        metavar="N",
        help="blocks of its pool; 0: eight for each of --cache-blocks, or too few of them if it is too small",
    )


def _strata(made: argparse.ArgumentParser, default: Options) -> None:
    group = made.add_argument_group("checkpoints and parking (strata), named as the engine's own flags")
    for name, metavar, text in (
        ("prompt-cache", "N", "checkpoints kept of a conversation; 0: every request reads its whole prompt"),
        ("prompt-cache-every", "TOKENS", "newly read prompt tokens between checkpoints; 0: only at turns"),
        ("prompt-cache-root", "TOKENS", "shortest system prompt with a checkpoint at its end; 0: none"),
        ("conversation-cache-mib", "MIB", "budget for parked conversations; 0: no parking"),
        ("conversation-cache-slots", "N", "most conversations parked"),
        ("conversation-cache-min-free-mib", "MIB", "host memory that parking leaves free"),
    ):
        group.add_argument(
            f"--{name}",
            type=_count,
            default=getattr(default, name.replace("-", "_")),
            metavar=metavar,
            help=text,
        )
    group.add_argument(
        "--free-ram-mib",
        type=_count,
        default=default.free_ram_mib,
        metavar="MIB",
        help="host memory that is free at the start (not a flag of the engine's); none: enough",
    )
    group.add_argument(
        "--log",
        default=default.log,
        metavar="FILE",
        help="where the engine's log lines go, opened anew for each of them; none: stderr",
    )


def parse(argv: list[str]) -> Options:
    """Options from a command line; argparse ends the process (status 2) where they are wrong."""
    made = parser()
    options = Options(**vars(made.parse_args(argv)))
    if (
        options.kind == "strata"
        and options.conversation_cache_mib
        and not (options.prompt_cache and options.conversation_cache_slots)
    ):
        made.error(
            "--conversation-cache-mib needs --prompt-cache and --conversation-cache-slots above 0: parked "
            "conversations are resumed from checkpoints"
        )
    if options.log is not None:
        try:
            with Path(options.log).open("a", encoding="utf-8"):
                pass
        except OSError as error:
            made.error(f"--log: {error}")
    return options


def _count(text: str) -> int:
    value = int(text)
    if value < 0:
        raise argparse.ArgumentTypeError("must be 0 or more")
    return value


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return value


def _port(text: str) -> int:
    value = int(text)
    if not 0 < value < 65536:
        raise argparse.ArgumentTypeError("must be between 1 and 65535")
    return value


def _rate(text: str) -> float:
    value = float(text)
    if not 0 <= value < float("inf"):
        raise argparse.ArgumentTypeError("must be 0 or more")
    return value
