"""One table makes parser, help and documents; faults are told all at once."""

import dataclasses
import re
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foreword.settings import (
    TABLE,
    Setting,
    Settings,
    SettingsError,
    as_help,
    as_markdown,
    attribute,
    unknown_names,
)


def test_the_table_and_the_dataclass_are_in_step() -> None:
    assert [attribute(setting.name) for setting in TABLE] == [f.name for f in dataclasses.fields(Settings)]


@pytest.mark.case("B252")
def test_defaults() -> None:
    settings = Settings.from_env({})
    assert settings.upstream == "http://127.0.0.1:8000"
    assert (settings.host, settings.port) == ("127.0.0.1", 8400)
    assert settings.api_keys == ()
    assert settings.upstream_api_key is None
    assert settings.rule_billing_header is True
    assert settings.rule_late_system == "auto"
    assert (settings.ping_seconds, settings.early_head_seconds) == (15, 60)
    assert settings.drain_seconds == 25
    assert settings.answer_seconds == 3600, "local engines are slow"


def test_an_empty_variable_counts_as_not_set() -> None:
    assert Settings.from_env({setting.name: "  " for setting in TABLE}) == Settings.from_env({})


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("FOREWORD_UPSTREAM", "https://engine.example:8443/", "https://engine.example:8443"),
        ("FOREWORD_UPSTREAM", "http://[::1]:8000", "http://[::1]:8000"),
        ("FOREWORD_UPSTREAM", "unix:/run/engine.sock", "unix:/run/engine.sock"),
        ("FOREWORD_ENGINE", "llamacpp", "llamacpp"),
        ("FOREWORD_HOST", "::1", "::1"),
        ("FOREWORD_HOST", "[::1]", "::1"),
        ("FOREWORD_API_KEYS", "one, two", ("one", "two")),
        ("FOREWORD_MODEL_MAP", "claude-*=glm,*=qwen", "claude-*=glm,*=qwen"),
        ("FOREWORD_RULE_BILLING_HEADER", "OFF", False),
        ("FOREWORD_EARLY_HEAD_SECONDS", "0", 0.0),
        ("FOREWORD_CONNECT_SECONDS", "0.5", 0.5),
        ("FOREWORD_MAX_BODY_MIB", "128", 128),
        ("FOREWORD_LEDGER", "/var/lib/foreword", "/var/lib/foreword"),
        ("FOREWORD_LEDGER_MIB", "64", 64),
        ("FOREWORD_DIGEST_KEY", "sixteen-letters.", "sixteen-letters."),
        ("FOREWORD_CLICKHOUSE_URL", "https://me:p%40ss@ch:9/db?table=t", "https://me:p%40ss@ch:9/db?table=t"),
        ("FOREWORD_CAPTURE", "off", None),
        ("FOREWORD_CAPTURE", "/var/captures", "/var/captures"),
        ("FOREWORD_CAPTURE_REQUESTS", "0", 0),
    ],
)
def test_good_values(name: str, text: str, value: object) -> None:
    assert getattr(Settings.from_env({name: text}), attribute(name)) == value


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("FOREWORD_UPSTREAM", "127.0.0.1:8000"),
        ("FOREWORD_UPSTREAM", "ftp://engine"),
        ("FOREWORD_UPSTREAM", "http://"),
        ("FOREWORD_UPSTREAM", "http://engine:99999"),
        ("FOREWORD_UPSTREAM", "http://engine:8000/v1"),
        ("FOREWORD_UPSTREAM", "http://me:key@engine"),
        ("FOREWORD_UPSTREAM", "unix:run/engine.sock"),
        ("FOREWORD_ENGINE", "vLLM"),
        ("FOREWORD_HOST", "http://0.0.0.0"),
        ("FOREWORD_PORT", "0"),
        ("FOREWORD_PORT", "8400.5"),
        ("FOREWORD_API_KEYS", "one,,two"),
        ("FOREWORD_UPSTREAM_API_KEY", "line\nbreak"),
        ("FOREWORD_MODEL_MAP", "claude-*"),
        ("FOREWORD_MODEL_MAP", "claude-*=,x=y"),
        ("FOREWORD_MESSAGES", "both"),
        ("FOREWORD_RULE_BILLING_HEADER", "maybe"),
        ("FOREWORD_RULE_LATE_SYSTEM", "head"),
        ("FOREWORD_USAGE", "gross"),
        ("FOREWORD_PING_SECONDS", "0"),
        ("FOREWORD_IDLE_SECONDS", "nan"),
        ("FOREWORD_IDLE_SECONDS", "inf"),
        ("FOREWORD_ANSWER_SECONDS", "an hour"),
        ("FOREWORD_MAX_BODY_MIB", "-1"),
        ("FOREWORD_LOG", "xml"),
        ("FOREWORD_LEDGER", "relative/ledger"),
        ("FOREWORD_LEDGER_MIB", "0"),
        ("FOREWORD_DIGEST_KEY", "short"),
        ("FOREWORD_CLICKHOUSE_URL", "ch:8123"),
        ("FOREWORD_CLICKHOUSE_URL", "http://ch:99999"),
        ("FOREWORD_CLICKHOUSE_URL", "http://ch/a-b"),
        ("FOREWORD_CLICKHOUSE_URL", "http://ch/db?table=a`b"),
        ("FOREWORD_CLICKHOUSE_URL", "http://ch/db?compress=1"),
        ("FOREWORD_CLICKHOUSE_URL", "http://me:a%zz@ch"),
        ("FOREWORD_CAPTURE", "captures"),
        ("FOREWORD_CAPTURE_REQUESTS", "1001"),
        ("FOREWORD_CAPTURE_SECONDS", "0"),
    ],
)
def test_wrong_values(name: str, text: str) -> None:
    with pytest.raises(SettingsError) as caught:
        Settings.from_env({name: text})
    (fault,) = caught.value.faults
    assert fault.startswith(f"{name} ")


