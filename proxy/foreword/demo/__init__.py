"""``foreword demo``: the incident of the billing header, before and after, on one's own machine.

A stand-in engine and two sidecars are started: *before* has Foreword's rules off and passes usage on raw, *after* is
as it comes. The same conversation goes through both, one after the other, each from an empty cache.
"""

import argparse
import json
import signal
import sys
from collections.abc import Callable
from types import FrameType
from typing import NoReturn

from .conversation import BLOCK_TOKENS, CACHE_BLOCKS, INTERRUPTED, MODEL, TOOL_TOKENS, TURNS, scripted
from .play import Broken, Turn, play_through
from .processes import Child, children, free_port
from .report import Run, as_json, shortfalls, summary, table

__all__ = ["main"]

_READ_RATE = 100_000
_WRITE_RATE = 400
_BEFORE = {
    "FOREWORD_RULE_BILLING_HEADER": "off",
    "FOREWORD_RULE_LATE_SYSTEM": "off",
    "FOREWORD_USAGE": "raw",
}


def main(argv: list[str]) -> int:
    """Runs the demo: 0 if the incident came and went, 1 if it did not or something failed, 2 for wrong usage."""
    parser = argparse.ArgumentParser(
        prog="foreword demo",
        description=(
            "Plays a coding agent's conversation through two sidecars in front of a stand-in engine, one with "
            "Foreword's rules off and one as it comes, and shows what the engine's prefix cache made of it. Needs no "
            "GPU and no configuration; takes about a minute."
        ),
    )
    parser.add_argument(
        "--json", action="store_true", help="print the outcome as JSON, and progress on stderr only"
    )
    options = parser.parse_args(argv)
    previous = signal.signal(signal.SIGTERM, _terminated)
    try:
        before, after = _both()
    except (Broken, OSError) as error:
        print(f"foreword demo: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nforeword demo: interrupted", file=sys.stderr)
        return 130
    finally:
        signal.signal(signal.SIGTERM, previous)
    if options.json:
        print(json.dumps(as_json(before, after)))
    else:
        print(f"\n{table(before, after)}\n\n{summary(before, after)}\n\n{_moral(before)}")
    missed = shortfalls(before, after)
    for line in missed:
        print(f"foreword demo: {line}", file=sys.stderr)
    return 1 if missed else 0


def _both() -> tuple[Run, Run]:
    script = scripted()
    with children() as started:
        engine = Child("the stand-in engine", *_engine())
        started.append(engine)
        engine.wait_until_ready()
        upstream = {"FOREWORD_UPSTREAM": f"http://127.0.0.1:{engine.port}"}
        sidecars = []
        for name, settings in (("before", _BEFORE), ("after", {})):
            port = free_port()
            environment = upstream | {"FOREWORD_PORT": str(port)} | settings
            sidecars.append(Child(f"the sidecar {name}", ["serve"], port, "/health/ready", environment))
            started.append(sidecars[-1])
        for sidecar in sidecars:
            sidecar.wait_until_ready()
        _say(
            f"one engine, {CACHE_BLOCKS:,} cache blocks of {BLOCK_TOKENS} tokens, reading {_READ_RATE:,} tokens/s; "
            f"{TURNS} turns each"
        )
        runs = [
            Run(play_through(script, sidecar.port, engine.port, _progress(name)))
            for name, sidecar in zip(("before", "after"), sidecars, strict=True)
        ]
    return runs[0], runs[1]


def _engine() -> tuple[list[str], int, str, dict[str, str]]:
    port = free_port()
    flags = {
        "--port": port,
        "--model": MODEL,
        "--block-size": BLOCK_TOKENS,
        "--cache-blocks": CACHE_BLOCKS,
        "--prefill-rate": _READ_RATE,
        "--decode-rate": _WRITE_RATE,
    }
    return ["engine", *(str(word) for pair in flags.items() for word in pair)], port, "/health", {}


def _progress(name: str) -> Callable[[int, Turn], None]:
    def tell(turn: int, result: Turn) -> None:
        _say(
            f"{name:>6} {turn + 1:2}/{TURNS}  prompt {result.prompt:7,}  reused {result.reused:7,}  "
            f"first token {result.ttft:5.2f} s"
        )

    return tell


def _moral(before: Run) -> str:
    where = f"at {before.pinned[0]:,} tokens" if before.pinned else "early"
    evicted = " and ".join(str(turn + 1) for turn in INTERRUPTED)
    return (
        "Each request of the client begins its system prompt with a billing header that is never the same twice.\n"
        f"Passed on, it breaks the chain of block hashes right behind the tools ({TOOL_TOKENS:,} tokens), so that\n"
        f"reuse stops {where} however long the conversation gets. Foreword takes the header out.\n"
        "Passed on raw, usage counts cached tokens as new input once more, so that the client believes\n"
        "its window twice as full and compacts early. Foreword counts each token once.\n"
        f"(Turns {evicted} are cold in both runs: somebody else's prompt had taken the whole cache.)"
    )


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _terminated(_number: int, _frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt
