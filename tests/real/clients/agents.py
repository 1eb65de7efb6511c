"""How each agent is told to use an engine, to run one turn, and where it prints what it used."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.real.clients import install
from tests.real.clients.install import Package
from tests.real.clients.script import FileTool, Usage

Json = dict[str, Any]

MODEL = "heron-1"
KEY = "no-key-is-needed"


@dataclass(frozen=True)
class Work:
    """One session: an empty home, a folder with the file, the sidecar's address."""

    home: Path
    folder: Path
    url: str

    @property
    def note(self) -> str:
        return str(self.folder / "note.txt")

    def write(self, path: str, text: str) -> None:
        file = self.home / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)


@dataclass(frozen=True)
class Turn:
    """One run of the program."""

    arguments: list[str]
    environment: dict[str, str] = field(default_factory=dict)


class Agent:
    """What the tests need to know of one agent."""

    name: str
    package: Package
    extends = True
    """Whether a resumed session extends the one before it; the agents that break this do it themselves."""

    def tool(self, work: Work) -> FileTool:
        raise NotImplementedError

    def turn(self, work: Work, prompt: str, *, resume: bool) -> Turn:
        raise NotImplementedError

    def answer(self, output: str) -> str:
        """The text that the user sees last."""
        return output

    def printed(self, work: Work, output: str) -> Usage:
        """The usage that the agent tells of a turn: the sum of the turn's requests."""
        raise NotImplementedError


def _lines(output: str) -> list[Json]:
    return [json.loads(line) for line in output.splitlines() if line.startswith("{")]


class ClaudeCode(Agent):
    def __init__(self, name: str, package: Package) -> None:
        self.name = name
        self.package = package

    def tool(self, work: Work) -> FileTool:
        return FileTool("Read", {"file_path": work.note})

    def turn(self, work: Work, prompt: str, *, resume: bool) -> Turn:
        environment = {
            "ANTHROPIC_BASE_URL": work.url,
            "ANTHROPIC_API_KEY": KEY,
            "ANTHROPIC_MODEL": MODEL,
            "ANTHROPIC_DEFAULT_HAIKU_MODEL": MODEL,
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            "DISABLE_AUTOUPDATER": "1",
        }
        resumed = ["--continue"] if resume else []
        return Turn(["-p", prompt, "--output-format", "json", *resumed], environment)

    def answer(self, output: str) -> str:
        result: str = json.loads(output)["result"]
        return result

    def printed(self, work: Work, output: str) -> Usage:
        usage = json.loads(output)["usage"]
        cached = usage["cache_read_input_tokens"]
        prompt = usage["input_tokens"] + cached + usage["cache_creation_input_tokens"]
        return Usage(prompt, cached, usage["output_tokens"])


class Opencode(Agent):
    package = install.OPENCODE

    def __init__(self, name: str, library: str) -> None:
        self.name = name
        self._library = library

    def tool(self, work: Work) -> FileTool:
        return FileTool("read", {"filePath": work.note})

    def turn(self, work: Work, prompt: str, *, resume: bool) -> Turn:
        provider = {
            "npm": self._library,
            "options": {"baseURL": f"{work.url}/v1", "apiKey": KEY},
            "models": {MODEL: {"limit": {"context": 200_000, "output": 8192}}},
        }
        settings: Json = {
            "provider": {"local": provider},
            "model": f"local/{MODEL}",
            "small_model": f"local/{MODEL}",
        }
        settings |= {"autoupdate": False, "share": "disabled"}
        environment = {"OPENCODE_CONFIG_CONTENT": json.dumps(settings), "OPENCODE_DISABLE_MODELS_FETCH": "1"}
        resumed = ["--continue"] if resume else []
        return Turn(["run", "--format", "json", *resumed, prompt], environment)

    def answer(self, output: str) -> str:
        texts = [line["part"]["text"] for line in _lines(output) if line["type"] == "text"]
        return str(texts[-1])

    def printed(self, work: Work, output: str) -> Usage:
        steps = [line["part"]["tokens"] for line in _lines(output) if line["type"] == "step_finish"]
        cached = sum(step["cache"]["read"] for step in steps)
        prompt = cached + sum(step["input"] + step["cache"]["write"] for step in steps)
        return Usage(prompt, cached, sum(step["output"] for step in steps))


