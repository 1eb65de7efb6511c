"""Starts and stops a vLLM.

``python -m tests.real.engine.server [VERSION] [--port N] [--system-first]`` runs one until it is interrupted.
"""

from __future__ import annotations

import argparse
import base64
import json
import os
import signal
import subprocess
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self

from tests.http.sidecar import Response, Stream, free_port
from tests.real.engine import install
from tests.real.engine.versions import NEW
from tests.real.patience import ANSWER_SECONDS, START_SECONDS

HERE = Path(__file__).parent
BLOCK = 32
"""Tokens in a block of the prefix cache. (vLLM's usual 16 does not work on CPUs.)"""

MODEL = "tiny"

LateSystem = Literal["in-place", "refused"]
"""What the chat template does with a system message that is not the first."""

_LATE_SYSTEM = {
    "in-place": "{{- '<|im_start|>system\\n' + text(message.content) + '<|im_end|>\\n' -}}",
    "refused": "{{- raise_exception('A system message must be the first.') -}}",
}


def script(text: str, delay: float = 0.0) -> str:
    """A mark that, anywhere in a prompt, makes the model answer ``text``; see plugin/scripted.py. Seconds a token."""
    code = json.dumps({"text": text, "delay": delay}).encode()
    return f"say:{base64.urlsafe_b64encode(code).decode()}:yas"


def call(name: str, arguments: dict[str, Any]) -> str:
    """A tool call as the model would write it."""
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


@dataclass(frozen=True)
class Used:
    """The engine's own count of one request, in tokens."""

    prompt: int
    cached: int
    completion: int

    @classmethod
    def of(cls, answer: dict[str, Any]) -> Self:
        """From a whole answer of the chat API."""
        usage = answer["usage"]
        details = usage["prompt_tokens_details"] or {}
        return cls(usage["prompt_tokens"], details.get("cached_tokens", 0), usage["completion_tokens"])


class Server:
    """A running vLLM of ``version`` on a free port of the loopback.

    ``context`` in tokens, if not the model's own; ``reports``: whether its answers tell how much was cached.
    """

    def __init__(
        self,
        version: str,
        late_system: LateSystem = "in-place",
        port: int | None = None,
        *,
        context: int | None = None,
        reports: bool = True,
    ) -> None:
        self.version = version
        self.port = free_port() if port is None else port
        self.url = f"http://127.0.0.1:{self.port}"
        self._folder = tempfile.TemporaryDirectory(prefix="foreword-vllm-")
        folder = Path(self._folder.name)
        self.log = folder / "log"
        template = (HERE / "template.jinja").read_text().replace("LATE_SYSTEM", _LATE_SYSTEM[late_system])
        (folder / "template.jinja").write_text(template)
        self._environment = {
            **os.environ,
            "PYTHONPATH": f"{install.site(version)}:{HERE / 'plugin'}",
            "PATH": f"{install.environment() / 'bin'}:{os.environ['PATH']}",
            "HF_HUB_OFFLINE": "1",
            "TRANSFORMERS_OFFLINE": "1",
            "VLLM_NO_USAGE_STATS": "1",
            "VLLM_CACHE_ROOT": str(folder / "cache"),
            "VLLM_CONFIG_ROOT": str(folder / "configuration"),
            "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB
            "VLLM_HOST_IP": "127.0.0.1",  # else it looks for an address, which there may not be
            "GLOO_SOCKET_IFNAME": "lo",
            "VLLM_SERVER_DEV_MODE": "1",  # for /reset_prefix_cache
        }
        # Compiling all of torch anew would double the start.
        self._environment.pop("PYTHONDONTWRITEBYTECODE", None)
        self._command = [
            *_command(context),
            *(("--enable-prompt-tokens-details",) if reports else ()),
            *("--port", str(self.port)),
            *("--chat-template", str(folder / "template.jinja")),
        ]
        self._start()

    def get(self, path: str) -> Response:
        with Stream(self.port, "GET", path, None, {}, seconds=ANSWER_SECONDS) as stream:
            return stream.whole()

    def post(self, path: str, body: dict[str, Any] | bytes) -> Response:
        with Stream(self.port, "POST", path, body, {}, seconds=ANSWER_SECONDS) as stream:
            return stream.whole()

    def tokens(self, **body: Any) -> list[int]:
        """The rendered and tokenised prompt of a chat request."""
        answer = self.post("/tokenize", {"model": MODEL, **body})
        assert answer.status == 200, answer.body
        tokens: list[int] = answer.json()["tokens"]
        return tokens

    def forget(self) -> None:
        """Empties the prefix cache."""
        assert self.post("/reset_prefix_cache", b"").status == 200

    def metric(self, name: str, **labels: str) -> float:
        """The sum of the samples of ``name`` that have these labels."""
        total = 0.0
        for line in self.get("/metrics").body.decode().splitlines():
            sample, _, value = line.rpartition(" ")
            if sample.partition("{")[0] == name and all(f'{k}="{v}"' in sample for k, v in labels.items()):
                total += float(value)
        return total

    def running(self) -> int:
        return int(self.metric("vllm:num_requests_running") + self.metric("vllm:num_requests_waiting"))

    def restart(self) -> None:
        """Ends the process and starts it anew at the same address."""
        self._end()
        self._start()

    def stop(self) -> None:
        """Ends the server and the workers that it started."""
        self._end()
        self._folder.cleanup()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _start(self) -> None:
        with self.log.open("ab") as output:
            self.process = subprocess.Popen(
                self._command,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        try:
            self._wait_until_up()
        except BaseException:
            self.stop()
            raise

    def _end(self) -> None:
        self.process.send_signal(signal.SIGINT)  # SIGTERM would leave a worker behind
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()

    def _wait_until_up(self) -> None:
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline and self.process.poll() is None:
            try:
                if self.get("/health").status == 200:
                    return
            except OSError:
                pass
            time.sleep(0.5)
        raise AssertionError(f"vLLM {self.version} did not start:\n{self.log.read_text()[-5000:]}")


def _command(context: int | None) -> list[str]:
    overrides = {} if context is None else {"max_position_embeddings": context}
    return [
        str(install.python()), "-m", "vllm.entrypoints.cli.main", "serve", str(install.model()),
        "--served-model-name", MODEL, "--host", "127.0.0.1", "--enforce-eager",
        "--max-num-seqs", "8", "--block-size", str(BLOCK),
        "--enable-prefix-caching",
        "--hf-overrides", json.dumps(overrides),
        "--enable-auto-tool-choice", "--tool-call-parser", "hermes", "--reasoning-parser", "qwen3",
        "--logits-processors", "scripted:Scripted",
        # A model that talks noise would fill every place where a grammar allows white space with it.
        "--structured-outputs-config", '{"backend": "xgrammar", "disable_any_whitespace": true}',
    ]  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("version", nargs="?", default=NEW)
    parser.add_argument("--port", type=int)
    parser.add_argument(
        "--system-first", action="store_true", help="a template that refuses late system messages"
    )
    given = parser.parse_args()
    with Server(given.version, "refused" if given.system_first else "in-place", given.port) as server:
        print(f"vLLM {server.version} on {server.url}, log {server.log}; Ctrl-C ends it", flush=True)
        with suppress(KeyboardInterrupt):
            server.process.wait()


if __name__ == "__main__":
    main()
