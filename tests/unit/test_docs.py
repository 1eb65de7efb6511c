"""What the documents name exists, and what exists is named."""

import re
import tomllib
from pathlib import Path

import pytest
from tests.conftest import ROOT

from foreword.metrics import HELP
from foreword.settings import PREFIX, TABLE

DOCUMENTS = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])


def by_name(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("document", DOCUMENTS, ids=by_name)
def test_links_lead_somewhere(document: Path) -> None:
    for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", document.read_text()):
        if "://" not in target:
            assert (document.parent / target).exists(), target


@pytest.mark.parametrize("document", DOCUMENTS, ids=by_name)
def test_settings_are_settings(document: Path) -> None:
    known = {setting.name for setting in TABLE}
    assert set(re.findall(rf"{PREFIX}[A-Z_]*[A-Z]", document.read_text())) <= known


@pytest.mark.parametrize("document", DOCUMENTS, ids=by_name)
def test_make_targets_are_targets(document: Path) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"(?:`|    )make ([a-z]+)", document.read_text())) <= targets


@pytest.mark.parametrize("document", DOCUMENTS, ids=by_name)
def test_metrics_are_metrics(document: Path) -> None:
    names = re.findall(r"\bforeword_([a-z0-9_]+)", document.read_text())
    assert set(names) <= set(HELP)


def test_every_metric_is_documented() -> None:
    table = (ROOT / "docs/metrics.md").read_text()
    assert set(HELP) <= set(re.findall(r"`([a-z0-9_]+)`", table))


def test_the_tests_that_docs_name_exist() -> None:
    text = (ROOT / "docs/strata.md").read_text()
    named = re.findall(r"`((?:tests|rust)/[a-z0-9_/]+\.(?:py|rs))(?:::([a-z_0-9]+))?`", text)
    assert named
    for path, name in named:
        assert f"def {name}(" in (ROOT / path).read_text() if name else (ROOT / path).exists(), (path, name)


def rust_dependencies() -> set[str]:
    names: set[str] = set()
    for manifest in [*ROOT.glob("rust/*/Cargo.toml"), ROOT / "loadtest/rig/Cargo.toml"]:
        document = tomllib.loads(manifest.read_text())
        for table in ("dependencies", "dev-dependencies", "build-dependencies"):
            names |= set(document.get(table, {}))
    return {name for name in names if not name.startswith("foreword-")}


def python_dependencies() -> set[str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"].values()
    requirements = [*project["dependencies"], *(name for extra in extras for name in extra)]
    return {re.split(r"[<>=!~\[ ]", requirement)[0] for requirement in requirements}


def test_every_dependency_has_its_reason_and_none_is_named_that_is_gone() -> None:
    text = (ROOT / "docs/architecture.md").read_text()
    section = text.partition("## Dependencies, each with its reason")[2]
    rust, _, python = section.partition("### Python")
    rows = re.findall(r"^\| (`[^|]+`) \|", rust, re.MULTILINE)
    assert set(re.findall(r"`([^`]+)`", " ".join(rows))) == rust_dependencies()
    assert python_dependencies() <= set(re.findall(r"`([^`]+)`", python))
    required = {row.strip("`") for row in re.findall(r"^\| (`[^|]+`) \|", python, re.MULTILINE)}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert required == {re.split(r"[<>=]", name)[0] for name in project["dependencies"]}


def test_the_folders_of_the_architecture_exist() -> None:
    table = (
        (ROOT / "docs/architecture.md").read_text().partition("## Folders")[2].partition("The direction")[0]
    )
    folders = re.findall(r"^\| `([^`]+)` \|", table, re.MULTILINE)
    assert folders
    assert all((ROOT / folder).is_dir() for folder in folders)


def test_the_locks_hold_every_dependency_with_hashes_and_no_host() -> None:
    for lock, names in (
        ("runtime", None),
        ("dev", python_dependencies() - {"locust"}),
        ("loadtest", {"locust"}),
    ):
        text = (ROOT / f"requirements/{lock}.txt").read_text()
        pins = dict(re.findall(r"^([a-z0-9-]+)==(\S+)", text, re.MULTILINE))
        assert names is None or names <= set(pins)
        blocks = re.split(r"^(?=[a-z0-9-]+==)", text, flags=re.MULTILINE)[1:]
        assert all("--hash=sha256:" in block for block in blocks)
        assert "://" not in text
        assert "--index-url" not in text
    runtime, dev = ((ROOT / f"requirements/{lock}.txt").read_text() for lock in ("runtime", "dev"))
    pinned = re.findall(r"^[a-z0-9-]+==\S+", runtime, re.MULTILINE)
    assert set(pinned) <= set(re.findall(r"^[a-z0-9-]+==\S+", dev, re.MULTILINE))
