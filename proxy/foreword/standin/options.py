"""What the stand-in engine can be told: one dataclass, and the flags that fill it."""

import argparse
import dataclasses
from typing import Literal

Kind = Literal["vllm", "strata"]
Order = Literal["tools-first", "system-first"]


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


def parser() -> argparse.ArgumentParser:
    """The command line of ``foreword engine``."""
    made = argparse.ArgumentParser(
        prog="foreword engine",
        description=(
            "Runs the stand-in engine: a process that answers as vLLM 0.32 does, with a true prefix cache and no "
            "model. It invents its text from the prompt's digest, or says what the request's vllm_xargs.say tells "
            "it. Unlike vLLM 0.32 it never removes a billing header from a prompt."
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
        help="think only where chat_template_kwargs.enable_thinking asks for it",
    )
    add("--no-images", dest="images", action="store_false", help="refuse images, as a text model does")
    add("--version", default=default.version, help="what /version answers")
    return made


def parse(argv: list[str]) -> Options:
    """Options from a command line; argparse ends the process (status 2) where they are wrong."""
    return Options(**vars(parser().parse_args(argv)))


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
