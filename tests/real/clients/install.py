"""Installs the agents, each version in a folder of its own: ``python -m tests.real.clients.install``."""

import os
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

from tests.real.place import place


@dataclass(frozen=True)
class Package:
    """An npm package in one version, and the program in it."""

    name: str
    version: str
    program: str
    """Under node_modules; a .cjs file is run by Node."""
    postinstall: str | None = None
    """A script under node_modules without which the program does not start."""

    @property
    def folder(self) -> Path:
        return place() / "clients" / f"{self.name.rpartition('/')[2]}-{self.version}"

    @property
    def installed(self) -> bool:
        return (self.folder / ".complete").exists()

    def command(self) -> list[str]:
        program = str(self.folder / "node_modules" / self.program)
        return ["node", program] if program.endswith(".cjs") else [program]

    def install(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        # The programs come as optional packages for each platform, so that hardly any install script needs to run.
        arguments = ["--ignore-scripts", "--no-audit", "--no-fund", "--no-save", "--loglevel=error"]
        package = f"{self.name}@{self.version}"
        subprocess.run(["npm", "install", *arguments, "--prefix", str(self.folder), package], check=True)
        if self.postinstall is not None:
            subprocess.run(["node", str(self.folder / "node_modules" / self.postinstall)], check=True)
        (self.folder / ".complete").touch()


_OTHERS = dict(
    named.split("=", 1) for named in os.environ.get("FOREWORD_REAL_CLIENTS", "").split(",") if named
)


def _version(client: str, known: str) -> str:
    """The version that is known to work, or the one that FOREWORD_REAL_CLIENTS (``codex=0.160.1,...``) names."""
    return _OTHERS.get(client, known)


_CLAUDE_CODE = "@anthropic-ai/claude-code"
_WRAPPER = f"{_CLAUDE_CODE}/cli-wrapper.cjs"
CLAUDE_CODE = Package(_CLAUDE_CODE, _version("claude-code", "2.1.332"), _WRAPPER)
CLAUDE_CODE_OLD = Package(_CLAUDE_CODE, _version("claude-code-old", "2.1.116"), _WRAPPER)
"""Still sends another cch with every request."""
OPENCODE = Package(
    "opencode-ai", _version("opencode", "1.18.33"), ".bin/opencode", "opencode-ai/postinstall.mjs"
)
CODEX = Package("@openai/codex", _version("codex", "0.171.0"), ".bin/codex")
QWEN_CODE = Package("@qwen-code/qwen-code", _version("qwen-code", "0.24.4"), ".bin/qwen")
REASONIX = Package("reasonix", _version("reasonix", "1.38.11"), ".bin/reasonix")

ALL = (CLAUDE_CODE, CLAUDE_CODE_OLD, OPENCODE, CODEX, QWEN_CODE, REASONIX)


def main() -> None:
    for package in ALL:
        if not package.installed:
            print(f"{package.name} {package.version} -> {package.folder}", flush=True)
            began = time.monotonic()
            package.install()
            print(f"  {time.monotonic() - began:.0f} s", flush=True)


if __name__ == "__main__":
    main()