class Codex(Agent):
    name = "codex"
    package = install.CODEX

    def tool(self, work: Work) -> FileTool:
        return FileTool("exec_command", {"cmd": f"cat {work.note}"})

    def turn(self, work: Work, prompt: str, *, resume: bool) -> Turn:
        work.write(
            ".codex/config.toml",
            f'model = "{MODEL}"\nmodel_provider = "local"\n'
            f'[model_providers.local]\nname = "local"\nbase_url = "{work.url}/v1"\n'
            'wire_api = "responses"\nenv_key = "LOCAL_KEY"\n',
        )
        resumed = ["resume", "--last"] if resume else []
        # Its own sandbox cannot be set up inside the namespace of the tests.
        options = ["--json", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox"]
        return Turn(["exec", *resumed, *options, prompt], {"LOCAL_KEY": KEY})

    def answer(self, output: str) -> str:
        items = [line["item"] for line in _lines(output) if line["type"] == "item.completed"]
        return str([item["text"] for item in items if item["type"] == "agent_message"][-1])

    def printed(self, work: Work, output: str) -> Usage:
        usage = next(line["usage"] for line in _lines(output) if line["type"] == "turn.completed")
        return Usage(usage["input_tokens"], usage["cached_input_tokens"], usage["output_tokens"])


class QwenCode(Agent):
    package = install.QWEN_CODE
    extends = False  # --continue takes the date out of the first user message

    def __init__(self, name: str, kind: str) -> None:
        self.name = name
        self._kind = kind

    def tool(self, work: Work) -> FileTool:
        return FileTool("read_file", {"file_path": work.note})

    def turn(self, work: Work, prompt: str, *, resume: bool) -> Turn:
        prefix = self._kind.upper()
        url = f"{work.url}/v1" if self._kind == "openai" else work.url
        environment = {f"{prefix}_API_KEY": KEY, f"{prefix}_BASE_URL": url, f"{prefix}_MODEL": MODEL}
        resumed = ["--continue"] if resume else []
        return Turn(
            ["-p", prompt, "--auth-type", self._kind, "--output-format", "json", *resumed], environment
        )

    def answer(self, output: str) -> str:
        return str(json.loads(output)[-1]["result"])

    def printed(self, work: Work, output: str) -> Usage:
        usage = json.loads(output)[-1]["usage"]
        return Usage(usage["input_tokens"], usage.get("cache_read_input_tokens", 0), usage["output_tokens"])


class Reasonix(Agent):
    name = "reasonix"
    package = install.REASONIX

    def tool(self, work: Work) -> FileTool:
        return FileTool("read_file", {"path": work.note})

    def turn(self, work: Work, prompt: str, *, resume: bool) -> Turn:
        (work.folder / "reasonix.toml").write_text(
            f'default_model = "local/{MODEL}"\n[[providers]]\nname = "local"\nkind = "openai"\n'
            f'base_url = "{work.url}/v1"\nmodels = ["{MODEL}"]\ndefault = "{MODEL}"\napi_key_env = "LOCAL_KEY"\n'
        )
        resumed = ["--continue"] if resume else []
        return Turn(["run", *resumed, "--metrics", str(work.home / "used.json"), prompt], {"LOCAL_KEY": KEY})

    def printed(self, work: Work, output: str) -> Usage:
        used = json.loads((work.home / "used.json").read_text())
        return Usage(used["prompt_tokens"], used["cache_hit_tokens"], used["completion_tokens"])


AGENTS: tuple[Agent, ...] = (
    ClaudeCode("claude-code", install.CLAUDE_CODE),
    ClaudeCode("claude-code-old", install.CLAUDE_CODE_OLD),
    Opencode("opencode-chat", "@ai-sdk/openai-compatible"),
    Opencode("opencode-messages", "@ai-sdk/anthropic"),
    Codex(),
    QwenCode("qwen-code-chat", "openai"),
    QwenCode("qwen-code-messages", "anthropic"),
    Reasonix(),
)
