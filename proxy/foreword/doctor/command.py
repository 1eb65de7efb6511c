"""The commands ``foreword doctor`` and ``foreword explain``."""

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import orjson

from foreword.doctor.errors import DoctorError

USAGE_ERROR = 2

_PERIODS = "a date or date and time in UTC, seconds since 1970, or how long ago (90m, 24h, 7d)"


def doctor(arguments: Sequence[str]) -> int:
    """Runs ``foreword doctor``. Returns the exit status: 0 good, 1 findings of severity warning or worse, 2 usage."""
    parser = _doctor_parser()
    options = parser.parse_args(arguments)
    if "" in (options.ledger, *(options.compare or ()), *(options.diff or ())):
        parser.error("a name is empty")
    given = [options.compare is not None, options.diff is not None]
    if all(given) or (options.ledger is None and not any(given)):
        parser.error(
            "name a ledger: a directory, a file or a ClickHouse URL (or --compare A B, or --diff A B)"
        )
    try:
        if options.diff is not None:
            from foreword.doctor.diff import run as diff

            return diff(Path(options.diff[0]), Path(options.diff[1]), machine=options.json, show=_show)
        return _examine(options)
    except ImportError as error:
        if error.name != "duckdb":
            raise
        return _refuse("the doctor needs DuckDB: pip install 'foreword[doctor]'")
    except DoctorError as error:
        return _refuse(str(error))


def explain(arguments: Sequence[str]) -> int:
    """Runs ``foreword explain``. Returns the exit status: 0 told, 1 no such exchange, 2 usage."""
    parser = _explain_parser()
    options = parser.parse_args(arguments)
    if "" in (options.request_id, options.ledger, options.url):
        parser.error("a name is empty")
    from foreword.doctor.explain import run

    try:
        return run(options.request_id, options.ledger, options.url, machine=options.json, show=_show)
    except DoctorError as error:
        return _refuse(str(error))


def _examine(options: argparse.Namespace) -> int:
    from foreword.doctor.style import ProgressLine, Style
    from foreword.doctor.window import Window, parse_time

    now = time.time()
    window = Window(*(parse_time(each, now) if each else None for each in (options.since, options.until)))
    progress = ProgressLine()
    try:
        if options.compare is not None:
            from foreword.doctor.compare import run as compare

            return compare(options.ledger, options.compare, now, progress, machine=options.json, show=_show)
        from foreword.doctor.diagnosis import examine
        from foreword.doctor.source import load

        with load(options.ledger, window, progress) as loaded:
            found = examine(loaded, progress)
    finally:
        progress.clear()
    if not found.rates.total["requests"]:
        raise DoctorError(f"{found.name}: no answered request in this time (see --since and --until)")
    if options.html:
        from foreword.doctor.page import page

        _write(Path(options.html), page(found))
    if options.json:
        _show(orjson.dumps(found.as_json(), option=orjson.OPT_INDENT_2).decode())
    else:
        from foreword.doctor.terminal import lines

        _show("\n".join(lines(found, Style.of(sys.stdout))))
    return 0 if found.good else 1


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise DoctorError(f"{path} cannot be written: {error.strerror}") from None


def _show(text: str) -> None:
    from foreword.doctor.style import Style

    sys.stdout.write(Style.of(sys.stdout).safe(text) + "\n")


def _refuse(text: str) -> int:
    from foreword.doctor.style import Style

    sys.stderr.write(Style(colour=False, blocks=False).safe(f"foreword: {text}\n"))
    return USAGE_ERROR


def _doctor_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="foreword doctor",
        description="Says who lost the prefix cache and where: hit rates split by entry, the lengths at which reuse"
        " stands still, what lies there, and what to do. Exit status 0: good; 1: a finding that costs something;"
        " 2: wrong usage.",
    )
    parser.add_argument(
        "ledger",
        nargs="?",
        metavar="DIR|FILE|URL",
        help="a ledger directory, one file, or a ClickHouse URL (clickhouse://host:8123/foreword?table=exchanges);"
        " also request logs of Langfuse, LiteLLM and new-api",
    )
    parser.add_argument("--since", metavar="T", help=f"only exchanges from then on: {_PERIODS}")
    parser.add_argument("--until", metavar="T", help="only exchanges before")
    parser.add_argument(
        "--compare",
        nargs=2,
        metavar=("A", "B"),
        help="before and after: two ledgers, or two times FROM..TO of the ledger",
    )
    parser.add_argument(
        "--diff", nargs=2, metavar=("FILE_A", "FILE_B"), help="two captured requests, segment by segment"
    )
    parser.add_argument("--html", metavar="FILE", help="also write the report as one page with plots")
    parser.add_argument("--json", action="store_true", help="for machines")
    return parser


def _explain_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="foreword explain",
        description="Tells one exchange in a paragraph: what came, what was reused, what was lost, where and why.",
    )
    parser.add_argument("request_id", metavar="REQUEST_ID", help="as in the answer's request-id header")
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--ledger", metavar="DIR|FILE|URL", help="the ledger that holds it")
    where.add_argument(
        "--url",
        metavar="URL",
        default="http://127.0.0.1:8400",
        help="a running sidecar (default: %(default)s)",
    )
    parser.add_argument("--json", action="store_true", help="for machines")
    return parser