def test_every_fault_is_named_at_once() -> None:
    wrong = {"FOREWORD_PORT": "x", "FOREWORD_UPSTREAM": "y", "FOREWORD_USAGE": "z"}
    with pytest.raises(SettingsError) as caught:
        Settings.from_env(wrong)
    assert sorted(fault.split()[0] for fault in caught.value.faults) == sorted(wrong)


def test_keys_are_never_shown() -> None:
    with pytest.raises(SettingsError) as caught:
        Settings.from_env(
            {
                "FOREWORD_UPSTREAM_API_KEY": "sec ret",
                "FOREWORD_API_KEYS": "hid\tden,",
                "FOREWORD_DIGEST_KEY": "tiny",
            }
        )
    assert "sec" not in str(caught.value)
    assert "hid" not in str(caught.value)
    assert "tiny" not in str(caught.value)
    settings = Settings.from_env({"FOREWORD_UPSTREAM_API_KEY": "secret", "FOREWORD_API_KEYS": "hidden"})
    assert "secret" not in repr(settings)
    assert "hidden" not in repr(settings)


@given(st.sampled_from(TABLE), st.text())
def test_any_text_is_a_value_or_a_fault(setting: Setting, text: str) -> None:
    name = setting.name
    try:
        Settings.from_env({name: text})
    except SettingsError as error:
        assert [fault.split()[0] for fault in error.faults] == [name]


def test_unknown_names_are_warned_of_with_a_guess() -> None:
    warnings = unknown_names(
        {"FOREWORD_UPSTRAEM": "x", "FOREWORD_PORT": "1", "HOME": "/", "FOREWORD_QQQQQQQ": ""}
    )
    assert warnings == [
        "FOREWORD_QQQQQQQ is not a setting of Foreword",
        "FOREWORD_UPSTRAEM is not a setting of Foreword; did you mean FOREWORD_UPSTREAM?",
    ]


def test_the_core_gets_every_name_that_its_stub_lists(root: Path) -> None:
    stub = (root / "proxy/foreword/_core.pyi").read_text()
    listed = stub.split("by their short names:")[1].split(".")[0]
    assert sorted(Settings.from_env({}).core_config()) == sorted(listed.replace(",", " ").split())


def test_help_and_markdown_name_every_setting_with_its_default() -> None:
    for setting in TABLE:
        assert f"  {setting.name}  ({setting.takes}; default {setting.default or 'none'})" in as_help()
        assert (
            f"| `{setting.name}` | {f'`{setting.default}`' if setting.default else 'none'} |" in as_markdown()
        )


@pytest.mark.parametrize("name", [s.name for s in TABLE if s.default.isdigit()])
def test_the_range_of_a_number_is_told_and_is_the_one_that_holds(name: str) -> None:
    (row,) = [line for line in as_markdown().splitlines() if line.startswith(f"| `{name}` |")]
    told = re.fullmatch(r"[a-zA-Z]+, ([\d.]+) to ([\d.]+)", row.split(" | ")[2])
    assert told, row
    least, most = told.groups()
    for text in (least, most):
        assert getattr(Settings.from_env({name: text}), attribute(name)) == float(text)
    for text in (str(float(least) - 0.05), str(int(least[:1]) - 1), str(int(most) + 1)):
        with pytest.raises(SettingsError):
            Settings.from_env({name: text})


def test_the_settings_page_is_in_step(root: Path) -> None:
    assert (root / "docs/settings.md").read_text() == as_markdown(), "run `make docs`"


def test_reading_settings_imports_no_server() -> None:
    code = "import sys, foreword.settings; print([m for m in ('granian', 'starlette', 'asyncio') if m in sys.modules])"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "[]"


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "[::1]"])
def test_the_engine_is_not_the_sidecar_itself(host: str) -> None:
    with pytest.raises(SettingsError, match="own address"):
        Settings.from_env({"FOREWORD_UPSTREAM": f"http://{host}:8400"})
    Settings.from_env({"FOREWORD_UPSTREAM": f"http://{host}:8401"})


def test_a_password_in_a_url_is_not_shown() -> None:
    with pytest.raises(SettingsError) as refused:
        Settings.from_env({"FOREWORD_UPSTREAM": "http://user:hunter2@engine"})
    assert "hunter2" not in str(refused.value)
