"""The command line. Each command imports what it needs when it runs, so that ``--help`` is quick."""

import argparse
import os
import signal
import sys
from collections.abc import Sequence
from typing import NoReturn

from foreword import __version__
from foreword.settings import Settings, SettingsError, as_comments, as_help, as_markdown, unknown_names

USAGE_ERROR = 2
READER_LEFT = 128 + signal.SIGPIPE
"""As shells say it of a program that the signal ended."""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command. Returns the exit status: 0 good, 1 a finding or failure, 2 wrong usage."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        status = _run(arguments)
        sys.stdout.flush()
    except BrokenPipeError:
        # `foreword plan ... | head`: nobody wants the rest, which the interpreter would write at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return READER_LEFT
    return status


def _run(arguments: list[str]) -> int:
    # These have parsers of their own, in modules that only they need.
    match arguments[:1]:
        case ["engine"]:
            from foreword.standin import main as standin

            return standin(arguments[1:])
        case ["demo"]:
            from foreword.demo import main as demo

            return demo(arguments[1:])
        case ["plan"]:
            from foreword.planner import main as plan

            return plan(arguments[1:])
        case ["doctor"]:
            from foreword.doctor.command import doctor

            return doctor(arguments[1:])
        case ["explain"]:
            from foreword.doctor.command import explain

            return explain(arguments[1:])
    options = _parser().parse_args(arguments)
    if options.command == "settings":
        sys.stdout.write(options.form())
        return 0
    settings = _settings()
    if options.command == "check":
        from foreword.check import run

        return run(settings, machine=options.json, show=print)
    from foreword.serve import serve

    return serve(settings)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="foreword",
        description="A sidecar for one LLM inference engine that keeps the head of every prompt the same.",
    )
    parser.add_argument("--version", action="version", version=f"foreword {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    commands.add_parser(
        "serve",
        help="run the sidecar",
        description="Runs the sidecar in front of the engine at FOREWORD_UPSTREAM, until SIGTERM.",
        epilog=as_help(),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands.add_parser(
        "engine", help="run the stand-in engine: vLLM's or Strata's behaviour without a GPU", add_help=False
    )
    commands.add_parser(
        "demo", help="show the main job on this machine: no GPU, no configuration", add_help=False
    )
    commands.add_parser("plan", help="size Strata's parking for a load", add_help=False)
    commands.add_parser(
        "doctor", help="say from a ledger who lost the prefix cache, where, and what to do", add_help=False
    )
    commands.add_parser("explain", help="tell one exchange in a paragraph", add_help=False)
    check = commands.add_parser(
        "check",
        help="ask the configured engine what it can do",
        description="A preflight: asks the engine at FOREWORD_UPSTREAM what it is, what its template does and whether"
        " it reports cached tokens, and what its metrics and its log will show. Sends it three short chats, and with"
        " FOREWORD_MESSAGES=native two short messages. Exit status 0: nothing failed; 1: something did; 2: wrong"
        " usage.",
    )
    check.add_argument("--json", action="store_true", help="for machines")
    settings = commands.add_parser("settings", help="show the settings and their defaults")
    forms = settings.add_mutually_exclusive_group()
    forms.add_argument(
        "--markdown",
        dest="form",
        action="store_const",
        const=as_markdown,
        default=as_help,
        help="as docs/settings.md",
    )
    forms.add_argument(
        "--comments", dest="form", action="store_const", const=as_comments, help="as in deploy/compose.yaml"
    )
    return parser


def _settings() -> Settings:
    """The settings of this process; wrong ones end it."""
    for warning in unknown_names(os.environ):
        print(f"foreword: warning: {warning}", file=sys.stderr)
    try:
        return Settings.from_env(os.environ)
    except SettingsError as error:
        _refuse(error)


def _refuse(error: SettingsError) -> NoReturn:
    for fault in error.faults:
        print(f"foreword: {fault}", file=sys.stderr)
    raise SystemExit(USAGE_ERROR)
